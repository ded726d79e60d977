"""The node that begins a run: the machine as its base is, and the task as the agent is told it."""

from __future__ import annotations

from langchain_core.messages import HumanMessage
from langgraph.runtime import Runtime

from handoff.record import TaskBrief
from handoff.redaction import redact
from nodes.progress import report_progress
from nodes.replies import find_api_keys
from nodes.session import BASE_STATE
from nodes.settings import AgentContext, get_agent_context
from nodes.state import AgentState, InputError, build_initial_state
from nodes.think import build_instructions
from sandbox.machine import Sandbox, SandboxUnavailableError
from sandbox.repository import RepositoryError, base_directories, head_commit


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
