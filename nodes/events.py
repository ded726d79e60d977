"""How actions and observations become events, messages and points of the state."""

from __future__ import annotations

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage

from handoff.event import Event, HandoffPoint, Usage
from handoff.redaction import redacted
from handoff.trace import tree_digest
from nodes.observation import Observation
from nodes.settings import AgentContext
from nodes.state import AfterThought, AgentState, task_of

_MARGIN = 10_000


def next_action_event(
    state: AgentState,
    context: AgentContext,
    tool: str,
    text: str,
    arguments: dict[str, str],
    usage: Usage,
    seconds: float,
) -> Event:
    events = state.get("events", [])
    folded = context.session.fold(events, task_of(state), state.get("record"))
    return Event(
        index=len(events),
        kind="action",
        tool=tool,
        text=text,
        arguments=arguments,
        tree=tree_digest(folded.differences),
        usage=usage,
        seconds=seconds,
    )


def observed(state: AgentState, context: AgentContext, seen: Observation) -> AgentState:
    """The update that one observation makes: message, event, and the points that it fires."""
    action = last_action(state)
    text = escaped(seen.text)
    # What tools keep for themselves is no work; a cache that was written makes no other tree.
    changes = tuple(
        change.model_copy(update={"path": escaped(change.path)})
        for change in seen.changes
        if not change.generated
    )
    reads = tuple(read.model_copy(update={"path": escaped(read.path)}) for read in seen.reads)
    folded = context.session.fold(state["events"], task_of(state), state.get("record"))
    event = Event(
        index=len(state["events"]),
        kind="observation",
        tool=action.tool,
        text=text,
        exit_code=seen.exit_code,
        cwd=seen.cwd,
        refused=seen.refused,
        timed_out=seen.timed_out,
        changes=changes,
        reads=reads,
        tree=tree_digest(folded.differences_with(changes)),
        seconds=seen.seconds,
    )
    written = event.model_dump(mode="json")
    fired = [point for point in folded.add(event, written) if point.kind in context.points]
    asked = context.session.asked
    if asked is not None:
        fired.append(HandoffPoint(kind="requested", event_index=event.index, detail=asked))
    update = AgentState(
        messages=answers(state, text),
        events=[written],
        spent={**state["spent"], "seconds": state["spent"]["seconds"] + seen.seconds},
    )
    if fired:
        update["fired"] = [point.model_dump(mode="json") for point in fired]
    if seen.edit is not None:
        update["edits"] = [seen.edit]
    return update


def answers(state: AgentState, text: str) -> list[AnyMessage]:
    """The messages that show the model what its action came to; every native call needs one."""
    asked = state["messages"][-1]
    calls = [*getattr(asked, "tool_calls", []), *getattr(asked, "invalid_tool_calls", [])]
    return [ToolMessage(text, tool_call_id=call["id"]) for call in calls] or [HumanMessage(text)]


def last_action(state: AfterThought) -> Event:
    return Event.model_validate(state["events"][-1])


def clipped(text: str, limit: int) -> str:
    """The head and the tail of a text that is too long to show, with the cut marked."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = len(text) - 2 * half
    # Half a secret would not be known for one.
    head, tail = redacted(text[: half + _MARGIN])[:half], redacted(text[-half - _MARGIN :])[-half:]
    return f"{head}\n[… {left_out:,} characters left out; ask for less, or write it to a file …]\n{tail}"


def escaped(text: str) -> str:
    """The text with bytes that are no UTF-8, as in file names of other times, written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
