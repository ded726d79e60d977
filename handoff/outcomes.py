"""How the validations of a command line came out, told from its output and its exit code."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from handoff import environment, summaries
from handoff.commands import SimpleCommand, parse
from handoff.runners import TEST_FILE
from handoff.summaries import Outcome, Reader
from handoff.validation import Found, find

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_HEAD = re.compile(
    r"(?:<exception>.*?</exception>\n)?<returncode>-?\d+</returncode>\n(?:<output>\n)?|\[exit code -?\d+\]\n?",
    re.S,
)
_TAIL = re.compile(
    r"(?:^\[(?:The command completed with exit code|Current working directory|Python interpreter).*\]\n?)+\Z",
    re.M,
)
_LONGEST_TAIL = 600
_LONGEST_LINE = 1_000
_LONG_TEXT = 100_000
_MOST = 2_000_000
_TRACEBACK = "Traceback (most recent call last)"
_SHOUTED = re.compile(r"^(?:FAIL|FAILED|FAILURE|ERROR)\b(?!\w*\s*[:=]?\s*0\b)", re.M)
_UNPARSED = re.compile(r'^ +File ".+", line \d+\n(?:.*\n){0,3}?(?:Syntax|Indentation|Tab)Error: ', re.M)
_GOOD_SIGN = re.compile(
    r"^(?:SUCCESS|PASS|PASSED|OK)\b|completed successfully|[Aa]ll (?:tests|checks) passed", re.M
)
_CRASH = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Exit)(?::.*)?$")
_SCRIPT_SUMMARY = summaries.first(summaries.pytest, summaries.unittest_in_script, summaries.sympy)
_DECISIVE = re.compile(
    r"^(?:FAILED|ERROR|FAIL|FAILURE)\b|^E  +\S|::\S+ (?:FAILED|ERROR)\b|\[FAIL\]$"
    r"|^[\w.]*(?:Error|Exception): "
    r"|: error: |^\S+:\d+:\d+: |\berror TS\d+|^--- FAIL|\.\.\. (?:FAIL|ERROR|FAILED)$|^Traceback"
)
_FINAL = re.compile(
    r"^=+ .* in [\d.]+ ?s|^\d+ (?:passed|failed|error|skipped).* in |^Ran \d+ tests? in|^OK\b"
    r"|finished: |^FAILED \("
    r"|no tests ran|^Tests?:|test result:|^BUILD |^Found \d+ error|^Success:|^All checks passed"
    r"|rated at|^Test Suites:"
)
_STATUS = re.compile(r"(.*?)\$(?:\?|\{PIPESTATUS\[0\]\})")


def plain(output: str) -> str:
    """What a program printed: without colours, and without what agents' tools wrap around it."""
    if len(output) > _MOST:
        # What decides stands at the end, and what an agent's tool says of the rest at the beginning.
        output = f"{output[:_LONG_TEXT]}\n{output[_LONG_TEXT - _MOST :]}"
    text = _ANSI.sub("", output) if "\x1b" in output else output
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > _LONG_TEXT:
        # No summary stands in a line without end, and patterns could take for ever on one.
        text = "\n".join(line[-_LONGEST_LINE:] for line in text.split("\n"))
    head = _HEAD.match(text) if text[:1] in "<[" else None
    if head:
        text = text[head.end() :]
    end = text[-_LONGEST_TAIL:].rstrip()
    if end.endswith("</output>"):
        return text.rstrip()[: -len("</output>")]
    tail = _TAIL.search(text, max(len(text) - _LONGEST_TAIL, 0)) if end.endswith("]") else None
    if tail:
        text = text[: tail.start()]
    return text


def outcome(
    command: str,
    output: str,
    exit_code: int | None,
    timed_out: bool = False,
    *,
    written_scripts: Collection[str] = (),
    edited: Collection[str] = (),
) -> Outcome:
    """How the validations of a command line came out, taken together; one failure fails the line."""
    return judge(command, find(command, written_scripts), plain(output), exit_code, timed_out, edited)


def runs_nothing(found: Sequence[Found], text: str, exit_code: int | None) -> bool:
    """A file of tests that was only executed: it defines them, and nobody called them."""
    files = all(f.runner is not None and f.runner.name == TEST_FILE for f in found)
    return files and exit_code == 0 and not text.strip()


def judge(
    command: str,
    found: Sequence[Found],
    text: str,
    exit_code: int | None,
    timed_out: bool,
    edited: Collection[str] = (),
) -> Outcome:
    """The same for validations already found; `edited` are the source files edited so far."""
    if not found:
        return "unknown"
    verdict = _summary(found, text)
    if verdict == "failed" and _is_of_environment(found, text, edited):
        return "environment_error"
    if verdict == "passed" and _another_failed(found, text, exit_code):
        return "failed"
    if verdict is not None:
        return verdict
    if timed_out or environment.killed(command, exit_code):
        return "environment_error"
    if exit_code != 0 and any(environment.not_started(f.command, text) for f in found):
        return "environment_error"
    if exit_code != 0 and environment.not_imported(text, edited):
        return "environment_error"
    commands = parse(command)
    told = _told_by_echo(found[-1], commands, text)
    if told is not None:
        return "failed" if _reproduces(found) and _bad_sign(text) else told
    if exit_code is not None:
        return _by_exit_code(found, commands, text, exit_code)
    return _by_signs(found, text, ended=False)


def _is_of_environment(found: Sequence[Found], text: str, edited: Collection[str]) -> bool:
    """Whether the failure that a summary tells of says nothing about the code."""
    if environment.only_import_errors(text) and (
        environment.not_imported(text, edited) or environment.not_configured(text)
    ):
        return True
    generic = all(
        f.kind in ("build", "lint") or (f.runner and f.runner.name.startswith("make")) for f in found
    )
    return generic and environment.not_set_up(text)


