"""The node that hands tasks to other agents, waits for them, and brings back what they did."""

from __future__ import annotations

import contextvars
import hashlib
import json
from collections.abc import Sequence

from langgraph.errors import GraphDrained
from langgraph.runtime import Runtime

from langgraph_takeover.handoff.delegation.request import (
    DelegationError,
    TaskArguments,
    build_payload,
    check_size,
    parse_tasks,
)
from langgraph_takeover.handoff.delegation.selection import select_payload
from langgraph_takeover.handoff.ledger.leases import MAX_ID_LENGTH
from langgraph_takeover.handoff.records.payload import Payload
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.fence import neutralize
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import HandoffPoint
from langgraph_takeover.nodes.context.children import Assignment, Budget, ChildResult, DelegationRunner
from langgraph_takeover.nodes.context.settings import AgentContext, SettingsError, get_agent_context
from langgraph_takeover.nodes.delegation.report import format_report
from langgraph_takeover.nodes.delegation.tool import can_delegate
from langgraph_takeover.nodes.events import last_action, report_progress
from langgraph_takeover.nodes.records import build_full_trace, build_record_id, create_record
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState, Spending, get_task
from langgraph_takeover.nodes.tools.execution import refuse_action, run_action
from langgraph_takeover.sandbox.interface import Sandbox
from langgraph_takeover.sandbox.repository.merge import MergeResult, merge
from langgraph_takeover.sandbox.repository.patches import RepositoryError

_FORK_SUFFIX_CHARS = 13


