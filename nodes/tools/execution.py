"""Execution of an action: once, in the sandbox state that the graph state names, recorded as an event."""

from __future__ import annotations

from collections.abc import Callable

from langgraph.errors import GraphInterrupt
from langgraph.runtime import Runtime

from langgraph_takeover.handoff.shell.command_effects import CommandEffect
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.genai_spans import describe_result, start_tool_span
from langgraph_takeover.nodes.model.calls import find_api_keys
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState, get_task
from langgraph_takeover.nodes.state_events import (
    find_native_id,
    last_action,
    record_observation,
    report_progress,
    store_texts_once,
    update_trace_state,
)
from langgraph_takeover.sandbox.interface import Sandbox


def run_action(
    state: AgentState,
    runtime: Runtime[AgentContext],
    operation: Callable[[Sandbox], Observation],
    effect: CommandEffect = "anything",
) -> AgentState:
    """Run an operation in the sandbox, and return the update with its observation.

    Raises SnapshotNotFoundError, SnapshotCorruptError or SandboxUnavailableError before the operation, and FencedError.
    """
    context = get_agent_context(runtime)
    action = last_action(state)
    summary = [
        action.arguments[name] for name in ("command", "path", "arguments") if name in action.arguments
    ]
    report_progress(runtime, "acting", state, tool=action.tool, text=" ".join(summary))
    observation, state_after = act_once(state, runtime, action, find_native_id(state), operation, effect)
    update = record_observation(state, context, observation)
    if state_after != state["sandbox_state"]:
        update["sandbox_state"] = state_after
    report_progress(
        runtime,
        "observed",
        state,
        exit_code=observation.exit_code,
        refused=observation.refused,
        text=observation.text,
    )
    return store_texts_once(state, update)


def act_once(
    state: AgentState,
    runtime: Runtime[AgentContext],
    action: Event,
    call_id: str | None,
    operation: Callable[[Sandbox], Observation],
    effect: CommandEffect,
) -> tuple[Observation, str]:
    """Run an action's operation once, within its span; return its observation without secrets, and the state after it."""
    context = get_agent_context(runtime)
    execution, keys = runtime.execution_info, find_api_keys(*context.models)
    differences, task = update_trace_state(state, context).differences, get_task(state)

    def operate(sandbox: Sandbox) -> Observation:
        diffs = context.session.file_diffs
        diffs.read_differences(sandbox, differences)
        observation = operation(sandbox)
        if notice := context.session.take_process_notice():
            listed = "\n".join(f"- {line}" for line in notice)
            head = f"[the sandbox was restored; what ran in the background:\n{listed}]"
            observation = observation.model_copy(update={"text": f"{head}\n{observation.text}"})
        if observation.edit is not None and observation.edit["before"] is not None:
            diffs.add_content(observation.edit["before"].encode())
        diff = diffs.describe(sandbox, observation.changes, task.base_commit, keys)
        return observation.model_copy(update={"diff": diff}).redact_secrets(keys)

    with start_tool_span(action, call_id, keys) as span:
        try:
            observation, state_after = context.session.act(
                execution.task_id if execution else f"event-{action.index}",
                str(action.index),
                state["sandbox_state"],
                task,
                operate,
                effect,
            )
        except GraphInterrupt as error:
            question = error  # a question of a tool is not an error of its span
        else:
            describe_result(
                span,
                observation.text,
                keys,
                exit_code=observation.exit_code,
                refused=observation.refused,
                timed_out=observation.timed_out,
                changed_files=len(observation.changes),
            )
            return observation, state_after
    raise question


def refuse_action(
    state: AgentState, runtime: Runtime[AgentContext], reason: str, *, is_whole_reply: bool = False
) -> AgentState:
    """Return the update for an action that is not run, or for a whole reply."""
    report_progress(runtime, "observed", state, exit_code=None, refused=True, text=reason)
    update = record_observation(
        state,
        get_agent_context(runtime),
        Observation(text=reason, refused=True),
        is_whole_reply=is_whole_reply,
    )
    return store_texts_once(state, update)


def relative_path(sandbox: Sandbox, absolute: str) -> str:
    """Return a path as changes name it: relative to the workspace inside it, absolute outside it."""
    workspace = sandbox.workspace.rstrip("/")
    return "" if absolute == workspace else absolute.removeprefix(f"{workspace}/")
