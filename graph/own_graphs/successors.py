"""Records between agents of one's own graphs: what a successor receives, and what a handoff tool saves."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.messages import ToolMessage

from langgraph_takeover.graph.own_graphs.agent_handoffs import read_field
from langgraph_takeover.graph.own_graphs.call_order import find_attended_call
from langgraph_takeover.graph.own_graphs.thread_sandbox import ThreadSandbox
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordStore, TaskBrief
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.handoff.views import Recipient, find_view
from langgraph_takeover.handoff.views.names import ViewName
from langgraph_takeover.nodes.records import save_files
from langgraph_takeover.nodes.session.session import Session


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


@dataclass(frozen=True)
class HandoffSandbox:
    """The sandbox of an agent that hands over, after the calls before the handoff."""

    session: Session
    state_id: str
    task: TaskBrief
    events: tuple[Event, ...]
    """What the sandbox observed during the agent's turn."""
    results: tuple[ToolMessage, ...]
    """Results of calls beside the handoff in its reply, which the agent's messages lack."""

    @property
    def records(self) -> RecordStore:
        return self.session.records

    def hold_lease(self) -> AbstractContextManager[None]:
        return self.session.hold_lease()

    def save(self, record: HandoffRecord, directory: Path) -> HandoffRecord:
        """Save the snapshot in the record's directory, and return the record with it."""
        fields = save_files(self.session, self.state_id, record.task, record.trace, directory)
        return record.model_copy(update={**fields, "patch": record.patch or fields["patch"]})


def find_sandbox(state: Any, call_id: str) -> HandoffSandbox | None:
    """Return the sandbox behind a call of a handoff tool; None if its agent has no `SandboxMiddleware`."""
    call, task = find_attended_call(call_id), read_field(state, "task")
    if call is None or not task:
        return None
    events, results = [*(read_field(state, "events") or ())], []
    for place, other in sorted(call.step.calls.items()):
        added = [event for _, update in sorted(other.updates.items()) for event in update["events"]]
        events += added
        if added:
            text, call_id = str(added[-1]["text"]), str(call.step.call_ids[place])
            results.append(ToolMessage(text, tool_call_id=call_id, name=added[-1]["tool"]))
    return HandoffSandbox(
        session=call.order.work.session,
        state_id=call.order.find_state(call),
        task=TaskBrief.model_validate(task),
        events=tuple(map(Event.model_validate, events)),
        results=tuple(results),
    )
