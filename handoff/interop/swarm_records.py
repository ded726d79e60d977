"""Handoff records of swarms: agents that hand a conversation to each other, as in langgraph-swarm."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from langchain_core.messages import BaseMessage

from langgraph_takeover.handoff.interop.session_records import build_record, list_handoff_points
from langgraph_takeover.handoff.readers import swarm_messages
from langgraph_takeover.handoff.recordings.recorded_run import TraceError
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError, RecordStore, TaskBrief
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint, Trace
from langgraph_takeover.sandbox.interface import FileChange, Snapshot

SwarmState = Mapping[str, Any] | Sequence[Any]
"""A swarm's state or its messages: objects, or any dump of them."""


def from_swarm(
    state: SwarmState,
    *,
    id: str = "swarm",
    thread_id: str | None = None,
    checkpoint_id: str = "",
    records: RecordStore | None = None,
    base_commit: str = "",
    snapshot: Snapshot | None = None,
    patch: str = "",
) -> tuple[HandoffRecord, ...]:
    """Return a record at each handoff, and one at the end of the conversation, named `<id>.requested.<event>`.

    `records` is the store of the swarm's handoff tools; `snapshot`, with its base commit and the difference from it, is
    the sandbox at the end. Raises TraceError and RecordError.
    """
    found = _parse_conversation(state, id, thread_id, records)
    active = str(state.get("active_agent") or "") if isinstance(state, Mapping) else ""
    made = []
    for point in _list_requested_points(found.trace):
        events = found.trace.events[: point.event_index + 1]
        ends = point.event_index == len(found.trace.events) - 1
        by = _find_last_agent(events) or (active or found.last_agent if ends else "")
        record = _build_record(found, point, by, thread_id or "")
        update: dict[str, Any] = {"id": f"{record.id}.{point.event_index}"}
        if ends:
            task = record.task.model_copy(update={"base_commit": base_commit or record.task.base_commit})
            update |= {"checkpoint_id": checkpoint_id, "snapshot": snapshot, "patch": patch, "task": task}
        made.append(record.model_copy(update=update).seal())
    return tuple(made)


class SandboxSource(Protocol):
    """The sandbox in which the last agent of a conversation worked."""

    @property
    def state_id(self) -> str: ...

    @property
    def task(self) -> TaskBrief: ...

    @property
    def events(self) -> Sequence[Event]:
        """What the sandbox observed during the agent's turn."""

    @property
    def records(self) -> RecordStore: ...

    def save(self, record: HandoffRecord, directory: Path) -> HandoffRecord:
        """Save the snapshot in the record's directory, and return the record with it."""

    def hold_lease(self) -> AbstractContextManager[None]: ...


def build_latest_record(
    state: SwarmState,
    *,
    thread_id: str = "",
    records: RecordStore | None = None,
    patch: str = "",
    sandbox: SandboxSource | None = None,
) -> HandoffRecord:
    """Return the record at the end of a conversation, named after its content; the same content gives the same record.

    Known secrets are redacted. With a store it is saved there durably; with a sandbox, in the store of its home unless
    `records` is another. `patch` is the files' difference from their start, if known. Raises TraceError and RecordError.
    """
    name = re.sub(r"[^\w.+-]", "_", thread_id, flags=re.ASCII)[:60].lstrip(".") or "swarm"
    found = _parse_conversation(state, name, thread_id, records)
    if sandbox is not None:
        events = apply_observed_events(found.trace.events, sandbox.events)
        found = found._replace(trace=found.trace.model_copy(update={"events": events}))
    clean = Trace.model_validate(redact(found.trace.model_dump(mode="json")))
    point = list_handoff_points(clean)[-1]
    by = found.last_agent or _find_last_agent(clean.events)
    record = _build_record(found._replace(trace=clean), point, by, thread_id)
    record = record.model_copy(update={"patch": redact(patch)})
    digest = record.seal().digest[:16]
    if sandbox is not None:
        task, records = sandbox.task, records or sandbox.records
        known = {"base_directories": task.base_directories, "workspace": task.workspace}
        base = record.task.base_commit or task.base_commit
        record = record.model_copy(
            update={"task": record.task.model_copy(update={**known, "base_commit": base})}
        )
        digest = f"{digest[:8]}{sandbox.state_id[-8:]}"
    record_id = f"{record.id}.{digest}"
    if records is not None:
        with contextlib.suppress(RecordError):  # created now, or created again
            return records.load(record_id)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    record = record.model_copy(update={"id": record_id, "created_at": now}).seal()
    if sandbox is not None and records is not None:
        return records.create(
            record_id, lambda directory: sandbox.save(record, directory), commit_guard=sandbox.hold_lease
        )
    return record if records is None else records.create(record_id, lambda _: record)


