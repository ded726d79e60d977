"""The node that delegates tasks to child agents, merges their changes, and reports on them."""

from __future__ import annotations

import contextvars
import hashlib
import json
from collections.abc import Sequence

from langgraph.errors import GraphDrained
from langgraph.runtime import Runtime

from langgraph_takeover.handoff.delegation_request import (
    DelegationError,
    TaskArguments,
    build_payload,
    check_size,
    parse_tasks,
)
from langgraph_takeover.handoff.delegation_selection import (
    compute_budget_chars,
    is_shown_whole,
    select_payload,
)
from langgraph_takeover.handoff.ledger.leases import MAX_ID_LENGTH
from langgraph_takeover.handoff.records.envelope import Payload
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.records.record_facts import format_left_out
from langgraph_takeover.handoff.text.fence import format_code_block, neutralize
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import HandoffPoint
from langgraph_takeover.nodes.agent.lifecycle import can_delegate
from langgraph_takeover.nodes.context.settings import (
    AgentContext,
    Assignment,
    Budget,
    ChildResult,
    DelegationRunner,
    SettingsError,
    get_agent_context,
)
from langgraph_takeover.nodes.records import (
    build_full_trace,
    build_record_id,
    create_record,
    read_edited_files,
)
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState, Spending, get_task
from langgraph_takeover.nodes.state_events import add_costs, clip_text, last_action, report_progress
from langgraph_takeover.nodes.tools.execution import refuse_action, run_action
from langgraph_takeover.sandbox.interface import Sandbox
from langgraph_takeover.sandbox.repository import MergeConflict, MergeResult, RepositoryError, merge

_MAX_NAMES = 50


def format_report(
    assignments: Sequence[Assignment],
    results: Sequence[ChildResult],
    merged: Sequence[MergeResult],
    problem: str,
    max_chars: int,
) -> str:
    """Return the report: for each child, in at most `max_chars` characters, its end, its message and its changes."""
    children = zip(assignments, results, merged, strict=True)
    return "\n\n".join(
        clip_text(_format_child(number, *each, problem, max_chars), max_chars)
        for number, each in enumerate(children, 1)
    )


