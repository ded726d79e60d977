"""How the validations of a command line came out, told from its output and its exit code."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from langgraph_takeover.handoff.points import environment_failures
from langgraph_takeover.handoff.points.validation import ValidationMatch, find_validations
from langgraph_takeover.handoff.shell import runner_summaries
from langgraph_takeover.handoff.shell.command_parser import parse_command
from langgraph_takeover.handoff.shell.commands import SimpleCommand
from langgraph_takeover.handoff.shell.runner_summaries import SummaryParser, ValidationOutcome
from langgraph_takeover.handoff.shell.runners import TEST_FILE

_ANSI_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_TOOL_HEADER = re.compile(
    r"(?:<exception>.*?</exception>\n)?<returncode>-?\d+</returncode>\n(?:<output>\n)?|\[exit code -?\d+\]\n?",
    re.S,
)
_TOOL_FOOTER = re.compile(
    r"(?:^\[(?:The command completed with exit code|Current working directory|Python interpreter).*\]\n?)+\Z",
    re.M,
)
_MAX_FOOTER_CHARS = 600
_MAX_LINE_CHARS = 1_000
_LONG_TEXT_CHARS = 100_000
_MAX_OUTPUT_CHARS = 2_000_000
_TRACEBACK = "Traceback (most recent call last)"
_FAILURE_LINE = re.compile(r"^(?:FAIL|FAILED|FAILURE|ERROR)\b(?!\w*\s*[:=]?\s*0\b)", re.M)
_SYNTAX_ERROR = re.compile(r'^ +File ".+", line \d+\n(?:.*\n){0,3}?(?:Syntax|Indentation|Tab)Error: ', re.M)
_SUCCESS_LINE = re.compile(
    r"^(?:SUCCESS|PASS|PASSED|OK)\b|completed successfully|[Aa]ll (?:tests|checks) passed", re.M
)
_CRASH_LINE = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Exit)(?::.*)?$")
_SCRIPT_SUMMARY = runner_summaries.combine(
    runner_summaries.pytest, runner_summaries.unittest_in_script, runner_summaries.sympy
)
_DECISIVE_LINE = re.compile(
    r"^(?:FAILED|ERROR|FAIL|FAILURE)\b|^E  +\S|::\S+ (?:FAILED|ERROR)\b|\[FAIL\]$"
    r"|^[\w.]*(?:Error|Exception): "
    r"|: error: |^\S+:\d+:\d+: |\berror TS\d+|^--- FAIL|\.\.\. (?:FAIL|ERROR|FAILED)$|^Traceback"
)
_SUMMARY_LINE = re.compile(
    r"^=+ .* in [\d.]+ ?s|^\d+ (?:passed|failed|error|skipped).* in |^Ran \d+ tests? in|^OK\b"
    r"|finished: |^FAILED \("
    r"|no tests ran|^Tests?:|test result:|^BUILD |^Found \d+ error|^Success:|^All checks passed"
    r"|rated at|^Test Suites:"
)
_STATUS_ECHO = re.compile(r"(.*?)\$(?:\?|\{PIPESTATUS\[0\]\})")


def clean_output(output: str) -> str:
    """What a program printed: without colours, and without what agents' tools wrap around it."""
    if len(output) > _MAX_OUTPUT_CHARS:
        # What decides stands at the end, and what an agent's tool says of the rest at the beginning.
        output = f"{output[:_LONG_TEXT_CHARS]}\n{output[_LONG_TEXT_CHARS - _MAX_OUTPUT_CHARS :]}"
    text = _ANSI_ESCAPE.sub("", output) if "\x1b" in output else output
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > _LONG_TEXT_CHARS:
        # No summary stands in a line without end, and patterns could take for ever on one.
        text = "\n".join(line[-_MAX_LINE_CHARS:] for line in text.split("\n"))
    head = _TOOL_HEADER.match(text) if text[:1] in "<[" else None
    if head:
        text = text[head.end() :]
    end = text[-_MAX_FOOTER_CHARS:].rstrip()
    if end.endswith("</output>"):
        return text.rstrip()[: -len("</output>")]
    tail = _TOOL_FOOTER.search(text, max(len(text) - _MAX_FOOTER_CHARS, 0)) if end.endswith("]") else None
    if tail:
        text = text[: tail.start()]
    return text


