"""When a run reaches a handoff point, told from its events alone, one event at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from langgraph_takeover.handoff.points.detector_state import DetectorState, PendingValidation, ValidationRun
from langgraph_takeover.handoff.points.edits import is_source_change, list_authored_files, summarize_changes
from langgraph_takeover.handoff.points.outcomes import (
    clean_output,
    extract_evidence,
    is_empty_test_run,
    judge,
)
from langgraph_takeover.handoff.points.validation import (
    ShellLocation,
    ValidationMatch,
    find_strongest_kind,
    find_validations,
    may_validate,
)
from langgraph_takeover.handoff.shell import attribution
from langgraph_takeover.handoff.shell.command_effects import (
    find_effect,
    is_restore,
    list_shown_files,
    may_act,
    may_edit,
)
from langgraph_takeover.handoff.shell.command_parser import find_executed_part, parse_command
from langgraph_takeover.handoff.shell.commands import SimpleCommand
from langgraph_takeover.handoff.shell.runner_summaries import ValidationOutcome
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint, PointKind

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
_TERMINAL_INPUTS = {"", "C-c", "C-d", "C-z", "C-\\"}


class DetectorUpdate(NamedTuple):
    """What one event brought about."""

    state: DetectorState
    points: tuple[HandoffPoint, ...] = ()
    edited_files: tuple[str, ...] = ()
    """The source files that it gave new content."""
    validation: ValidationRun | None = None
    """The validation whose result it shows, a readable one or not."""


class _ObservedChanges(NamedTuple):
    """What one observation's file changes amount to."""

    edited_files: tuple[str, ...]
    source_files: tuple[str, ...]
    matches: tuple[ValidationMatch, ...]
    is_edit_first: bool
    """The edit stands before the line's validations."""


def create_state(base_directories: Iterable[str], workspace: str = "") -> DetectorState:
    """The state before the first event.

    The top-level directories of the base commit tell scratch apart; the repository's absolute path, where
    it is known, tells which file a command means.
    """
    return DetectorState(base_directories=tuple(base_directories), workspace=workspace)


def observe(state: DetectorState, event: Event) -> tuple[DetectorState, tuple[HandoffPoint, ...]]:
    """The state after an event, and the points that lie after it, edits before validations."""
    noticed = process_event(state, event)
    return noticed.state, noticed.points


def process_event(state: DetectorState, event: Event) -> DetectorUpdate:
    """The same, with what was noticed on the way."""
    if event.kind == "action":
        if event.tool != "shell":
            return DetectorUpdate(
                state
                if state.pending_command is None
                else state._replace(pending_command=None, pending_input=False)
            )
        command = event.arguments.get("command", "")
        if (
            state.pending_validation is None
            and state.pending_command is None
            and find_effect(command) != "anything"
        ):
            return DetectorUpdate(state)
        sent = command in _TERMINAL_INPUTS or event.arguments.get("is_input") == "true"
        return DetectorUpdate(state._replace(pending_command=command, pending_input=sent))
    pending, sent = state.pending_command if event.tool == "shell" else None, state.pending_input
    if state.pending_command is not None:
        state = state._replace(pending_command=None, pending_input=False)
    if event.refused:
        return DetectorUpdate(state)
    if pending is not None and not sent and state.pending_validation is None and not event.changes:
        if not may_validate(pending, state.written_scripts):
            return DetectorUpdate(state)
    elif pending is None and not event.changes:
        return DetectorUpdate(state)
    return _process_observation(
        state, event, None if pending is None else find_executed_part(pending, event.text), sent
    )


def replay_events(
    events: Iterable[Event], base_directories: Iterable[str], workspace: str = ""
) -> Iterator[DetectorUpdate]:
    """What every event of a run brings about, in order."""
    state = create_state(base_directories, workspace)
    for event in events:
        noticed = process_event(state, event)
        state = noticed.state
        yield noticed


