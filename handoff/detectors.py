"""When a run reaches a handoff point, told from its events alone, one event at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from handoff import authorship
from handoff.command_effects import find_effect, may_act, may_edit, restores, shown_files
from handoff.commands import SimpleCommand, executed, parse
from handoff.detector_state import Awaited, DetectorState, ValidationRun
from handoff.edits import authored, is_source, look_at
from handoff.event import Event, HandoffPoint, PointKind
from handoff.outcomes import evidence, judge, plain, runs_nothing
from handoff.summaries import Outcome
from handoff.validation import Found, Place, find, may_validate, strongest

ContinuationState = Literal[
    "no_source_change",
    "changed_not_validated",
    "changed_validation_failing",
    "changed_validation_passing",
    "changed_validation_unknown",
]
_CONTINUATIONS: dict[Outcome | None, ContinuationState] = {
    None: "changed_not_validated",
    "failed": "changed_validation_failing",
    "passed": "changed_validation_passing",
    "unknown": "changed_validation_unknown",
}
_INPUTS = {"", "C-c", "C-d", "C-z", "C-\\"}


class Noticed(NamedTuple):
    """What one event brought about."""

    state: DetectorState
    points: tuple[HandoffPoint, ...] = ()
    edited: tuple[str, ...] = ()
    """The source files that it gave new content."""
    validation: ValidationRun | None = None
    """The validation whose result it shows, a readable one or not."""


class _Changed(NamedTuple):
    """What one observation's file changes amount to."""

    edited: tuple[str, ...]
    source: tuple[str, ...]
    found: tuple[Found, ...]
    edit_first: bool
    """The edit stands before the line's validations."""


def start(base_directories: Iterable[str], workspace: str = "") -> DetectorState:
    """The state before the first event.

    The top-level directories of the base commit tell scratch apart; the repository's absolute path, where
    it is known, tells which file a command means.
    """
    return DetectorState(base_directories=tuple(base_directories), workspace=workspace)


def observe(state: DetectorState, event: Event) -> tuple[DetectorState, tuple[HandoffPoint, ...]]:
    """The state after an event, and the points that lie after it, edits before validations."""
    noticed = notice(state, event)
    return noticed.state, noticed.points


def notice(state: DetectorState, event: Event) -> Noticed:
    """The same, with what was noticed on the way."""
    if event.kind == "action":
        if event.tool != "shell":
            return Noticed(
                state if state.pending is None else state._replace(pending=None, pending_input=False)
            )
        command = event.arguments.get("command", "")
        if state.awaited is None and state.pending is None and find_effect(command) != "anything":
            return Noticed(state)
        sent = command in _INPUTS or event.arguments.get("is_input") == "true"
        return Noticed(state._replace(pending=command, pending_input=sent))
    pending, sent = state.pending if event.tool == "shell" else None, state.pending_input
    if state.pending is not None:
        state = state._replace(pending=None, pending_input=False)
    if event.refused:
        return Noticed(state)
    if pending is not None and not sent and state.awaited is None and not event.changes:
        if not may_validate(pending, state.written_scripts):
            return Noticed(state)
    elif pending is None and not event.changes:
        return Noticed(state)
    return _acted(state, event, None if pending is None else executed(pending, event.text), sent)


def walk(events: Iterable[Event], base_directories: Iterable[str], workspace: str = "") -> Iterator[Noticed]:
    """What every event of a run brings about, in order."""
    state = start(base_directories, workspace)
    for event in events:
        noticed = notice(state, event)
        state = noticed.state
        yield noticed


def validations(
    events: Iterable[Event], base_directories: Iterable[str], workspace: str = ""
) -> tuple[ValidationRun, ...]:
    """Every validation of a run, results or not, in order."""
    return tuple(n.validation for n in walk(events, base_directories, workspace) if n.validation is not None)


def points(
    events: Iterable[Event], base_directories: Iterable[str], workspace: str = ""
) -> tuple[HandoffPoint, ...]:
    """Every handoff point of a run, in order."""
    return tuple(point for n in walk(events, base_directories, workspace) for point in n.points)


def state_after(
    events: Iterable[Event], base_directories: Iterable[str], workspace: str = ""
) -> DetectorState:
    """The state at the end of a whole trace."""
    state = start(base_directories, workspace)
    for event in events:
        state, _ = observe(state, event)
    return state


def continuation_state(
    events: Iterable[Event], base_directories: Iterable[str], workspace: str = ""
) -> ContinuationState:
    """What the predecessor itself could know about where it stopped."""
    return continuation(state_after(events, base_directories, workspace))


def continuation(state: DetectorState) -> ContinuationState:
    """The same, of a state already reached."""
    changed = any(f.current != f.base and is_source(state, path, f.base) for path, f in state.files.items())
    return _CONTINUATIONS[state.since_change] if changed else "no_source_change"


def _acted(state: DetectorState, event: Event, command: str | None, sent: bool) -> Noticed:
    """What an action that may matter brought about."""
    failed_before = state.failed_after_edit
    edited_before = bool(state.edited)
    state, changed = _take_changes(state, command or "", event)
    kinds: list[tuple[PointKind, str]] = []
    if changed.edited:
        detail = "edited " + ", ".join(changed.edited)
        kinds.append(("first_source_edit", detail))
        if failed_before:
            kinds.append(("first_post_failure_edit", detail))
    run: ValidationRun | None = None
    if command is not None:
        after_edit = edited_before or (bool(changed.edited) and changed.edit_first)
        state, run, counts = _take_validation(state, command, sent, event, changed, after_edit)
        if run is not None and counts and run.outcome in ("passed", "failed"):
            kinds.append(("first_validation", f"{run.kind} {run.outcome}: {run.command}"))
            state = state._replace(failed_after_edit=state.failed_after_edit or run.outcome == "failed")
    points = tuple(_point(k, event.index, detail) for k, detail in kinds if k not in state.fired)
    if points:
        state = state._replace(fired=state.fired + tuple(p.kind for p in points))
    return Noticed(state, points, changed.edited, run)


