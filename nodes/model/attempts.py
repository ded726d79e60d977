"""One attempt of a model call: its deadline, its errors in one line, and its reply without secrets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable
from pydantic import SecretStr

from langgraph_takeover.handoff.text.redaction import find_secrets, redact_known_secrets
from langgraph_takeover.nodes.model.connections.deadlines import (
    CallCancelledError,
    Cancellation,
    DeadlineExceededError,
)
from langgraph_takeover.nodes.model.connections.exchange import Exchange
from langgraph_takeover.nodes.model.errors import (
    ContextWindowError,
    ModelError,
    ReplyTimeoutError,
    ReplyTooLargeError,
    classify_error,
)
from langgraph_takeover.nodes.model.messages.content import is_empty, withhold_damaged
from langgraph_takeover.nodes.model.messages.provider_fields import complete_fields
from langgraph_takeover.nodes.model.refusals.overflow import OVERFLOW_CODES
from langgraph_takeover.nodes.model.usage import UNCOUNTED_CALLS, make_storable, parse_usage

_REPLY_FIELDS = (
    "content",
    "additional_kwargs",
    "response_metadata",
    "tool_calls",
    "invalid_tool_calls",
    "id",
    "name",
)
_MAX_REPLY_CHARS = 1 << 20
"""Limit for replies of every client: each later step reads the reply again."""
RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Awaits a function in a thread, for work that would block an event loop."""


class CallCount:
    """The requests of one call, over all its attempts, that an endpoint may have billed."""

    def __init__(self, on_attempt: Callable[[int], None] | None = None) -> None:
        """`on_attempt` is called before each attempt, with the number of requests so far that may be billed."""
        self.billable = 0
        self._on_attempt = on_attempt

    @property
    def is_observed(self) -> bool:
        return self._on_attempt is not None

    def begin(self) -> None:
        """Announce an attempt."""
        if self._on_attempt is not None:
            self._on_attempt(self.billable)

    def add(self, exchange: Exchange, *, has_reply: bool) -> None:
        """Count an attempt; of a client that counts no requests, only a reply that arrived."""
        self.billable += exchange.billable_requests if exchange.counts_requests else has_reply


class Attempt(NamedTuple):
    """One attempt of a call of a chat model, for threads (`ask`) and for event loops (`aask`)."""

    model: Runnable[Any, Any]
    messages: list[BaseMessage]
    timeout_s: float
    billing: CallCount
    cancellation: Cancellation | None = None

    def ask(self) -> AIMessage:
        """Return the reply. Raises ModelError, ContextWindowError and CallCancelledError."""
        self.billing.begin()
        exchange = Exchange(self.timeout_s, self.cancellation)
        reply = error = None
        try:
            reply = exchange.ask(self.model, self.messages)
        except Exception as raised:
            error = raised
        except BaseException:
            self.billing.add(exchange, has_reply=False)
            raise
        return self._finish(exchange, reply, error)

    async def aask(self, run_blocking: RunBlocking) -> AIMessage:
        """Like `ask`, awaited."""
        if self.billing.is_observed:
            await run_blocking(self.billing.begin)
        exchange = Exchange(self.timeout_s, self.cancellation)
        reply = error = None
        try:
            reply = await exchange.aask(self.model, self.messages)
        except Exception as raised:
            error = raised
        except BaseException:
            self.billing.add(exchange, has_reply=False)
            raise
        answer: AIMessage = await run_blocking(lambda: self._finish(exchange, reply, error))
        return answer

    def _finish(self, exchange: Exchange, reply: Any, error: Exception | None) -> AIMessage:
        """Return the complete reply of an exchange, or raise its error in one line."""
        has_reply = False
        try:
            checked = self._check_reply(exchange, reply, error)
            has_reply = True
        finally:
            self.billing.add(exchange, has_reply=has_reply)
        if not _is_complete(checked.response_metadata):
            raise ModelError("the reply was cut off: it ended without a finish reason")
        reason = checked.response_metadata.get("finish_reason") or checked.response_metadata.get(
            "stop_reason"
        )
        if reason in OVERFLOW_CODES and is_empty(checked):
            raise ContextWindowError(f"the reply has no text: it ended with {reason}")
        if self.billing.billable > 1:
            checked.response_metadata[UNCOUNTED_CALLS] = self.billing.billable - 1
        return checked

    def _check_reply(self, exchange: Exchange, reply: Any, error: Exception | None) -> AIMessage:
        if isinstance(error, DeadlineExceededError):
            raise _timeout_error(self.timeout_s)
        if isinstance(error, CallCancelledError):
            raise error
        keys = find_api_keys(self.model)
        failure = error and classify_error(error, keys)
        if isinstance(failure, ModelError) and exchange.remaining_s <= 0 and not exchange.refusal:
            # The client noticed the deadline before the exchange did.
            failure = _timeout_error(self.timeout_s)
        if failure is not None and failure is error:
            raise failure
        if exchange.refusal:
            raise ReplyTooLargeError(f"the endpoint's reply was refused: {exchange.refusal}")
        if failure is not None:
            # Not chained: the original error may show whole answers, and keys in them.
            raise failure
        if not isinstance(reply, AIMessage):
            raise ModelError(f"the endpoint sent a {type(reply).__name__} instead of a reply")
        return _clean_reply(reply, keys)


def _timeout_error(timeout_s: float) -> ReplyTimeoutError:
    return ReplyTimeoutError(f"no complete reply within {timeout_s:.0f} s")


def _is_complete(metadata: dict[str, Any]) -> bool:
    """Whether the reply has a finish reason, or is a whole JSON body; providers that never send a reason pass."""
    # OpenAI's client notes the reason of every JSON body, which may be none; of a stream that was cut off it notes nothing.
    is_noted = "finish_reason" in metadata or "status" in metadata
    return is_noted or metadata.get("model_provider") != "openai"


def _clean_reply(reply: AIMessage, keys: Sequence[str]) -> AIMessage:
    """Return the reply without secrets, storable in files and databases. Raises ModelError."""
    reply = complete_fields(reply)
    try:
        update = make_storable({name: getattr(reply, name) for name in _REPLY_FIELDS})
    except ValueError as error:
        raise ModelError(f"the endpoint's answer is malformed: {error}") from None
    length = sum(len(str(value)) for value in update.values())
    if length > _MAX_REPLY_CHARS:
        raise ReplyTooLargeError(
            f"the endpoint's reply was refused: it has {length:,} characters; the limit is {_MAX_REPLY_CHARS:,}"
        )
    update = withhold_damaged(reply, redact_known_secrets(update, keys))
    if parse_usage(reply.usage_metadata) is None:
        update["usage_metadata"] = None
    return reply.model_copy(update=update)


def find_api_keys(*models: Any) -> list[str]:
    """Return the keys of models, bound or not: secret fields, and headers and parameters with a secret's name."""
    keys: list[str] = []
    for model in models:
        fields = {**getattr(model, "__dict__", {})}
        keys += [value.get_secret_value() for value in fields.values() if isinstance(value, SecretStr)]
        for value in (fields, *fields.values()):
            keys += find_secrets(value) if isinstance(value, dict) else []
        keys += find_api_keys(fields["bound"]) if "bound" in fields else []
    return [key for key in keys if key]
