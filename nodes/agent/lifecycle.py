"""The nodes that begin and finish a run."""

from __future__ import annotations

from langchain_core.messages import HumanMessage
from langgraph.runtime import Runtime

from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.records.record import TaskBrief
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.nodes.agent.instructions import build_instructions
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.events import last_action, report_progress
from langgraph_takeover.nodes.external.conversation import begin_session
from langgraph_takeover.nodes.model.attempts import find_api_keys
from langgraph_takeover.nodes.records import list_base_directories
from langgraph_takeover.nodes.session.snapshots import BASE_STATE
from langgraph_takeover.nodes.state import AgentState, InputError, build_initial_state
from langgraph_takeover.sandbox.interface import Sandbox, SandboxUnavailableError
from langgraph_takeover.sandbox.repository import RepositoryError, head_commit, patch_since


def begin(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Start the sandbox from its base, and show the agent its task. Raises InputError or SandboxUnavailableError."""
    context = get_agent_context(runtime)
    task_input = state.get("task", {})
    if not all(isinstance(task_input.get(name), str) for name in ("id", "prompt")):
        raise InputError(
            'task: the input must be {"task": {"id": …, "prompt": …}}; id and prompt must be text'
        )
    prompt = redact(task_input["prompt"], find_api_keys(*context.models))
    sandbox = context.session.enter_state(BASE_STATE)
    task = build_task_brief(task_input["id"], prompt, sandbox)
    start_patch = _compute_start_patch(sandbox, task)
    report_progress(runtime, "started", state, text=task.id)
    if context.agent is not None:
        messages, external = [HumanMessage(task.prompt)], begin_session(context.agent, task.workspace)
        return build_initial_state(messages, task, context.session.start_run(), start_patch) | external
    return build_initial_state(
        [build_instructions(context, context.tools), HumanMessage(task.prompt)],
        task,
        context.session.start_run(),
        start_patch,
    )


def _compute_start_patch(sandbox: Sandbox, task: TaskBrief) -> str | None:
    try:
        return patch_since(sandbox, task.base_commit).text
    except RepositoryError:
        return None


def build_task_brief(task_id: str, prompt: str, sandbox: Sandbox) -> TaskBrief:
    """Return what an agent may know of a task; `sandbox` must be unchanged since its start."""
    try:
        commit, directories = head_commit(sandbox), list_base_directories(sandbox)
    except RepositoryError as error:
        reason = " ".join(str(error).split())
        raise SandboxUnavailableError(
            f"task {task_id}: its base has no git repository with a commit: {reason} (run git init and git commit there)"
        ) from error
    return TaskBrief(
        id=task_id,
        prompt=prompt,
        base_commit=commit,
        base_directories=directories,
        workspace=sandbox.workspace,
    )


def finish(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """End the run, and complete the handoff that it took over."""
    context = get_agent_context(runtime)
    if state.get("handoff"):
        message = last_action(state).arguments.get("message", "")
        handoffs.advance(
            context.session.ledger,
            state["handoff"],
            "completed",
            by=context.name,
            reason=message or "finished",
        )
    return AgentState(stop_reason="finished")
