"""Detectors of handoff points, which process the events of a run one at a time; and the lines that decided."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from langgraph_takeover.handoff.points.detector_state import DetectorState, PendingValidation, ValidationRun
from langgraph_takeover.handoff.points.edits import (
    attribute_changes,
    is_source_change,
    list_authored_files,
    summarize_changes,
)
from langgraph_takeover.handoff.points.environment_failures import has_ended
from langgraph_takeover.handoff.points.outcomes import (
    clean_output,
    is_empty_test_run,
    judge,
)
from langgraph_takeover.handoff.points.script_verdicts import TRACEBACK, find_failure_lines, has_crash_sign
from langgraph_takeover.handoff.points.validation import (
    OwnPrograms,
    ShellLocation,
    ValidationMatch,
    find_strongest_kind,
    find_validations,
    list_entry_points,
    list_own_names,
)
from langgraph_takeover.handoff.shell.command_effects import (
    find_effect,
    list_shown_files,
    may_restore_or_build,
)
from langgraph_takeover.handoff.shell.runner_summaries import ValidationOutcome
from langgraph_takeover.handoff.shell.syntax_reader import find_executed_part, parse_command
from langgraph_takeover.handoff.text.tool_wrappers import TASK_OUTPUT_FILE
from langgraph_takeover.handoff.text.word_search import contains_any
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint, PointKind
from langgraph_takeover.handoff.trace.file_kinds import is_script

_MAX_LINE_CHARS = 1_000
_FAILED_TEST = re.compile(
    r"^(?:FAILED|ERROR|FAIL|FAILURE)\b|(?<!\S)(?>\S*?::)\S+ (?:FAILED|ERROR)\b|\[FAIL\]$|^--- FAIL|\.\.\. (?:FAIL|ERROR|FAILED)$"
)
_DECISIVE_LINE = re.compile(
    r"^E  +(?![+?-] )\S|^[\w.]*(?:Error|Exception): "
    r"|: error: |^\S+:\d+:\d+: |\berror TS\d+"
)
_SUMMARY_LINE = re.compile(
    r"^=+ .* in [\d.]+ ?s|^\d+ (?:passed|failed|error|skipped).* in |^Ran \d+ tests? in|^OK(?:$| \()"
    r"|tests finished: |^FAILED \("
    r"|no tests ran|^Tests?:|test result:|^BUILD |^Found \d+ error|^Success: no issues|^All checks passed"
    r"|rated at|^Test Suites:"
)
_GROUP_PREFIX = re.compile(r"^ *[|+] ")
"""What Python prints before the lines of an exception group."""
_FRAME = re.compile(r'^(\s+)File ".+", line \d+')
_ENDING_LINES = 3


def extract_evidence(text: str, limit: int = 12, width: int = 200) -> tuple[str, ...]:
    """At most `limit` lines that determined an outcome, in order.

    The last two summary lines are chosen first, then the exceptions that end tracebacks, failed tests, and other decisive
    lines. Without a summary, the last lines of the output are evidence too.
    """
    lines = [line[:_MAX_LINE_CHARS].rstrip() for line in text.splitlines() if line.strip()]
    summaries = [number for number, line in enumerate(lines) if _SUMMARY_LINE.search(line)][-2:]
    exceptions = list(_find_exceptions(lines))
    failed = [number for number, line in enumerate(lines) if _FAILED_TEST.search(line)]
    decisive = [number for number, line in enumerate(lines) if _DECISIVE_LINE.search(line)]
    ending: list[int] = []
    if not summaries:
        # A script says itself what failed.
        decisive += [n for n, line in enumerate(lines) if TRACEBACK not in line and has_crash_sign(line)]
        decisive += find_failure_lines(lines)
        ending = list(range(max(len(lines) - _ENDING_LINES, 0), len(lines)))
    chosen: dict[str, int] = {}
    for numbers in (summaries, exceptions, failed[: limit // 2], decisive, failed, ending):
        texts = {lines[number][:width]: number for number in reversed(numbers)}
        fresh = sorted(number for shown, number in texts.items() if shown not in chosen)
        free = limit - len(chosen)
        fresh = fresh if len(fresh) <= free else [*fresh[: free - 1], fresh[-1]][:free]
        chosen |= {lines[number][:width]: number for number in fresh}
    return tuple(sorted(chosen, key=lambda shown: chosen[shown]))


def _find_exceptions(lines: Sequence[str]) -> Iterator[int]:
    """Find the last line of each traceback: the first line after its frames that is not indented more than they are."""
    indent: int | None = None
    for number, line in enumerate(lines):
        bare = _GROUP_PREFIX.sub("", line)
        depth = len(bare) - len(bare.lstrip())
        if TRACEBACK in bare:
            indent = depth
        elif (frame := _FRAME.match(bare)) and (indent is None or depth <= indent):
            # The start of the traceback was cut off.
            indent = len(frame[1]) - 1
        elif indent is not None and depth <= indent:
            indent = None
            yield number


ContinuationState = Literal[
    "no_source_change",
    "changed_not_validated",
    "changed_validation_failing",
    "changed_validation_passing",
    "changed_validation_unknown",
]
_CONTINUATION_STATES: dict[ValidationOutcome | None, ContinuationState] = {
    None: "changed_not_validated",
    "failed": "changed_validation_failing",
    "passed": "changed_validation_passing",
    "unknown": "changed_validation_unknown",
}
_ASSERTION = re.compile(
    r"\b(?:assert(?:\b|[A-Z]\w*\()|sys\.exit\((?!0?\))|exit\([1-9]|raise (?:SystemExit|AssertionError)|exit 1\b|set -e)"
)
"""What makes a script fail by itself if a result is wrong."""
_ASSERTION_STEMS = ("assert", "exit", "raise ", "set -e")
"""A text without any of these words cannot match; searching words is much faster than the pattern."""
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")
_NO_PROGRAMS = OwnPrograms()
_NO_RESULTS: dict[str, Any] = {
    "outcome_since_change": None,
    "verdict_since_change": None,
    "pending_validation": None,
    "background_validations": (),
}
"""What a change of the source makes of earlier results."""
_MAX_BACKGROUND, _MAX_NOTICE_CHARS = 20, 5_000
_TERMINAL_INPUTS = {"", "C-c", "C-d", "C-z", "C-\\"}


class DetectorUpdate(NamedTuple):
    """Result of processing one event."""

    state: DetectorState
    points: tuple[HandoffPoint, ...] = ()
    edited_files: tuple[str, ...] = ()
    """Source files that received new content."""
    validation: ValidationRun | None = None
    """The validation whose result the event shows, even if the result is unreadable."""


class _ObservedChanges(NamedTuple):
    """File changes of one observation and the validations of its command line."""

    edited_files: tuple[str, ...]
    source_files: tuple[str, ...]
    matches: tuple[ValidationMatch, ...]
    is_edit_first: bool
    """The edit precedes the last validation of the line."""


def create_state(base_directories: Iterable[str], workspace: str = "") -> DetectorState:
    """Create the state before the first event.

    `base_directories`, the top-level directories of the base commit, identify scratch files. `workspace`, the
    absolute path of the repository if known, resolves the paths in commands.
    """
    return DetectorState(base_directories=tuple(base_directories), workspace=workspace)


def observe(state: DetectorState, event: Event) -> tuple[DetectorState, tuple[HandoffPoint, ...]]:
    """Return the state after an event and the points that fired, edits before validations."""
    update = process_event(state, event)
    return update.state, update.points


def process_event(state: DetectorState, event: Event) -> DetectorUpdate:
    """Process one event; like `observe`, with the edits and the validation of the event."""
    if event.kind == "action":
        return DetectorUpdate(_process_action(state, event))
    pending, is_input = state.pending_command if event.tool == "shell" else None, state.pending_input
    asserts = state.pending_assertion or (bool(event.changes) and pending is not None and _asserts(pending))
    text = state.pending_text
    if state.pending_command is not None or asserts or text:
        state = state._replace(
            pending_command=None, pending_input=False, pending_text="", pending_assertion=False
        )
    if event.refused:
        return DetectorUpdate(state)
    if shown := list_entry_points(event.text):
        state = state._replace(entry_points=tuple(dict.fromkeys((*state.entry_points, *shown))))
    if pending is None and not event.changes:
        return DetectorUpdate(state)
    executed = None if pending is None else find_executed_part(pending, event.text)
    return _process_observation(state, event, executed, is_input, asserts, text)


def _asserts(text: str) -> bool:
    may_assert = contains_any(text, _ASSERTION_STEMS) and _ASSERTION.search(text) is not None
    return may_assert and ("#" not in text or _ASSERTION.search(_COMMENT.sub("", text)) is not None)


def _process_action(state: DetectorState, event: Event) -> DetectorState:
    """Remember what the observation of an action needs."""
    if event.tool != "shell":
        text = event.arguments.get("content", event.arguments.get("new", ""))
        asserts = _asserts(text)
        text = text if is_script(event.arguments.get("path", "")) else ""
        if not asserts and not text and not _is_pending(state):
            return state
        return state._replace(
            pending_command=None, pending_input=False, pending_text=text, pending_assertion=asserts
        )
    command = event.arguments.get("command", "")
    if not state.has_pending and not _is_pending(state) and find_effect(command) != "anything":
        return state
    is_input = command in _TERMINAL_INPUTS or event.arguments.get("is_input") == "true"
    return state._replace(
        pending_command=command, pending_input=is_input, pending_text="", pending_assertion=False
    )


def _is_pending(state: DetectorState) -> bool:
    return state.pending_command is not None or state.pending_assertion or bool(state.pending_text)


def replay_events(
    events: Iterable[Event], base_directories: Iterable[str], workspace: str = ""
) -> Iterator[DetectorUpdate]:
    """Process the events of a run in order and yield each result."""
    state = create_state(base_directories, workspace)
    for event in events:
        update = process_event(state, event)
        state = update.state
        yield update


def list_validations(
    events: Iterable[Event], base_directories: Iterable[str], workspace: str = ""
) -> tuple[ValidationRun, ...]:
    """All validations of a run, including those without a readable result, in order."""
    return tuple(
        update.validation
        for update in replay_events(events, base_directories, workspace)
        if update.validation is not None
    )


def list_points(
    events: Iterable[Event], base_directories: Iterable[str], workspace: str = ""
) -> tuple[HandoffPoint, ...]:
    """All handoff points of a run, in order."""
    return tuple(
        point for update in replay_events(events, base_directories, workspace) for point in update.points
    )


def compute_state(
    events: Iterable[Event], base_directories: Iterable[str], workspace: str = ""
) -> DetectorState:
    """The state after the last event."""
    state = create_state(base_directories, workspace)
    for event in events:
        state, _ = observe(state, event)
    return state


def compute_continuation_state(
    events: Iterable[Event], base_directories: Iterable[str], workspace: str = ""
) -> ContinuationState:
    """State of the work after the last event, as far as the predecessor can know it."""
    return classify_continuation(compute_state(events, base_directories, workspace))


def classify_continuation(state: DetectorState) -> ContinuationState:
    """State of the work in a detector state; see `compute_continuation_state`."""
    is_changed = any(
        file.current != file.base and is_source_change(state, path, file.base)
        for path, file in state.files.items()
    )
    if not is_changed:
        return "no_source_change"
    if state.verdict_since_change == "exit_code_only":
        return "changed_validation_unknown"
    return _CONTINUATION_STATES[state.outcome_since_change]


def _process_observation(
    state: DetectorState, event: Event, command: str | None, is_input: bool, asserts: bool, text: str
) -> DetectorUpdate:
    """Process an observation with changes or with a possible validation.

    `asserts` tells whether the action wrote an assertion; `text` is what an editor wrote.
    """
    failed_before = state.failed_after_edit
    edited_before = bool(state.edited_files)
    state, changes = _apply_changes(state, command or "", event, asserts, text)
    candidates: list[tuple[PointKind, str]] = []
    if changes.edited_files:
        detail = "edited " + ", ".join(changes.edited_files)
        candidates.append(("first_source_edit", detail))
        if failed_before:
            candidates.append(("first_post_failure_edit", detail))
    run: ValidationRun | None = None
    if command is not None and (changes.matches or state.has_pending):
        after_edit = edited_before or (bool(changes.edited_files) and changes.is_edit_first)
        state, run, follows_edit = _apply_validation(state, command, is_input, event, changes, after_edit)
        is_result = run is not None and (
            run.outcome in ("passed", "failed") or (run.outcome == "unknown" and not state.has_pending)
        )
        if run is not None and follows_edit and is_result:
            candidates.append(("first_validation", f"{run.kind} {run.result}: {run.command}"))
            if run.outcome == "failed" and not failed_before:
                state = state._replace(failed_after_edit=True)
    new = [(kind, detail) for kind, detail in candidates if kind not in state.fired]
    points = tuple(_build_point(kind, event.index, detail) for kind, detail in new)
    if points:
        state = state._replace(fired=state.fired + tuple(kind for kind, _ in new))
    return DetectorUpdate(state, points, changes.edited_files, run)


def _apply_changes(
    state: DetectorState, command: str, event: Event, asserts: bool, text: str
) -> tuple[DetectorState, _ObservedChanges]:
    location = ShellLocation(event.cwd, state.workspace)
    if not event.changes:
        return state, _ObservedChanges((), (), _find_validations(state, command, location), True)
    summary = summarize_changes(state, event.changes, command, text)
    state = state._replace(
        files=summary.files,
        written_scripts=tuple(summary.written_scripts),
        written_inputs=tuple(summary.written_inputs),
        auxiliary_files=tuple(summary.auxiliary_files),
    )
    matches = _find_validations(state, command, location)
    needs_parsing = matches or (summary.edited_files and may_restore_or_build(command))
    commands = parse_command(command) if needs_parsing else ()
    edited_files = list_authored_files(summary, command, commands)
    matches, is_edit_first, editing_scripts = attribute_changes(
        matches, commands, summary.source_files or summary.rewritten_files, bool(edited_files)
    )
    state = state._replace(
        written_scripts=tuple(script for script in summary.written_scripts if script not in editing_scripts),
        asserting_scripts=_update_asserting_scripts(state, event, command, asserts),
        edited_files=state.edited_files
        + tuple(path for path in edited_files if path not in state.edited_files),
        **(_NO_RESULTS if summary.source_files else {}),
    )
    return state, _ObservedChanges(edited_files, tuple(summary.source_files), matches, is_edit_first)


def _find_validations(
    state: DetectorState, command: str, location: ShellLocation
) -> tuple[ValidationMatch, ...]:
    if not command:
        return ()
    programs = _find_own_programs(state, command)
    return find_validations(command, state.written_scripts, location, state.auxiliary_files, programs)


def _find_own_programs(state: DetectorState, command: str) -> OwnPrograms:
    """The project's own programs that a command line may run, with the inputs that the agent wrote."""
    if not state.written_scripts and not state.written_inputs:
        return _NO_PROGRAMS
    names = list_own_names(
        state.base_directories, state.workspace, state.edited_files[:50], state.entry_points
    )
    if not contains_any(command, names):
        return _NO_PROGRAMS
    written = (*state.written_scripts, *state.written_inputs)
    inputs = frozenset(path for path in written if not is_source_change(state, path, None))
    return OwnPrograms(names, inputs, state.base_directories)


