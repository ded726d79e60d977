"""What a graph node needs of an external agent: its process in the state's sandbox, its request, its first message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import Runnable

from langgraph_takeover.base.telemetry import bind_context
from langgraph_takeover.handoff.agents.adapter import (
    RESUME_MESSAGE,
    Launch,
    is_session_id,
)
from langgraph_takeover.handoff.agents.native_sessions import HISTORY_CALL_PREFIX
from langgraph_takeover.handoff.agents.openings import Opening, build_record_opening
from langgraph_takeover.handoff.names import CONTINUATION
from langgraph_takeover.handoff.records.record import ExternalSession, HandoffRecord
from langgraph_takeover.handoff.trace.events import Action, Usage
from langgraph_takeover.nodes.context.agent_program import ExternalAgent
from langgraph_takeover.nodes.context.settings import AgentContext, SettingsError
from langgraph_takeover.nodes.external.agent_process import ExternalProcess
from langgraph_takeover.nodes.external.apis import ModelRequest
from langgraph_takeover.nodes.external.call_results import parse_call
from langgraph_takeover.nodes.external.pass_through import VendorModel
from langgraph_takeover.nodes.model.calls import CallCount, ask_model
from langgraph_takeover.nodes.session.observation import SideWork
from langgraph_takeover.nodes.state import AgentState, Spending, get_task
from langgraph_takeover.nodes.state_events import add_usage, find_spent_limit
from langgraph_takeover.sandbox.interface import Sandbox

_START_TIMEOUT_S = 300.0


def is_external(state: AgentState, context: AgentContext) -> bool:
    """Whether an external agent works on the thread. Raises SettingsError if the caller passed another agent."""
    has_begun = bool(state.get("external"))
    if not has_begun and context.agent is None:
        return False
    if not has_begun:
        raise SettingsError("agent: the thread belongs to the built-in agent (leave agent= out)")
    require_external_agent(state, context)
    return True


def begin_session(agent: ExternalAgent, workspace: str) -> AgentState:
    """Return the state's session of an external agent that has not started yet."""
    session = ExternalSession(agent=agent.name, version=agent.program.version, workspace=workspace)
    return AgentState(external=session.model_dump(mode="json"))


def resume_session(agent: ExternalAgent | None, record: HandoffRecord) -> AgentState:
    """Return the state's session of a record that its own agent continues; nothing for the built-in agent.

    Raises SettingsError if the agent is another one, or the record has no session to resume.
    """
    own, given = (record.external.agent if record.external else ""), (agent.name if agent else "")
    if own != given:
        own_agent = f"agent=external_agent({own!r})" if own else "no agent="
        raise SettingsError(
            f"agent: {given or 'the built-in agent'} cannot continue record {record.id} of "
            f"{own or 'the built-in agent'} (pass {own_agent}, or a view)"
        )
    if agent is None or record.external is None:
        return AgentState()
    if not is_session_id(record.external.session_id):
        raise SettingsError(
            f"view: record {record.id} has no session of {own} to continue (use another view)"
        )
    session = ExternalSession(
        agent=agent.name,
        version=agent.program.version,
        session_id=record.external.session_id,
        workspace=record.external.workspace,
    )
    return AgentState(external=session.model_dump(mode="json"))


def require_external_agent(state: AgentState, context: AgentContext) -> ExternalAgent:
    """Return the external agent of a run. Raises SettingsError if the thread belongs to another agent."""
    started_with = state.get("external", {}).get("agent")
    if context.agent is None or (started_with is not None and context.agent.name != started_with):
        raise SettingsError(
            f"agent: the thread belongs to {started_with or 'an external agent'} (pass agent=external_agent({started_with!r}))"
        )
    return context.agent


def is_waiting(state: AgentState, context: AgentContext) -> bool:
    """Whether the agent's process waits at its pending request in the state's sandbox."""
    process = context.session.companion
    return (
        isinstance(process, ExternalProcess)
        and process.is_waiting
        and context.session.is_in_state(state["sandbox_state"])
    )


def is_lost(state: AgentState, context: AgentContext) -> bool:
    """Whether the agent of the state's sandbox no longer waits, such as one that was killed while its model was asked."""
    session = context.session
    return isinstance(session.companion, ExternalProcess) and (
        session.is_in_state(state["sandbox_state"]) and not session.companion.is_waiting
    )


def count_side_work(
    spent: Spending, session: ExternalSession, work: SideWork, context: AgentContext
) -> AgentState:
    """Return the update for side requests: their costs and their number."""
    for usage in work.usages:
        spent = add_usage(spent, usage, context, 0.0, 0)
    refused = Counter(session.refused_requests) + Counter(work.refused)
    counts = {"refused_requests": dict(refused), "side_requests": session.side_requests + len(work.usages)}
    return AgentState(
        spent={**spent, "uncounted_calls": spent["uncounted_calls"] + work.uncounted_calls},
        external=session.model_copy(update=counts).model_dump(mode="json"),
    )


def count_late_side_work(state: AgentState, context: AgentContext) -> AgentState:
    """Return the update for side requests since the last turn."""
    process = context.session.companion
    if not isinstance(process, ExternalProcess) or not context.session.is_in_state(state["sandbox_state"]):
        return AgentState()
    session = ExternalSession.model_validate(state["external"])
    return count_side_work(state["spent"], session, process.take_side_work(), context)


