"""The node that takes a record over: verify it, thaw its machine, show its view."""

from __future__ import annotations

from langgraph.runtime import Runtime

from handoff import views
from handoff.envelope import Refusal
from handoff.ledger import handoffs
from handoff.ledger.handoffs import Handoff
from handoff.receiving import Receiver, refusal
from handoff.record import HandoffRecord
from nodes.progress import tell
from nodes.recall import tools_of
from nodes.settings import AgentContext, given
from nodes.state import AgentState, BadInput, first_state
from nodes.think import instructions


def receive(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """A record with a view, or a handoff that was offered, which it refuses where something is wrong with it.

    Raises BadInput, NoSuchHandoff or NoSuchView, and RecordRefused or SnapshotCorrupt when a record is not whole.
    """
    context = given(runtime)
    if state.get("handoff"):
        return _offered(handoffs.load(context.session.ledger, state["handoff"]), runtime)
    if "record" not in state:
        raise BadInput('the takeover takes {"record": id, "view": name}, or {"handoff": id}')
    record = context.session.records.load(state["record"])
    return _taken(record, state.get("view", ""), runtime)


def _offered(found: Handoff, runtime: Runtime[AgentContext]) -> AgentState:
    context = given(runtime)
    refused = refusal(
        context.session.ledger,
        context.session.records,
        found,
        Receiver(name=context.name, max_tokens=context.max_tokens),
    )
    view = found.envelope.view
    if refused is None and view and view not in views.VIEWS:
        refused = Refusal(
            kind="view", what=f"there is no view {view!r:.60}", resend=f"name one of {', '.join(views.VIEWS)}"
        )
    if refused is not None:
        handoffs.move(
            context.session.ledger, found.id, "rejected", by=context.name, version=found.version, reason=str(refused)
        )  # fmt: skip
        tell(runtime, "refused", AgentState(), kind=refused.kind, text=str(refused))
        return AgentState(stop_reason="refused", record=found.record, fired=[])
    record = context.session.records.load(found.record).model_copy(update={"envelope": found.envelope})
    return _taken(record, view, runtime) | AgentState(record=record.id)


def _taken(record: HandoffRecord, view: str, runtime: Runtime[AgentContext]) -> AgentState:
    context = given(runtime)
    view = view or (record.review.view if record.review else "structured")
    messages = views.named(view)(record, recipient(context))
    machine = context.session.adopt(record)
    context.session.enter(machine)
    tell(runtime, "started", AgentState(), text=f"{record.id} under the view {view}")
    says = instructions(context, tools_of(AgentState(record=record.id, view=view), context))
    return first_state([says, *messages], record.task, machine) | AgentState(view=view)


def recipient(context: AgentContext) -> views.Recipient:
    """What the view must know of this successor."""
    known = (context.model.profile or {}).get("max_input_tokens")
    window = context.window_tokens or known
    if window is None:
        return views.Recipient(protocol=context.protocol)
    return views.Recipient(protocol=context.protocol, window_tokens=window)
