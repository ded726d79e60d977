"""Conversion of actions and observations into events, messages and points of the graph state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.runtime import Runtime
from pydantic import ValidationError

from langgraph_takeover.base.texts import escape_surrogates
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint, Usage
from langgraph_takeover.nodes.context.settings import AgentContext
from langgraph_takeover.nodes.model.actions import format_reply
from langgraph_takeover.nodes.model.model_errors import ModelError
from langgraph_takeover.nodes.model.refusals import format_wait
from langgraph_takeover.nodes.session.observation import Observation, TraceState
from langgraph_takeover.nodes.state import (
    AgentState,
    InputError,
    Spending,
    StopReason,
    ThoughtEdgeState,
    get_task,
)

TOOL, RESULT_OF = "tool", "result_of"
"""Additional fields of a result in the text protocol: its tool, and the event of the action that it answers, such as `e4`.
They are not sent to the model. A name of the message would be, as that of a person."""
MAX_CALLS = 32
"""Maximum number of calls of one reply that run."""
NOT_RUN = (
    "Not run: an earlier call of the same reply was refused, did not end by itself, or handed the work over. "
    "Send the call again if it is still needed."
)
BUDGET_SPENT = "Not run: a budget of the run is spent."


def count_further_calls(reply: AIMessage) -> int:
    """Count the native calls of a reply that run after its first; none if one is unreadable or there are too many.

    The order of an unreadable call among the others is unknown, so nothing of its reply runs.
    """
    count = len(reply.tool_calls)
    return 0 if reply.invalid_tool_calls or count > MAX_CALLS else max(count - 1, 0)


def find_reply(messages: Sequence[BaseMessage]) -> BaseMessage | None:
    """Return the model's last reply; the last message of a conversation without one."""
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            return message
    return messages[-1] if messages else None


def list_calls(reply: BaseMessage | None) -> list[Any]:
    """List the native tool calls of a reply, with the unreadable ones at the end."""
    return [*getattr(reply, "tool_calls", ()), *getattr(reply, "invalid_tool_calls", ())]


def list_open_calls(state: AgentState) -> list[Any]:
    """List the calls of the last reply that have not begun."""
    calls, count = list_calls(find_reply(state.get("messages", ()))), state.get("open_calls", 0)
    return calls[len(calls) - count :] if 0 < count < len(calls) else []


def find_native_id(state: AgentState) -> str | None:
    """Return the id of the native call that runs; None in the text protocol."""
    calls = list_calls(find_reply(state["messages"]))
    begun = calls[: len(calls) - len(list_open_calls(state))]
    return str(begun[-1]["id"]) if begun else None


def find_call_id(state: AgentState) -> str:
    """Return the id of the call that runs; in the text protocol, one from its event."""
    return find_native_id(state) or f"call_e{len(state['events']) - 1}"


def answer_action(
    state: AgentState, text: str, tool: str, *, artifact: Any = None, is_whole_reply: bool = False
) -> list[AnyMessage]:
    """Return the message that answers the action of the last event; with `is_whole_reply`, one for each of its calls.

    Every native call gets exactly one answer, because providers refuse a request that lacks one.
    """
    calls = list_calls(find_reply(state["messages"]))
    if not calls:
        extra: dict[str, Any] = {TOOL: tool, RESULT_OF: f"e{len(state['events']) - 1}"}
        if artifact is not None:
            extra["artifact"] = artifact
        return [HumanMessage(text, additional_kwargs=extra)]
    if not is_whole_reply:
        calls = calls[: len(calls) - len(list_open_calls(state))][-1:]
    return [_answer(call, text, artifact) for call in calls]


def answer_open_calls(state: AgentState, reason: str) -> list[AnyMessage]:
    """Return an answer to each call that is not run, with the reason."""
    return [_answer(call, reason) for call in list_open_calls(state)]


def _answer(call: Any, text: str, artifact: Any = None) -> ToolMessage:
    return ToolMessage(text, tool_call_id=call["id"], name=call["name"], artifact=artifact)


_REDACTION_MARGIN = 10_000
"""Characters around a cut that are redacted with it: half a secret is not recognized."""

_MESSAGE = "message"
"""Key of a stored event: the position of the message that has the event's text."""


def store_event(event: Event) -> dict[str, Any]:
    """Return an event as the graph state stores it: as JSON, without fields that have their default."""
    return event.model_dump(mode="json", exclude_defaults=True)


