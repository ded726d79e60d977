"""The order of a reply's calls: LangGraph starts them side by side, but they share one sandbox.

The calls that ran in one step are a list in the journal, in the order in which they ran. Each starts in the state that
the one before it left. An entry has the call's place in the reply, and a digest of the name and the arguments that ran.

Calls of subagents that follow one another are a group: they run side by side. Each starts in the state before the group,
and the next call in the merge of what they left.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.prebuilt.tool_node import ToolRuntime
from langgraph.runtime import ExecutionInfo
from langgraph.types import Interrupt

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.graph.own_graphs.agent_handoffs import is_handoff_tool, read_field
from langgraph_takeover.graph.own_graphs.thread_sandbox import ThreadSandbox
from langgraph_takeover.graph.usage_errors import EarlierCallError
from langgraph_takeover.handoff.ledger import effects
from langgraph_takeover.handoff.ledger.effects import EffectKey
from langgraph_takeover.handoff.shell.command_effects import CommandEffect
from langgraph_takeover.nodes.session.graph_tasks import join_states
from langgraph_takeover.nodes.session.session import ActionResult
from langgraph_takeover.nodes.session.state_store import BASE_STATE
from langgraph_takeover.sandbox.interface import FileChange, Sandbox

ResultT = TypeVar("ResultT", bound=ActionResult)
Status = Literal["running", "ended", "interrupted", "failed"]
_POLL_S = 0.02
_START_S = 5.0
"""How long a call waits for an earlier one to start, if nothing shows whether it will: its wrappers may have answered it."""
_LONGEST_WAIT_S = 6 * 3600.0
_MAX_STEPS = 256
_REPEATED_ID = "Not run: several calls of this reply have the same id. Send each call with its own id."
_LATE = "Not run: a later call of this reply has run already. Send this call again."


class RanCall(NamedTuple, Generic[ResultT]):
    """A call that ran in this step, now or before a crash."""

    number: int
    """Position among the step's calls that ran."""
    result: ResultT
    state: str
    """Id of the sandbox's state after it."""


@dataclass(eq=False)
class PlacedCall:
    """One execution of a call of a reply. A wrapper may run it several times."""

    order: CallOrder
    step: ReplyStep
    place: int
    """Position in the reply; a call without a unique id counts as the last."""
    earlier: Mapping[str | None, int]
    """Places of the sandbox's earlier calls without an answer, by their ids."""
    config: Mapping[str, Any]
    answer: ToolMessage | None = None
    """The answer that a middleware or a person gave before the step, so that the call does not run."""
    refusal: str | None = None
    ran: int = 0
    """How many attempts ran, or were found in the journal."""
    updates: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What its attempts changed in the agent's state, by their positions among the step's calls."""


class _StoredCall(Frozen):
    """A call in the journal."""

    place: int
    content: str
    result: str
    changes: tuple[FileChange, ...] = ()
    shell_ended: bool = False


class _Entry(NamedTuple):
    stored: _StoredCall
    state: str


@dataclass(eq=False)
class ReplyStep:
    """The calls of one reply, at one checkpoint."""

    id: str
    state_before: str
    call_ids: tuple[str | None, ...]
    groups: tuple[int, ...]
    """The group of each place: calls of one group run side by side."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    statuses: dict[int, Status] = field(default_factory=dict)
    calls: dict[int, PlacedCall] = field(default_factory=dict)
    entries: list[_Entry] | None = None
    failures: int = 0
    """How often saving states had failed when the entries were loaded."""
    next_checkpoint: str | None = None
    """The checkpoint after the step."""


class _NoQuestions(list[Interrupt]):
    """The questions of a call that runs when an earlier one is answered: none of its own.

    It counts as true, so that LangGraph saves the answers that the call has already got.
    """

    def __bool__(self) -> bool:
        return True


def find_attended_call(call_id: str) -> PlacedCall | None:
    """Return the running call with this id, if it belongs to an agent with a sandbox."""
    call = _attended.get()
    return call if call is not None and call.step.call_ids[call.place] == call_id else None


_attended: ContextVar[PlacedCall | None] = ContextVar("attended_call", default=None)


