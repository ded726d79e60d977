"""Teams: how the turn passed between agents, and what each sees of the others' work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from pydantic import Field

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.text.fence import neutralize, quote_text, wrap_in_fence
from langgraph_takeover.handoff.trace.conversation import merge_human_messages
from langgraph_takeover.handoff.trace.events import UNREADABLE, Action, Event, write_action

PassReason = Literal["handoff", "rotation", "supervisor"]
"""A handoff by request, a rotation when turns are used up, or a supervisor's choice."""
SharePolicy = Literal["full", "results"]
"""The part of earlier turns that other agents see: everything, or only results."""
EventData = Mapping[str, Any]
"""An event as JSON."""
_NON_WORK_TOOLS = (UNREADABLE, "handoff", "finish")
_MAX_LINE_LENGTH = 60


class TurnPass(Frozen):
    """One pass of the turn to another agent, with the position in the run."""

    step: int = Field(ge=0)
    events: int = Field(ge=0)
    messages: int = Field(ge=0)
    source: str
    target: str
    how: PassReason
    message: str = ""
    share: SharePolicy = "full"


class AgentTurn(NamedTuple):
    """The work of one agent from one pass to the next."""

    agent: str
    messages: Sequence[BaseMessage]
    events: Sequence[EventData]
    steps_before: int
    turn_pass: TurnPass | None
    """The pass that ended it; None while it is the agent's turn."""


def build_agent_messages(
    agent: str, messages: Sequence[BaseMessage], events: Sequence[EventData], passes: Sequence[TurnPass]
) -> list[BaseMessage]:
    """Build the team's conversation as one agent sees it: valid chat history in either protocol.

    Its own messages are unchanged. The work of others is in a human message, in a fence; its extent depends on how their
    turns were passed. Everything before a handoff to this agent is shown in full. System instructions are left out.
    """
    shown_in_full = _count_turns_before_handoff(agent, passes)
    begun = next((n for n, each in enumerate(messages) if isinstance(each, AIMessage)), len(messages))
    found: list[BaseMessage] = [each for each in messages[:begun] if not isinstance(each, SystemMessage)]
    for number, stretch in enumerate(list_turns(agent, messages, events, passes, begun)):
        if stretch.agent == agent:
            found += [each.model_copy(update={"name": None}) for each in stretch.messages]
        else:
            found += [
                HumanMessage(_describe_turn(stretch, number < shown_in_full)),
                *_list_human_messages(stretch.messages),
            ]
        if stretch.turn_pass is not None and stretch.turn_pass.target == agent:
            found.append(HumanMessage(_announce_turn(stretch.turn_pass)))
    return merge_human_messages(found)


def list_turns(
    agent: str,
    messages: Sequence[BaseMessage],
    events: Sequence[EventData],
    passes: Sequence[TurnPass],
    first_reply: int = 0,
) -> Iterator[AgentTurn]:
    """List the turns in order; `agent` has the current turn, or the first turn if no turn has been passed."""
    step, event, message, acting = 0, 0, first_reply, agent
    for each in passes:
        yield AgentTurn(
            each.source, messages[message : each.messages], events[event : each.events], step, each
        )
        step, event, message, acting = each.step, each.events, max(each.messages, first_reply), each.target
    yield AgentTurn(acting, messages[message:], events[event:], step, None)


def count_idle_passes(events: Sequence[EventData], passes: Sequence[TurnPass]) -> int:
    """Count the latest passes in a row without an action."""
    ends = [0, *(each.events for each in passes), len(events)]
    stretches_without = 0
    for begin, end in reversed(list(pairwise(ends))):
        if any(
            each["kind"] == "action" and each["tool"] not in _NON_WORK_TOOLS for each in events[begin:end]
        ):
            break
        stretches_without += 1
    return max(stretches_without - 1, 0)  # the last of them is in progress


def _count_turns_before_handoff(agent: str, passes: Sequence[TurnPass]) -> int:
    """Count the turns up to the latest handoff to an agent."""
    handoffs = (n for n, each in enumerate(passes, 1) if each.how == "handoff" and each.target == agent)
    return max(handoffs, default=0)


def _describe_turn(turn: AgentTurn, in_full: bool) -> str:
    """Describe another agent's turn: in full, or as far as the agent shared it."""
    results = not in_full and turn.turn_pass is not None and turn.turn_pass.share == "results"
    entries = tuple(_list_entries(turn, results))
    what = "the results of its actions" if results else "in full"
    shown = f"\n{_render_entries(entries)}" if entries else " nothing"
    return f"[{turn.agent}] {what}:{shown}"


