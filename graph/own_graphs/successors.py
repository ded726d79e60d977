"""Successors of a record as agents of `create_agent`."""

from __future__ import annotations

from typing import Any

from langgraph_takeover.graph.own_graphs.thread_sandbox import ThreadSandbox
from langgraph_takeover.handoff.views import Recipient, find_view
from langgraph_takeover.handoff.views.names import ViewName


def receive_record(
    work: ThreadSandbox, record_id: str, view: ViewName = "structured", *, window_tokens: int = 128_000
) -> dict[str, Any]:
    """Return the input of an agent that takes over a record on a new thread, under a view.

    The thread's sandbox gets the record's snapshot. Raises RecordError, UnknownViewError, SnapshotCorruptError and
    SandboxUnavailableError.
    """
    record = work.session.records.load(record_id)
    messages = find_view(view)(record, Recipient(protocol="native", window_tokens=window_tokens))
    state = work.restore(record.required_snapshot, work.session.records.directory(record.id))
    return {
        "messages": messages,
        "sandbox_state": state,
        "task": record.task.model_dump(mode="json"),
        "record": record.id,
    }