def apply_observed_events(events: Sequence[Event], observed: Sequence[Event]) -> tuple[Event, ...]:
    """Return the events of a conversation with what a sandbox observed: the calls that ran, and their changes.

    An observation belongs to the latest result with its text, or to the latest call with its arguments. The changes of
    one that is not in the conversation, such as an attempt before a retry, are those of the next.
    """
    result, end = list(events), len(events)
    later: tuple[FileChange, ...] = ()
    last: int | None = None
    for action, seen in reversed(list(zip(observed[::2], observed[1::2], strict=False))):
        found = next(
            (
                n
                for n in range(end - 1, 0, -1)
                if result[n].kind == "observation"
                and result[n].tool == seen.tool
                and (result[n].text.endswith(seen.text) or result[n - 1].arguments == action.arguments)
            ),
            None,
        )
        if found is None and last is None:
            later = (*seen.changes, *later)
        elif found is None:
            assert last is not None
            result[last] = result[last].model_copy(update={"changes": (*seen.changes, *result[last].changes)})
        else:
            fields = seen.model_dump(exclude={"index", "text", "usage", "changes", "reads"})
            result[found] = result[found].model_copy(
                update={**fields, "changes": (*seen.changes, *later), "reads": seen.reads}
            )
            result[found - 1] = result[found - 1].model_copy(update={"arguments": action.arguments})
            last = end = found
            later = ()
    if later:
        result[-1] = result[-1].model_copy(update={"changes": later})
    return tuple(result)


def attach_record(
    messages: Sequence[BaseMessage], record: HandoffRecord, *, is_stored: bool
) -> list[BaseMessage]:
    """Attach a record to its view's messages, so that the next handoff starts from it.

    Providers do not receive it. The whole record is attached, unless the next handoff finds it in its store.
    """
    reference = {"stored": True} if is_stored else {"content": json.dumps(record.model_dump(mode="json"))}
    marks = [{"record": record.id} | (reference if n == 0 else {}) for n in range(len(messages))]
    return [
        message.model_copy(
            update={"additional_kwargs": {**message.additional_kwargs, swarm_messages.METADATA_KEY: mark}}
        )
        for message, mark in zip(messages, marks, strict=True)
    ]


def load_earlier_events(
    state: SwarmState, *, thread_id: str = "", records: RecordStore | None = None
) -> tuple[Event, ...]:
    """Load the events behind the view in a conversation. Raises RecordError."""
    earlier = swarm_messages.read_conversation(
        _normalize_state(state), "swarm", _make_finder(records, thread_id)
    ).earlier_record
    return earlier.trace if earlier else ()


def _parse_conversation(
    state: SwarmState, name: str, thread_id: str | None, records: RecordStore | None
) -> swarm_messages.SwarmConversation:
    found = swarm_messages.read_conversation(_normalize_state(state), name, _make_finder(records, thread_id))
    if not found.trace.events:
        raise TraceError(f"{name}: messages: no agent has said or done anything in them")
    return found


def _normalize_state(state: SwarmState) -> Any:
    if isinstance(state, Mapping):
        messages = state.get("messages")
        return {**state, "messages": list(messages)} if isinstance(messages, tuple) else state
    return list(state)


def _make_finder(records: RecordStore | None, thread_id: str | None) -> swarm_messages.FindRecord:
    """Looks up records in a store: only those of one thread, because any writer may name any record."""

    def find(record_id: str) -> HandoffRecord:
        if records is None:
            raise RecordError(f"record {record_id!r:.80} is in a record store (pass it as records=)")
        record = records.load(record_id)
        if thread_id is not None and record.thread_id != thread_id:
            raise RecordError(
                f"record {record_id}: belongs to thread {record.thread_id!r:.80}, not to {thread_id!r:.80}"
            )
        return record

    return find


def _list_requested_points(trace: Trace) -> list[HandoffPoint]:
    return [point for point in list_handoff_points(trace) if point.kind == "requested"]


def _build_record(
    found: swarm_messages.SwarmConversation, point: HandoffPoint, author: str, thread_id: str
) -> HandoffRecord:
    record = build_record(found.trace, point)
    task = record.task
    if found.earlier_record is not None:
        known = found.earlier_record.task
        task = task.model_copy(update={"id": known.id, "base_commit": known.base_commit})
    return record.model_copy(
        update={"predecessor": author or found.trace.model, "thread_id": thread_id, "task": task}
    )


def _find_last_agent(events: Sequence[Event]) -> str:
    """Return the agent of the last of these events, according to the handoffs among them."""
    known = swarm_messages.list_transfers(events)
    if not known:
        return ""
    if events[-1].tool != "handoff":
        return known[-1].get("to", "")
    return known[-1].get("from", "") or (known[-2].get("to", "") if len(known) > 1 else "")