def _another_failed(found: Sequence[Found], text: str, exit_code: int | None) -> bool:
    """Whether a summary tells of tests that passed, and something else in the line did not."""
    last = found[-1]
    if last.runner is None and last.command.exit_code_is_own and exit_code:
        return True
    return len(found) > 1 and _reproduces(found) and _bad_sign(text)


def _reproduces(found: Sequence[Found]) -> bool:
    return any(f.kind == "reproduction" for f in found)


def _told_by_echo(last: Found, commands: Sequence[SimpleCommand], text: str) -> Outcome | None:
    """What `&& echo fine || echo broken` or `; echo $?` right behind a validation says of it."""
    lines = [line.strip() for line in text.splitlines()]
    verdict: Outcome | None = None
    behind = last.position + 1 + last.command.stages - 1 - last.command.stage
    for number, after in enumerate(commands[behind:]):
        words = [word for word in after.argv[1:] if not word.startswith("-")]
        if after.name != "echo" or after.stages > 1 or not words:
            return verdict
        said = " ".join(words)
        status = _STATUS.fullmatch(said)
        if status and number == 0 and after.connector == ";":
            of_first = "PIPESTATUS" in said and last.command.stage == 0
            return _told_by_status(status[1].strip(), lines) if last.command.stages == 1 or of_first else None
        if after.connector not in ("&&", "||") or "$" in said or last.command.stages > 1:
            return verdict
        if said in lines:
            verdict = "passed" if after.connector == "&&" else "failed"
    return verdict


def _told_by_status(label: str, lines: Sequence[str]) -> Outcome | None:
    printed = re.compile(re.escape(label) + r"\s*(\d{1,3})")
    codes = [found[1] for line in lines if (found := printed.fullmatch(line))]
    return ("passed" if codes[-1] == "0" else "failed") if codes else None


def _summary(found: Sequence[Found], text: str) -> Outcome | None:
    verdicts: list[Outcome | None] = []
    for number, one in enumerate(found):
        reader: Reader = one.runner.summary if one.runner else _SCRIPT_SUMMARY
        several = one.command.repeats or any(f.runner is one.runner for f in found[:number])
        if several and any(reader(line) == "failed" for line in text.splitlines()):
            return "failed"
        verdicts.append(reader(text))
    for decisive in ("failed", "passed", "environment_error"):
        if decisive in verdicts:
            return decisive
    return None


def _by_exit_code(
    found: Sequence[Found], commands: Sequence[SimpleCommand], text: str, exit_code: int
) -> Outcome:
    if exit_code == 0:
        if _reproduces(found) and _bad_sign(text):
            return "failed"
        # Of reproductions in a row the last one's code speaks, and signs speak for the others.
        own = found[-1:] if all(f.kind == "reproduction" for f in found) else found
        return "passed" if all(f.command.success_is_own for f in own) else _by_signs(found, text)
    last = found[-1]
    if not last.command.success_is_own:
        return _by_signs(found, text)
    suspects = _suspects(found, commands)
    if suspects and environment.stopped_before(suspects, text):
        return "environment_error"
    if not last.command.exit_code_is_own and not _bad_sign(text):
        # What stands behind `&&` may have failed instead.
        return "unknown"
    if exit_code in (126, 127) and last.command.exit_code_is_own:
        return "environment_error"
    name = last.runner.name if last.runner else ""
    broken_conftest = "ImportError while loading conftest" in text
    if (name == "pytest" and exit_code in (4, 5) and not broken_conftest) or (
        name == "pylint" and exit_code & 32
    ):
        return "environment_error"
    return "failed"


def _by_signs(found: Sequence[Found], text: str, *, ended: bool = True) -> Outcome:
    """Without an exit code: a crash that the runner itself ended with, or a reproduction's own complaint."""
    if any(environment.not_started(f.command, text) for f in found):
        return "environment_error"
    ending = next((ln for ln in reversed(text.splitlines()) if ln.strip()), "")
    crashed = _TRACEBACK in text and _CRASH.match(ending) is not None
    if crashed or (_reproduces(found) and _bad_sign(text)):
        return "failed"
    if not ended and _reproduces(found) and _GOOD_SIGN.search(text):
        return "passed"
    return "unknown"


def _suspects(found: Sequence[Found], commands: Sequence[SimpleCommand]) -> list[SimpleCommand]:
    """Commands before the last validation, joined to it by `&&`, that are not validations themselves."""
    positions = {f.position for f in found}
    suspects = []
    for position in range(found[-1].position - 1, -1, -1):
        if commands[position + 1].connector not in ("&&", "|"):
            break
        if position not in positions:
            suspects.append(commands[position])
    return suspects


def _bad_sign(text: str) -> bool:
    if _TRACEBACK in text:
        return True
    if ("FAIL" in text or "ERROR" in text) and _SHOUTED.search(text):
        return True
    return "Error: " in text and '  File "' in text and _UNPARSED.search(text) is not None


def evidence(text: str, limit: int = 12, width: int = 200) -> tuple[str, ...]:
    """The lines that decided an outcome, the last summary line among them; never more than `limit`."""
    lines = [line[:_LONGEST_LINE].rstrip() for line in text.splitlines() if line.strip()]
    final = [line for line in lines if _FINAL.search(line)][-2:]
    decisive = [line for line in lines if _DECISIVE.search(line) and line not in final]
    room = limit - len(final)
    chosen = decisive if len(decisive) <= room else [*decisive[: room - 1], decisive[-1]]
    if not chosen and not final:
        chosen = lines[-3:]
    return tuple(line[:width] for line in dict.fromkeys([*chosen, *final]))
