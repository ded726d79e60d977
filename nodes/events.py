"""How actions and observations become events, messages and points of the state."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from langgraph.runtime import Runtime

from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint, Usage, compute_tree_digest
from langgraph_takeover.nodes.context.settings import AgentContext
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState, ThoughtEdgeState, get_task

_REDACTION_MARGIN = 10_000


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
    folded = context.session.update_trace_state(events, get_task(state), state.get("record"))
    return Event(
        index=len(events),
        kind="action",
        tool=tool,
        text=text,
        arguments=arguments,
        tree=compute_tree_digest(folded.differences),
        usage=usage,
        seconds=seconds,
    )


def record_observation(state: AgentState, context: AgentContext, observation: Observation) -> AgentState:
    """The update that one observation makes: message, event, and the points that it fires."""
    action = last_action(state)
    text = escape_surrogates(observation.text)
    # What tools keep for themselves is no work; a cache that was written makes no other tree.
    changes = tuple(
        change.model_copy(update={"path": escape_surrogates(change.path)})
        for change in observation.changes
        if not change.generated
    )
    reads = tuple(
        read.model_copy(update={"path": escape_surrogates(read.path)}) for read in observation.reads
    )
    folded = context.session.update_trace_state(state["events"], get_task(state), state.get("record"))
    event = Event(
        index=len(state["events"]),
        kind="observation",
        tool=action.tool,
        text=text,
        exit_code=observation.exit_code,
        cwd=observation.cwd,
        refused=observation.refused,
        timed_out=observation.timed_out,
        changes=changes,
        reads=reads,
        tree=compute_tree_digest(folded.compute_differences_with(changes)),
        seconds=observation.seconds,
    )
    written = event.model_dump(mode="json")
    fired = [point for point in folded.add(event, written) if point.kind in context.points]
    asked = context.session.handoff_request
    if asked is not None:
        fired.append(HandoffPoint(kind="requested", event_index=event.index, detail=asked))
    update = AgentState(
        messages=build_reply_messages(state, text),
        events=[written],
        spent={**state["spent"], "seconds": state["spent"]["seconds"] + observation.seconds},
    )
    if fired:
        update["fired"] = [point.model_dump(mode="json") for point in fired]
    if observation.edit is not None:
        update["edits"] = [observation.edit]
    return update


def build_reply_messages(state: AgentState, text: str) -> list[AnyMessage]:
    """The messages that show the model what its action came to; every native call needs one."""
    asked = state["messages"][-1]
    calls = [*getattr(asked, "tool_calls", []), *getattr(asked, "invalid_tool_calls", [])]
    return [ToolMessage(text, tool_call_id=call["id"]) for call in calls] or [HumanMessage(text)]


def last_action(state: ThoughtEdgeState) -> Event:
    return Event.model_validate(state["events"][-1])


def clip_text(text: str, limit: int) -> str:
    """The head and the tail of a text that is too long to show, with the cut marked."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = len(text) - 2 * half
    # Half a secret would not be known for one.
    head, tail = (
        redact(text[: half + _REDACTION_MARGIN])[:half],
        redact(text[-half - _REDACTION_MARGIN :])[-half:],
    )
    return f"{head}\n[… {left_out:,} characters left out; ask for less, or write it to a file …]\n{tail}"


def escape_surrogates(text: str) -> str:
    """The text with bytes that are no UTF-8, as in file names of other times, written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


ProgressKind = Literal[
    "started",
    "thinking",
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
    """Stream one event: what the run is at, in which step, and a line about it; the rest is in the state."""
    if "text" in fields:
        text = str(fields["text"])
        fields["text"] = text if len(text) <= _MAX_TEXT_CHARS else f"{text[: _MAX_TEXT_CHARS - 1]}…"
    runtime.stream_writer({"event": event, "step": state.get("steps", 0), **fields})
