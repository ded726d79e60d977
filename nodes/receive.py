"""The node that takes a record over: verify it, thaw its machine, show its view."""

from __future__ import annotations

from langgraph.runtime import Runtime

from handoff import views
from nodes.progress import tell
from nodes.settings import AgentContext, given
from nodes.state import AgentState, BadInput, first_state
from nodes.think import instructions


def receive(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Raises BadInput or NoSuchView, and RecordRefused or SnapshotCorrupt when the record is not whole."""
    context = given(runtime)
    if "record" not in state:
        raise BadInput('the takeover takes {"record": id, "view": name}')
    record = context.session.records.load(state["record"])
    view = state.get("view") or (record.review.view if record.review else "structured")
    messages = views.named(view)(record)
    machine = context.session.adopt(record)
    context.session.enter(machine)
    tell(runtime, "started", state, text=f"{record.id} under the view {view}")
    return first_state([instructions(context), *messages], record.task, machine) | AgentState(view=view)