def _take_changes(state: DetectorState, command: str, event: Event) -> tuple[DetectorState, _Changed]:
    place = Place(event.cwd, state.workspace)
    if not event.changes:
        return state, _Changed((), (), find(command, state.written_scripts, place) if command else (), True)
    seen = look_at(state, event.changes)
    found = find(command, seen.written_scripts, place) if command else ()
    may_matter = found or (seen.edited and authorship.may_matter(command))
    commands = parse(command) if may_matter else ()
    edited = authored(seen, command, commands)
    found, edit_first, editing = _attribute(found, commands, seen.source or seen.rewritten, bool(edited))
    state = state._replace(
        files=seen.files,
        written_scripts=tuple(script for script in seen.written_scripts if script not in editing),
        edited=state.edited + tuple(path for path in edited if path not in state.edited),
    )
    if seen.source:
        state = state._replace(since_change=None, awaited=None)
    return state, _Changed(edited, tuple(seen.source), found, edit_first)


def _attribute(
    found: tuple[Found, ...], commands: Sequence[SimpleCommand], changed: Collection[str], new: bool
) -> tuple[tuple[Found, ...], bool, set[str]]:
    """The line's validations without scripts that edited, whether an edit precedes them, those scripts."""
    if not changed or not found:
        return found, True, set()
    editors = [
        number
        for number, command in enumerate(commands)
        if may_edit(command, changed) and not (new and restores(command))
    ]
    scripts = [f for f in found if f.script is not None]
    editing: set[str] = set()
    explained = any(
        number < scripts[0].position or authorship.names(commands[number], changed)
        for number in (editors if scripts else ())
    )
    if scripts and not explained:
        # Nothing else can have made the change: the first script did, and is an edit.
        editing = {scripts[0].script or ""}
        editors.append(scripts[0].position)
        found = tuple(f for f in found if f.script not in editing)
    if not found:
        return found, True, editing
    if editors:
        return found, min(editors) < found[-1].position, editing
    return found, any(may_act(c) for c in commands[: found[0].position]), editing


def _take_validation(
    state: DetectorState, command: str, sent: bool, event: Event, changed: _Changed, after_edit: bool
) -> tuple[DetectorState, ValidationRun | None, bool]:
    """The state with the observation's validation in it, that run, and whether it follows a source edit."""
    found, exit_code = changed.found, event.exit_code
    ran, awaited = command, state.awaited
    if not found:
        if awaited is None or not (sent or _shows_log(command, awaited)):
            hung = awaited is not None and not awaited.logs
            return (state._replace(awaited=None) if hung else state), None, False
        ran, after_edit = awaited.command, awaited.after_edit
        found = find(ran, state.written_scripts, Place(event.cwd, state.workspace))
        # An exit code is the program's only after an input, and an interrupted one says nothing.
        exit_code = exit_code if sent and command in ("", "C-d") else None
    text = plain(event.text)
    if runs_nothing(found, text, exit_code):
        return state, None, False
    result = judge(ran, found, text, exit_code, event.timed_out, state.edited)
    if not found or (ran != command and result not in ("passed", "failed")):
        return state, None, False
    kind = strongest(found)
    cwd = next((f.command.cwd for f in found if f.kind == kind), None)
    run = ValidationRun(event.index, ran, kind, result, cwd)
    state = state._replace(latest_validation=run, awaited=None)
    if ran == command and result not in ("passed", "failed"):
        logs = tuple(r.target for f in found for r in f.command.redirects if ">" in r.operator)
        logs = tuple(log for log in logs if not log.isdigit() and log != "/dev/null")
        if logs or event.exit_code is None:
            state = state._replace(awaited=Awaited(ran, after_edit, logs))
    # Unknown is a validation without a readable result: it is remembered, but no result, so it fires nothing.
    ordered = not changed.source or changed.edit_first
    known = state.since_change in ("passed", "failed")
    if ordered and (result in ("passed", "failed") or (result == "unknown" and not known)):
        state = state._replace(since_change=result)
    return state, run, after_edit


def evidence_of(run: ValidationRun, events: Sequence[Event]) -> tuple[str, ...]:
    """The lines that decided a validation's outcome."""
    shown = next((event.text for event in events if event.index == run.event_index), "")
    return evidence(plain(shown))


def _shows_log(command: str, awaited: Awaited) -> bool:
    if not awaited.logs:
        return False
    names = {log.rpartition("/")[2] for log in awaited.logs}
    shown = {p.rpartition("/")[2] for p in shown_files(command)}
    searched = {a.rpartition("/")[2] for c in parse(command) if c.name == "grep" for a in c.argv[1:]}
    return not names.isdisjoint(shown | searched)


def _point(kind: PointKind, index: int, detail: str) -> HandoffPoint:
    line = " ".join(detail[:2000].split())
    return HandoffPoint(kind=kind, event_index=index, detail=line if len(line) <= 160 else line[:159] + "…")