class CallOrder:
    """Lets each call of a reply wait for those before it, and run in the state that they left.

    Args:
        names: names of the tools that use the sandbox.
        subagent: name of the tool that runs a subagent.
    """

    def __init__(self, work: ThreadSandbox, names: Collection[str], *, subagent: str | None = None) -> None:
        # States without a snapshot cannot be merged.
        self._subagent = subagent if work.session.snapshot_every == "step" else None
        self.work, self._names = work, frozenset(names)
        self._changed = threading.Condition()
        self._steps: OrderedDict[str, ReplyStep] = OrderedDict()
        self._latest: OrderedDict[tuple[str, str | None], ReplyStep] = OrderedDict()

    def find_call(self, state: Any, runtime: ToolRuntime[Any, Any], call_id: str | None) -> PlacedCall:
        """Return the call of the state's last reply with this id; the same object for all attempts of an execution."""
        attended = _attended.get()
        if attended is not None and attended.config is runtime.config:
            return attended
        reply, answered = _find_reply(read_field(state, "messages") or ())
        ids = Counter(each["id"] for each in reply.tool_calls)
        places = {each["id"]: n for n, each in enumerate(reply.tool_calls) if ids[each["id"]] == 1}
        place = places.get(call_id, len(reply.tool_calls))
        names = self._names | {each.name for each in runtime.tools if is_handoff_tool(each)}
        step = self._find_step(reply, str(read_field(state, "sandbox_state") or BASE_STATE), runtime)
        earlier = {
            each["id"]: n
            for n, each in enumerate(reply.tool_calls[:place])
            if each["id"] in places and each["id"] not in answered and each["name"] in names
            if step.groups[n] != step.groups[place]
        }
        with self._changed:
            known = step.calls.get(place)
            if known is None or known.config is not runtime.config:
                known = PlacedCall(self, step, place, earlier, runtime.config, answered.get(call_id))
                if ids[call_id] > 1:
                    known.refusal = _REPEATED_ID
                else:
                    step.calls[place], step.next_checkpoint = known, None
            return known

    @contextmanager
    def attend(self, call: PlacedCall) -> Iterator[None]:
        """Note how the call ends: later calls wait until then."""
        if _attended.get() is call:
            yield
            return
        token = _attended.set(call)
        status: Status = "failed"
        call.step.statuses[call.place] = "running"
        try:
            yield
            status = "ended"
        except GraphBubbleUp:
            status = "interrupted"
            raise
        finally:
            _attended.reset(token)
            with self._changed:
                call.step.statuses[call.place] = status
                self._changed.notify_all()

    def wait_for_earlier(self, call: PlacedCall) -> None:
        """Wait until the reply's earlier calls are over.

        Raises EarlierCallError if one failed, and GraphInterrupt if one waits for a person.
        """
        begun = time.monotonic()
        with self._changed:
            while not self._has_turn(call, begun):
                self._changed.wait(_POLL_S)

    async def wait_for_earlier_async(self, call: PlacedCall) -> None:
        """Like `wait_for_earlier`, in an event loop."""
        begun = time.monotonic()
        while not self._has_turn(call, begun):
            await asyncio.sleep(_POLL_S)

    def run(
        self,
        call: PlacedCall,
        content: Any,
        operation: Callable[[Sandbox, str], ResultT],
        parse_result: Callable[[str], ResultT],
        effect: CommandEffect,
    ) -> RanCall[ResultT] | None:
        """Run an attempt of a call once, in the state after the step's earlier calls.

        `content` is the name and the arguments. If this attempt ran before a crash, the recorded result is returned.
        Returns None if the call is refused.
        """
        step, digest = call.step, _digest(content)
        with step.lock:
            if (found := self._find_entry(call, digest)) is not None:
                number, (stored, after) = found
                return RanCall(number, parse_result(stored.result), after)
            if call.refusal is not None:
                return None
            entries, before = self._load_entries(step), self.find_state(call)
            number = len(entries)

            def operate(sandbox: Sandbox) -> _StoredCall:
                result = operation(sandbox, before)
                return _StoredCall(
                    place=call.place,
                    content=digest,
                    result=result.model_dump_json(),
                    changes=result.changes,
                    shell_ended=result.shell_ended,
                )

            with self.work.explain_missing(before):
                stored, after = self.work.session.run_once(
                    self._make_key(step, number),
                    before,
                    operate,
                    _StoredCall.model_validate_json,
                    effect,
                    is_deferred=True,
                )
            entries.append(_Entry(stored, after))
            call.ran += 1
            return RanCall(number, parse_result(stored.result), after)

    def record(self, call: PlacedCall, content: Any, state_before: str, state_after: str) -> None:
        """Record a call that consists of recorded calls, so that later calls start in the state after it."""
        stored = _StoredCall(place=call.place, content=_digest(content), result="null")
        groups, own = call.step.groups, call.step.groups[call.place]
        name = f"{self._subagent} {groups[: call.place + 1].count(own)}" if groups.count(own) > 1 else None
        with call.step.lock:
            if self._find_entry(call, "") is None and call.refusal is None:
                entries = self._load_entries(call.step)
                self.work.session.record_call(
                    self._make_key(call.step, len(entries)),
                    state_before,
                    state_after,
                    stored.model_dump_json(),
                    name=name,
                )
                entries.append(_Entry(stored, state_after))
                call.ran += 1

    def find_state(self, call: PlacedCall) -> str:
        """Return the sandbox's state in which a call starts, or its next attempt: after the earlier calls that ran.

        Raises MergeConflictError.
        """
        groups = call.step.groups
        with call.step.lock:
            entries = self._load_entries(call.step)
            left = {
                stored.place: state
                for stored, state in entries
                if groups[stored.place] < groups[call.place] or (stored.place == call.place and call.ran)
            }
            if call.place in left:
                return left[call.place]
            last = max((groups[place] for place in left), default=None)
            states = [left[place] for place in sorted(left) if groups[place] == last]
            return self.work.resolve_state(join_states(states) if states else call.step.state_before)

    def find_updates(
        self, state: Any, at: ExecutionInfo | None
    ) -> tuple[str, str, dict[int, dict[str, Any]]] | None:
        """Return the sandbox's states before and after the step of the last reply, and the updates of its calls.

        Wrappers outside of ours may have dropped them. Only the checkpoint after the step gets them; later ones get None.
        """
        reply, _ = _find_reply(read_field(state, "messages") or ())
        checkpoint = at.checkpoint_id if at else ""
        with self._changed:
            step = self._latest.get((_find_graph(at), reply.id))
            if step is None or not step.entries:
                return None
            step.next_checkpoint = step.next_checkpoint or checkpoint
            if step.next_checkpoint != checkpoint:
                return None
        updates = {number: each for call in step.calls.values() for number, each in call.updates.items()}
        return step.state_before, step.entries[-1].state, updates

    def _find_step(self, reply: AIMessage, state: str, runtime: ToolRuntime[Any, Any]) -> ReplyStep:
        """Return the step: equal when it is resumed, different in every fork."""
        at = runtime.execution_info
        graph = _find_graph(at)
        name = _digest([graph, at.checkpoint_id if at else None, reply.id, state])
        with self._changed:
            step = self._steps.setdefault(
                name,
                ReplyStep(
                    name,
                    state,
                    (*(each["id"] for each in reply.tool_calls), None),
                    self._list_groups(reply.tool_calls),
                ),
            )
            self._steps.move_to_end(name)
            self._latest[graph, reply.id] = step
            for steps in (self._steps, self._latest):
                if len(steps) > _MAX_STEPS:
                    steps.popitem(last=False)
            return step

    def _list_groups(self, calls: Sequence[ToolCall]) -> tuple[int, ...]:
        """Return the group of each call, by the place of its first one; calls of other tools do not end a group."""
        groups: list[int] = []
        first: int | None = None
        for place, each in enumerate(calls):
            is_subagent = each["name"] == self._subagent
            if each["name"] in self._names:
                first = (place if first is None else first) if is_subagent else None
            groups.append(place if first is None or not is_subagent else first)
        return (*groups, len(calls))

    def _has_turn(self, call: PlacedCall, begun: float) -> bool:
        """Whether the earlier calls are over: they ran, were answered by a wrapper or a person, or never start."""
        self.work.session.stop.require_not_urgent()
        if not call.earlier:
            return True
        waited_s, tasks = time.monotonic() - begun, _find_tasks(call.config)
        for call_id, place in call.earlier.items():
            if tasks is not None:
                status = tasks.get(call_id, "ended")
            else:
                status = call.step.statuses.get(place) or ("running" if waited_s < _START_S else "ended")
            if status == "interrupted":
                raise GraphInterrupt(_NoQuestions() if _has_answers(call.config) else ())
            if status == "failed" or waited_s > _LONGEST_WAIT_S:
                problem = "failed" if status == "failed" else f"has not ended after {_LONGEST_WAIT_S:.0f} s"
                raise EarlierCallError(
                    f"thread {self.work.thread!r}: an earlier call of the same reply {problem} (resume the thread)"
                )
            if status == "running":
                return False
        return True

    def _find_entry(self, call: PlacedCall, digest: str) -> tuple[int, _Entry] | None:
        """Return the journal's entry of this attempt; without one, forget entries that this attempt replaces."""
        entries = self._load_entries(call.step)
        mine = [n for n, entry in enumerate(entries) if entry.stored.place == call.place]
        if call.ran < len(mine) and entries[mine[call.ran]].stored.content == digest:
            call.ran += 1
            return mine[call.ran - 1], entries[mine[call.ran - 1]]
        while entries and self._is_replaced(call, entries):
            self._forget_last(call.step, entries)
        groups = call.step.groups
        if entries and groups[entries[-1].stored.place] > groups[call.place]:
            call.refusal = _LATE
        return None

    def _is_replaced(self, call: PlacedCall, entries: list[_Entry]) -> bool:
        """Whether the last entry is an attempt before a crash, and this attempt takes its place or comes before it."""
        place, groups = entries[-1].stored.place, call.step.groups
        number = sum(entry.stored.place == place for entry in entries) - 1
        other = call.step.calls.get(place)
        is_beside = groups[place] == groups[call.place] and place != call.place
        if place < call.place or is_beside or (other is not None and number < other.ran):
            return False
        # The result of a call whose task has ended is saved with the step.
        tasks = None if place == call.place else _find_tasks(call.config)
        return tasks is None or tasks.get(call.step.call_ids[place]) == "running"

    def _load_entries(self, step: ReplyStep) -> list[_Entry]:
        failures = self.work.session.pending.failures
        if step.entries is None or step.failures != failures:
            step.failures, entries = failures, list[_Entry]()
            ledger = self.work.session.ledger
            while (found := effects.find(ledger, self._make_key(step, len(entries)))) is not None:
                if found.result is None or found.state_after is None:
                    break
                entries.append(_Entry(_StoredCall.model_validate_json(found.result), found.state_after))
            while not all(self.work.session.can_enter_state(each.state) for each in entries):
                self._forget_last(step, entries)
            step.entries = entries
        return step.entries

    def _forget_last(self, step: ReplyStep, entries: list[_Entry]) -> None:
        self.work.session.forget_call(self._make_key(step, len(entries) - 1))
        entries.pop()

    def _make_key(self, step: ReplyStep, number: int) -> EffectKey:
        return self.work.make_key(step.id, str(number))