def list_validations(
    events: Iterable[Event], base_directories: Iterable[str], workspace: str = ""
) -> tuple[ValidationRun, ...]:
    """Every validation of a run, results or not, in order."""
    return tuple(
        n.validation for n in replay_events(events, base_directories, workspace) if n.validation is not None
    )


def list_points(
    events: Iterable[Event], base_directories: Iterable[str], workspace: str = ""
) -> tuple[HandoffPoint, ...]:
    """Every handoff point of a run, in order."""
    return tuple(point for n in replay_events(events, base_directories, workspace) for point in n.points)


def compute_state(
    events: Iterable[Event], base_directories: Iterable[str], workspace: str = ""
) -> DetectorState:
    """The state at the end of a whole trace."""
    state = create_state(base_directories, workspace)
    for event in events:
        state, _ = observe(state, event)
    return state


def compute_continuation_state(
    events: Iterable[Event], base_directories: Iterable[str], workspace: str = ""
) -> ContinuationState:
    """What the predecessor itself could know about where it stopped."""
    return classify_continuation(compute_state(events, base_directories, workspace))


def classify_continuation(state: DetectorState) -> ContinuationState:
    """The same, of a state already reached."""
    changed = any(
        f.current != f.base and is_source_change(state, path, f.base) for path, f in state.files.items()
    )
    return _CONTINUATION_STATES[state.outcome_since_change] if changed else "no_source_change"


def _process_observation(
    state: DetectorState, event: Event, command: str | None, is_input: bool
) -> DetectorUpdate:
    """What an action that may matter brought about."""
    failed_before = state.failed_after_edit
    edited_before = bool(state.edited_files)
    state, changed = _apply_changes(state, command or "", event)
    kinds: list[tuple[PointKind, str]] = []
    if changed.edited_files:
        detail = "edited " + ", ".join(changed.edited_files)
        kinds.append(("first_source_edit", detail))
        if failed_before:
            kinds.append(("first_post_failure_edit", detail))
    run: ValidationRun | None = None
    if command is not None:
        after_edit = edited_before or (bool(changed.edited_files) and changed.is_edit_first)
        state, run, counts = _apply_validation(state, command, is_input, event, changed, after_edit)
        if run is not None and counts and run.outcome in ("passed", "failed"):
            kinds.append(("first_validation", f"{run.kind} {run.outcome}: {run.command}"))
            state = state._replace(failed_after_edit=state.failed_after_edit or run.outcome == "failed")
    points = tuple(_build_point(k, event.index, detail) for k, detail in kinds if k not in state.fired)
    if points:
        state = state._replace(fired=state.fired + tuple(p.kind for p in points))
    return DetectorUpdate(state, points, changed.edited_files, run)


def _apply_changes(
    state: DetectorState, command: str, event: Event
) -> tuple[DetectorState, _ObservedChanges]:
    place = ShellLocation(event.cwd, state.workspace)
    if not event.changes:
        return state, _ObservedChanges(
            (), (), find_validations(command, state.written_scripts, place) if command else (), True
        )
    seen = summarize_changes(state, event.changes)
    found = find_validations(command, seen.written_scripts, place) if command else ()
    may_matter = found or (seen.edited_files and attribution.may_restore_or_build(command))
    commands = parse_command(command) if may_matter else ()
    edited = list_authored_files(seen, command, commands)
    found, edit_first, editing = _attribute_changes(
        found, commands, seen.source_files or seen.rewritten_files, bool(edited)
    )
    state = state._replace(
        files=seen.files,
        written_scripts=tuple(script for script in seen.written_scripts if script not in editing),
        edited_files=state.edited_files + tuple(path for path in edited if path not in state.edited_files),
    )
    if seen.source_files:
        state = state._replace(outcome_since_change=None, pending_validation=None)
    return state, _ObservedChanges(edited, tuple(seen.source_files), found, edit_first)