def _format_child(
    number: int,
    assignment: Assignment,
    result: ChildResult,
    merged: MergeResult,
    problem: str,
    max_chars: int,
) -> str:
    ended = "finished" if result.stop_reason == "finished" else f"was stopped ({result.stop_reason})"
    parts = [
        f"Child {number} ({assignment.mode}, thread {result.thread}) {ended} after {result.steps} steps."
    ]
    if result.message.strip():
        parts.append(f"Its report:{format_code_block(clip_text(neutralize(result.message), max_chars // 2))}")
    if assignment.mode == "look":
        parts.append("Its changes were discarded.")
    elif result.problem or problem:
        parts.append(f"Its changes could not be merged into your repository: {result.problem or problem}")
    else:
        parts.append(_format_applied_files(merged, has_more=bool(result.left_out_count)))
        parts += format_left_out(result.left_out, result.left_out_count, "Not merged")
        parts += [_format_conflict(each, max_chars // 4) for each in merged.conflicts[:_MAX_NAMES]]
        if len(merged.conflicts) > _MAX_NAMES:
            parts.append(f"… and {len(merged.conflicts) - _MAX_NAMES} more files with conflicts.")
    return "\n".join(parts)


def _format_applied_files(merged: MergeResult, *, has_more: bool) -> str:
    if not merged.changed_files:
        return (
            "None of its changes were merged into your repository."
            if merged.conflicts or has_more
            else "It changed nothing."
        )
    names = ", ".join(map(neutralize, merged.changed_files[:_MAX_NAMES]))
    more = (
        f" and {len(merged.changed_files) - _MAX_NAMES} more"
        if len(merged.changed_files) > _MAX_NAMES
        else ""
    )
    return f"Merged into your repository: {names}{more}"


def _format_conflict(conflict: MergeConflict, max_chars: int) -> str:
    """Return both sides of a conflict; the file is left unchanged."""
    path = neutralize(conflict.path)
    theirs = f"The child's change, which was not merged:{format_code_block(clip_text(neutralize(conflict.theirs), max_chars))}"
    if not conflict.ours:
        return f"Conflict: {path} already exists and is not tracked by git; it was left unchanged. {theirs}"
    ours = (
        f"The version in your repository:{format_code_block(clip_text(neutralize(conflict.ours), max_chars))}"
    )
    return f"Conflict: {path} was left unchanged. {ours}\n{theirs}"


_FORK_SUFFIX_CHARS = 13


def delegate(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Run a child for each task, and merge their changes. After a crash, the same children are resumed.

    Raises a child's failure, SettingsError if the run was resumed without `delegation`, and GraphDrained if the
    run is to stop: a resumed run executes the node again.
    """
    context = get_agent_context(runtime)
    runner = context.delegation
    if runner is None:
        raise SettingsError(
            "delegation: the thread resumes at a call of 'delegate_task'; pass delegation= as before"
        )
    # Before anything else: a repeated node needs the state from which its children begin.
    context.session.save_snapshot(state["sandbox_state"])
    try:
        tasks = _prepare_tasks(state, context, runner)
    except DelegationError as error:
        reason = " ".join(neutralize(f"Not done: {error}").split())
        return refuse_action(state, runtime, redact(reason))
    children = [_prepare_child(state, runtime, number, *each) for number, each in enumerate(tasks)]
    budget = _split_budget(state, context, runner, len(tasks))
    assignments = [
        Assignment(thread=thread, record=record.id, goal=task.goal, mode=task.mode, budget=budget)
        for (thread, record), (task, _) in zip(children, tasks, strict=True)
    ]
    results = _run_children(state, runtime, runner, assignments)
    patches = [
        result.patch
        if assignment.mode == "work" and result.patch != record.patch and not result.problem
        else None
        for assignment, result, (_, record) in zip(assignments, results, children, strict=True)
    ]
    seconds = _compute_parallel_duration([result.seconds for result in results], runner.max_parallel)

    def merge_changes(sandbox: Sandbox) -> Observation:
        merged, problem = _merge_patches(sandbox, get_task(state).base_commit, patches)
        text = format_report(assignments, results, merged, problem, context.observation_chars)
        return Observation(text=text, changes=sandbox.changes(), seconds=seconds)

    update = run_action(state, runtime, merge_changes, "anything" if any(patches) else "nothing")
    update["spent"] = _add_child_costs(update["spent"], results)
    return update


def _run_children(
    state: AgentState,
    runtime: Runtime[AgentContext],
    runner: DelegationRunner,
    assignments: Sequence[Assignment],
) -> tuple[ChildResult, ...]:
    """Run the children to their ends. Raises a child's failure, and GraphDrained if one was stopped."""
    session = get_agent_context(runtime).session
    # LangGraph looks up the stream's writer in the context of this thread.
    node_context = contextvars.copy_context()
    results = runner.run(
        assignments,
        find_stop=lambda: (
            ("now" if session.stop.is_urgent else session.stop.mode)
            or ("step" if runtime.drain_requested or session.is_closed else None)
        ),
        report=lambda event, **fields: node_context.copy().run(
            report_progress, runtime, event, state, **fields
        ),
    )
    if any(result.stop_reason is None for result in results):
        raise GraphDrained(runtime.drain_reason or "the children were stopped")
    return results


def _prepare_tasks(
    state: AgentState, context: AgentContext, runner: DelegationRunner
) -> list[tuple[TaskArguments, Payload]]:
    """Return each child's task and payload. Raises DelegationError."""
    if not can_delegate(context):
        raise DelegationError(
            f"you are a child agent at depth {runner.depth}, and the maximum depth is {runner.max_depth}; "
            "do the task yourself"
        )
    tasks = parse_tasks(json.loads(last_action(state).arguments["arguments"]), runner.max_tasks)
    trace, own_task = build_full_trace(state, context), get_task(state)
    max_tokens = _split_budget(state, context, runner, len(tasks)).max_tokens
    sandbox = context.session.enter_state(state["sandbox_state"], own_task)
    prepared = []
    for number, task in enumerate(tasks):
        if task.handoff is None:
            child_task = own_task.model_copy(update={"prompt": task.goal})
            window_tokens = min(runner.window_tokens, max_tokens or runner.window_tokens)
            budget = compute_budget_chars(window_tokens)
            edited = tuple(
                file
                for file in read_edited_files(sandbox, trace, own_task)
                if is_shown_whole(file.content, budget)
            )
            payload = select_payload(trace, child_task, window_tokens, edited).model_copy(
                update={"mode": task.mode}
            )
        else:
            try:
                payload = build_payload(task, trace, own_task, sandbox.read_file)
                check_size(payload, trace, runner.window_tokens, max_tokens)
            except DelegationError as error:
                where = f"tasks.{number}." if len(tasks) > 1 else ""
                raise DelegationError(f"{where}{error}") from None
        prepared.append((task, payload))
    return prepared


def _prepare_child(
    state: AgentState, runtime: Runtime[AgentContext], number: int, task: TaskArguments, payload: Payload
) -> tuple[str, HandoffRecord]:
    """Return the child's thread and the record that it begins from; both are the same on every attempt."""
    own_task = get_task(state)
    parent = get_agent_context(runtime).session.thread
    thread = _build_child_thread_id(parent, last_action(state).index, number)
    point = HandoffPoint(
        kind="requested", event_index=len(state["events"]) - 1, detail=" ".join(task.goal.split())[:200]
    )
    child_task = own_task.model_copy(update={"id": f"{own_task.id}/{number}", "prompt": task.goal})
    record = create_record(state, runtime, point, thread, task=child_task, payload=payload)
    # A fork has children of its own: their records, and so their threads, have a suffix.
    return thread + record.id.removeprefix(build_record_id(thread, point)), record


def _build_child_thread_id(parent: str, index: int, number: int) -> str:
    suffix = f".{index}.{number}"
    if len(parent) + len(suffix) + _FORK_SUFFIX_CHARS > MAX_ID_LENGTH:
        digest = hashlib.sha256(parent.encode()).hexdigest()[:12]
        parent = f"{parent[: MAX_ID_LENGTH - len(suffix) - 2 * _FORK_SUFFIX_CHARS]}-{digest}"
    return f"{parent}{suffix}"


def _split_budget(state: AgentState, context: AgentContext, runner: DelegationRunner, count: int) -> Budget:
    """Return a child's equal share of the remaining budget; parallel children do not share seconds."""
    spent = state["spent"]
    tokens = spent["prompt_tokens"] + spent["completion_tokens"]
    rounds = -(-count // runner.max_parallel)

    def divide(limit: int | None, used: int) -> int | None:
        return None if limit is None else max((limit - used) // count, 1)

    return runner.limit_budget(
        Budget(
            max_steps=max((context.max_steps - state["steps"]) // count, 1),
            max_events=divide(context.max_events, len(state["events"])),
            max_tokens=divide(context.max_tokens, tokens),
            max_cost=None
            if context.max_cost is None
            else (context.max_cost - (spent["cost"] or 0.0)) / count,
            max_seconds=max((context.max_seconds - spent["seconds"]) / rounds, 1.0),
        )
    )


def _merge_patches(
    sandbox: Sandbox, base_commit: str, patches: Sequence[str | None]
) -> tuple[tuple[MergeResult, ...], str]:
    """Return the result of merging each patch, and the problem if merging failed."""
    unmerged = tuple(MergeResult() for _ in patches)
    if all(patch is None for patch in patches):
        return unmerged, ""
    try:
        return merge(sandbox, base_commit, patches), ""
    except RepositoryError as error:
        return unmerged, str(error)


def _compute_parallel_duration(seconds: Sequence[float], max_parallel: int) -> float:
    """Return the duration of all children, each of which began when a slot became free."""
    ends = [0.0] * max_parallel
    for each in seconds:
        ends[ends.index(min(ends))] += each
    return max(ends)


def _add_child_costs(spent: Spending, results: Sequence[ChildResult]) -> Spending:
    """Return the spending including the children's; their seconds are already in the observation."""
    return Spending(
        prompt_tokens=spent["prompt_tokens"] + sum(each.prompt_tokens for each in results),
        completion_tokens=spent["completion_tokens"] + sum(each.completion_tokens for each in results),
        cost=add_costs(spent["cost"], *(each.cost for each in results)),
        seconds=spent["seconds"],
        uncounted_calls=spent["uncounted_calls"] + sum(each.uncounted_calls for each in results),
    )
