"""Outcomes of validations, judged from the output and the exit code of their command line."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from langgraph_takeover.handoff.points import environment_failures
from langgraph_takeover.handoff.points.detector_state import Verdict
from langgraph_takeover.handoff.points.script_verdicts import (
    TRACEBACK,
    has_crash_sign,
    has_failure_sign,
    states_success,
)
from langgraph_takeover.handoff.points.validation import ValidationMatch, find_validations
from langgraph_takeover.handoff.shell import runner_summaries
from langgraph_takeover.handoff.shell.runner_summaries import SummaryParser, ValidationOutcome
from langgraph_takeover.handoff.shell.runners import TEST_FILE
from langgraph_takeover.handoff.shell.syntax import SimpleCommand
from langgraph_takeover.handoff.shell.syntax_reader import parse_command
from langgraph_takeover.handoff.text.tool_wrappers import strip_json_result, strip_wrapper

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
_CRASH_LINE = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Exit)(?::.*)?$")
_INTERPRETER_CRASH = re.compile(r"^Fatal Python error: |\bSegmentation fault\b", re.M)
_SCRIPT_SUMMARY = runner_summaries.combine(
    runner_summaries.pytest, runner_summaries.unittest_in_script, runner_summaries.sympy
)
_STATUS_ECHO = re.compile(r"(.*?)\$(?:\?|\{PIPESTATUS\[0\]\})")


def clean_output(output: str) -> str:
    """Remove colors and the wrapping that the tools of agents add to the output of a program."""
    if len(output) > _MAX_OUTPUT_CHARS:
        # The summary is at the end; the header of the agent's tool is at the beginning.
        output = f"{output[:_LONG_TEXT_CHARS]}\n{output[_LONG_TEXT_CHARS - _MAX_OUTPUT_CHARS :]}"
    output = strip_json_result(output)
    text = _ANSI_ESCAPE.sub("", output) if "\x1b" in output else output
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = strip_wrapper(text)
    if len(text) > _LONG_TEXT_CHARS:
        # Extremely long lines contain no summary and make patterns very slow.
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
    """Judge the validations of a command line together; one failure fails the line."""
    return judge(
        command,
        find_validations(command, written_scripts),
        clean_output(output),
        exit_code,
        timed_out,
        edited_files,
    ).outcome


def is_empty_test_run(matches: Sequence[ValidationMatch], text: str, exit_code: int | None) -> bool:
    """Whether a test file was only executed, which defines its tests without running them."""
    return (
        exit_code == 0
        and not text.strip()
        and all(match.runner is not None and match.runner.name == TEST_FILE for match in matches)
    )


class Judgement(NamedTuple):
    """The outcome of validations, and the basis of a pass."""

    outcome: ValidationOutcome
    verdict: Verdict | None = None


def judge(
    command: str,
    matches: Sequence[ValidationMatch],
    text: str,
    exit_code: int | None,
    timed_out: bool,
    edited_files: Collection[str] = (),
    asserting_scripts: Collection[str] = (),
) -> Judgement:
    """Judge validations that are already found; `text` is the output after `clean_output`.

    `asserting_scripts` fail by themselves if a result is wrong, so that their exit code is a verdict.
    """
    if not matches:
        return Judgement("unknown")
    summary = _read_summary(matches, text)
    outcome = _find_outcome(command, matches, text, exit_code, timed_out, edited_files, summary)
    if outcome != "passed":
        return Judgement(outcome)
    return Judgement(outcome, _find_verdict(matches, text, asserting_scripts, summary))


def _find_outcome(
    command: str,
    matches: Sequence[ValidationMatch],
    text: str,
    exit_code: int | None,
    timed_out: bool,
    edited_files: Collection[str],
    summary: ValidationOutcome | None,
) -> ValidationOutcome:
    if summary == "failed" and _is_environment_failure(matches, text, edited_files):
        return "environment_error"
    if summary == "passed" and _has_other_failure(matches, text, exit_code):
        return "failed"
    if summary is not None:
        return summary
    if timed_out or environment_failures.is_killed(command, exit_code):
        return "environment_error"
    if exit_code != 0 and any(
        environment_failures.is_start_failure(match.command, text) for match in matches
    ):
        return "environment_error"
    is_shown_only = not matches[-1].command.success_is_own and not _has_reproduction(matches)
    if (exit_code != 0 or is_shown_only) and environment_failures.is_import_failure(text, edited_files):
        return "environment_error"
    commands = parse_command(command)
    echoed = _read_echoed_outcome(matches[-1], commands, text)
    if echoed is not None:
        outcome = "failed" if _has_reproduction(matches) and has_failure_sign(text) else echoed
    elif exit_code is not None:
        outcome = _judge_exit_code(matches, commands, text, exit_code)
    else:
        return _judge_signs(matches, text)
    # Without the summary that such a runner always prints, nothing ran.
    return "unknown" if outcome == "passed" and any(map(_must_show_summary, matches)) else outcome


def _find_verdict(
    matches: Sequence[ValidationMatch],
    text: str,
    asserting_scripts: Collection[str],
    summary: ValidationOutcome | None,
) -> Verdict:
    """The basis of a pass: a result or verdict in the output, silence that means success, or only exit code 0."""
    if summary == "passed" or states_success(text):
        return "explicit"
    if not _has_reproduction(matches):
        is_silent = all(match.runner and match.runner.success_output == "nothing" for match in matches)
        return "explicit" if is_silent else "exit_code_only"
    scripts = {match.script for match in matches if match.kind == "reproduction"}
    return "explicit" if scripts.issubset(asserting_scripts) else "exit_code_only"


_OTHER_REPORT = (
    r"--json\S*|--(?:reporters?|format|formatter|output)[= ](?:json|junit|html|null|silent|xunit|teamcity|xml)\S*"
    r"|--no-output"
)
"""Options with which any runner prints another report than its summary."""


def _must_show_summary(match: ValidationMatch) -> bool:
    """Whether a successful run prints a summary that the output of the line shows."""
    runner, command = match.runner, match.command
    if runner is None or runner.success_output != "summary" or command.stages > 1:
        return False
    if any(">" in redirect.operator and not redirect.target.isdigit() for redirect in command.redirects):
        return False
    options = rf"(?:^| )(?:{_OTHER_REPORT}|{runner.silenced_by or _OTHER_REPORT})(?= |=|$)"
    return re.search(options, " ".join(command.argv[1:])[:_MAX_LINE_CHARS]) is None


def _is_environment_failure(
    matches: Sequence[ValidationMatch], text: str, edited_files: Collection[str]
) -> bool:
    """Whether the failure in a summary is caused by the environment rather than the code."""
    if environment_failures.has_only_import_errors(text) and (
        environment_failures.is_import_failure(text, edited_files)
        or environment_failures.is_configuration_failure(text)
    ):
        return True
    is_generic = all(
        match.kind in ("build", "lint") or (match.runner and match.runner.name.startswith("make"))
        for match in matches
    )
    return is_generic and environment_failures.is_setup_failure(text)


def _has_other_failure(matches: Sequence[ValidationMatch], text: str, exit_code: int | None) -> bool:
    """Whether another part of the line failed although its summary reports success."""
    last = matches[-1]
    if last.runner is None and last.command.exit_code_is_own and exit_code:
        return True
    return len(matches) > 1 and _has_reproduction(matches) and has_failure_sign(text)


def _has_reproduction(matches: Sequence[ValidationMatch]) -> bool:
    return any(match.kind == "reproduction" for match in matches)


def _read_echoed_outcome(
    last: ValidationMatch, commands: Sequence[SimpleCommand], text: str
) -> ValidationOutcome | None:
    """Outcome according to `&& echo fine || echo broken` or `; echo $?` directly after a validation."""
    lines = [line.strip() for line in text.splitlines()]
    verdict: ValidationOutcome | None = None
    next_position = last.position + 1 + last.command.stages - 1 - last.command.stage
    for number, command in enumerate(commands[next_position:]):
        words = [word for word in command.argv[1:] if not word.startswith("-")]
        if command.name != "echo" or command.stages > 1 or not words:
            return verdict
        echoed = " ".join(words)
        status = _STATUS_ECHO.fullmatch(echoed)
        if status and number == 0 and command.connector == ";":
            is_first_status = "PIPESTATUS" in echoed and last.command.stage == 0
            return (
                _read_echoed_status(status[1].strip(), lines)
                if last.command.stages == 1 or is_first_status
                else None
            )
        if command.connector not in ("&&", "||") or "$" in echoed or last.command.stages > 1:
            return verdict
        if echoed in lines:
            verdict = "passed" if command.connector == "&&" else "failed"
    return verdict


def _read_echoed_status(label: str, lines: Sequence[str]) -> ValidationOutcome | None:
    printed = re.compile(re.escape(label) + r"\s*(\d{1,3})")
    codes = [match[1] for line in lines if (match := printed.fullmatch(line))]
    return ("passed" if codes[-1] == "0" else "failed") if codes else None


def _read_summary(matches: Sequence[ValidationMatch], text: str) -> ValidationOutcome | None:
    verdicts: list[ValidationOutcome | None] = []
    for number, match in enumerate(matches):
        reader: SummaryParser = match.runner.parse_summary if match.runner else _SCRIPT_SUMMARY
        several = match.command.is_repeated or (
            number > 0 and any(earlier.runner is match.runner for earlier in matches[:number])
        )
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
        if _has_reproduction(matches) and has_failure_sign(text):
            return "failed"
        # Of several reproductions, the exit code is that of the last; the output decides for the others.
        decisive_matches = matches[-1:] if all(match.kind == "reproduction" for match in matches) else matches
        return (
            "passed"
            if all(match.command.success_is_own for match in decisive_matches)
            else _judge_signs(matches, text)
        )
    last = matches[-1]
    if not last.command.success_is_own:
        return _judge_signs(matches, text)
    suspects = _list_suspects(matches, commands)
    if suspects and environment_failures.has_earlier_failure(suspects, text):
        return "environment_error"
    has_failed = has_failure_sign if _has_reproduction(matches) else has_crash_sign
    if not last.command.exit_code_is_own and not has_failed(text):
        # A command after `&&` may have failed instead.
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


def _judge_signs(matches: Sequence[ValidationMatch], text: str) -> ValidationOutcome:
    """Judge without an exit code: by a crash at the end, or by what a reproduction says of itself."""
    if any(environment_failures.is_start_failure(match.command, text) for match in matches):
        return "environment_error"
    ending = next((ln for ln in reversed(text.splitlines()) if ln.strip()), "")
    crashed = TRACEBACK in text and _CRASH_LINE.match(ending) is not None
    crashed = crashed or _INTERPRETER_CRASH.search(text) is not None
    if crashed or (_has_reproduction(matches) and has_failure_sign(text)):
        return "failed"
    if _has_reproduction(matches) and states_success(text):
        return "passed"
    return "unknown"


def _list_suspects(
    matches: Sequence[ValidationMatch], commands: Sequence[SimpleCommand]
) -> list[SimpleCommand]:
    """Commands before the last validation, joined to it by `&&`, that are not validations."""
    positions = {match.position for match in matches}
    suspects = []
    for position in range(matches[-1].position - 1, -1, -1):
        if commands[position + 1].connector not in ("&&", "|"):
            break
        if position not in positions:
            suspects.append(commands[position])
    return suspects
