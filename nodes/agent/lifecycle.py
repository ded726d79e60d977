"""The node that begins a run: the machine as its base is, and the task as the agent is told it."""

from __future__ import annotations

from langchain_core.messages import HumanMessage
from langgraph.runtime import Runtime

from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.records.record import TaskBrief
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.nodes.agent.think import build_instructions
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.events import last_action, report_progress
from langgraph_takeover.nodes.model.calls import find_api_keys
from langgraph_takeover.nodes.session.session import BASE_STATE
from langgraph_takeover.nodes.state import AgentState, InputError, build_initial_state
from langgraph_takeover.sandbox.interface import Sandbox, SandboxUnavailableError
from langgraph_takeover.sandbox.repository.patches import RepositoryError, base_directories, head_commit


def begin(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Raises InputError, and SandboxUnavailableError where there is no machine, or no git repository in it."""
    context = get_agent_context(runtime)
    asked = state.get("task", {})
    if not all(isinstance(asked.get(name), str) for name in ("id", "prompt")):
        raise InputError('the agent takes {"task": {"id": …, "prompt": …}}, both of them text')
    prompt = redact(asked["prompt"], find_api_keys(*context.models))
    task = build_task_brief(asked["id"], prompt, context.session.enter_state(BASE_STATE))
    report_progress(runtime, "started", state, text=task.id)
    return build_initial_state(
        [build_instructions(context, context.tools), HumanMessage(task.prompt)],
        task,
        context.session.start_run(),
    )


def build_task_brief(task_id: str, prompt: str, sandbox: Sandbox) -> TaskBrief:
    """What an agent may know of a task, with what a machine that nobody has touched says of its base."""
    try:
        commit, directories = head_commit(sandbox), base_directories(sandbox)
    except RepositoryError as error:
        why = " ".join(str(error).split())
        raise SandboxUnavailableError(
            f"task {task_id}: its base holds no git repository with a commit: {why}; git init and commit there"
        ) from error
    return TaskBrief(
        id=task_id,
        prompt=prompt,
        base_commit=commit,
        base_directories=directories,
        workspace=sandbox.workspace,
    )


def finish(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    context = get_agent_context(runtime)
    if state.get("handoff"):
        said = last_action(state).arguments.get("message", "")
        handoffs.advance(
            context.session.ledger, state["handoff"], "completed", by=context.name, reason=said or "finished"
        )
    return AgentState(stop_reason="finished")
