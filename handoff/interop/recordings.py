"""Handoff records of recorded runs: what a successor would have seen, without a sandbox to continue in."""

from __future__ import annotations

import hashlib
import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator

from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.readers.recorded_run import list_unknown_tools
from langgraph_takeover.handoff.records.record import ExternalSession, HandoffRecord, TaskBrief
from langgraph_takeover.handoff.shell.command_effects import list_shown_files
from langgraph_takeover.handoff.trace.events import Event, FileRead, HandoffPoint, Trace
from langgraph_takeover.handoff.trace.unknown_forms import count_forms


def list_handoff_points(trace: Trace) -> tuple[HandoffPoint, ...]:
    """List the handoff points of a recorded run; agents' requests and the end count as requested."""
    found = detectors.list_points(trace.events, trace.base_directories, trace.workspace)
    if not trace.events:
        return found
    requested, last = tuple(_find_requested_points(trace.events)), len(trace.events) - 1
    if not requested or requested[-1].event_index < last:
        requested += (HandoffPoint(kind="requested", event_index=last, detail="the recording ends"),)
    return (*found, *requested)


def _find_requested_points(events: Iterable[Event]) -> Iterator[HandoffPoint]:
    """Yield the point after each successful call of a handoff tool."""
    action: Event | None = None
    for event in events:
        if event.kind == "action":
            action = event
        elif action is not None and action.tool == event.tool == "handoff" and not event.refused:
            to = " ".join(action.arguments.get("to", "").split())
            detail = f"handed over to {to:.200}" if to else "the agent asked"
            yield HandoffPoint(kind="requested", event_index=event.index, detail=detail)


def build_record(trace: Trace, point: HandoffPoint) -> HandoffRecord:
    """Build the record of a recorded run at one of its points."""
    later = count_forms(
        list_unknown_tools(e for e in trace.events[point.event_index + 1 :] if e.kind == "action")
    )
    unknown = dict(Counter(trace.unknown_forms) - Counter(later))
    agent = trace.agent or trace.format
    return HandoffRecord(
        id=f"{trace.id}.{point.kind}",
        task=TaskBrief(
            id=trace.id,
            prompt=trace.task,
            base_commit="",
            base_directories=trace.base_directories,
            workspace=trace.workspace,
        ),
        predecessor=trace.model,
        point=point,
        patch="",
        snapshot=None,
        thread_id="",
        checkpoint_id="",
        trace=tuple(infer_reads(trace.events[: point.event_index + 1], trace.workspace)),
        created_at="",
        external=ExternalSession(agent=agent, version=trace.agent_version, unknown_forms=unknown)
        if unknown
        else None,
    ).seal()


def infer_reads(events: Iterable[Event], workspace: str) -> Iterator[Event]:
    """Add the files that actions must have read, because a recording does not list them.

    As with the changes of a recorded run, digests only distinguish contents of a file.
    """
    now: dict[str, str] = {}
    action: Event | None = None
    for event in events:
        if event.kind == "action":
            action = event
        elif action is not None and not event.reads and not event.refused and event.exit_code in (0, None):
            found = (_normalize_path(path, event.cwd or "", workspace) for path in _list_shown_paths(action))
            event = event.model_copy(
                update={
                    "reads": tuple(
                        FileRead(path=p, sha256=now.get(p) or _placeholder_digest(p)) for p in found
                    )
                }
            )
        now |= {change.path: change.after or "" for change in event.changes}
        yield event


def _list_shown_paths(action: Event) -> tuple[str, ...]:
    if action.tool == "shell":
        return list_shown_files(action.arguments.get("command", ""))
    if action.tool == "editor" and action.arguments.get("command") == "view":
        return (action.arguments.get("path", ""),)
    return ()


def _normalize_path(path: str, cwd: str, workspace: str) -> str:
    """Return a path as changes name it: relative inside the repository, absolute outside."""
    whole = posixpath.normpath(posixpath.join(workspace, cwd, path))
    return whole.removeprefix(workspace.rstrip("/") + "/" if workspace else "")


def _placeholder_digest(path: str) -> str:
    return hashlib.sha256(f"base of {path}".encode("utf-8", "surrogatepass")).hexdigest()
