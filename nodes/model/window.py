"""The context window: the size of a conversation, its overflow, and its condensation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.trace.events import NO_MODEL_CALL, Usage
from langgraph_takeover.handoff.views import CHARS_PER_TOKEN
from langgraph_takeover.nodes.model.endpoint_rules import ConversationRepair, have_faults
from langgraph_takeover.nodes.model.message_content import adapt_messages
from langgraph_takeover.nodes.model.model_errors import ContextWindowError, PermanentModelError
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


_REFUSALS = (400, 413, 422)
_FAR_BELOW = 0.5
"""Share of the window that a first prompt has at most, if the refusal is an error of the configuration."""
_LEAST_WINDOW = 4096
"""The window in tokens, if neither the settings nor the endpoint state one."""


class Request(NamedTuple):
    """The messages of the next call."""

    messages: list[BaseMessage]
    condensed: int
    """Number of the oldest observations that are left out."""
    exceeds_window: bool
    chars: int = 0
    """Characters of the messages, including tool calls."""
    surplus: float = 0.0
    """Tokens beyond the estimate from the characters."""

    @property
    def tokens(self) -> float:
        """The estimated size."""
        return self.chars / CHARS_PER_TOKEN + self.surplus


class MeasuredConversation:
    """A growing conversation as a client may receive it, with its size; only the added messages are read.

    Not for several threads at once.
    """

    def __init__(self, model: BaseChatModel) -> None:
        self._model = model
        self.repair = ConversationRepair(model)
        self.has_odd_turns = False
        """Whether strict endpoints refuse the order of the messages before the last one."""
        self._read: list[BaseMessage] = []
        """The messages as they were passed, by which an extended conversation is recognized."""
        self._messages: list[BaseMessage] = []
        self._chars = [0]
        """Characters before each message, and of all."""
        self._replies: list[int] = []
        """Positions of the replies, also those of another agent in the first prompt."""
        self._first_own = 0
        self._shown: list[BaseMessage] = []
        """The messages, without the observations of the first `_left_out` of the agent's own steps."""
        self._left_out = 0
        self._saved = [0]
        """Characters that leaving out the first steps saves, by their number."""

    def extend_to(self, messages: Sequence[BaseMessage], model: BaseChatModel) -> bool:
        """Add what a longer conversation for the same model has more; False if it does not begin with this one.

        Lists compare identical messages by address, without reading them.
        """
        count = len(self._read)
        if self._model is not model or len(messages) < count:
            return False
        added = messages[count:]
        self._read += added
        if count and (messages[count - 1] is not self._read[count - 1] or self._read != messages):
            return False
        repaired = self.repair.add(adapt_messages(added, model))
        last = self._messages[-1] if self._messages else None
        self.has_odd_turns = self.has_odd_turns or have_faults(repaired, model, last)
        for each in repaired:
            if isinstance(each, AIMessage):
                self._replies.append(len(self._messages))
            self._chars.append(self._chars[-1] + count_chars([each]))
            self._messages.append(each)
            self._shown.append(each)
        return True

    def count_own_steps(self, replies: int) -> int:
        """Return the number of the agent's own steps, of which `replies` are the last replies."""
        first_own = max(len(self._replies) - replies, 0)
        if first_own != self._first_own:
            self._first_own, self._left_out, self._saved = first_own, 0, [0]
            self._shown = list(self._messages)
        return len(self._replies) - first_own

    def leave_out(self, steps: int) -> list[BaseMessage]:
        """Return the messages; the observations of the first steps are replaced by a marker, unless that is longer.

        Every call keeps its answer.
        """
        # What follows the last reply may still grow.
        closed = min(steps, max(len(self._replies) - self._first_own - 1, 0))
        for step in range(closed, self._left_out):
            for index in self._find_answers(step):
                self._shown[index] = self._messages[index]
        for step in range(self._left_out, closed):
            self._replace_answers(self._shown, step)
        self._left_out = closed
        shown = list(self._shown)
        if steps > closed and self._first_own < len(self._replies):
            self._replace_answers(shown, closed)
        return shown

    def _replace_answers(self, shown: list[BaseMessage], step: int) -> None:
        marker = _load_marker()
        for index in self._find_answers(step):
            if len(shown[index].text) > len(marker):
                shown[index] = shown[index].model_copy(update={"content": marker})

    def _find_answers(self, step: int) -> range:
        """Positions of the results of a step's calls; not of what a person said after them."""
        messages, begin = self._messages, self._replies[self._first_own + step] + 1
        end = begin
        while end < len(messages) and isinstance(messages[end], ToolMessage):
            end += 1
        if end == begin and end < len(messages) and isinstance(messages[end], HumanMessage):
            end += 1
        return range(begin, end)

    def count_shown_chars(self, left_out: int) -> int:
        """Return the characters of the messages without the observations of the first steps."""
        return self._chars[-1] - self.count_saved_chars(left_out)

    def count_saved_chars(self, left_out: int) -> int:
        """Return the characters that leaving out the observations of the first steps saves."""
        steps = len(self._replies) - self._first_own
        left_out, closed = min(left_out, steps), min(left_out, max(steps - 1, 0))
        while len(self._saved) <= closed:
            self._saved.append(self._saved[-1] + self._count_saved_by(len(self._saved) - 1))
        return self._saved[closed] + (self._count_saved_by(closed) if left_out > closed else 0)

    def _count_saved_by(self, step: int) -> int:
        marker_chars = len(_load_marker())
        return sum(
            max(len(self._messages[index].text) - marker_chars, 0) for index in self._find_answers(step)
        )

    def count_chars_before_last_reply(self, left_out: int) -> int:
        """Return the characters of the request that the last reply answered."""
        steps = len(self._replies) - self._first_own
        return self._chars[self._replies[-1]] - self.count_saved_chars(min(left_out, steps - 1))


