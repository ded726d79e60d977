"""The state of an agent's graph."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, cast

from annotated_types import Ge
from langchain_core.messages import AnyMessage, BaseMessage
from langgraph.channels import DeltaChannel, EphemeralValue
from pydantic import JsonValue, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.records.record import ExternalSession, TaskBrief
from langgraph_takeover.handoff.text.redaction import redact, redact_known_secrets
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint, PointKind
from langgraph_takeover.handoff.views.team_views import TurnPass
from langgraph_takeover.nodes.context.settings import shorten_value

StopReason = Literal[
    "finished",
    "handoff",
    "point",
    "max_steps",
    "max_events",
    "max_tokens",
    "max_cost",
    "max_seconds",
    "context_overflow",
    "refused",
    "unconfirmed",
    "agent_ended",
]
"""`refused` and `unconfirmed`: it never took the handoff that it was started for. `agent_ended`: the process of an
external agent ended before its work did."""


def extend_list(items: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    """Reducer of growing lists."""
    return [*items, *[item for write in writes for item in write]]


def take_latest(value: dict[str, Any], writes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Reducer of values that are written rarely, and completely."""
    return writes[-1] if writes else value


_MAX_EARLIER = 3
"""LangGraph holds the values of the last two steps."""
_OWN_REFERENCES = 2
"""The channel's, and the argument of `getrefcount`."""


class ListChannel(DeltaChannel[Any]):
    """A delta channel of a growing list.

    LangGraph copies every channel for every edge, and applies the node's writes. Here the edge sees both one after another,
    because a copied list costs time with each earlier step. For the same reason an update extends an earlier list that
    nobody holds any more, instead of copying the latest.
    """

    _added: list[Any] | None = None
    """The writes that follow the list; None in a channel that is not a copy."""
    _earlier: tuple[tuple[list[Any], int], ...] = ()
    """The last values, each with its length; every value begins with the one before."""

    def copy(self) -> Self:
        new = self.from_checkpoint(self.value)
        new._added = []
        return new

    def update(self, values: Sequence[Any]) -> bool:
        if not isinstance(self.value, list) or not all(isinstance(each, list) for each in values):
            self._earlier = ()
            return super().update(values)
        if self._added is not None:
            self._added = extend_list(self._added, values)
        elif values:
            self._extend([item for write in values for item in write])
        return bool(values)

    def _extend(self, added: list[Any]) -> None:
        latest: list[Any] = self.value
        unused = next((each for each in self._earlier if _is_unused(each)), None)
        if unused is None:
            self.value = latest + added
        else:
            self.value = unused[0]
            self.value += latest[unused[1] :] + added
        kept = [each for each in self._earlier if each is not unused]
        self._earlier = (*kept, (latest, len(latest)))[-_MAX_EARLIER:]

    def get(self) -> Any:
        return _Concatenation(super().get(), self._added) if self._added else super().get()


def _is_unused(earlier: tuple[list[Any], int]) -> bool:
    """Whether only the channel holds the list, as it was."""
    return sys.getrefcount(earlier[0]) <= _OWN_REFERENCES and len(earlier[0]) == earlier[1]


class _Concatenation(Sequence[Any]):
    def __init__(self, first: Sequence[Any], second: Sequence[Any]) -> None:
        self._first, self._second = first, second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        before = len(self._first)
        return self._first[place] if place < before else self._second[place - before]


# A delta channel writes what a step adds, once; other channels are written completely with every checkpoint.
# Rarer snapshots than this would slow down resuming; each costs the whole list.
_LIST_CHANNEL = ListChannel(extend_list, snapshot_frequency=5000)
_VALUE_CHANNEL: DeltaChannel[Any] = DeltaChannel(take_latest, dict, snapshot_frequency=5000)

_STEP_CHANNEL: EphemeralValue[Any] = EphemeralValue(str)
"""Holds what the last step wrote, and is empty after the next."""


class ReviewRequest(Frozen):
    """The question to a person under the policy `review`: hand the work over, or continue?

    Example:
        >>> waiting = run(
        ...     home, "fix-2", task_id="issue-17", prompt="Make the tests pass.", model=model, sandbox=sandbox_spec, policy="review"
        ... ).waiting
        >>> waiting.point, waiting.record
        ('first_source_edit', 'fix-2.first_source_edit')
    """

    record: str
    """Id of the record that a successor would take over."""
    point: PointKind
    detail: str
    """Why the point fired."""
    note: str
    """The structured note, as text."""
    views: tuple[str, ...]
    """Views that the answer can choose."""


