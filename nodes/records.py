"""Creation of handoff records: exactly one per point, however often a node is run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from langgraph.runtime import Runtime

from langgraph_takeover.base.telemetry import Attributes, start_span
from langgraph_takeover.handoff.records.envelope import Payload
from langgraph_takeover.handoff.records.record import (
    EditedFile,
    ExternalSession,
    HandoffRecord,
    RecordError,
    RecordStore,
    TaskBrief,
)
from langgraph_takeover.handoff.records.record_facts import add_left_out, add_observed_changes, build_parent
from langgraph_takeover.handoff.records.verification import require_changes
from langgraph_takeover.handoff.trace.events import (
    Event,
    HandoffPoint,
    append_events,
    compute_differences,
    sum_forms,
)
from langgraph_takeover.handoff.trace.file_kinds import is_source, mark_new_project
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.state import AgentState, get_task
from langgraph_takeover.nodes.state_events import load_changes, load_events, report_progress
from langgraph_takeover.sandbox.changes.file_access import list_unsaved_files, read_small_files
from langgraph_takeover.sandbox.interface import Sandbox
from langgraph_takeover.sandbox.repository import (
    OpenBase,
    RepositoryError,
    base_directories,
    base_files,
    list_files,
    patch_since,
)
from langgraph_takeover.sandbox.snapshots.transfer import copy_to_store

_MAX_NAME_BYTES = 120
_MAX_BASE_FILES = 2_000
"""A commit with more files has source, whatever their names."""
_MAX_EDITED_FILES, _MAX_EDITED_FILE_BYTES, _MAX_EDITED_BYTES = 20, 128_000, 256_000


def build_record_id(run_id: str, point: HandoffPoint) -> str:
    """Return the id of a point's record, which is the same on every attempt."""
    name = re.sub(r"[^\w.+-]", "_", run_id)
    if len(name.encode()) > _MAX_NAME_BYTES:
        # A file name has at most 255 bytes, including a point's kind and a checkpoint's id.
        digest = hashlib.sha256(run_id.encode()).hexdigest()[:12]
        name = f"{name.encode()[: _MAX_NAME_BYTES - 13].decode(errors='ignore')}-{digest}"
    number = f"-{point.event_index}" if point.kind == "periodic" else ""
    return f"{name}.{point.kind}{number}".lstrip(".")


def build_full_trace(state: AgentState, context: AgentContext) -> tuple[Event, ...]:
    """Return all events so far: those of the record that the run took over, then its own."""
    return _join_trace(state, load_events(state), context.session.records)


def _join_trace(state: AgentState, own: tuple[Event, ...], records: RecordStore) -> tuple[Event, ...]:
    """Return the events of the record that the run took over, then its own, with their positions in both."""
    if "record" not in state:
        return own
    return append_events(records.load(state["record"]).trace, own)


def enter_checked_state(session: Session, state: AgentState) -> Sandbox:
    """Return the sandbox of a graph state, compared with the run's changes if it was restored.

    Raises what `Session.enter_state` raises, and SnapshotCorruptError if the sandbox has lost changes.
    """

    def check(sandbox: Sandbox) -> None:
        unchecked = state.get("unchecked_events")
        trace = load_changes(state, unchecked or 0)
        if unchecked is None:
            with suppress(RecordError):  # the predecessor's record is gone
                trace = _join_trace(state, trace, session.records)
        system = sandbox if session.has_image else None
        require_changes(sandbox.sha256, trace, f"thread {session.thread!r}", system=system)

    return session.enter_checked_state(state["sandbox_state"], check)


def _shift_point(point: HandoffPoint, parent: HandoffRecord | None) -> HandoffPoint:
    """Return a point of the run's own events as a point of its full trace, which begins with that of its parent."""
    return (
        point.model_copy(update={"event_index": point.event_index + len(parent.trace)}) if parent else point
    )


def _load_parent(session: Session, state: AgentState) -> HandoffRecord | None:
    """Load the record that the run took over, if it took over one."""
    return session.records.load(state["record"]) if "record" in state else None


def create_record(
    state: AgentState,
    runtime: Runtime[AgentContext],
    point: HandoffPoint,
    run_id: str,
    *,
    task: TaskBrief | None = None,
    payload: Payload | None = None,
) -> HandoffRecord:
    """Create the record of a point at the end of the state's events, or return the existing one; `task` overrides the run's."""
    context = get_agent_context(runtime)
    execution = runtime.execution_info
    checkpoint = execution.checkpoint_id if execution else ""
    # Loading the record of the predecessor is slow, and only the id of a periodic record needs it.
    parent = _load_parent(context.session, state) if point.kind == "periodic" else None
    record_id = build_record_id(run_id, _shift_point(point, parent))
    if (existing := _find_record(context, record_id)) is not None:
        if existing.checkpoint_id == checkpoint and existing.thread_id == context.session.thread:
            return existing
        # The existing record belongs to another branch of the run, or to another request.
        record_id = f"{record_id}.{checkpoint[-12:]}"
        if (existing := _find_record(context, record_id)) is not None:
            return existing
    if point.kind != "periodic":
        report_progress(runtime, "point", state, kind=point.kind, text=point.detail)
    record = save_record(
        context.session,
        state,
        point,
        record_id=record_id,
        checkpoint=checkpoint,
        predecessor=context.display_model,
        task=task,
        payload=payload,
        parent=parent,
    )
    report_progress(runtime, "record", state, kind=point.kind, record=record.id)
    return record