def measure_conversation(
    messages: Sequence[BaseMessage], model: BaseChatModel, known: MeasuredConversation | None = None
) -> MeasuredConversation:
    """Return a conversation with its size: `known` with the added messages, unless earlier ones changed."""
    if known is not None and known.extend_to(messages, model):
        return known
    fresh = MeasuredConversation(model)
    fresh.extend_to(messages, model)
    return fresh


def build_request(
    conversation: MeasuredConversation,
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
    steps = conversation.count_own_steps(replies)

    surplus = _measure_surplus(conversation, steps, condensed, last_usage)

    def make_request(exceeds_window: bool) -> Request:
        chars = conversation.count_shown_chars(condensed)
        return Request(conversation.leave_out(condensed), condensed, exceeds_window, chars, surplus)

    if window_tokens is None:
        return make_request(False)

    def estimate_size() -> float:
        return conversation.count_shown_chars(condensed) / CHARS_PER_TOKEN + surplus

    if condense and estimate_size() > CONDENSE_AT * window_tokens:
        max_chars = (CONDENSE_TO * window_tokens - surplus) * CHARS_PER_TOKEN
        while condensed < steps - KEPT_STEPS and conversation.count_shown_chars(condensed) > max_chars:
            condensed += 1
    margin = 1.0 if _is_counted(last_usage) else _UNCOUNTED_MARGIN
    return make_request(estimate_size() >= margin * window_tokens)


def condense_fully(conversation: MeasuredConversation, replies: int) -> Request:
    """Build the request with only the latest observations, for an endpoint that refused the conversation."""
    condensed = max(conversation.count_own_steps(replies) - KEPT_STEPS, 0)
    chars = conversation.count_shown_chars(condensed)
    return Request(conversation.leave_out(condensed), condensed, False, chars)


def judge_refusal(
    error: ContextWindowError | PermanentModelError,
    request: Request,
    window_tokens: int | None,
    *,
    is_first: bool,
) -> ContextWindowError | PermanentModelError:
    """Return the error behind a refused request by its size, where code and wording are not enough.

    A refusal in unknown words is an overflow if the request nearly fills the known window. An overflow at a first prompt
    far below the window is an error of the configuration.
    """
    if isinstance(error, PermanentModelError):
        is_full = window_tokens is not None and request.tokens > CONDENSE_AT * window_tokens
        is_overflow = is_full and not is_first and error.status in _REFUSALS
        return ContextWindowError(str(error)) if is_overflow else error
    window = max((each for each in (window_tokens, error.window_tokens) if each), default=_LEAST_WINDOW)
    if not is_first or request.tokens > _FAR_BELOW * window:
        return error
    known = f"the window of {window:,} tokens" if window_tokens or error.window_tokens else "any usual window"
    return PermanentModelError(
        f"the endpoint refuses a first prompt of about {request.tokens:,.0f} tokens as too long, far below {known}: {error} "
        "(check the maximum reply, the window and the context size that the server was started with)"
    )


def find_last_usage(events: Sequence[dict[str, object]]) -> Usage | None:
    """Return the usage of the last call; None before the first."""
    for event in reversed(events):
        if event["kind"] != "action":
            continue
        usage = None if event.get("usage") is None else Usage.model_validate(event["usage"])
        if usage != NO_MODEL_CALL:
            return usage
    return None


def _load_marker() -> str:
    return load_prompt("condensed", "nodes").strip()


def _measure_surplus(
    conversation: MeasuredConversation, steps: int, condensed: int, last_usage: Usage | None
) -> float:
    """Return the tokens of the call before beyond the estimate from its characters, such as tool schemas; 0 if uncounted."""
    if last_usage is None or not _is_counted(last_usage) or not steps:
        return 0.0
    chars = conversation.count_chars_before_last_reply(condensed)
    return (last_usage.prompt_tokens or 0) - chars / CHARS_PER_TOKEN


def _is_counted(usage: Usage | None) -> bool:
    return usage is not None and not usage.estimated and bool(usage.prompt_tokens)