def refuse(call: ToolCall, reason: str | None) -> ToolMessage:
    """Return an error as the answer to a call."""
    return ToolMessage(reason or "", tool_call_id=call["id"], name=call["name"], status="error")


def _find_reply(messages: Any) -> tuple[AIMessage, dict[str | None, ToolMessage]]:
    """Return the last reply, and the answers that its calls have, by their ids."""
    answered: dict[str | None, ToolMessage] = {}
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            return message, answered
        if isinstance(message, ToolMessage):
            answered[message.tool_call_id] = message
    return AIMessage(""), answered


def _find_graph(at: ExecutionInfo | None) -> str:
    """Return the namespace of the graph whose node runs: the last part of the node's own is its task."""
    return at.checkpoint_ns.rpartition("|")[0] if at else ""


def _find_tasks(config: Mapping[str, Any]) -> dict[str | None, Status] | None:
    """Return the state of the step's calls by their ids, if each is a task of LangGraph; otherwise None.

    LangGraph has no public way to ask for it. A version that changes these names gives None, and calls then wait for
    at most `_START_S` seconds for one that does not start.
    """
    try:
        call = config["configurable"]["__pregel_call"]
        loop, futures = call.keywords["schedule_task"].__self__, call.keywords["futures"]()
        if not _list_call_ids(call.args[0]().input):
            return None
        running, is_settled = set(), True
        if futures is not None:
            with futures.lock:
                found = [
                    task for each, task in [*futures.items()] if task is not None and each not in futures.done
                ]
                # A finished task can leave the dict before its writes are saved.
                is_settled = futures.counter <= len(found)
            running = {task.id for task in found}
        written: dict[str, set[str]] = {}
        for task_id, channel, _ in list(loop.checkpoint_pending_writes):
            written.setdefault(task_id, set()).add(channel)
        statuses: dict[str | None, Status] = {}
        for task in list(loop.tasks.values()):
            status = "running" if task.id in running else _read_status(written.get(task.id, set()))
            for call_id in _list_call_ids(task.input):
                statuses[call_id] = status if is_settled or status == "ended" else "running"
        return statuses
    except (AttributeError, IndexError, KeyError, TypeError):
        return None


def _has_answers(config: Mapping[str, Any]) -> bool:
    """Whether a person has answered a question of this call."""
    try:
        task = config["configurable"]["__pregel_call"].args[0]()
        return any(channel == "__resume__" for channel, _ in task.writes)
    except (AttributeError, IndexError, KeyError, TypeError):
        return False


def _list_call_ids(given: Any) -> list[str | None]:
    """Return the id of the call that a task was sent; nothing if its input is another."""
    if isinstance(given, Mapping) and isinstance(given.get("tool_call"), Mapping):
        return [given["tool_call"].get("id")]
    if (
        isinstance(given, list)
        and given
        and isinstance(given[0], dict)
        and given[0].get("type") == "tool_call"
    ):
        return [each.get("id") for each in given]
    return []


def _read_status(channels: set[str]) -> Status:
    if channels - {"__interrupt__", "__error__", "__error_source_node__", "__resume__"}:
        return "ended"
    # A task that left nothing has handed over to another agent, or its step has ended.
    return "failed" if "__error__" in channels else "interrupted"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]