def save_record(
    session: Session,
    state: AgentState,
    point: HandoffPoint,
    *,
    record_id: str,
    checkpoint: str,
    predecessor: str,
    task: TaskBrief | None = None,
    payload: Payload | None = None,
    attach: Callable[[HandoffRecord, Path], None] | None = None,
    parent: HandoffRecord | None = None,
) -> HandoffRecord:
    """Save the record of a point at the end of the state's events, with the snapshot of the state's sandbox.

    `parent` is the record that the run took over, if the caller has loaded it. `attach` may add files to the record's directory.

    Raises SnapshotNotFoundError, SnapshotCorruptError, SandboxUnavailableError, FencedError, and RecordError if the
    record that the run took over cannot be read.
    """
    own_task = get_task(state)
    parent = parent or _load_parent(session, state)
    trace = append_events(parent.trace if parent else (), load_events(state))
    point, external = _shift_point(point, parent), state.get("external")

    def build(directory: Path) -> HandoffRecord:
        record = HandoffRecord(
            id=record_id,
            task=task or own_task,
            predecessor=predecessor,
            point=point,
            **save_files(session, state["sandbox_state"], own_task, trace, directory),
            thread_id=session.thread,
            checkpoint_id=checkpoint,
            trace=trace,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            payload=payload,
            external=_extend_session(ExternalSession.model_validate(external), parent) if external else None,
            parent=build_parent(parent, state.get("view", "")) if parent else None,
        )
        if attach is not None:
            attach(record, directory)
        return record

    attributes: Attributes = {
        "takeover.operation": "handoff",
        "takeover.thread": session.thread,
        "takeover.record": record_id,
        "takeover.point.kind": point.kind,
        "takeover.event": point.event_index,
    }
    with start_span("takeover.handoff", attributes) as span:
        record = session.records.create(record_id, build, commit_guard=session.hold_lease)
        if span.is_recording:
            span.set({"takeover.backend": record.required_snapshot.backend})
            span.set({"takeover.snapshot.digest": record.required_snapshot.digest})
    return record


def _extend_session(session: ExternalSession, parent: HandoffRecord | None) -> ExternalSession:
    """Return a session with what its parent's session says of the earlier work: unknown forms, and files of withdrawn work."""
    before = parent.external if parent is not None else None
    if before is None:
        return session
    withdrawn = dict.fromkeys((*before.withdrawn_files, *session.withdrawn_files))
    forms = sum_forms([before.unknown_forms, session.unknown_forms])
    return session.model_copy(update={"withdrawn_files": tuple(withdrawn), "unknown_forms": forms})


def save_files(
    session: Session, state_id: str, task: TaskBrief, trace: tuple[Event, ...], directory: Path
) -> dict[str, Any]:
    """Save the sandbox of a state in a record's directory, and return the record's fields about its files."""
    with session.take_place(state_id) as place:
        sandbox = place.enter_state(state_id, task)
        snapshot = place.save_snapshot(state_id)
        copy_to_store(snapshot, place.snapshot_directory(snapshot), directory)
        return {
            **compute_patch_fields(sandbox, task.base_commit, trace, place.open_base),
            "snapshot": snapshot,
            "files": list_files(sandbox),
            "edited_files": read_edited_files(sandbox, trace, task),
        }


def _find_record(context: AgentContext, record_id: str) -> HandoffRecord | None:
    try:
        return context.session.records.load(record_id)
    except RecordError:
        return None


def list_base_directories(sandbox: Sandbox, trace: tuple[Event, ...] = ()) -> tuple[str, ...]:
    """List the top-level directories of the checked-out commit, with a mark if it has no source. Raises RepositoryError.

    Files that the trace created do not count: an agent may have committed them.
    """
    directories, files = base_directories(sandbox), base_files(sandbox, _MAX_BASE_FILES)
    created = {path for path, (before, _) in compute_differences(trace).items() if before is None}
    return directories if len(files) == _MAX_BASE_FILES else mark_new_project(directories, {*files} - created)


def read_edited_files(sandbox: Sandbox, trace: tuple[Event, ...], task: TaskBrief) -> tuple[EditedFile, ...]:
    """Read the text files of the repository that the run edited: source first, then the latest edited.

    At most 20 files of 128 kB each, 256 kB in all; contents are not redacted.
    """
    latest = {change.path: event.index for event in trace for change in event.changes}
    differences = compute_differences(trace)
    paths = [path for path, (_, now) in differences.items() if now is not None and not path.startswith("/")]
    paths.sort(
        key=lambda path: (
            not is_source(path, differences[path][0] is not None, task.base_directories),
            -latest[path],
        )
    )
    contents = read_small_files(sandbox, paths[:_MAX_EDITED_FILES], _MAX_EDITED_FILE_BYTES)
    found: list[EditedFile] = []
    free = _MAX_EDITED_BYTES
    for path, content in contents.items():
        digest = hashlib.sha256(content).hexdigest()
        # The trace does not know what a program in the background wrote after the last event.
        if digest != differences[path][1] or len(content) > free or b"\0" in content:
            continue
        try:
            found.append(EditedFile(path=path, sha256=digest, content=content.decode()))
        except UnicodeDecodeError:
            continue
        free -= len(content)
    return tuple(found)


def compute_patch_fields(
    sandbox: Sandbox, base_commit: str, observed: tuple[Event, ...], open_base: OpenBase | None = None
) -> dict[str, Any]:
    """Return a record's fields about its patch: the patch and what it lacks, or the reason for a missing patch."""
    try:
        patch = add_observed_changes(patch_since(sandbox, base_commit, open_base=open_base), observed)
        patch = add_left_out(patch, list_unsaved_files(sandbox))
    except RepositoryError as error:
        return {"patch": "", "patch_error": str(error)}
    return {"patch": patch.text, "left_out": patch.left_out, "left_out_count": patch.left_out_count}