def _update_asserting_scripts(
    state: DetectorState, event: Event, command: str, asserts: bool
) -> tuple[str, ...]:
    """The scripts with assertions; one that the event creates anew has only those of the event."""
    if asserts:
        changed = [change.path for change in event.changes if is_script(change.path)]
        return tuple(dict.fromkeys((*state.asserting_scripts, *changed)))
    replaced = {change.path for change in event.changes if change.before is None or change.after is None}
    if ">" in command and not replaced.issuperset(state.asserting_scripts):
        redirects = (redirect for part in parse_command(command) for redirect in part.redirects)
        written = {posixpath.basename(each.target) for each in redirects if each.operator in (">", ">|")}
        replaced |= {change.path for change in event.changes if posixpath.basename(change.path) in written}
    return tuple(script for script in state.asserting_scripts if script not in replaced)


def _apply_validation(
    state: DetectorState,
    command: str,
    is_input: bool,
    event: Event,
    changes: _ObservedChanges,
    after_edit: bool,
) -> tuple[DetectorState, ValidationRun | None, bool]:
    """Find the validation of an observation.

    Returns the new state, the validation, and whether it follows a source edit.
    """
    matches, exit_code = changes.matches, event.exit_code
    validated_command, pending = command, state.pending_validation
    if not matches:
        pending = _find_background(state, command, is_input, event.text) or pending
        if pending is None or not (is_input or _shows_log(command, pending)):
            is_stale = pending is not None and not pending.logs
            return (state._replace(pending_validation=None) if is_stale else state), None, False
        validated_command, after_edit = pending.command, pending.after_edit
        matches = _find_validations(state, validated_command, ShellLocation(event.cwd, state.workspace))
        # Only after input to the program does the exit code belong to it; after an interrupt it means nothing.
        exit_code = exit_code if is_input and command in ("", "C-d") else None
    text = clean_output(event.text)
    if is_empty_test_run(matches, text, exit_code):
        return state, None, False
    outcome, verdict = judge(
        validated_command,
        matches,
        text,
        exit_code,
        event.timed_out,
        state.edited_files,
        state.asserting_scripts,
    )
    if not matches or (validated_command != command and outcome not in ("passed", "failed")):
        return state, None, False
    kind = find_strongest_kind(matches)
    cwd = next((match.command.cwd for match in matches if match.kind == kind), None)
    run = ValidationRun(event.index, validated_command, kind, outcome, cwd, verdict)
    others = tuple(each for each in state.background_validations if each.command != validated_command)
    state = state._replace(latest_validation=run, pending_validation=None, background_validations=others)
    if validated_command == command and outcome not in ("passed", "failed"):
        task_output = TASK_OUTPUT_FILE.search(event.text, max(len(event.text) - _MAX_NOTICE_CHARS, 0))
        if task_output:
            left = PendingValidation(command, after_edit, (task_output["path"],))
            return state._replace(background_validations=(*others, left)[-_MAX_BACKGROUND:]), run, after_edit
        logs = tuple(r.target for match in matches for r in match.command.redirects if ">" in r.operator)
        logs = tuple(log for log in logs if not log.isdigit() and log != "/dev/null")
        if logs or not has_ended(command, event.text, event.exit_code):
            state = state._replace(pending_validation=PendingValidation(validated_command, after_edit, logs))
    # An unknown outcome never replaces a known one.
    follows_change = not changes.source_files or changes.is_edit_first
    is_known = state.outcome_since_change in ("passed", "failed")
    # Nor does a silent pass replace one with a verdict.
    is_weaker = verdict == "exit_code_only" and state.verdict_since_change == "explicit"
    is_result = outcome in ("passed", "failed") and not is_weaker
    if follows_change and (is_result or (outcome == "unknown" and not is_known)):
        state = state._replace(outcome_since_change=outcome, verdict_since_change=verdict)
    return state, run, after_edit