def require_process(
    state: AgentState, context: AgentContext, sandbox: Sandbox | None = None
) -> ExternalProcess:
    """Return the agent's process, waiting at its pending request, in the sandbox of the state.

    If no process waits there, as after a crash, the agent starts, or resumes its session. One that was killed at its
    request resumes in a restored sandbox, too, without the processes that killed it or worked beside it.
    Raises SettingsError and ExternalAgentError.
    """
    agent = require_external_agent(state, context)
    session = context.session
    budget = partial(_has_budget, state, context)
    process = session.companion if isinstance(session.companion, ExternalProcess) else None
    is_action = sandbox is not None
    if sandbox is None:
        if is_lost(state, context) and session.can_restore_state(state["sandbox_state"]):
            session.close_sandbox()
        sandbox = session.enter_state(state["sandbox_state"], get_task(state))
    # An action cannot restore its own sandbox: an agent that was killed this late has ended.
    is_usable = process is not None and process.held is not None and (is_action or process.is_waiting)
    if process is not None and process.sandbox is sandbox and is_usable:
        process.use_budget(budget)
        return process
    earlier = process.take_side_work(is_final=True) if process else SideWork()
    if session.companion is not None:
        session.companion.close()
    process = ExternalProcess(
        sandbox,
        agent,
        bind_context(partial(_answer_side, context)),
        passes_on=isinstance(context.model, VendorModel),
        side_requests=state["external"]["side_requests"],
        earlier=earlier,
    )
    process.use_budget(budget)
    session.companion = process
    _start(process, state, context)
    return process


def _start(process: ExternalProcess, state: AgentState, context: AgentContext) -> None:
    """Start the agent with its task or view, or let it resume its session."""
    # Until its first turn is complete, the state before it has no session.
    session_id = state["external"]["session_id"]
    if session_id and (state["steps"] or state.get("view") == CONTINUATION):
        launch = process.make_launch(RESUME_MESSAGE, session_id)
        process.start(launch, None, timeout_s=_START_TIMEOUT_S)
        process.require_results(_list_own_results(state))
        return
    opening = build_opening(state, context, process.make_launch())
    process.write_files(opening.event_files)
    launch = process.make_launch(opening.message, opening.session.session_id if opening.session else None)
    process.start(launch, opening.session, timeout_s=_START_TIMEOUT_S)
    process.require_results(opening.call_ids | _list_own_results(state))
    process.account = opening.account


def build_opening(state: AgentState, context: AgentContext, launch: Launch) -> Opening:
    """Return how an agent begins: with its task, with a view as its first message, or with a session of its own kind."""
    if "record" not in state:
        return Opening(get_task(state).prompt)
    assert context.agent is not None
    record = context.session.records.load(state["record"])
    return build_record_opening(
        record, state["view"], context.agent.adapter, launch, window_tokens=context.known_window
    )


def add_exit_codes(messages: Sequence[BaseMessage], state: AgentState) -> list[BaseMessage]:
    """Return a conversation with the recorded exit codes of its calls as artifacts, which no LLM sees.

    Models without an LLM need them where the agent hides them.
    """
    codes: dict[str, list[Any]] = {}
    for stored in state["messages"]:
        if isinstance(stored, ToolMessage):
            codes.setdefault(stored.tool_call_id, []).append(stored.artifact)
    completed: list[BaseMessage] = []
    # Backwards: ids may be used again, and the agent may have dropped the oldest results.
    for each in reversed(messages):
        known = codes.get(each.tool_call_id) if isinstance(each, ToolMessage) else None
        artifact = known.pop() if known else None
        completed.append(each if artifact is None else each.model_copy(update={"artifact": artifact}))
    completed.reverse()
    return completed


def bind_request(context: AgentContext, process: ExternalProcess) -> Runnable[Any, Any]:
    """Return the model with the tools of the pending request; a vendor's own endpoint gets the request's bytes."""
    assert process.held is not None
    return _bind(context, process.held.request)


def parse_first_action(reply: AIMessage) -> Action:
    """Return a reply's first call in this project's terms. A reply without calls ends the agent's turn."""
    for call in (*reply.tool_calls, *reply.invalid_tool_calls):
        return parse_call(call)
    return Action("finish", {"message": reply.text})


def _bind(context: AgentContext, request: ModelRequest) -> Runnable[Any, Any]:
    if isinstance(context.model, VendorModel):
        return context.model.bind(wire=request.wire)
    return context.model.bind_tools(list(request.tools)) if request.tools else context.model


def _answer_side(context: AgentContext, request: ModelRequest, count: CallCount) -> AIMessage:
    """Ask the model for a subagent or a side task."""
    model = _bind(context, request)
    return ask_model(
        model,
        list(request.messages),
        timeout_s=context.model_timeout_s,
        count=count,
        cancellation=context.session.stop.cancellation,
        compute_cost=context.compute_cost,
    )


def _has_budget(state: AgentState, context: AgentContext, usages: Sequence[Usage]) -> bool:
    """Whether something of the run's budget is left after some requests of subagents and side tasks."""
    spent = state["spent"]
    for usage in usages:
        spent = add_usage(spent, usage, context, 0.0, 0)
    return find_spent_limit(spent, context) is None


def _list_own_results(state: AgentState) -> frozenset[str]:
    """List the results that the agent's session must have: not that of a `finish` in the history, which is only a message."""
    messages = state["messages"]
    calls = [call for each in messages if isinstance(each, AIMessage) for call in each.tool_calls]
    without_result = {
        call["id"]
        for call in calls
        if call["name"] == "finish" and str(call["id"]).startswith(HISTORY_CALL_PREFIX)
    }
    return frozenset(
        each.tool_call_id
        for each in messages
        if isinstance(each, ToolMessage) and each.tool_call_id not in without_result
    )