def judge_output(
    command: str,
    output: str,
    exit_code: int | None,
    timed_out: bool = False,
    *,
    written_scripts: Collection[str] = (),
    edited_files: Collection[str] = (),
) -> ValidationOutcome:
    """How the validations of a command line came out, taken together; one failure fails the line."""
    return judge(
        command,
        find_validations(command, written_scripts),
        clean_output(output),
        exit_code,
        timed_out,
        edited_files,
    )


def is_empty_test_run(matches: Sequence[ValidationMatch], text: str, exit_code: int | None) -> bool:
    """A file of tests that was only executed: it defines them, and nobody called them."""
    files = all(f.runner is not None and f.runner.name == TEST_FILE for f in matches)
    return files and exit_code == 0 and not text.strip()


def judge(
    command: str,
    matches: Sequence[ValidationMatch],
    text: str,
    exit_code: int | None,
    timed_out: bool,
    edited_files: Collection[str] = (),
) -> ValidationOutcome:
    """The same for validations already found; `edited` are the source files edited so far."""
    if not matches:
        return "unknown"
    verdict = _read_summary(matches, text)
    if verdict == "failed" and _is_environment_failure(matches, text, edited_files):
        return "environment_error"
    if verdict == "passed" and _has_other_failure(matches, text, exit_code):
        return "failed"
    if verdict is not None:
        return verdict
    if timed_out or environment_failures.is_killed(command, exit_code):
        return "environment_error"
    if exit_code != 0 and any(environment_failures.is_start_failure(f.command, text) for f in matches):
        return "environment_error"
    if exit_code != 0 and environment_failures.is_import_failure(text, edited_files):
        return "environment_error"
    commands = parse_command(command)
    told = _read_echoed_outcome(matches[-1], commands, text)
    if told is not None:
        return "failed" if _has_reproduction(matches) and _has_failure_sign(text) else told
    if exit_code is not None:
        return _judge_exit_code(matches, commands, text, exit_code)
    return _judge_signs(matches, text, has_ended=False)


def _is_environment_failure(
    matches: Sequence[ValidationMatch], text: str, edited_files: Collection[str]
) -> bool:
    """Whether the failure that a summary tells of says nothing about the code."""
    if environment_failures.has_only_import_errors(text) and (
        environment_failures.is_import_failure(text, edited_files)
        or environment_failures.is_configuration_failure(text)
    ):
        return True
    generic = all(
        f.kind in ("build", "lint") or (f.runner and f.runner.name.startswith("make")) for f in matches
    )
    return generic and environment_failures.is_setup_failure(text)


def _has_other_failure(matches: Sequence[ValidationMatch], text: str, exit_code: int | None) -> bool:
    """Whether a summary tells of tests that passed, and something else in the line did not."""
    last = matches[-1]
    if last.runner is None and last.command.exit_code_is_own and exit_code:
        return True
    return len(matches) > 1 and _has_reproduction(matches) and _has_failure_sign(text)


def _has_reproduction(matches: Sequence[ValidationMatch]) -> bool:
    return any(f.kind == "reproduction" for f in matches)


def _read_echoed_outcome(
    last: ValidationMatch, commands: Sequence[SimpleCommand], text: str
) -> ValidationOutcome | None:
    """What `&& echo fine || echo broken` or `; echo $?` right behind a validation says of it."""
    lines = [line.strip() for line in text.splitlines()]
    verdict: ValidationOutcome | None = None
    behind = last.position + 1 + last.command.stages - 1 - last.command.stage
    for number, after in enumerate(commands[behind:]):
        words = [word for word in after.argv[1:] if not word.startswith("-")]
        if after.name != "echo" or after.stages > 1 or not words:
            return verdict
        said = " ".join(words)
        status = _STATUS_ECHO.fullmatch(said)
        if status and number == 0 and after.connector == ";":
            of_first = "PIPESTATUS" in said and last.command.stage == 0
            return (
                _read_echoed_status(status[1].strip(), lines)
                if last.command.stages == 1 or of_first
                else None
            )
        if after.connector not in ("&&", "||") or "$" in said or last.command.stages > 1:
            return verdict
        if said in lines:
            verdict = "passed" if after.connector == "&&" else "failed"
    return verdict


