"""Several agents on one task: how the turn passed between them, and what each is shown of the others' work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from pydantic import Field

from handoff.action import Action, write_action
from handoff.conversation import joined
from handoff.event import UNREADABLE, Event
from handoff.fence import fenced, neutral, quoted
from sandbox.machine import Frozen

How = Literal["handoff", "rotation", "supervisor"]
"""The agent asked for it; its turns ran out, and the next follows; its turns ran out, and the supervisor chooses."""
Share = Literal["full", "results"]
"""What the others see of the turns that were passed on: all of it, or what the actions showed."""
Written = Mapping[str, Any]
"""An event as JSON."""
_NO_ACTS = (UNREADABLE, "handoff", "finish")
_LONGEST = 60


class Pass(Frozen):
    """The turn of one agent passing to another, after so many steps, events and messages of the run."""

    step: int = Field(ge=0)
    events: int = Field(ge=0)
    messages: int = Field(ge=0)
    source: str
    target: str
    how: How
    message: str = ""
    share: Share = "full"


class Stretch(NamedTuple):
    """What one agent did from one pass to the next."""

    agent: str
    messages: Sequence[BaseMessage]
    events: Sequence[Written]
    steps_before: int
    passed: Pass | None
    """How it ended; None while it is the agent's turn."""


def seen_by(
    agent: str, messages: Sequence[BaseMessage], events: Sequence[Written], passes: Sequence[Pass]
) -> list[BaseMessage]:
    """The team's conversation as one of its agents is shown it: valid chat history in either protocol.

    Its own messages are as they were. What another did is told in a person's message, within a fence; how much of
    it depends on how that other's turns were passed on. Instructions of the system are left out.
    """
    begun = next((n for n, each in enumerate(messages) if isinstance(each, AIMessage)), len(messages))
    found: list[BaseMessage] = [each for each in messages[:begun] if not isinstance(each, SystemMessage)]
    for stretch in stretches(agent, messages, events, passes, begun):
        if stretch.agent == agent:
            found += [each.model_copy(update={"name": None}) for each in stretch.messages]
        else:
            found += [HumanMessage(_told(stretch)), *_from_outside(stretch.messages)]
        if stretch.passed is not None and stretch.passed.target == agent:
            found.append(HumanMessage(_your_turn(stretch.passed)))
    return joined(found)


def stretches(
    agent: str,
    messages: Sequence[BaseMessage],
    events: Sequence[Written],
    passes: Sequence[Pass],
    begun: int = 0,
) -> Iterator[Stretch]:
    """The run in the order of who acted; `agent` is whose turn it is where nobody has passed one on."""
    step, event, message, acting = 0, 0, begun, agent
    for each in passes:
        yield Stretch(each.source, messages[message : each.messages], events[event : each.events], step, each)
        step, event, message, acting = each.step, each.events, max(each.messages, begun), each.target
    yield Stretch(acting, messages[message:], events[event:], step, None)


def idle_passes(events: Sequence[Written], passes: Sequence[Pass]) -> int:
    """How many passes in a row were made by agents that had done nothing; none once somebody has acted since."""
    ends = [0, *(each.events for each in passes), len(events)]
    stretches_without = 0
    for begin, end in reversed(list(pairwise(ends))):
        if any(each["kind"] == "action" and each["tool"] not in _NO_ACTS for each in events[begin:end]):
            break
        stretches_without += 1
    return max(stretches_without - 1, 0)  # the last of them is under way


def _told(stretch: Stretch) -> str:
    """What another agent did, as it may be shown."""
    results = stretch.passed is not None and stretch.passed.share == "results"
    entries = tuple(_entries(stretch, results))
    what = "what its actions showed" if results else "in full"
    shown = f"\n{_shown(entries)}" if entries else " nothing"
    return f"[{stretch.agent}] {what}:{shown}"


def _entries(stretch: Stretch, results: bool) -> Iterator[tuple[str, str]]:
    """Headings, and what stands under each."""
    step = stretch.steps_before
    for event in stretch.events:
        step += event["kind"] == "action"
        if results and event["tool"] in _NO_ACTS:
            continue  # what it said, or was told about what it said
        if event["kind"] == "observation":
            yield f"{step} · result", event["text"]
            continue
        said = write_action(Action(event["tool"], dict(event["arguments"]))) if results else event["text"]
        yield f"{step} · {stretch.agent} · {' '.join(event['tool'].split())}", said


@lru_cache(maxsize=256)  # a stretch that is over is shown again at every turn
def _shown(entries: tuple[tuple[str, str], ...]) -> str:
    return fenced("\n".join(f"## {quoted(heading)}\n{quoted(text)}" for heading, text in entries))


def _from_outside(messages: Sequence[BaseMessage]) -> Iterator[HumanMessage]:
    """Messages that answer no reply: a person's, put into the run for everybody."""
    before: BaseMessage | None = None
    for each in messages:
        if isinstance(each, HumanMessage) and each.name is None and not isinstance(before, AIMessage):
            yield each
        before = each


def _your_turn(passed: Pass) -> str:
    if passed.how == "handoff":
        why = f"{passed.source} hands over to you; what it has to say to you is its last entry above"
    else:
        why = f"{passed.source} has had its turns"
    choose = ": choose who goes on, and hand over to that agent by name" if passed.how == "supervisor" else ""
    return f"[It is your turn, {passed.target}: {why}{choose}.]"


class Row(Frozen):
    """One step of a team: who did what, what came of it, and to whom the turn then passed."""

    step: int
    agent: str
    action: str
    outcome: str = ""
    passed: Pass | None = None


def timeline(events: Sequence[Event], passes: Sequence[Pass], agents: Sequence[str]) -> list[Row]:
    """The steps of a team's run; `agents` are their names, that of the one who began first."""
    rows: list[Row] = []
    ends = {each.step: each for each in passes}
    acting = agents[0] if agents else ""
    for event in events:
        if event.kind == "observation":
            if rows:
                rows[-1] = rows[-1].model_copy(update={"outcome": _outcome(event)})
            continue
        step = len(rows) + 1
        rows.append(Row(step=step, agent=acting, action=_line(event), passed=ends.get(step)))
        acting = ends[step].target if step in ends else acting
    return rows


def printable(rows: Sequence[Row]) -> str:
    """A timeline as lines for a terminal."""
    names = max((len(row.agent) for row in rows), default=0)
    actions = max((len(row.action) for row in rows), default=0)
    lines = []
    for row in rows:
        lines.append(f"{row.step:>3}  {row.agent:<{names}}  {row.action:<{actions}}  {row.outcome}".rstrip())
        if row.passed is not None:
            shared = "all of it" if row.passed.share == "full" else "results only"
            lines.append(f"{'':>3}  {'':<{names}}  -> {row.passed.target} ({row.passed.how}, {shared})")
    return "\n".join(lines)


def _line(event: Event) -> str:
    shown = [
        event.arguments[name] for name in ("command", "path", "to", "message") if name in event.arguments
    ]
    text = neutral(" ".join(f"{event.tool}: {' '.join(shown)}".split())) if shown else event.tool
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _outcome(event: Event) -> str:
    if event.refused:
        return "refused"
    if event.timed_out:
        return "timed out"
    return f"exit {event.exit_code}" if event.exit_code is not None else ""
