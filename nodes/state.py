"""What an agent's graph remembers from step to step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from langchain_core.messages import AnyMessage, BaseMessage
from langgraph.channels import DeltaChannel
from pydantic import JsonValue, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from langgraph_takeover.handoff.records.record import TaskBrief
from langgraph_takeover.handoff.text.redaction import redact_known_secrets
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint, PointKind
from langgraph_takeover.handoff.views.team import TurnPass
from langgraph_takeover.nodes.context.settings import shorten_value
from langgraph_takeover.sandbox.interface import Frozen, TakeoverError

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
]
"""The last two: it never took the handoff that it was begun for."""


def extend_list(items: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    """The reducer of lists that only grow."""
    return [*items, *(item for write in writes for item in write)]


def take_latest(value: dict[str, Any], writes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The reducer of what is written seldom, and whole."""
    return writes[-1] if writes else value


# A delta channel writes what a step adds, once; other channels are written whole with every checkpoint.
# More seldom snapshots than this would make a resumed run wait; each costs the whole list.
_LIST_CHANNEL: DeltaChannel[Any] = DeltaChannel(extend_list, snapshot_frequency=5000)
_VALUE_CHANNEL: DeltaChannel[Any] = DeltaChannel(take_latest, dict, snapshot_frequency=5000)


class ReviewRequest(Frozen):
    """The question to a person under the policy `review`: hand the work over, or continue?"""

    record: str
    """Id of the record that a successor would take over."""
    point: PointKind
    detail: str
    """Why the point fired."""
    note: str
    """The structured note, as text."""
    views: tuple[str, ...]
    """Views that the answer can choose."""


class Spending(TypedDict):
    """What a run has cost so far."""

    prompt_tokens: int
    completion_tokens: int
    cost: float
    """Of the model calls, in the currency of the prices; 0 where none are given."""
    seconds: float
    """How long model calls and actions took, without what lay between a crash and going on."""


NO_SPENDING = Spending(prompt_tokens=0, completion_tokens=0, cost=0.0, seconds=0.0)


class ActionEdgeState(TypedDict, total=False):
    """What the edges after an action decide by: LangGraph reads no more than that for them."""

    fired: list[dict[str, Any]]


class TurnEdgeState(ActionEdgeState, total=False):
    """What a team's edges decide by when one of its agents has acted."""

    stop_reason: StopReason | None
    turns_left: int | None
    passing: dict[str, Any] | None


class TeamThoughtEdgeState(TurnEdgeState, total=False):
    """What they decide by after its reply."""

    events: Annotated[list[dict[str, Any]], _LIST_CHANNEL]


class ThoughtEdgeState(ActionEdgeState, total=False):
    """What the edges after the model's reply decide by."""

    events: Annotated[list[dict[str, Any]], _LIST_CHANNEL]
    stop_reason: StopReason | None


class AgentState(TypedDict, total=False):
    """The state of one run; everything in it is a message, a number, text, or JSON-like."""

    messages: Annotated[list[AnyMessage], _LIST_CHANNEL]
    task: Annotated[dict[str, Any], _VALUE_CHANNEL]
    """`TaskBrief` as JSON; the input of a run needs no more of it than `id` and `prompt`."""
    sandbox_state: str
    """Id of the sandbox state that belongs to this graph state."""
    events: Annotated[list[dict[str, Any]], _LIST_CHANNEL]
    """`Event`s as JSON."""
    fired: list[dict[str, Any]]
    """`HandoffPoint`s that the last step fired and the interruption has not yet dealt with."""
    edits: Annotated[list[dict[str, Any]], _LIST_CHANNEL]
    """What the editor did, so that it can be undone: path, text before, digest after."""
    records: Annotated[list[str], _LIST_CHANNEL]
    """Ids of the handoff records made so far."""
    steps: int
    spent: Spending
    stop_reason: StopReason | None
    record: str
    """Takeovers only: the id of the record that was taken over."""
    view: str
    """Takeovers only: the name of the view that the first messages came from."""
    handoff: str
    """Takeovers of an offered handoff only: its id."""
    agent: str
    """Teams only: the name of the agent whose turn it is, from its first reply on."""
    turns_left: int | None
    """Teams only: after how many replies the turn passes on by itself; None: it does not."""
    passing: dict[str, Any] | None
    """Teams only: the `Pass` that is under way."""
    passes: Annotated[list[dict[str, Any]], _LIST_CHANNEL]
    """Teams only: `Pass`es as JSON."""


class InputError(TakeoverError, ValueError):
    """A graph was given a task or a state that is none; the line says what it takes."""


_FIELD_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    **{name: TypeAdapter(str) for name in ("sandbox_state", "record", "view", "agent")},
    "task": TypeAdapter(TaskBrief),
    "events": TypeAdapter(list[Event]),
    "fired": TypeAdapter(list[HandoffPoint]),
    "edits": TypeAdapter(list[dict[str, JsonValue]]),
    "records": TypeAdapter(list[str]),
    "steps": TypeAdapter(int),
    "spent": TypeAdapter(Spending),
    "stop_reason": TypeAdapter(StopReason | None),
    "turns_left": TypeAdapter(int | None),
    "passing": TypeAdapter(TurnPass | None),
    "passes": TypeAdapter(list[TurnPass]),
}


def validate_state_update(values: Mapping[str, Any]) -> AgentState:
    """What somebody outside writes to a state, as a node would have. Raises InputError."""
    if not isinstance(values, Mapping):
        raise InputError(f"a change is a dict of what is to be written, not {shorten_value(values)}")
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name == "messages":
            found[name] = _validate_messages(value)
            continue
        if name not in _FIELD_ADAPTERS:
            raise InputError(
                f"a state holds no {name!r:.60}; there are {', '.join(AgentState.__annotations__)}"
            )
        try:
            checked = _FIELD_ADAPTERS[name].validate_python(value)
            found[name] = redact_known_secrets(_FIELD_ADAPTERS[name].dump_python(checked, mode="json"))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, (name, *first["loc"])))
            raise InputError(f"{place}: {first['msg']}, not {shorten_value(first['input'])}") from None
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


def build_initial_state(messages: Sequence[BaseMessage], task: TaskBrief, sandbox_state: str) -> AgentState:
    """The state that a run starts from."""
    return AgentState(
        messages=cast(list[AnyMessage], list(messages)),
        task=task.model_dump(mode="json"),
        sandbox_state=sandbox_state,
        fired=[],
        steps=0,
        spent=NO_SPENDING,
    )


def get_task(state: AgentState) -> TaskBrief:
    """The run's task. Raises ValueError, with what is missing, for a state that was made by hand."""
    try:
        return TaskBrief.model_validate(state["task"])
    except (KeyError, ValidationError) as error:
        raise ValueError(f"the state holds no whole task: {error}") from error
