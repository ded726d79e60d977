"""The rows of the table: pure functions of the observations."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from benchmarks.compare.runs import Observation, Phase
from benchmarks.compare.scripts import CURRENCIES, DAYS, GUIDE, LOG_MARK, LOSER, LOSERS_FILE, REASON, TASKS
from benchmarks.compare.server import Request

_KEPT_STEPS = {"kill": 3, "fork": 2, "approval": 2}
"""Steps that a task completes before it is interrupted, or to which it goes back."""
_WHERE = re.compile(r"directory=(\S+) ticket=(\S+)")
Cells = dict[str, str]


def describe(task: str, seen: Observation) -> Cells:
    """Return the cells of one project in a task, by the labels of their rows."""
    return _DESCRIPTIONS[task](seen)


def _describe_fix(seen: Observation) -> Cells:
    (phase,) = seen.phases
    directory, variable = _find_shell(phase)
    return {
        "The test passes": _format_answer(seen.tests_pass),
        "Directory and variable persist between commands": _format_answer(directory and variable),
        "Model requests": str(len(phase.requests)),
        "Characters of the last prompt, without tool schemas": f"{len(phase.requests[-1].text):,}",
    }


def _describe_kill(seen: Observation) -> Cells:
    before, after = seen.phases
    lines = _lines(after, "effects.txt")
    directory, variable = _find_shell(after)
    return {
        "Results of the 3 earlier steps in the first prompt": _count_kept("kill", after.requests[0]),
        "Model replies requested again": _count_repeated(before, after),
        "Effect of the first step (1 is right)": str(len(_lines(after, "log.txt"))),
        "Interrupted command: begun, ended (1, 1 is right)": f"{lines.count('begun')}, {lines.count('ended')}",
        "Edit kept": _format_answer("discount / 100)" in after.files["prices.py"]),
        "Directory kept": _format_answer(directory),
        "Shell variable kept": _format_answer(variable),
        "The agent finishes": _format_answer(_is_finished("kill", "coder", after)),
    }


def _describe_handoff(seen: Observation) -> Cells:
    (phase,) = seen.phases
    theirs = [each for each in phase.requests if each.model == "fixer"]
    last = [each for each in phase.requests if each.model == "finder" and each.step == 3][-1]
    first_result = next(each.results[0].text for each in theirs if each.step == 1)
    directory, variable = _find_shell(phase)
    return {
        "The reason reaches the successor": _format_answer(REASON in theirs[0].text),
        "The predecessor's long output reaches the successor": _format_answer(LOG_MARK in theirs[0].text),
        "Characters of the first prompt (of the predecessor's last)": f"{len(theirs[0].text):,} "
        f"({len(last.text):,})",
        "Requests before the successor's first action": str(sum(each.step == 0 for each in theirs)),
        "Files as the predecessor left them": _format_answer("checked" in first_result),
        "Directory and variable carried over": _format_answer(directory and variable),
        "The test passes": _format_answer(seen.tests_pass),
    }


def _describe_fork(seen: Observation) -> Cells:
    _, fork = seen.phases
    printed = next(each.results[-1].text for each in fork.requests if each.step == 1)
    return {
        "Results of the 2 steps in the first prompt": _count_kept("fork", fork.requests[0]),
        "Files that the fork sees (1 2 is right)": " ".join(re.findall(r"^[1-5]$", printed, re.MULTILINE)),
        "Files at the end of the fork (1 2 fork is right)": " ".join(_lines(fork, "log.txt")),
    }


def _describe_approval(seen: Observation) -> Cells:
    before, after = seen.phases
    directory, variable = _find_shell(after)
    return {
        "Risky command executed before the approval": str(len(_lines(before, "effects.txt"))),
        "First process": "killed at its prompt"
        if before.killed
        else "ended by itself, with the question saved",
        "Risky command executed after the approval (1 is right)": str(len(_lines(after, "effects.txt"))),
        "Results of the 2 earlier steps in the first prompt": _count_kept("approval", after.requests[0]),
        "Model replies requested again": _count_repeated(before, after),
        "Effect of the first step (1 is right)": str(len(_lines(after, "log.txt"))),
        "Directory and variable kept": _format_answer(directory and variable),
    }


def _describe_parallel(seen: Observation) -> Cells:
    own = seen.phases[0]
    views = [_find_view(phase) for phase in seen.phases]
    group = TASKS["parallel"].groups[0]
    steps = [each.step for each in own.requests if each.model in group]
    reads = steps[: steps.index(2)].count(1) if 2 in steps else steps.count(1)
    reports = [
        f"{view.text}\n{phase.output}".count("conflict")
        for view, phase in zip(views, seen.phases, strict=True)
    ]
    shown, currencies = (view.results[-1].text for view in views)
    return {
        "Workers that read the file before the first one wrote it": f"{reads} of {len(group)}",
        "Own files that the next step sees": _count_all([f"worker-{number}" for number in (1, 2, 3)], shown),
        "One file, each writes it whole: changes that the next step sees": _count_changes(GUIDE, shown),
        "One file, exact edits in turn: changes that the next step sees": _count_changes(DAYS, shown),
        "One line, each writes another text: texts that the next step sees": _count_all(
            CURRENCIES, currencies
        ),
        "The next step gets a report of this conflict": _format_answer(reports[1] > reports[0]),
    }


def _describe_choose(seen: Observation) -> Cells:
    (phase,) = seen.phases
    directory, variable = _find_shell(phase)
    last = next(each for each in phase.requests if each.model == "closer")
    attempts = sorted({each.model for each in last.results} & {"first", "second"})
    lost = phase.files.get("loser.txt", "")
    return {
        "Directory and variable of the preparation kept in an attempt": _format_answer(
            directory and variable
        ),
        "The test passes": _format_answer(seen.tests_pass),
        "Effect of the preparation (1 is right)": str(len(_lines(phase, "log.txt"))),
        "The losing attempt's new file is absent": _format_answer("stray.txt" not in phase.files),
        "Attempts in the conversation afterwards (second is right)": ", ".join(attempts) or "none",
        "The losing attempt can be read afterwards: conversation, files": f"{_format_answer(LOSER in lost)}, "
        f"{_format_answer(LOSERS_FILE in lost)}",
    }


_DESCRIPTIONS: dict[str, Callable[[Observation], Cells]] = {
    "fix": _describe_fix,
    "kill": _describe_kill,
    "handoff": _describe_handoff,
    "fork": _describe_fork,
    "approval": _describe_approval,
    "parallel": _describe_parallel,
    "choose": _describe_choose,
}


def _format_answer(holds: bool) -> str:
    return "yes" if holds else "no"


def _lines(phase: Phase, name: str) -> list[str]:
    return phase.files.get(name, "").split()


def _find_shell(phase: Phase) -> tuple[bool, bool]:
    """Whether directory and variable were kept, as the agent's own command reports."""
    texts = [result.text for request in phase.requests for result in request.results]
    found = next(match for text in texts if (match := _WHERE.search(text)))
    return found[1] == "docs", found[2] == "42"


def _count_kept(task: str, first: Request) -> str:
    """How many results of the completed steps the first prompt after the interruption contains."""
    kept = _KEPT_STEPS[task]
    return f"{min(kept, sum(each.model == 'coder' for each in first.results))} of {kept}"


def _count_repeated(before: Phase, after: Phase) -> str:
    known = {request.step for request in before.requests}
    return str(sum(request.step in known for request in after.requests))


def _count_changes(lines: Sequence[str], shown: str) -> str:
    """How many of the lines have the change of their worker."""
    return _count_all([f"{line} (step {number})" for number, line in enumerate(lines, 1)], shown)


def _count_all(texts: Sequence[str], shown: str) -> str:
    return f"{sum(text in shown for text in texts)} of {len(texts)}"


def _find_view(phase: Phase) -> Request:
    """The request with which the next step, after the workers, has looked at the files."""
    return [each for each in phase.requests if each.model in ("reader", "lead") and each.results][-1]


def _is_finished(task: str, model: str, phase: Phase) -> bool:
    return phase.requests[-1].step == len(TASKS[task].scripts[model]) - 1