def delegate(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Run a child for each task, then merge what they changed; run again after a crash, it goes on with the same ones.

    Raises what a child failed by, SettingsError where the run was resumed without `delegation`, and GraphDrained
    where it is to stop, so that it is run again when it is resumed.
    """
    context = get_agent_context(runtime)
    children = context.delegation
    if children is None:
        raise SettingsError(
            "delegation: the thread goes on with a call of 'delegate_task'; give delegation= again"
        )
    # First of all: what the children begin with must be there when this is run again.
    context.session.save_snapshot(state["sandbox_state"])
    try:
        prepared = _prepare_tasks(state, context, children)
    except DelegationError as error:
        told = " ".join(neutralize(f"Not done: {error}").split())
        return refuse_action(state, runtime, redact(told))
    budget = _split_budget(state, context, children, len(prepared))
    records = [_create_child_record(state, runtime, number, *each) for number, each in enumerate(prepared)]
    assignments = [
        Assignment(thread=thread, record=record.id, goal=task.goal, mode=task.mode, budget=budget)
        for (thread, record), (task, _) in zip(records, prepared, strict=True)
    ]
    here = contextvars.copy_context()
    returned = children.run(
        assignments,
        should_stop=lambda: runtime.drain_requested or context.session.is_closed,
        # LangGraph looks for whoever listens in the context of this thread.
        report=lambda moment, **told: here.copy().run(report_progress, runtime, moment, state, **told),
    )
    if any(each.stop_reason is None for each in returned):
        raise GraphDrained(runtime.drain_reason or "the children were stopped")
    patches = [
        each.patch if asked.mode == "work" and each.patch != record.patch else ""
        for asked, each, (_, record) in zip(assignments, returned, records, strict=True)
    ]
    seconds = _compute_parallel_duration([each.seconds for each in returned], children.max_parallel)

    def merge_changes(sandbox: Sandbox) -> Observation:
        merged, trouble = _merge_patches(sandbox, get_task(state).base_commit, patches)
        text = format_report(assignments, returned, merged, trouble, context.observation_chars)
        return Observation(text=text, changes=sandbox.changes(), seconds=seconds)

    update = run_action(state, runtime, merge_changes, "anything" if any(patches) else "nothing")
    update["spent"] = _add_child_costs(update["spent"], returned)
    return update


def _prepare_tasks(
    state: AgentState, context: AgentContext, runner: DelegationRunner
) -> list[tuple[TaskArguments, Payload]]:
    """What each child is to do and to start with. Raises DelegationError."""
    if not can_delegate(context):
        raise DelegationError(
            f"you were delegated to yourself, {runner.depth} deep, and nobody may delegate deeper than "
            f"{runner.max_depth}; do it yourself"
        )
    tasks = parse_tasks(json.loads(last_action(state).arguments["arguments"]), runner.max_tasks)
    trace, own = build_full_trace(state, context), get_task(state)
    most = _split_budget(state, context, runner, len(tasks)).max_tokens
    machine = context.session.enter_state(state["sandbox_state"], own)
    prepared = []
    for number, task in enumerate(tasks):
        if task.handoff is None:
            asked = own.model_copy(update={"prompt": task.goal})
            window = min(runner.window_tokens, most or runner.window_tokens)
            payload = select_payload(trace, asked, window).model_copy(update={"mode": task.mode})
        else:
            try:
                payload = build_payload(task, trace, own, machine.read_file)
                check_size(payload, trace, runner.window_tokens, most)
            except DelegationError as error:
                where = f"tasks.{number}." if len(tasks) > 1 else ""
                raise DelegationError(f"{where}{error}") from None
        prepared.append((task, payload))
    return prepared


def _create_child_record(
    state: AgentState, runtime: Runtime[AgentContext], number: int, task: TaskArguments, payload: Payload
) -> tuple[str, HandoffRecord]:
    """The child's thread and the record that it begins from, the same ones however often they are asked for."""
    own = get_task(state)
    thread = _build_child_thread_id(
        get_agent_context(runtime).session.thread, last_action(state).index, number
    )
    point = HandoffPoint(
        kind="requested", event_index=len(state["events"]) - 1, detail=" ".join(task.goal.split())[:200]
    )
    asked = own.model_copy(update={"id": f"{own.id}/{number}", "prompt": task.goal})
    record = create_record(state, runtime, point, thread, task=asked, payload=payload)
    # In a fork, another child works on what is perhaps another task.
    return thread + record.id.removeprefix(build_record_id(thread, point)), record


def _build_child_thread_id(parent: str, index: int, number: int) -> str:
    end = f".{index}.{number}"
    if len(parent) + len(end) + _FORK_SUFFIX_CHARS > MAX_ID_LENGTH:
        digest = hashlib.sha256(parent.encode()).hexdigest()[:12]
        parent = f"{parent[: MAX_ID_LENGTH - len(end) - 2 * _FORK_SUFFIX_CHARS]}-{digest}"
    return f"{parent}{end}"


def _split_budget(state: AgentState, context: AgentContext, runner: DelegationRunner, count: int) -> Budget:
    """What is left, in equal parts; of seconds only as far as one child waits for another."""
    so_far = state["spent"]
    tokens = so_far["prompt_tokens"] + so_far["completion_tokens"]
    rounds = -(-count // runner.max_parallel)

    def divide(limit: int | None, used: int) -> int | None:
        return None if limit is None else max((limit - used) // count, 1)

    return runner.limit_budget(
        Budget(
            max_steps=max((context.max_steps - state["steps"]) // count, 1),
            max_events=divide(context.max_events, len(state["events"])),
            max_tokens=divide(context.max_tokens, tokens),
            max_cost=None if context.max_cost is None else (context.max_cost - so_far["cost"]) / count,
            max_seconds=max((context.max_seconds - so_far["seconds"]) / rounds, 1.0),
        )
    )


def _merge_patches(
    sandbox: Sandbox, base_commit: str, patches: Sequence[str]
) -> tuple[tuple[MergeResult, ...], str]:
    nothing = tuple(MergeResult() for _ in patches)
    if not any(patches):
        return nothing, ""
    try:
        return merge(sandbox, base_commit, patches), ""
    except RepositoryError as error:
        return nothing, str(error)


def _compute_parallel_duration(seconds: Sequence[float], max_parallel: int) -> float:
    """How long it took, as each began where one before it ended."""
    ends = [0.0] * max_parallel
    for each in seconds:
        ends[ends.index(min(ends))] += each
    return max(ends)


def _add_child_costs(spent: Spending, results: Sequence[ChildResult]) -> Spending:
    """What was spent, with what the children did; their seconds are the observation's."""
    return Spending(
        prompt_tokens=spent["prompt_tokens"] + sum(each.prompt_tokens for each in results),
        completion_tokens=spent["completion_tokens"] + sum(each.completion_tokens for each in results),
        cost=spent["cost"] + sum(each.cost for each in results),
        seconds=spent["seconds"],
    )
