"""The nodes around a run: its first messages and tools, its start, interruptions and end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, partial

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from pydantic import BaseModel, Field

from langgraph_takeover.handoff.delegation_request import HandoffArguments, TaskArguments
from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.notes.structured_note import render_structured_note
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.records.envelope import Mode
from langgraph_takeover.handoff.records.record import HandoffRecord, Review, TaskBrief
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import HandoffPoint
from langgraph_takeover.handoff.views import VIEWS
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.external.agent_turns import begin_session
from langgraph_takeover.nodes.model.actions import DELEGATE_TOOL
from langgraph_takeover.nodes.model.calls import find_api_keys
from langgraph_takeover.nodes.model.note_calls import complete_notes
from langgraph_takeover.nodes.model.tool_schemas import build_custom_schema
from langgraph_takeover.nodes.records import create_record, list_base_directories
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.session.state_store import BASE_STATE
from langgraph_takeover.nodes.state import AgentState, InputError, ReviewRequest, build_initial_state
from langgraph_takeover.nodes.state_events import (
    last_action,
    record_observation,
    report_progress,
    report_wait,
    store_texts_once,
)
from langgraph_takeover.sandbox.interface import Sandbox, SandboxUnavailableError
from langgraph_takeover.sandbox.repository import RepositoryError, head_commit, patch_since


class DelegateArguments(BaseModel):
    """Arguments of the tool."""

    goal: str = Field(default="", description="Everything that the child must know about its task.")
    handoff: HandoffArguments | None = Field(
        default=None, description="Default: selected from your own trace."
    )
    mode: Mode = Field(
        default="work",
        description="work: its changes are merged into your repository. look: only its report is returned.",
    )
    tasks: list[TaskArguments] = Field(
        default=[], description="Instead of the other arguments: several tasks, for several agents at once."
    )


def can_delegate(context: AgentContext) -> bool:
    """Whether the agent may delegate: delegation is set up, and the maximum depth is not reached."""
    return context.delegation is not None and context.delegation.depth < context.delegation.max_depth


@cache
def build_delegate_tool() -> BaseTool:
    """Return the tool as a schema; the node `delegate` executes its calls."""
    return StructuredTool(
        name=DELEGATE_TOOL,
        description="Delegate a task to other agents, and wait for their results.",
        args_schema=DelegateArguments,
        func=_do_nothing,
    )


def _do_nothing(**_: object) -> None:
    """Never called: the node `delegate` executes the calls."""


def build_instructions(context: AgentContext, tools: Sequence[BaseTool]) -> SystemMessage:
    """Return the system message, which says how to act, and the limits of a command."""
    names: list[str] = []
    if can_delegate(context):
        names.append("delegate")
    if context.protocol == "text":
        if can_delegate(context):
            names.append("delegate_text")
        if context.offer_handoff:
            names.append("handoff")
        if tools:
            names.append("tools")
    several = context.protocol == "native" and context.parallel_tool_calls
    protocol = load_prompt("native_parallel" if several else context.protocol, "nodes").format(
        command_timeout_s=f"{context.command_timeout_s:g}", observation_chars=f"{context.observation_chars:,}"
    )
    text = protocol + "".join(load_prompt(name, "nodes") for name in names)
    if context.protocol == "text" and tools:
        text += "".join(map(_describe_tool, tools)) + "\n"
    if context.member:
        text += f"\n{context.member.build_instructions(context.protocol)}\n"
    return SystemMessage(text)


def _describe_tool(tool: BaseTool) -> str:
    function = build_custom_schema(tool)["function"]
    arguments = json.dumps(function.get("parameters", {}).get("properties", {}))
    return f"\n- `{tool.name}`: {' '.join(tool.description.split())} Arguments: {arguments}"


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


def handoff(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Fire the point `requested`: the agent asks for a successor."""
    message = redact(last_action(state).arguments.get("message", "").strip())
    update = record_observation(state, get_agent_context(runtime), Observation(text="[handed over]"))
    point = HandoffPoint(
        kind="requested", event_index=len(state["events"]), detail=message[:200] or "requested by the agent"
    )
    update["fired"] = [*update.get("fired", []), point.model_dump(mode="json")]
    return store_texts_once(state, update)


def interruption(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Create one record for each point that the last step fired, then apply the policy.

    `record` continues unless the handoff was requested; `stop` ends the run; `takeover` ends it and hands over to
    a successor; `review` waits for a person, who approves or refuses the handoff. After a periodic record the run
    continues under every policy.
    """
    context = get_agent_context(runtime)
    fired = [HandoffPoint.model_validate(point) for point in state["fired"]]
    run_id = context.run_id or context.session.thread
    made = [create_record(state, runtime, point, run_id) for point in fired]
    records = [record for record in made if record.point.kind != "periodic"]
    update = AgentState(records=[record.id for record in records], fired=[])
    if periodic := [record.id for record in made if record.point.kind == "periodic"]:
        update["periodic_records"] = [*state.get("periodic_records", []), *periodic]
    if not records:
        return update
    requested = any(record.point.kind == "requested" for record in records)
    # A pending review stays pending, even if the run was resumed under another policy.
    if context.policy == "review" or context.session.records.is_review_pending(records[0].id):
        if _ask_review(state, runtime, records[0]):
            update["stop_reason"] = state.get("stop_reason") or "handoff"
    elif not state.get("stop_reason"):
        if context.policy == "takeover" or requested:
            update["stop_reason"] = "handoff"
        elif context.policy == "stop":
            update["stop_reason"] = "point"
    # A pass within a team does not answer a request from outside, which may have arrived meanwhile.
    if requested and not state.get("passing"):
        context.session.answer_handoff_request()
    if update.get("stop_reason") == "handoff" and state.get("handoff"):
        handoffs.advance(
            context.session.ledger, state["handoff"], "completed", by=context.name, reason=f"handed over as {records[0].id}"
        )  # fmt: skip
    return update


def _ask_review(state: AgentState, runtime: Runtime[AgentContext], record: HandoffRecord) -> bool:
    """Return whether a person approves the handoff; the decision is saved with the record."""
    context = get_agent_context(runtime)
    records = context.session.records
    record = _add_notes(state, runtime, record)
    if record.review is None:
        with context.session.hold_lease():
            records.mark_review_pending(record.id)
    report_progress(runtime, "review", state, record=record.id)
    return wait_for_review(context.session, record)


def wait_for_review(session: Session, record: HandoffRecord) -> bool:
    """Interrupt the graph until a person decides; save the decision, and return whether it approves the handoff."""
    answer = interrupt(
        ReviewRequest(
            record=record.id,
            point=record.point.kind,
            detail=record.point.detail,
            note=render_structured_note(record),
            views=tuple(VIEWS),
        ).model_dump(mode="json"),
        response_schema=Review,
    )
    review = Review.model_validate(answer)
    with session.hold_lease():
        session.records.add_review(record.id, review)
    return review.decision == "approve"


def _add_notes(state: AgentState, runtime: Runtime[AgentContext], record: HandoffRecord) -> HandoffRecord:
    """Return the record with the model's notes; if the model fails, without."""
    context = get_agent_context(runtime)
    return complete_notes(
        record,
        context.model,
        context.display_model,
        records=context.session.records,
        guard=context.session.hold_lease,
        timeout_s=context.model_timeout_s,
        cancellation=context.session.stop.cancellation,
        on_wait=partial(report_wait, runtime, state),
    )
