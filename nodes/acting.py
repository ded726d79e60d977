"""How a tool's node acts: on the machine that the state names, once, and told as an event."""

from __future__ import annotations

from collections.abc import Callable

from langgraph.runtime import Runtime

from handoff.command_effects import Effect
from nodes.events import last_action, observed
from nodes.observation import Observation
from nodes.progress import tell
from nodes.replies import keys_of
from nodes.settings import AgentContext, given
from nodes.state import AgentState, task_of
from sandbox.machine import Sandbox


def acted(
    state: AgentState,
    runtime: Runtime[AgentContext],
    do: Callable[[Sandbox], Observation],
    effect: Effect = "anything",
) -> AgentState:
    """The update of an action that is done to the machine.

    Raises MachineNotKept, SnapshotCorrupt or SandboxUnavailable before anything is done, and Fenced.
    """
    context = given(runtime)
    placed = runtime.execution_info
    action = last_action(state)
    shown = [action.arguments[name] for name in ("command", "path", "arguments") if name in action.arguments]
    tell(runtime, "acting", state, tool=action.tool, text=" ".join(shown))
    seen, machine = context.session.act(
        placed.task_id if placed else f"event-{action.index}",
        str(action.index),
        state["machine"],
        task_of(state),
        lambda machine: do(machine).without_secrets(keys_of(*context.models)),
        effect,
    )
    update = observed(state, context, seen)
    if machine != state["machine"]:
        update["machine"] = machine
    tell(runtime, "observed", state, exit_code=seen.exit_code, refused=seen.refused, text=seen.text)
    return update


def refused(state: AgentState, runtime: Runtime[AgentContext], why: str) -> AgentState:
    """The update of an action that is not done."""
    tell(runtime, "observed", state, exit_code=None, refused=True, text=why)
    return observed(state, given(runtime), Observation(text=why, refused=True))
