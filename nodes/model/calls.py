"""Calls of a chat model: with a time limit, with a JSON schema, with retries."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable
from pydantic import SecretStr
from tenacity import (
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    stop_before_delay,
    wait_exponential,
    wait_random,
)

from langgraph_takeover.handoff.text.redaction import find_secrets, redact_known_secrets
from langgraph_takeover.handoff.trace.events import Usage
from langgraph_takeover.nodes.model.content import withhold_damaged
from langgraph_takeover.nodes.model.encoding import make_storable
from langgraph_takeover.nodes.model.errors import (
    ModelError,
    ReplyTimeoutError,
    ReplyTooLargeError,
    classify_error,
)
from langgraph_takeover.nodes.model.exchange import (
    CallCancelledError,
    Cancellation,
    DeadlineExceededError,
    Exchange,
)
from langgraph_takeover.nodes.model.usage import UNCOUNTED_CALLS, measure_usage, parse_usage
from langgraph_takeover.nodes.telemetry import describe_reply, describe_request, start_chat_span

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
_INITIAL_PAUSE_S, _MAX_PAUSE_S = 0.5, 30.0
ComputeCost = Callable[[Usage], float]
"""The cost of a call, for its span."""


class CallCount:
    """The requests of one call, over all its attempts, that an endpoint may have billed."""

    def __init__(self) -> None:
        self.billable = 0

    def add(self, exchange: Exchange, *, has_reply: bool) -> None:
        """Count an attempt; of a client that counts no requests, only a reply that arrived."""
        self.billable += exchange.billable_requests if exchange.counts_requests else has_reply


def ask_model(
    model: Runnable[Any, Any],
    messages: list[BaseMessage],
    *,
    timeout_s: float,
    count: CallCount | None = None,
    cancellation: Cancellation | None = None,
    compute_cost: ComputeCost | None = None,
) -> AIMessage:
    """Return the model's complete reply, without known secrets. Raises ModelError or ContextWindowError, on one line.

    Raises CallCancelledError, too, if another thread cancels it. `timeout_s` limits the whole call: a client's own limit
    never ends a reply that arrives byte by byte. The reply's metadata has `UNCOUNTED_CALLS`, if earlier requests of the call
    may have been billed.
    """
    return _record_call(
        model,
        messages,
        compute_cost,
        lambda: _attempt_call(
            model, messages, timeout_s=timeout_s, count=count or CallCount(), cancellation=cancellation
        ),
    )


def _record_call(
    model: Runnable[Any, Any],
    messages: list[BaseMessage],
    compute_cost: ComputeCost | None,
    ask: Callable[[], AIMessage],
) -> AIMessage:
    """Return the reply of a call with all its attempts, which has one span."""
    with start_chat_span(model) as span:
        secrets = find_api_keys(model) if span.is_recording else ()
        describe_request(span, messages, secrets)
        reply = ask()
        if span.is_measured:
            usage = measure_usage(reply, messages)
            cost = compute_cost(usage) if compute_cost else None
            describe_reply(span, model, reply, usage, cost, secrets)
    return reply


def _attempt_call(
    model: Runnable[Any, Any],
    messages: list[BaseMessage],
    *,
    timeout_s: float,
    count: CallCount,
    cancellation: Cancellation | None = None,
) -> AIMessage:
    exchange, reply = Exchange(timeout_s, cancellation), None
    try:
        reply = _ask_once(model, messages, exchange, timeout_s)
    finally:
        count.add(exchange, has_reply=reply is not None)
    if not _is_complete(reply.response_metadata):
        raise ModelError("the reply was cut off: it ended without a finish reason")
    if count.billable > 1:
        reply.response_metadata[UNCOUNTED_CALLS] = count.billable - 1
    return reply


def _ask_once(
    model: Runnable[Any, Any], messages: list[BaseMessage], exchange: Exchange, timeout_s: float
) -> AIMessage:
    failure = None
    try:
        reply = exchange.run(lambda: exchange.bind_model(model).invoke(messages))
    except DeadlineExceededError:
        raise _timeout_error(timeout_s) from None
    except CallCancelledError:
        raise
    except Exception as error:
        failure = classify_error(error, find_api_keys(model))
        if isinstance(failure, ModelError) and exchange.remaining_s <= 0 and not exchange.refusal:
            # The client noticed the deadline before `run` did.
            failure = _timeout_error(timeout_s)
        if failure is error:
            raise
    if exchange.refusal:
        raise ReplyTooLargeError(f"the endpoint's reply was refused: {exchange.refusal}")
    if failure is not None:
        # Not raised in the `except` block: the original error may show whole answers, and keys in them.
        raise failure
    if not isinstance(reply, AIMessage):
        raise ModelError(f"the endpoint sent a {type(reply).__name__} instead of a reply")
    return _clean_reply(reply, find_api_keys(model))


def _timeout_error(timeout_s: float) -> ReplyTimeoutError:
    return ReplyTimeoutError(f"no complete reply within {timeout_s:.0f} s")


def _is_complete(metadata: dict[str, Any]) -> bool:
    """Whether the reply has a finish reason; providers that never send one pass."""
    if "finish_reason" in metadata:
        return bool(metadata["finish_reason"])
    # OpenAI's client omits the reason of a stream that was cut off; its Responses API has a status instead.
    return metadata.get("model_provider") != "openai" or "status" in metadata


def ask_with_schema(
    model: BaseChatModel,
    messages: list[BaseMessage],
    schema: dict[str, Any] | None,
    *,
    timeout_s: float,
    compute_cost: ComputeCost | None = None,
) -> AIMessage:
    """Call `ask_model`; an OpenAI client with a schema asks the endpoint to enforce it first.

    `timeout_s` limits both calls together.
    """
    return _record_call(
        model, messages, compute_cost, lambda: _attempt_with_schema(model, messages, schema, timeout_s)
    )


def _attempt_with_schema(
    model: BaseChatModel, messages: list[BaseMessage], schema: dict[str, Any] | None, timeout_s: float
) -> AIMessage:
    deadline, count = time.monotonic() + timeout_s, CallCount()
    if schema is not None and model.get_lc_namespace()[-1:] == ["openai"]:
        strict_schema = {"name": schema["title"], "strict": True, "schema": schema}
        bound = model.bind(response_format={"type": "json_schema", "json_schema": strict_schema})
        # An endpoint without schema support refuses the call; a client may refuse a reply that was cut off.
        try:
            return _attempt_call(bound, messages, timeout_s=timeout_s, count=count)
        except ReplyTimeoutError:
            raise
        except ModelError:
            timeout_s = max(deadline - time.monotonic(), 0.01)
    return _attempt_call(model, messages, timeout_s=timeout_s, count=count)


def ask_with_retries(
    model: Runnable[Any, Any],
    messages: list[BaseMessage],
    *,
    timeout_s: float,
    max_attempts: int,
    count: CallCount | None = None,
    cancellation: Cancellation | None = None,
    compute_cost: ComputeCost | None = None,
) -> AIMessage:
    """Call `ask_model`, and retry transient failures after a pause; `timeout_s` limits all attempts together."""
    deadline, counted = time.monotonic() + timeout_s, count or CallCount()
    cancellation = cancellation or Cancellation()
    retrying = Retrying(
        sleep=cancellation.sleep,
        retry=retry_if_exception(lambda error: isinstance(error, ModelError) and error.is_transient),
        stop=stop_after_attempt(max_attempts) | stop_before_delay(timeout_s),
        wait=wait_exponential(multiplier=_INITIAL_PAUSE_S, max=_MAX_PAUSE_S)
        + wait_random(0, _INITIAL_PAUSE_S),
        reraise=True,
    )

    def attempt() -> AIMessage:
        remaining_s = max(deadline - time.monotonic(), 0.01)
        return _attempt_call(model, messages, timeout_s=remaining_s, count=counted, cancellation=cancellation)

    return _record_call(model, messages, compute_cost, lambda: retrying(attempt))


def _clean_reply(reply: AIMessage, keys: Sequence[str]) -> AIMessage:
    """Return the reply without secrets, storable in files and databases, with an id for every call.

    Raises ModelError.
    """
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
    for call in (*update["tool_calls"], *update["invalid_tool_calls"]):
        call["id"] = call["id"] or f"call_{uuid4().hex}"
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