def restore_event_data(stored: Mapping[str, Any], messages: Sequence[BaseMessage]) -> dict[str, Any]:
    """Return a stored event with its text; `messages` are those of the state. Raises InputError."""
    data = dict(stored)
    if _MESSAGE in data:
        position = data.pop(_MESSAGE)
        if not isinstance(position, int) or not 0 <= position < len(messages):
            raise InputError(
                f"events: event {data.get('index')} names message {position!r:.20}, but the state has {len(messages)} "
                "messages (write the event with its text)"
            )
        data["text"] = _format_message(messages[position])
    return data


def load_event(stored: Mapping[str, Any], messages: Sequence[BaseMessage]) -> Event:
    """Return a stored event. Raises InputError."""
    try:
        return Event.model_validate(restore_event_data(stored, messages))
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"events: {'.'.join(map(str, first['loc']))}: {first['msg']} (write the whole event)"
        ) from None


def load_events(state: AgentState) -> tuple[Event, ...]:
    """Return the run's own events. Raises InputError."""
    messages = state.get("messages", ())
    return tuple(load_event(each, messages) for each in state.get("events", ()))


def load_changes(state: AgentState, first: int = 0) -> tuple[Event, ...]:
    """Return those of the run's own events, from position `first` on, that changed files. Raises InputError."""
    messages = state.get("messages", ())
    stored = state.get("events", [])[first:]
    return tuple(load_event(each, messages) for each in stored if each.get("changes"))


def store_texts_once(state: AgentState, update: AgentState) -> AgentState:
    """Return the update; a new event whose text is that of a new message names the message instead.

    `state` is the one before the update. The events are changed in place, because `TraceState` knows them by identity.
    """
    texts = [_format_message(message) for message in update.get("messages", ())]
    first = len(state.get("messages", ()))
    for event in update.get("events", ()):
        if event.get("text") in texts:
            event[_MESSAGE] = first + texts.index(event.pop("text"))
    return update


def _format_message(message: BaseMessage) -> str:
    return format_reply(message) if isinstance(message, AIMessage) else message.text


def update_trace_state(state: AgentState, context: AgentContext) -> TraceState:
    """Return detector state and tree differences after the state's events."""
    messages = state.get("messages", ())
    return context.session.update_trace_state(
        state.get("events", []),
        get_task(state),
        state.get("record"),
        load=lambda stored: load_event(stored, messages),
    )


def build_action_event(
    state: AgentState,
    context: AgentContext,
    tool: str,
    text: str,
    arguments: dict[str, str],
    usage: Usage,
    seconds: float,
) -> Event:
    events = state.get("events", [])
    trace_state = update_trace_state(state, context)
    return Event(
        index=len(events),
        kind="action",
        tool=tool,
        text=text,
        arguments=arguments,
        tree=trace_state.tree,
        usage=usage,
        seconds=seconds,
    )


def build_observation_event(index: int, tool: str, observation: Observation) -> Event:
    """Return the event of an observation, without the digest of the tree."""
    # Generated files, such as caches, are not work and do not change the tree.
    changes = tuple(
        change.model_copy(update={"path": escape_surrogates(change.path)})
        for change in observation.changes
        if not change.generated
    )
    reads = tuple(
        read.model_copy(update={"path": escape_surrogates(read.path)}) for read in observation.reads
    )
    return Event(
        index=index,
        kind="observation",
        tool=tool,
        text=escape_surrogates(observation.text),
        exit_code=observation.exit_code,
        cwd=observation.cwd,
        refused=observation.refused,
        timed_out=observation.timed_out,
        changes=changes,
        reads=reads,
        seconds=observation.seconds,
    )


def record_observation(
    state: AgentState, context: AgentContext, observation: Observation, *, is_whole_reply: bool = False
) -> AgentState:
    """Return the update for an observation: its messages, its event, and the points that it fires.

    It answers one call; if that did not end by itself, or handed the work over, the reply's open calls are not run.
    With `is_whole_reply` it answers all calls.
    """
    tool = last_action(state).tool
    event = build_observation_event(len(state["events"]), tool, observation)
    trace_state = update_trace_state(state, context)
    tree = trace_state.compute_tree_after(event.changes)
    event = event.model_copy(update={"tree": tree})
    event_data = store_event(event)
    points = [point for point in trace_state.add(event, event_data) if point.kind in context.points]
    messages = answer_action(
        state, event.text, tool, artifact=observation.artifact, is_whole_reply=is_whole_reply
    )
    update = AgentState(
        events=[event_data],
        spent={**state["spent"], "seconds": state["spent"]["seconds"] + observation.seconds},
    )
    has_open_calls = bool(list_open_calls(state))
    if has_open_calls and (_is_incomplete(observation) or tool == "handoff"):
        messages += answer_open_calls(state, NOT_RUN)
        update["open_calls"], has_open_calls = 0, False
    update["messages"] = messages
    if not has_open_calls:  # the step ends
        points += list_due_points(state, context, event.index)
    if points:
        update["fired"] = [point.model_dump(mode="json") for point in points]
    if observation.diff:
        update["diff"] = observation.diff
    if observation.edit is not None:
        update["edits"] = [observation.edit]
    return update