def _attribute_changes(
    matches: tuple[ValidationMatch, ...],
    commands: Sequence[SimpleCommand],
    changed_paths: Collection[str],
    has_new_content: bool,
) -> tuple[tuple[ValidationMatch, ...], bool, set[str]]:
    """The line's validations without scripts that edited, whether an edit precedes them, those scripts."""
    if not changed_paths or not matches:
        return matches, True, set()
    editors = [
        number
        for number, command in enumerate(commands)
        if may_edit(command, changed_paths) and not (has_new_content and is_restore(command))
    ]
    scripts = [f for f in matches if f.script is not None]
    editing: set[str] = set()
    explained = any(
        number < scripts[0].position or attribution.may_mention(commands[number], changed_paths)
        for number in (editors if scripts else ())
    )
    if scripts and not explained:
        # Nothing else can have made the change: the first script did, and is an edit.
        editing = {scripts[0].script or ""}
        editors.append(scripts[0].position)
        matches = tuple(f for f in matches if f.script not in editing)
    if not matches:
        return matches, True, editing
    if editors:
        return matches, min(editors) < matches[-1].position, editing
    return matches, any(may_act(c) for c in commands[: matches[0].position]), editing


def _apply_validation(
    state: DetectorState,
    command: str,
    is_input: bool,
    event: Event,
    changes: _ObservedChanges,
    after_edit: bool,
) -> tuple[DetectorState, ValidationRun | None, bool]:
    """The state with the observation's validation in it, that run, and whether it follows a source edit."""
    found, exit_code = changes.matches, event.exit_code
    ran, awaited = command, state.pending_validation
    if not found:
        if awaited is None or not (is_input or _shows_log(command, awaited)):
            hung = awaited is not None and not awaited.logs
            return (state._replace(pending_validation=None) if hung else state), None, False
        ran, after_edit = awaited.command, awaited.after_edit
        found = find_validations(ran, state.written_scripts, ShellLocation(event.cwd, state.workspace))
        # An exit code is the program's only after an input, and an interrupted one says nothing.
        exit_code = exit_code if is_input and command in ("", "C-d") else None
    text = clean_output(event.text)
    if is_empty_test_run(found, text, exit_code):
        return state, None, False
    result = judge(ran, found, text, exit_code, event.timed_out, state.edited_files)
    if not found or (ran != command and result not in ("passed", "failed")):
        return state, None, False
    kind = find_strongest_kind(found)
    cwd = next((f.command.cwd for f in found if f.kind == kind), None)
    run = ValidationRun(event.index, ran, kind, result, cwd)
    state = state._replace(latest_validation=run, pending_validation=None)
    if ran == command and result not in ("passed", "failed"):
        logs = tuple(r.target for f in found for r in f.command.redirects if ">" in r.operator)
        logs = tuple(log for log in logs if not log.isdigit() and log != "/dev/null")
        if logs or event.exit_code is None:
            state = state._replace(pending_validation=PendingValidation(ran, after_edit, logs))
    # Unknown is a validation without a readable result: it is remembered, but no result, so it fires nothing.
    ordered = not changes.source_files or changes.is_edit_first
    known = state.outcome_since_change in ("passed", "failed")
    if ordered and (result in ("passed", "failed") or (result == "unknown" and not known)):
        state = state._replace(outcome_since_change=result)
    return state, run, after_edit


def find_evidence(run: ValidationRun, events: Sequence[Event]) -> tuple[str, ...]:
    """The lines that decided a validation's outcome."""
    shown = next((event.text for event in events if event.index == run.event_index), "")
    return extract_evidence(clean_output(shown))


def _shows_log(command: str, pending: PendingValidation) -> bool:
    if not pending.logs:
        return False
    names = {log.rpartition("/")[2] for log in pending.logs}
    shown = {p.rpartition("/")[2] for p in list_shown_files(command)}
    searched = {a.rpartition("/")[2] for c in parse_command(command) if c.name == "grep" for a in c.argv[1:]}
    return not names.isdisjoint(shown | searched)


def _build_point(kind: PointKind, index: int, detail: str) -> HandoffPoint:
    line = " ".join(detail[:2000].split())
    return HandoffPoint(kind=kind, event_index=index, detail=line if len(line) <= 160 else line[:159] + "…")
