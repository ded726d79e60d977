"""The node that takes a record over: verify it, thaw its machine, show its view."""

from __future__ import annotations

from langgraph.runtime import Runtime

from handoff import views
from handoff.envelope import Refusal
from handoff.ledger import handoffs
from handoff.ledger.handoffs import Handoff
from handoff.receiving import Receiver, find_refusal
from handoff.record import HandoffRecord
from nodes.progress import report_progress
from nodes.recall import list_extra_tools
from nodes.settings import AgentContext, get_agent_context
from nodes.state import AgentState, InputError, build_initial_state
from nodes.think import build_instructions


def receive(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """A record with a view, or a handoff that was offered, which it refuses where something is wrong with it.

    Raises InputError, HandoffNotFoundError or UnknownViewError, and RecordError or SnapshotCorruptError when a record is not whole.
    """
    context = get_agent_context(runtime)
    if state.get("handoff"):
        return _receive_offer(handoffs.load(context.session.ledger, state["handoff"]), runtime)
    if "record" not in state:
        raise InputError('the takeover takes {"record": id, "view": name}, or {"handoff": id}')
    record = context.session.records.load(state["record"])
    return _take_over(record, state.get("view", ""), runtime)


def _receive_offer(handoff: Handoff, runtime: Runtime[AgentContext]) -> AgentState:
    context = get_agent_context(runtime)
    refused = find_refusal(
        context.session.ledger,
        context.session.records,
        handoff,
        Receiver(name=context.name, max_tokens=context.max_tokens),
    )
    view = handoff.envelope.view
    if refused is None and view and view not in views.VIEWS:
        refused = Refusal(
            kind="view", what=f"there is no view {view!r:.60}", resend=f"name one of {', '.join(views.VIEWS)}"
        )
    if refused is not None:
        handoffs.change_state(
            context.session.ledger, handoff.id, "rejected", by=context.name, version=handoff.version, reason=str(refused)
        )  # fmt: skip
        report_progress(runtime, "refused", AgentState(), kind=refused.kind, text=str(refused))
        return AgentState(stop_reason="refused", record=handoff.record, fired=[])
    record = context.session.records.load(handoff.record).model_copy(update={"envelope": handoff.envelope})
    return _take_over(record, view, runtime) | AgentState(record=record.id)


def _take_over(record: HandoffRecord, view: str, runtime: Runtime[AgentContext]) -> AgentState:
    context = get_agent_context(runtime)
    view = view or (record.review.view if record.review else "structured")
    messages = views.find_view(view)(record, build_recipient(context))
    machine = context.session.adopt_snapshot(record)
    context.session.enter_state(machine)
    report_progress(runtime, "started", AgentState(), text=f"{record.id} under the view {view}")
    says = build_instructions(context, list_extra_tools(AgentState(record=record.id, view=view), context))
    return build_initial_state([says, *messages], record.task, machine) | AgentState(view=view)


def build_recipient(context: AgentContext) -> views.Recipient:
    """What the view must know of this successor."""
    known = (context.model.profile or {}).get("max_input_tokens")
    window = context.window_tokens or known
    if window is None:
        return views.Recipient(protocol=context.protocol)
    return views.Recipient(protocol=context.protocol, window_tokens=window)