def _is_incomplete(observation: Observation) -> bool:
    """Whether a call was refused, or did not end by itself. A command that fails has ended by itself."""
    return observation.refused or observation.timed_out or observation.shell_ended


def list_due_points(state: AgentState, context: AgentContext, index: int) -> list[HandoffPoint]:
    """List the points that are due after a step, whatever it did."""
    points = []
    request = context.session.handoff_request
    if request is not None:
        points.append(HandoffPoint(kind="requested", event_index=index, detail=request))
    every = context.record_every_steps
    if every is not None and state["steps"] % every == 0:
        points.append(
            HandoffPoint(kind="periodic", event_index=index, detail=f"after {state['steps']} steps")
        )
    return points


def add_usage(
    spent: Spending, usage: Usage, context: AgentContext, seconds: float, uncounted_calls: int
) -> Spending:
    """Return the spending including one model call; of its requests, that many were not counted."""
    return Spending(
        prompt_tokens=spent["prompt_tokens"] + (usage.prompt_tokens or 0),
        completion_tokens=spent["completion_tokens"] + (usage.completion_tokens or 0),
        cost=add_costs(spent["cost"], context.prices.compute_cost(usage) if context.prices else None),
        seconds=spent["seconds"] + seconds,
        uncounted_calls=spent["uncounted_calls"] + uncounted_calls,
    )


def add_costs(*costs: float | None) -> float | None:
    """Return the sum of the known costs; None if none is known."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None


def find_spent_limit(spent: Spending, context: AgentContext) -> StopReason | None:
    """Return the stop reason of a limit of tokens, cost or time that is reached; None if all have something left."""
    tokens = spent["prompt_tokens"] + spent["completion_tokens"]
    if context.max_tokens is not None and tokens >= context.max_tokens:
        return "max_tokens"
    if context.max_cost is not None and (spent["cost"] or 0.0) >= context.max_cost:
        return "max_cost"
    return "max_seconds" if spent["seconds"] >= context.max_seconds else None


def last_action(state: ThoughtEdgeState) -> Event:
    """Return the last event, without its text: edges do not load the messages."""
    stored = state["events"][-1]
    return Event.model_validate({name: stored[name] for name in stored if name != _MESSAGE} | {"text": ""})


def clip_text(text: str, limit: int) -> str:
    """Return the text; if it is longer than `limit`, only its head and tail, with the cut marked."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = len(text) - 2 * half
    head, tail = (
        redact(text[: half + _REDACTION_MARGIN])[:half],
        redact(text[-half - _REDACTION_MARGIN :])[-half:],
    )
    return (
        f"{head}\n[… {left_out:,} characters left out; request less, or write the output to a file …]\n{tail}"
    )


ProgressKind = Literal[
    "started",
    "starting",
    "thinking",
    "waiting",
    "repaired",
    "acting",
    "observed",
    "point",
    "record",
    "review",
    "passed",
    "stopped",
    "refused",
    "confirmed",
    "child_started",
    "child_finished",
]
_MAX_TEXT_CHARS = 300


def report_progress(runtime: Runtime[Any], event: ProgressKind, state: AgentState, **fields: Any) -> None:
    """Stream one progress event with its step and a line of text; details are in the state."""
    if "text" in fields:
        text = str(fields["text"])
        fields["text"] = text if len(text) <= _MAX_TEXT_CHARS else f"{text[: _MAX_TEXT_CHARS - 1]}…"
    runtime.stream_writer({"event": event, "step": state.get("steps", 0), **fields})


def report_wait(
    runtime: Runtime[AgentContext], state: AgentState, seconds: float, refusal: ModelError
) -> None:
    """Show that the run waits for its model's endpoint: as progress, and in the thread's status."""
    report_progress(runtime, "waiting", state, text=f"{format_wait(seconds)}: {refusal}")
    runtime.context.session.note_wait(seconds)
