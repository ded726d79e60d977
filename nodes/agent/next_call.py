"""The node that begins the next call of a reply with several."""

from __future__ import annotations

from langgraph.runtime import Runtime

from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import NO_MODEL_CALL
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.events import build_action_event, list_due_points, store_event
from langgraph_takeover.nodes.model.actions import UnreadableReply, parse_call
from langgraph_takeover.nodes.open_calls import BUDGET_SPENT, answer_open_calls, list_open_calls
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.tools.custom import list_tool_names
from langgraph_takeover.nodes.tools.execution import refuse_action


def next_call(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Begin the reply's next call as an action of its own, in the state that the one before left."""
    context = get_agent_context(runtime)
    calls = list_open_calls(state)
    if not calls:
        return AgentState(open_calls=0)
    if _is_budget_spent(state, context):
        points = list_due_points(state, context, len(state["events"]) - 1)
        return AgentState(
            open_calls=0,
            messages=answer_open_calls(state, BUDGET_SPENT),
            fired=[point.model_dump(mode="json") for point in points],
        )
    action = parse_call(
        calls[0], offer_handoff=context.offer_handoff, extra_tools=list_tool_names(state, context)
    )
    arguments = {} if isinstance(action, UnreadableReply) else action.arguments
    event = build_action_event(state, context, action.tool, "", arguments, NO_MODEL_CALL, 0.0)
    update = AgentState(events=[store_event(event)], open_calls=len(calls) - 1)
    if not isinstance(action, UnreadableReply):
        return update
    after = AgentState(**{**state, **update, "events": [*state["events"], *update["events"]]})
    refusal = refuse_action(after, runtime, redact(action.correction))
    refusal["events"] = [*update["events"], *refusal["events"]]
    return update | refusal


def _is_budget_spent(state: AgentState, context: AgentContext) -> bool:
    """Whether a limit of time or events is reached; those of steps and tokens are limits of replies."""
    events = len(state["events"])
    has_event = context.max_events is None or events < context.max_events
    return not has_event or state["spent"]["seconds"] >= context.max_seconds