def _read_echoed_status(label: str, lines: Sequence[str]) -> ValidationOutcome | None:
    printed = re.compile(re.escape(label) + r"\s*(\d{1,3})")
    codes = [found[1] for line in lines if (found := printed.fullmatch(line))]
    return ("passed" if codes[-1] == "0" else "failed") if codes else None


def _read_summary(matches: Sequence[ValidationMatch], text: str) -> ValidationOutcome | None:
    verdicts: list[ValidationOutcome | None] = []
    for number, one in enumerate(matches):
        reader: SummaryParser = one.runner.parse_summary if one.runner else _SCRIPT_SUMMARY
        several = one.command.is_repeated or any(f.runner is one.runner for f in matches[:number])
        if several and any(reader(line) == "failed" for line in text.splitlines()):
            return "failed"
        verdicts.append(reader(text))
    for decisive in ("failed", "passed", "environment_error"):
        if decisive in verdicts:
            return decisive
    return None


def _judge_exit_code(
    matches: Sequence[ValidationMatch], commands: Sequence[SimpleCommand], text: str, exit_code: int
) -> ValidationOutcome:
    if exit_code == 0:
        if _has_reproduction(matches) and _has_failure_sign(text):
            return "failed"
        # Of reproductions in a row the last one's code speaks, and signs speak for the others.
        own = matches[-1:] if all(f.kind == "reproduction" for f in matches) else matches
        return "passed" if all(f.command.success_is_own for f in own) else _judge_signs(matches, text)
    last = matches[-1]
    if not last.command.success_is_own:
        return _judge_signs(matches, text)
    suspects = _list_suspects(matches, commands)
    if suspects and environment_failures.has_earlier_failure(suspects, text):
        return "environment_error"
    if not last.command.exit_code_is_own and not _has_failure_sign(text):
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


def _judge_signs(
    matches: Sequence[ValidationMatch], text: str, *, has_ended: bool = True
) -> ValidationOutcome:
    """Without an exit code: a crash that the runner itself ended with, or a reproduction's own complaint."""
    if any(environment_failures.is_start_failure(f.command, text) for f in matches):
        return "environment_error"
    ending = next((ln for ln in reversed(text.splitlines()) if ln.strip()), "")
    crashed = _TRACEBACK in text and _CRASH_LINE.match(ending) is not None
    if crashed or (_has_reproduction(matches) and _has_failure_sign(text)):
        return "failed"
    if not has_ended and _has_reproduction(matches) and _SUCCESS_LINE.search(text):
        return "passed"
    return "unknown"


def _list_suspects(
    matches: Sequence[ValidationMatch], commands: Sequence[SimpleCommand]
) -> list[SimpleCommand]:
    """Commands before the last validation, joined to it by `&&`, that are not validations themselves."""
    positions = {f.position for f in matches}
    suspects = []
    for position in range(matches[-1].position - 1, -1, -1):
        if commands[position + 1].connector not in ("&&", "|"):
            break
        if position not in positions:
            suspects.append(commands[position])
    return suspects


def _has_failure_sign(text: str) -> bool:
    if _TRACEBACK in text:
        return True
    if ("FAIL" in text or "ERROR" in text) and _FAILURE_LINE.search(text):
        return True
    return "Error: " in text and '  File "' in text and _SYNTAX_ERROR.search(text) is not None


def extract_evidence(text: str, limit: int = 12, width: int = 200) -> tuple[str, ...]:
    """The lines that decided an outcome, the last summary line among them; never more than `limit`."""
    lines = [line[:_MAX_LINE_CHARS].rstrip() for line in text.splitlines() if line.strip()]
    final = [line for line in lines if _SUMMARY_LINE.search(line)][-2:]
    decisive = [line for line in lines if _DECISIVE_LINE.search(line) and line not in final]
    room = limit - len(final)
    chosen = decisive if len(decisive) <= room else [*decisive[: room - 1], decisive[-1]]
    if not chosen and not final:
        chosen = lines[-3:]
    return tuple(line[:width] for line in dict.fromkeys([*chosen, *final]))
