"""The node that hands tasks to other agents, waits for them, and brings back what they did."""

from __future__ import annotations

import contextvars
import hashlib
import json
from collections.abc import Sequence

from langgraph.errors import GraphDrained
from langgraph.runtime import Runtime

from handoff.delegation import Assigned, BadDelegation, check_size, given_payload, read_tasks
from handoff.event import HandoffPoint
from handoff.fence import neutral
from handoff.ledger.leases import LONGEST_ID
from handoff.payload import Payload
from handoff.record import HandoffRecord
from handoff.redaction import redacted
from handoff.selection import derived
from nodes.acting import acted, refused
from nodes.children import Assignment, Budget, Delegates, Returned
from nodes.delegating import may_delegate
from nodes.events import last_action
from nodes.observation import Observation
from nodes.progress import tell
from nodes.recording import record_id, recorded, trace_of
from nodes.reporting import report
from nodes.settings import AgentContext, BadSettings, given
from nodes.state import AgentState, Spent, task_of
from sandbox.machine import Sandbox
from sandbox.merging import Merged, merge
from sandbox.repository import RepositoryBroken

_FORK_ROOM = 13


def delegate(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Run a child for each task, then merge what they changed; run again after a crash, it goes on with the same ones.

    Raises what a child failed by, BadSettings where the run was resumed without `delegation`, and GraphDrained
    where it is to stop, so that it is run again when it is resumed.
    """
    context = given(runtime)
    children = context.delegation
    if children is None:
        raise BadSettings(
            "delegation: the thread goes on with a call of 'delegate_task'; give delegation= again"
        )
    # First of all: what the children begin with must be there when this is run again.
    context.session.keep(state["machine"])
    try:
        prepared = _prepared(state, context, children)
    except BadDelegation as error:
        told = " ".join(neutral(f"Not done: {error}").split())
        return refused(state, runtime, redacted(told))
    budget = _share(state, context, children, len(prepared))
    records = [_record(state, runtime, number, *each) for number, each in enumerate(prepared)]
    assignments = [
        Assignment(thread=thread, record=record.id, goal=task.goal, mode=task.mode, budget=budget)
        for (thread, record), (task, _) in zip(records, prepared, strict=True)
    ]
    here = contextvars.copy_context()
    returned = children.run(
        assignments,
        stopping=lambda: runtime.drain_requested or context.session.closed,
        # LangGraph looks for whoever listens in the context of this thread.
        tell=lambda moment, **told: here.copy().run(tell, runtime, moment, state, **told),
    )
    if any(each.stop_reason is None for each in returned):
        raise GraphDrained(runtime.drain_reason or "the children were stopped")
    patches = [
        each.patch if asked.mode == "work" and each.patch != record.patch else ""
        for asked, each, (_, record) in zip(assignments, returned, records, strict=True)
    ]
    seconds = _side_by_side([each.seconds for each in returned], children.at_once)

    def bring(machine: Sandbox) -> Observation:
        merged, trouble = _merged(machine, task_of(state).base_commit, patches)
        text = report(assignments, returned, merged, trouble, context.observation_chars)
        return Observation(text=text, changes=machine.changes(), seconds=seconds)

    update = acted(state, runtime, bring, "anything" if any(patches) else "nothing")
    update["spent"] = _charged(update["spent"], returned)
    return update


def _prepared(
    state: AgentState, context: AgentContext, children: Delegates
) -> list[tuple[Assigned, Payload]]:
    """What each child is to do and to start with. Raises BadDelegation."""
    if not may_delegate(context):
        raise BadDelegation(
            f"you were delegated to yourself, {children.depth} deep, and nobody may delegate deeper than "
            f"{children.max_depth}; do it yourself"
        )
    tasks = read_tasks(json.loads(last_action(state).arguments["arguments"]), children.most_tasks)
    trace, own = trace_of(state, context), task_of(state)
    most = _share(state, context, children, len(tasks)).max_tokens
    machine = context.session.enter(state["machine"], own)
    prepared = []
    for number, task in enumerate(tasks):
        if task.handoff is None:
            asked = own.model_copy(update={"prompt": task.goal})
            window = min(children.window_tokens, most or children.window_tokens)
            payload = derived(trace, asked, window).model_copy(update={"mode": task.mode})
        else:
            try:
                payload = given_payload(task, trace, own, machine.read_file)
                check_size(payload, trace, children.window_tokens, most)
            except BadDelegation as error:
                where = f"tasks.{number}." if len(tasks) > 1 else ""
                raise BadDelegation(f"{where}{error}") from None
        prepared.append((task, payload))
    return prepared


def _record(
    state: AgentState, runtime: Runtime[AgentContext], number: int, task: Assigned, payload: Payload
) -> tuple[str, HandoffRecord]:
    """The child's thread and the record that it begins from, the same ones however often they are asked for."""
    own = task_of(state)
    thread = _thread(given(runtime).session.thread, last_action(state).index, number)
    point = HandoffPoint(
        kind="requested", event_index=len(state["events"]) - 1, detail=" ".join(task.goal.split())[:200]
    )
    asked = own.model_copy(update={"id": f"{own.id}/{number}", "prompt": task.goal})
    record = recorded(state, runtime, point, thread, task=asked, payload=payload)
    # In a fork, another child works on what is perhaps another task.
    return thread + record.id.removeprefix(record_id(thread, point)), record


def _thread(parent: str, index: int, number: int) -> str:
    end = f".{index}.{number}"
    if len(parent) + len(end) + _FORK_ROOM > LONGEST_ID:
        digest = hashlib.sha256(parent.encode()).hexdigest()[:12]
        parent = f"{parent[: LONGEST_ID - len(end) - 2 * _FORK_ROOM]}-{digest}"
    return f"{parent}{end}"


def _share(state: AgentState, context: AgentContext, children: Delegates, count: int) -> Budget:
    """What is left, in equal parts; of seconds only as far as one child waits for another."""
    so_far = state["spent"]
    tokens = so_far["prompt_tokens"] + so_far["completion_tokens"]
    rounds = -(-count // children.at_once)

    def part(most: int | None, spent: int) -> int | None:
        return None if most is None else max((most - spent) // count, 1)

    return children.limited(
        Budget(
            max_steps=max((context.max_steps - state["steps"]) // count, 1),
            max_events=part(context.max_events, len(state["events"])),
            max_tokens=part(context.max_tokens, tokens),
            max_cost=None if context.max_cost is None else (context.max_cost - so_far["cost"]) / count,
            max_seconds=max((context.max_seconds - so_far["seconds"]) / rounds, 1.0),
        )
    )


def _merged(machine: Sandbox, base_commit: str, patches: Sequence[str]) -> tuple[tuple[Merged, ...], str]:
    nothing = tuple(Merged() for _ in patches)
    if not any(patches):
        return nothing, ""
    try:
        return merge(machine, base_commit, patches), ""
    except RepositoryBroken as error:
        return nothing, str(error)


def _side_by_side(seconds: Sequence[float], at_once: int) -> float:
    """How long it took, as each began where one before it ended."""
    ends = [0.0] * at_once
    for each in seconds:
        ends[ends.index(min(ends))] += each
    return max(ends)


def _charged(spent: Spent, returned: Sequence[Returned]) -> Spent:
    """What was spent, with what the children did; their seconds are the observation's."""
    return Spent(
        prompt_tokens=spent["prompt_tokens"] + sum(each.prompt_tokens for each in returned),
        completion_tokens=spent["completion_tokens"] + sum(each.completion_tokens for each in returned),
        cost=spent["cost"] + sum(each.cost for each in returned),
        seconds=spent["seconds"],
    )