def find_evidence(run: ValidationRun, events: Sequence[Event]) -> tuple[str, ...]:
    """The output lines that determined the outcome of a validation."""
    output = next((event.text for event in events if event.index == run.event_index), "")
    return extract_evidence(clean_output(output))


def _find_background(
    state: DetectorState, command: str, is_input: bool, text: str
) -> PendingValidation | None:
    """The validation in the background whose output an observation shows; a poll names it in its result, or is of the only one."""
    waiting = state.background_validations
    for each in waiting:
        task = posixpath.basename(each.logs[0]).removesuffix(".output")
        if _shows_log(command, each) or (
            is_input and f"<task_id>{task}</task_id>" in text[:_MAX_NOTICE_CHARS]
        ):
            return each
    return waiting[0] if is_input and len(waiting) == 1 and state.pending_validation is None else None


def _shows_log(command: str, pending: PendingValidation) -> bool:
    """Whether the command prints or searches a log file of the pending validation."""
    if not pending.logs:
        return False
    names = {log.rpartition("/")[2] for log in pending.logs}
    printed = {p.rpartition("/")[2] for p in list_shown_files(command)}
    searched = {a.rpartition("/")[2] for c in parse_command(command) if c.name == "grep" for a in c.argv[1:]}
    return not names.isdisjoint(printed | searched)


def _build_point(kind: PointKind, index: int, detail: str) -> HandoffPoint:
    line = " ".join(detail[:2000].split())
    return HandoffPoint(kind=kind, event_index=index, detail=line if len(line) <= 160 else line[:159] + "…")
