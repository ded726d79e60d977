"""The node that takes a record over: verify it, thaw its machine, show its view."""

from __future__ import annotations

from langgraph.runtime import Runtime

from handoff import views
from nodes.progress import tell
from nodes.recall import tools_of
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
    messages = views.named(view)(record, recipient(context))
    machine = context.session.adopt(record)
    context.session.enter(machine)
    tell(runtime, "started", state, text=f"{record.id} under the view {view}")
    says = instructions(context, tools_of(AgentState(record=record.id, view=view), context))
    return first_state([says, *messages], record.task, machine) | AgentState(view=view)


def recipient(context: AgentContext) -> views.Recipient:
    """What the view must know of this successor."""
    known = (context.model.profile or {}).get("max_input_tokens")
    window = context.window_tokens or known
    if window is None:
        return views.Recipient(protocol=context.protocol)
    return views.Recipient(protocol=context.protocol, window_tokens=window)