class ToolQuestion(Frozen):
    """The question of a custom tool that called `interrupt`, which waits for an answer.

    Example:
        >>> from langgraph_takeover.protocol import ToolQuestion
        >>> ToolQuestion(tool="deploy", call="call_1", value="Deploy to production?").tool
        'deploy'
    """

    tool: str
    call: str
    """Id of the call; in the text protocol, one from its event."""
    value: Any
    """The value that the tool passed to `interrupt`."""


class ProcessQuestion(Frozen):
    """The question to a person under `restart_processes="ask"`: which background processes should start again?

    Example:
        >>> from langgraph_takeover.protocol import ProcessQuestion
        >>> ProcessQuestion(processes=("`npm run dev` in `/testbed`; listened on TCP 3000",)).kind
        'restart_processes'
    """

    kind: Literal["restart_processes"] = "restart_processes"
    processes: tuple[str, ...]
    """One line for each process that ran when the sandbox was saved."""


class ProcessChoice(Frozen):
    """The answer to a `ProcessQuestion`: the numbers of the processes to start again, counted from 0.

    Example:
        >>> from langgraph_takeover.protocol import ProcessChoice
        >>> ProcessChoice(start=(0,)).start
        (0,)
    """

    start: tuple[Annotated[int, Ge(0)], ...] = ()


def parse_process_question(value: Any) -> ProcessQuestion | None:
    """Return the question that an interrupt asks; None if it asks another one."""
    try:
        return ProcessQuestion.model_validate(value)
    except ValidationError:
        return None


class Spending(TypedDict):
    """Cost of a run so far."""

    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    """Cost of the model calls, in the currency of the prices; None without prices."""
    seconds: float
    """Time spent in model calls and actions, without the time between a crash and the resume."""
    uncounted_calls: int
    """Calls whose tokens are unknown, failed attempts and interrupted calls included."""


NO_SPENDING = Spending(prompt_tokens=0, completion_tokens=0, cost=None, seconds=0.0, uncounted_calls=0)


class ActionEdgeState(TypedDict, total=False):
    """The fields that the edges after an action read. LangGraph loads only these for them."""

    fired: list[dict[str, Any]]
    open_calls: int


class TurnEdgeState(ActionEdgeState, total=False):
    """The fields that a team's edges read after an action."""

    stop_reason: StopReason | None
    turns_left: int | None
    passing: dict[str, Any] | None


class TeamThoughtEdgeState(TurnEdgeState, total=False):
    """The fields that a team's edges read after a reply."""

    events: Annotated[list[dict[str, Any]], _LIST_CHANNEL]


class ThoughtEdgeState(ActionEdgeState, total=False):
    """The fields that the edges after the model's reply read."""

    events: Annotated[list[dict[str, Any]], _LIST_CHANNEL]
    stop_reason: StopReason | None


class ReplyEdgeState(ThoughtEdgeState, total=False):
    """The fields that the edges after a reply read, where an external agent may work."""

    external: Annotated[dict[str, Any], _VALUE_CHANNEL]


_MAX_START_PATCH_CHARS = 1_000_000


class AgentState(TypedDict, total=False):
    """The state of one run; every value is a message, a number, text, or JSON-like."""

    messages: Annotated[list[AnyMessage], _LIST_CHANNEL]
    task: Annotated[dict[str, Any], _VALUE_CHANNEL]
    """`TaskBrief` as JSON; the input of a run needs only `id` and `prompt`."""
    sandbox_state: str
    """Id of the sandbox state that belongs to this graph state."""
    unchecked_events: int
    """Number of the events before the sandbox state was replaced from outside, which need not have their changes."""
    events: Annotated[list[dict[str, Any]], _LIST_CHANNEL]
    """`Event`s as JSON, without defaults; `message` is the position of the message that has the text, if one has."""
    diff: Annotated[str, _STEP_CHANNEL]
    """What the last step changed in files, as a unified diff for a person."""
    fired: list[dict[str, Any]]
    """`HandoffPoint`s that the last step fired and `interruption` has not handled yet."""
    edits: Annotated[list[dict[str, Any]], _LIST_CHANNEL]
    """The editor's changes, for undo: path, text before, digest after."""
    open_calls: int
    """Number of the last reply's calls that have not begun; missing until a reply has several."""
    records: Annotated[list[str], _LIST_CHANNEL]
    """Ids of the handoff records made so far."""
    periodic_records: list[str]
    """Ids of the periodic records made so far. No list channel, because an empty one costs bytes in every checkpoint."""
    steps: int
    spent: Spending
    condensed: int
    """Number of the oldest observations that the model no longer sees, under `condense`."""
    stop_reason: StopReason | None
    start: Annotated[dict[str, Any], _VALUE_CHANNEL]
    """`patch`: what the repository differed from its commit by at the start, if anything; None if it is too large.
    Missing for takeovers, whose record has it."""
    record: str
    """Takeovers only: id of the record."""
    view: str
    """Takeovers only: name of the view of the first messages."""
    handoff: str
    """Takeovers of an offered handoff only: its id."""
    external: Annotated[dict[str, Any], _VALUE_CHANNEL]
    """External agents only: `ExternalSession` as JSON."""
    agent: str
    """Teams only: name of the acting agent, from its first reply on."""
    turns_left: int | None
    """Teams only: replies left before the turn passes automatically; None: no limit."""
    passing: dict[str, Any] | None
    """Teams only: the `TurnPass` in progress."""
    passes: Annotated[list[dict[str, Any]], _LIST_CHANNEL]
    """Teams only: `TurnPass`es as JSON."""