def _list_entries(turn: AgentTurn, results_only: bool) -> Iterator[tuple[str, str]]:
    """Yield headings with their texts."""
    step = turn.steps_before
    for event in turn.events:
        step += event["kind"] == "action" and not Event.model_validate(event).is_parallel
        if results_only and event["tool"] in _NON_WORK_TOOLS:
            continue  # its words, or answers to its words
        if event["kind"] == "observation":
            yield f"{step} · result", event["text"]
            continue
        # Only the first call of a reply has its text.
        text = event.get("text", "")
        action = Action(event["tool"], dict(event.get("arguments", {})))
        entry = text if text and not results_only else write_action(action)
        yield f"{step} · {turn.agent} · {' '.join(event['tool'].split())}", entry


@lru_cache(maxsize=256)  # a finished turn is rendered again at every later turn
def _render_entries(entries: tuple[tuple[str, str], ...]) -> str:
    return wrap_in_fence(
        "\n".join(f"## {quote_text(heading)}\n{quote_text(text)}" for heading, text in entries)
    )


def _list_human_messages(messages: Sequence[BaseMessage]) -> Iterator[HumanMessage]:
    """List messages that answer no reply: a person's messages to everybody."""
    before: BaseMessage | None = None
    for each in messages:
        if isinstance(each, HumanMessage) and each.name is None and not isinstance(before, AIMessage):
            yield each
        before = each


def _announce_turn(turn_pass: TurnPass) -> str:
    if turn_pass.how == "handoff":
        why = f"{turn_pass.source} hands over to you; its message to you is its last entry above"
    else:
        why = f"the turns of {turn_pass.source} are used up"
    choose = (
        ": choose who continues, and hand over to that agent by name" if turn_pass.how == "supervisor" else ""
    )
    return f"[It is your turn, {turn_pass.target}: {why}{choose}.]"


class TimelineRow(Frozen):
    """One step of a team: the agent, its action, the outcome, and the pass that followed."""

    step: int
    agent: str
    action: str
    outcome: str = ""
    turn_pass: TurnPass | None = None


def build_timeline(
    events: Sequence[Event], passes: Sequence[TurnPass], agents: Sequence[str]
) -> list[TimelineRow]:
    """Build the steps of a team's run; `agents` are their names, the first one started."""
    rows: list[TimelineRow] = []
    ends = {each.step: each for each in passes}
    step, acting = 0, agents[0] if agents else ""
    for event in events:
        if event.kind == "observation":
            if rows:
                rows[-1] = rows[-1].model_copy(update={"outcome": _describe_outcome(event)})
            continue
        if not event.is_parallel:
            acting = ends[step].target if step in ends else acting
            step += 1
        rows.append(TimelineRow(step=step, agent=acting, action=_summarize_action(event)))
    last_rows = {row.step: number for number, row in enumerate(rows)}
    for number in last_rows.values():
        rows[number] = rows[number].model_copy(update={"turn_pass": ends.get(rows[number].step)})
    return rows


def format_timeline(rows: Sequence[TimelineRow]) -> str:
    """Format a timeline as lines for a terminal."""
    names = max((len(row.agent) for row in rows), default=0)
    actions = max((len(row.action) for row in rows), default=0)
    lines = []
    for row in rows:
        lines.append(f"{row.step:>3}  {row.agent:<{names}}  {row.action:<{actions}}  {row.outcome}".rstrip())
        if row.turn_pass is not None:
            shared = "everything" if row.turn_pass.share == "full" else "results only"
            lines.append(f"{'':>3}  {'':<{names}}  -> {row.turn_pass.target} ({row.turn_pass.how}, {shared})")
    return "\n".join(lines)


def _summarize_action(event: Event) -> str:
    shown = [
        event.arguments[name] for name in ("command", "path", "to", "message") if name in event.arguments
    ]
    text = neutralize(" ".join(f"{event.tool}: {' '.join(shown)}".split())) if shown else event.tool
    return text if len(text) <= _MAX_LINE_LENGTH else f"{text[: _MAX_LINE_LENGTH - 1]}…"


def _describe_outcome(event: Event) -> str:
    if event.refused:
        return "refused"
    if event.timed_out:
        return "timed out"
    return f"exit {event.exit_code}" if event.exit_code is not None else ""
