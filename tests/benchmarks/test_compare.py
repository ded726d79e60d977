"""`make compare`: the page equals the programs and the stored results; what is observed is what the programs did."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare import page
from benchmarks.compare.environments import PROJECTS, InstallError, prepare
from benchmarks.compare.observations import describe
from benchmarks.compare.runs import PROGRAMS, ROOT, Observation, Phase, ProgramError, run_task
from benchmarks.compare.scripts import (
    CURRENCIES,
    DAYS,
    GUIDE,
    LOG_MARK,
    LOSER,
    LOSERS_FILE,
    REASON,
    TASKS,
    Edit,
    Finish,
    HandOver,
    Shell,
)
from benchmarks.compare.server import Request, Result, ScriptedServer, ToolCall, build_call

from ..conftest import skip_missing
from ..random_examples import draw

_FIXED = {"prices.py": "return sum(prices) * (1 - discount / 100)\n"}


def _run_compare(*words: str | Path, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.compare", *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def _request(index: int, *results: str, model: str = "coder", by: str = "", text: str = "") -> Request:
    return Request(model, index, tuple(Result(by or model, each) for each in results), text)


def test_the_page_has_the_stored_results_and_the_programs() -> None:
    """After a change: `make compare`, or `python -m benchmarks.compare --page` for the text alone."""
    stored = page.load_results()
    text = page.PAGE.read_text()
    assert text == page.format_page(stored)
    assert {(each.project, each.task) for each in stored.results} == {(n, t) for n in PROJECTS for t in TASKS}
    for result in stored.results:
        for label, value in result.cells.items():
            row = next(
                line for line in text.splitlines() if line.startswith(f"| {label} |") and value in line
            )
            assert value in row
    for project in PROJECTS:
        for task in TASKS:
            assert (PROGRAMS / project / f"{task}.py").read_text().strip() in text


def test_the_versions_are_the_pinned_ones() -> None:
    versions = page.load_results().versions
    for name, project in PROJECTS.items():
        if name != "takeover":
            pinned = (page.REQUIREMENTS / f"{name}.txt").read_text().splitlines()
            assert f"{project.package}=={versions[name]}" in pinned
            assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line) for line in pinned)


def test_every_task_and_project_has_a_cited_offer() -> None:
    offers = page.load_offers()
    for task in TASKS:
        for name in PROJECTS:
            _, link = offers[task][name]
            assert link.startswith("https://") or (ROOT / "docs" / link.split("#")[0]).is_file()


def test_a_lost_command_and_a_repeated_one_are_seen() -> None:
    before = Phase("start", tuple(_request(number) for number in range(4)), True, {})
    repeated = Phase(
        "resume",
        (_request(3, "", "", ""), _request(4), _request(5, "directory=repository ticket=unset")),
        False,
        {**_FIXED, "log.txt": "step-1\n", "effects.txt": "begun\nended\nbegun\nended\n"},
    )
    cells = describe("kill", Observation((before, repeated), True))
    assert cells["Interrupted command: begun, ended (1, 1 is right)"] == "2, 2"
    assert cells["Model replies requested again"] == "1"
    assert cells["Results of the 3 earlier steps in the first prompt"] == "3 of 3"
    assert (cells["Directory kept"], cells["Shell variable kept"], cells["The agent finishes"]) == (
        "no",
        "no",
        "yes",
    )

    restarted = Phase(
        "resume",
        (*(_request(number) for number in range(4)), _request(4, "directory=docs ticket=42")),
        False,
        {"prices.py": "", "log.txt": "step-1\nstep-1\n"},
    )
    cells = describe("kill", Observation((before, restarted), False))
    assert cells["Interrupted command: begun, ended (1, 1 is right)"] == "0, 0"
    assert cells["Effect of the first step (1 is right)"] == "2"
    assert cells["Model replies requested again"] == "4"
    assert cells["Results of the 3 earlier steps in the first prompt"] == "0 of 3"
    assert (cells["Edit kept"], cells["Directory kept"], cells["The agent finishes"]) == ("no", "yes", "no")


def test_what_a_successor_gets_is_seen() -> None:
    finder = [_request(number, model="finder", text="x" * 1000) for number in range(4)]

    def describe_handoff(first_prompt: str, printed: str) -> dict[str, str]:
        fixer = [
            _request(0, model="fixer", text=first_prompt),
            _request(1, printed, model="fixer"),
        ]
        return describe("handoff", Observation((Phase("start", (*finder, *fixer), False, _FIXED),), True))

    cells = describe_handoff(f"Fix it. {REASON}", "checked\ndirectory=docs ticket=42")
    assert [*cells.values()] == ["yes", "no", f"{len(REASON) + 8} (1,000)", "1", "yes", "yes", "yes"]
    cells = describe_handoff(f"Fix it. {LOG_MARK}", "directory=docs ticket=unset")
    assert [*cells.values()][:2] + [*cells.values()][4:6] == ["no", "yes", "no", "no"]


def test_the_files_of_a_fork_and_an_early_command_are_seen() -> None:
    start = Phase("start", (), False, {})
    fork = Phase(
        "fork",
        (
            _request(0, "", "", model="second-coder", by="coder"),
            _request(1, "1\n2\n3\n", model="second-coder"),
        ),
        False,
        {"log.txt": "1\n2\n3\nfork\n"},
    )
    assert [*describe("fork", Observation((start, fork), False)).values()] == [
        "2 of 2",
        "1 2 3",
        "1 2 3 fork",
    ]
    early = Phase("start", (_request(2),), True, {"effects.txt": "removed\n"})
    approve = Phase(
        "approve", (_request(3, "directory=docs ticket=42"),), False, {"effects.txt": "removed\nremoved"}
    )
    cells = describe("approval", Observation((early, approve), False))
    assert cells["Risky command executed before the approval"] == "1"
    assert cells["Risky command executed after the approval (1 is right)"] == "2"
    assert cells["First process"] == "killed at its prompt"


def test_lost_changes_of_parallel_workers_are_seen() -> None:
    def work(phase: str, steps: list[int], shown: str, text: str = "") -> Phase:
        workers = [_request(step, model=f"{phase}-{number}") for step in steps for number in (1, 2, 3)]
        return Phase(phase, (*workers, _request(1, shown, model="reader", text=text)), False, {})

    guide, day = f"{GUIDE[1]} (step 2)", f"{DAYS[0]} (step 1)"
    own = work("own-line", [0, 1, 2, 3], f"{guide}\n{day}\nworker-1.txt\nworker-3.txt")
    same = work("same-line", [0, 1, 2], f"Prices are in {CURRENCIES[1]}.")
    assert [*describe("parallel", Observation((own, same), True)).values()] == [
        "3 of 3",
        "2 of 3",
        "1 of 3",
        "1 of 3",
        "1 of 3",
        "no",
    ]
    alone = work("own-line", [0], "worker-1.txt", "conflict")
    early = Phase(
        "own-line",
        (_request(1, model="own-line-1"), _request(2, model="own-line-1"), *alone.requests),
        False,
        {},
    )
    told = work(
        "same-line", [0, 1, 2], " ".join(CURRENCIES), "conflict in docs/notes.md: a conflict of 3 branches"
    )
    cells = [*describe("parallel", Observation((early, told), True)).values()]
    assert (cells[0], cells[4:]) == ("1 of 3", ["3 of 3", "yes"])
    assert [
        *describe("parallel", Observation((alone, told._replace(requests=alone.requests)), True)).values()
    ][-1] == "no"


def test_the_attempts_in_a_conversation_are_seen() -> None:
    where = Result("second", "directory=docs ticket=unset")
    closer = _request(0, model="closer")._replace(results=(where, Result("first", "")))
    files = {"log.txt": "prepared\nprepared\n", "stray.txt": "", "loser.txt": LOSER}
    cells = describe("choose", Observation((Phase("start", (closer,), False, files),), False))
    assert [*cells.values()] == ["no", "no", "2", "no", "first, second", "yes, no"]
    right = closer._replace(results=(Result("second", "directory=docs ticket=42"),))
    files = {"log.txt": "prepared\n", "loser.txt": LOSERS_FILE}
    cells = describe("choose", Observation((Phase("start", (right,), False, files),), True))
    assert [*cells.values()] == ["yes", "yes", "1", "yes", "second", "no, yes"]


@pytest.mark.parametrize(
    ("tools", "calls"),
    [
        (("shell", "editor", "finish", "handoff"), ("shell", "editor", "handoff", "finish")),
        (
            ("exec_command", "apply_patch", "transfer_to_fixer"),
            ("exec_command", "apply_patch", "transfer_to_fixer", ""),
        ),
        (("execute", "edit_file", "task"), ("execute", "edit_file", "task", "")),
        (("bash",), ("bash", "bash", "bash", "bash")),
    ],
)
def test_an_action_is_expressed_with_the_tools_of_the_request(
    tools: tuple[str, ...], calls: tuple[str, ...]
) -> None:
    actions = (
        Shell("ls"),
        Edit("prices.py", "discount / 10)", "discount / 100)"),
        HandOver("why"),
        Finish("end"),
    )
    built = [build_call(each, dict.fromkeys(tools)) for each in actions]
    assert tuple(each.name if isinstance(each, ToolCall) else "" for each in built) == calls


def _post(server: ScriptedServer, path: str, model: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the calls of the answer."""
    key = "messages" if path == "chat/completions" else "input"
    tools = [{"type": "function", "function": {"name": name}, "name": name} for name in ("execute", "task")]
    body = json.dumps({"model": model, key: items, "tools": tools}).encode()
    request = urllib.request.Request(f"{server.url}/{path}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        answered: dict[str, Any] = json.load(answer)
    if key == "input":
        return [each for each in answered["output"] if each["type"] == "function_call"]
    calls = answered["choices"][0]["message"].get("tool_calls", ())
    return [{"call_id": call["id"], **call["function"]} for call in calls]


def _answer_call(path: str, call: dict[str, Any]) -> dict[str, Any]:
    if path == "chat/completions":
        return {"role": "tool", "tool_call_id": call["call_id"], "content": "done"}
    return {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}


_TASK = {"role": "user", "content": "Go."}


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_the_next_action_depends_on_the_results_in_the_request(path: str) -> None:
    with ScriptedServer(TASKS["fork"].scripts) as server:
        (first,) = _post(server, path, "coder", [_TASK])
        (second,) = _post(server, path, "coder", [_TASK, _answer_call(path, first)])
        (again,) = _post(server, path, "coder", [_TASK])
        assert [json.loads(each["arguments"])["command"][5] for each in (first, second, again)] == [
            "1",
            "2",
            "1",
        ]
        assert [each.step for each in server.requests] == [0, 1, 0]
        assert server.requests[1].results == (Result("coder", "done"),)


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_calls_of_one_reply_are_one_step(path: str) -> None:
    with ScriptedServer(TASKS["parallel"].scripts) as server:
        calls = _post(server, path, "lead", [_TASK])
        agents = [json.loads(each["arguments"])["subagent_type"] for each in calls]
        assert agents == ["worker-1", "worker-2", "worker-3"]
        (after,) = _post(server, path, "lead", [_TASK, *(_answer_call(path, each) for each in calls)])
        assert after["name"] == "execute"
        assert [each.step for each in server.requests] == [0, 1]
        assert [each.model for each in server.requests[1].results] == ["lead"] * 3


def test_workers_write_when_all_have_read_and_edit_in_turn() -> None:
    path, names = "chat/completions", TASKS["parallel"].groups[0]
    present: list[set[str]] = []
    edits: list[str] = []
    with ScriptedServer(TASKS["parallel"].scripts, TASKS["parallel"].groups) as server:

        def work(name: str) -> None:
            items = [_TASK]
            for step in range(4):
                items += [_answer_call(path, each) for each in _post(server, path, name, items)]
                if step == 1:
                    present.append({each.model for each in server.requests if each.step == 1})
                elif step == 2:
                    edits.append(name)

        threads = [threading.Thread(target=work, args=(name,)) for name in reversed(names)]
        for thread in threads:
            thread.start()
            thread.join(0.2)  # time to write, if the server does not wait for the others
        for thread in threads:
            thread.join()
    assert present == [set(names)] * 3
    assert edits == [*names]


def test_a_failing_program_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "fix.py").write_text("raise SystemExit('no such model')\n")
    monkeypatch.setattr("benchmarks.compare.runs.PROGRAMS", tmp_path)
    with pytest.raises(ProgramError, match=r"^broken/fix\.py start: exit code 1: no such model \(see .*\)$"):
        run_task(TASKS["fix"], "fix", "broken", Path(sys.executable), tmp_path / "work")