class InputError(TakeoverError, ValueError):
    """A task or a state is invalid; the message says which values are valid."""


_FIELD_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    **{name: TypeAdapter(str) for name in ("sandbox_state", "diff", "record", "view", "agent")},
    "task": TypeAdapter(TaskBrief),
    "external": TypeAdapter(ExternalSession),
    "events": TypeAdapter(list[Event]),
    "fired": TypeAdapter(list[HandoffPoint]),
    "edits": TypeAdapter(list[dict[str, JsonValue]]),
    "records": TypeAdapter(list[str]),
    "periodic_records": TypeAdapter(list[str]),
    "start": TypeAdapter(dict[str, str | None]),
    "steps": TypeAdapter(int),
    "unchecked_events": TypeAdapter(Annotated[int, Ge(0)]),
    "condensed": TypeAdapter(Annotated[int, Ge(0)]),
    "open_calls": TypeAdapter(Annotated[int, Ge(0)]),
    "spent": TypeAdapter(Spending),
    "stop_reason": TypeAdapter(StopReason | None),
    "turns_left": TypeAdapter(int | None),
    "passing": TypeAdapter(TurnPass | None),
    "passes": TypeAdapter(list[TurnPass]),
}


def validate_state_update(values: Mapping[str, Any]) -> AgentState:
    """Validate an external update of a state. Raises InputError."""
    if not isinstance(values, Mapping):
        raise InputError(f"a state update is a dict of values, not {shorten_value(values)}")
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name == "messages":
            found[name] = _validate_messages(value)
            continue
        if name not in _FIELD_ADAPTERS:
            raise InputError(
                f"unknown state key {name!r:.60} (known: {', '.join(AgentState.__annotations__)})"
            )
        try:
            checked = _FIELD_ADAPTERS[name].validate_python(value)
            found[name] = redact_known_secrets(_FIELD_ADAPTERS[name].dump_python(checked, mode="json"))
        except ValidationError as error:
            first = error.errors()[0]
            location = ".".join(map(str, (name, *first["loc"])))
            raise InputError(f"{location}: {first['msg']}, not {shorten_value(first['input'])}") from None
    return cast(AgentState, found)


def _validate_messages(value: Any) -> list[BaseMessage]:
    if not isinstance(value, list | tuple):
        raise InputError(f"messages: give a list of messages, not {shorten_value(value)}")
    for each in value:
        if not isinstance(each, BaseMessage):
            raise InputError(
                f"messages: give LangChain messages such as HumanMessage('…'), not {shorten_value(each)}"
            )
    return [each.model_copy(update={"content": redact_known_secrets(each.content)}) for each in value]


def build_initial_state(
    messages: Sequence[BaseMessage], task: TaskBrief, sandbox_state: str, start_patch: str | None = ""
) -> AgentState:
    """Build the state that a run starts from; `start_patch` is None if git cannot make it, empty for a takeover."""
    state = AgentState(
        messages=cast(list[AnyMessage], list(messages)),
        task=task.model_dump(mode="json"),
        sandbox_state=sandbox_state,
        fired=[],
        steps=0,
        spent=NO_SPENDING,
    )
    if start_patch != "":
        is_small = start_patch is not None and len(start_patch) <= _MAX_START_PATCH_CHARS
        state["start"] = {"patch": redact(start_patch or "") if is_small else None}
    return state


def get_task(state: AgentState) -> TaskBrief:
    """Return the run's task. Raises InputError, which names the missing field, for a state made by hand."""
    try:
        return TaskBrief.model_validate(state["task"])
    except KeyError:
        raise InputError("the state has no task (start the thread with one)") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("task", *first["loc"])))
        raise InputError(
            f"the state has no complete task: {place}: {first['msg']} (write the whole task)"
        ) from error
