"""How a tool's node acts: on the machine that the state names, once, and told as an event."""

from __future__ import annotations

from collections.abc import Callable

from langgraph.runtime import Runtime

from langgraph_takeover.handoff.shell.command_effects import CommandEffect
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.events import last_action, record_observation, report_progress
from langgraph_takeover.nodes.model.calls import find_api_keys
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState, get_task
from langgraph_takeover.sandbox.interface import Sandbox


def run_action(
    state: AgentState,
    runtime: Runtime[AgentContext],
    operation: Callable[[Sandbox], Observation],
    effect: CommandEffect = "anything",
) -> AgentState:
    """The update of an action that is done to the machine.

    Raises SnapshotNotFoundError, SnapshotCorruptError or SandboxUnavailableError before anything is done, and FencedError.
    """
    context = get_agent_context(runtime)
    placed = runtime.execution_info
    action = last_action(state)
    shown = [action.arguments[name] for name in ("command", "path", "arguments") if name in action.arguments]
    report_progress(runtime, "acting", state, tool=action.tool, text=" ".join(shown))
    seen, machine = context.session.act(
        placed.task_id if placed else f"event-{action.index}",
        str(action.index),
        state["sandbox_state"],
        get_task(state),
        lambda machine: operation(machine).redact_secrets(find_api_keys(*context.models)),
        effect,
    )
    update = record_observation(state, context, seen)
    if machine != state["sandbox_state"]:
        update["sandbox_state"] = machine
    report_progress(
        runtime, "observed", state, exit_code=seen.exit_code, refused=seen.refused, text=seen.text
    )
    return update


def refuse_action(state: AgentState, runtime: Runtime[AgentContext], reason: str) -> AgentState:
    """The update of an action that is not done."""
    report_progress(runtime, "observed", state, exit_code=None, refused=True, text=reason)
    return record_observation(state, get_agent_context(runtime), Observation(text=reason, refused=True))