@pytest.mark.slow
def test_packages_that_do_not_exist_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deepagents.txt").write_text("not/a/requirement==1\n")
    monkeypatch.setattr("benchmarks.compare.environments.REQUIREMENTS", tmp_path)
    with pytest.raises(InstallError, match=r"^deepagents: [^\n]*\(check [^\n]*\)$"):
        prepare("deepagents", print, tmp_path / "cache")
    assert not (tmp_path / "cache" / "deepagents" / "installed").exists()


def test_an_unknown_project_or_task_is_a_usage_error() -> None:
    done = _run_compare("--only", "takeover,autogpt")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: --only autogpt: unknown (choose from: takeover, ")


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("project", PROJECTS)
def test_a_new_run_gives_the_stored_values(project: str, tmp_path: Path) -> None:
    try:
        prepare(project, print)
    except InstallError as error:
        skip_missing(str(error))
    tasks = draw(("kill", "fork", "parallel", "choose"), 1, project)
    done = _run_compare("--only", project, "--tasks", ",".join(tasks), "--out", tmp_path, timeout_s=900)
    assert done.returncode == 0, done.stderr
    measured = page.load_results(tmp_path / "results.json").results
    stored = [each for each in page.load_results().results if each.project == project]
    assert {each.task: each.cells for each in measured} == {
        each.task: each.cells for each in stored if each.task in tasks
    }
    assert (tmp_path / "comparison.md").read_text().startswith("# Comparison")


@pytest.mark.slow
def test_an_interrupted_comparison_continues(tmp_path: Path) -> None:
    words = [
        "-m",
        "benchmarks.compare",
        "--only",
        "takeover",
        "--tasks",
        "fix,handoff",
        "--out",
        str(tmp_path),
    ]
    first = subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert first.stderr is not None
    for line in first.stderr:
        if TASKS["handoff"].title in line:
            first.send_signal(signal.SIGINT)
            break
    assert first.stderr.read() == "interrupted (call it again to continue)\n"
    assert first.wait(60) == 130
    second = _run_compare(*words[2:], timeout_s=300)
    assert second.returncode == 0, second.stderr
    assert TASKS["fix"].title not in second.stderr
    assert {each.task for each in page.load_results(tmp_path / "results.json").results} == {"fix", "handoff"}
