"""The node that begins a run: the machine as its base is, and the task as the agent is told it."""

from __future__ import annotations

from langchain_core.messages import HumanMessage
from langgraph.runtime import Runtime

from handoff.record import TaskBrief
from handoff.redaction import redacted
from nodes.progress import tell
from nodes.replies import keys_of
from nodes.session import BASE
from nodes.settings import AgentContext, given
from nodes.state import AgentState, BadInput, first_state
from nodes.think import instructions
from sandbox.machine import Sandbox, SandboxUnavailable
from sandbox.repository import RepositoryBroken, base_directories, head_commit


def begin(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Raises BadInput, and SandboxUnavailable where there is no machine, or no git repository in it."""
    context = given(runtime)
    asked = state.get("task", {})
    if not all(isinstance(asked.get(name), str) for name in ("id", "prompt")):
        raise BadInput('the agent takes {"task": {"id": …, "prompt": …}}, both of them text')
    prompt = redacted(asked["prompt"], keys_of(*context.models))
    task = brief(asked["id"], prompt, context.session.enter(BASE))
    tell(runtime, "started", state, text=task.id)
    return first_state(
        [instructions(context, context.tools), HumanMessage(task.prompt)], task, context.session.begun()
    )


def brief(task_id: str, prompt: str, machine: Sandbox) -> TaskBrief:
    """What an agent may know of a task, with what a machine that nobody has touched says of its base."""
    try:
        commit, directories = head_commit(machine), base_directories(machine)
    except RepositoryBroken as error:
        why = " ".join(str(error).split())
        raise SandboxUnavailable(
            f"task {task_id}: its base holds no git repository with a commit: {why}; git init and commit there"
        ) from error
    return TaskBrief(
        id=task_id,
        prompt=prompt,
        base_commit=commit,
        base_directories=directories,
        workspace=machine.workspace,
    )
