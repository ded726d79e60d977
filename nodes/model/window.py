"""The context window: the size of a conversation, its overflow, and its condensation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.trace.events import NO_MODEL_CALL, Usage
from langgraph_takeover.handoff.views import CHARS_PER_TOKEN
from langgraph_takeover.nodes.model.usage import count_chars

CONDENSE_AT = 0.8
"""Share of the window at which a conversation is condensed."""
CONDENSE_TO = 0.6
"""Share that remains. Condensing further than necessary keeps the beginning the same for many calls, so that a server can
cache it."""
KEPT_STEPS = 3
"""The latest steps, which stay complete."""
_UNCOUNTED_MARGIN = 1.5
"""An estimate without any count may be too high by this factor."""


class Request(NamedTuple):
    """The messages of the next call."""

    messages: list[BaseMessage]
    condensed: int
    """Number of the oldest observations that are left out."""
    exceeds_window: bool


class _Step(NamedTuple):
    """Positions of a reply, and of the messages that answer it."""

    reply: int
    answers: tuple[int, ...]


def build_request(
    messages: Sequence[BaseMessage],
    replies: int,
    *,
    window_tokens: int | None,
    condense: bool,
    condensed: int,
    last_usage: Usage | None,
) -> Request:
    """Build the request for a conversation: its messages, or fewer observations if it is to be condensed.

    `replies` is the number of the agent's own replies, the last ones in the conversation; what precedes them is the first
    prompt. `condensed` and `last_usage` are those of the call before. The result depends on nothing else, so that
    a resumed run sends the same.
    """
    if window_tokens is None and not condensed:
        return Request(list(messages), 0, False)
    steps = _find_steps(messages, replies)
    request = _leave_out(messages, steps[:condensed])
    if window_tokens is None:
        return Request(request, condensed, False)
    surplus = _measure_surplus(messages, steps, condensed, last_usage)
    if condense and count_chars(request) / CHARS_PER_TOKEN + surplus > CONDENSE_AT * window_tokens:
        max_chars = (CONDENSE_TO * window_tokens - surplus) * CHARS_PER_TOKEN
        condensed = _choose_condensed(messages, steps, condensed, max_chars)
        request = _leave_out(messages, steps[:condensed])
    margin = 1.0 if _is_counted(last_usage) else _UNCOUNTED_MARGIN
    exceeds = count_chars(request) / CHARS_PER_TOKEN + surplus >= margin * window_tokens
    return Request(request, condensed, exceeds)


def condense_fully(messages: Sequence[BaseMessage], replies: int) -> Request:
    """Build the request with only the latest observations, for an endpoint that refused the conversation."""
    steps = _find_steps(messages, replies)
    condensed = max(len(steps) - KEPT_STEPS, 0)
    return Request(_leave_out(messages, steps[:condensed]), condensed, False)


def find_last_usage(events: Sequence[dict[str, object]]) -> Usage | None:
    """Return the usage of the last call; None before the first."""
    for event in reversed(events):
        if event["kind"] != "action":
            continue
        usage = None if event.get("usage") is None else Usage.model_validate(event["usage"])
        if usage != NO_MODEL_CALL:
            return usage
    return None


def _find_steps(messages: Sequence[BaseMessage], replies: int) -> list[_Step]:
    own = (
        [index for index, each in enumerate(messages) if isinstance(each, AIMessage)][-replies:]
        if replies
        else []
    )
    return [_Step(index, _find_answers(messages, index)) for index in own]


def _find_answers(messages: Sequence[BaseMessage], reply: int) -> tuple[int, ...]:
    """Positions of the results of a reply's calls; not of what a person said after them."""
    end = reply + 1
    while end < len(messages) and isinstance(messages[end], ToolMessage):
        end += 1
    if end == reply + 1 and end < len(messages) and isinstance(messages[end], HumanMessage):
        end += 1
    return tuple(range(reply + 1, end))


def _leave_out(messages: Sequence[BaseMessage], steps: Sequence[_Step]) -> list[BaseMessage]:
    """Replace the observations of steps by a marker, unless it is longer; every call keeps its answer."""
    shown, marker = list(messages), _load_marker()
    for index in (index for step in steps for index in step.answers):
        if len(shown[index].text) > len(marker):
            shown[index] = shown[index].model_copy(update={"content": marker})
    return shown


def _load_marker() -> str:
    return load_prompt("condensed", "nodes").strip()


def _choose_condensed(
    messages: Sequence[BaseMessage], steps: Sequence[_Step], condensed: int, max_chars: float
) -> int:
    """Return the smallest number of observations to leave out, so that the rest fits, as far as the latest steps allow."""
    shown = _leave_out(messages, steps[:condensed])
    chars, marker_chars = count_chars(shown), len(_load_marker())
    while condensed < len(steps) - KEPT_STEPS and chars > max_chars:
        chars -= sum(max(len(shown[index].text) - marker_chars, 0) for index in steps[condensed].answers)
        condensed += 1
    return condensed


def _measure_surplus(
    messages: Sequence[BaseMessage], steps: Sequence[_Step], condensed: int, last_usage: Usage | None
) -> float:
    """Return the tokens of the call before beyond the estimate from its characters, such as tool schemas; 0 if uncounted."""
    if last_usage is None or not _is_counted(last_usage) or not steps:
        return 0.0
    before = _leave_out(messages[: steps[-1].reply], steps[:-1][:condensed])
    return (last_usage.prompt_tokens or 0) - count_chars(before) / CHARS_PER_TOKEN


def _is_counted(usage: Usage | None) -> bool:
    return usage is not None and not usage.estimated and bool(usage.prompt_tokens)
