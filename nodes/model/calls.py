"""Calls of a chat model: attempts with a deadline, with retries, with a JSON schema."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable
from pydantic import SecretStr
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_before_delay,
    wait_exponential,
    wait_random,
)
from tenacity.stop import stop_base

from langgraph_takeover.base.awaiting import run_without_loop
from langgraph_takeover.base.failures import ObserverErrors, get_logger
from langgraph_takeover.handoff.text.redaction import find_secrets, redact_known_secrets
from langgraph_takeover.handoff.trace.events import Usage
from langgraph_takeover.nodes.genai_spans import describe_reply, describe_request, start_chat_span
from langgraph_takeover.nodes.model.deadlines import (
    CallCancelledError,
    Cancellation,
    DeadlineExceededError,
)
from langgraph_takeover.nodes.model.endpoint_rules import (
    ConversationRepair,
    complete_turns,
    repair_messages,
    write_calls_as_text,
)
from langgraph_takeover.nodes.model.exchange import Exchange
from langgraph_takeover.nodes.model.message_content import adapt_messages, is_empty, withhold_damaged
from langgraph_takeover.nodes.model.model_errors import (
    ContextWindowError,
    ModelError,
    PermanentModelError,
    ReplyTimeoutError,
    ReplyTooLargeError,
    WaitTooLongError,
    classify_error,
)
from langgraph_takeover.nodes.model.provider_fields import complete_fields, obey_refusal
from langgraph_takeover.nodes.model.refusals import OVERFLOW_CODES, format_wait
from langgraph_takeover.nodes.model.usage import UNCOUNTED_CALLS, make_storable, measure_usage, parse_usage

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


async def _run_here(work: Callable[[], Any]) -> Any:
    return work()


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
    """One attempt of a call of a chat model."""

    model: Runnable[Any, Any]
    messages: list[BaseMessage]
    timeout_s: float
    billing: CallCount
    cancellation: Cancellation | None = None

    async def aask(self, run_blocking: RunBlocking | None) -> AIMessage:
        """Return the reply; without `run_blocking`, block the thread. Raises ModelError and CallCancelledError."""
        run = run_blocking or _run_here
        if self.billing.is_observed:
            await run(self.billing.begin)
        exchange = Exchange(self.timeout_s, self.cancellation)
        reply = error = None
        try:
            if run_blocking is None:
                reply = exchange.ask(self.model, self.messages)
            else:
                reply = await exchange.aask(self.model, self.messages)
        except Exception as raised:
            error = raised
        except BaseException:
            self.billing.add(exchange, has_reply=False)
            raise
        answer: AIMessage = await run(lambda: self._finish(exchange, reply, error))
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


MODEL_TRIES = 3
"""Default number of attempts of one call."""
WAITS_PER_TRY = 10
"""Refusals with a wait of `_LEAST_WAIT_S` or more that count as one attempt."""
_LEAST_WAIT_S = 1.0
_LOG = get_logger(__name__)
_INITIAL_PAUSE_S, _MAX_PAUSE_S = 0.5, 30.0
_BACKOFF = wait_exponential(multiplier=_INITIAL_PAUSE_S, max=_MAX_PAUSE_S) + wait_random(0, _INITIAL_PAUSE_S)
ComputeCost = Callable[[Usage], float]
"""The cost of a call, for its span."""
OnWait = Callable[[float, ModelError], None]
"""Learns that a call waits, for how many seconds, and of the refusal that asks for it."""


@contextlib.contextmanager
def _record_call(
    model: Runnable[Any, Any],
    messages: list[BaseMessage],
    compute_cost: ComputeCost | None,
    prompt_chars: int | None = None,
) -> Iterator[Callable[[AIMessage], AIMessage]]:
    """Open the span of a call with all its attempts; the yielded function records the reply, and returns it."""
    with start_chat_span(model) as span:
        secrets = find_api_keys(model) if span.is_recording else ()
        describe_request(span, messages, secrets)

        def describe(reply: AIMessage) -> AIMessage:
            if span.is_measured:
                with ObserverErrors("telemetry"):
                    usage = measure_usage(reply, messages, prompt_chars)
                    cost = compute_cost(usage) if compute_cost else None
                    describe_reply(span, model, reply, usage, cost, secrets)
            return reply

        yield describe


class ModelCall(NamedTuple):
    """A call that retries transient failures after a pause, for threads (`ask`) and for event loops (`aask`)."""

    model: Runnable[Any, Any]
    messages: list[BaseMessage]
    timeout_s: float
    """Limit of all attempts together."""
    max_attempts: int
    billing: CallCount
    cancellation: Cancellation
    compute_cost: ComputeCost | None = None
    prompt_chars: int | None = None
    """Characters of the messages, if they are known."""

    on_wait: OnWait | None = None
    max_wait_s: float = math.inf
    """Limit from the call's start to the end of a wait; for callers that nothing can stop."""

    def ask(self) -> AIMessage:
        """Return the complete reply, without known secrets. Raises ModelError or ContextWindowError, on one line.

        Raises CallCancelledError, too, if another thread cancels it, and WaitEndedError if one ends its wait. A client's own
        time limit never ends a reply that arrives byte by byte: `timeout_s` does. The reply's metadata has
        `UNCOUNTED_CALLS`, if earlier requests of the call may have been billed.
        """
        with self._record() as describe:
            return describe(self.ask_unrecorded())

    async def aask(self, run_blocking: RunBlocking) -> AIMessage:
        """Like `ask`, awaited; `run_blocking` runs the checks of replies."""
        with self._record() as describe:
            return describe(await self._ask_repeatedly(run_blocking))

    def ask_unrecorded(self) -> AIMessage:
        """Like `ask`, without a span of its own."""
        return run_without_loop(self._ask_repeatedly(None))

    def _record(self) -> AbstractContextManager[Callable[[AIMessage], AIMessage]]:
        return _record_call(self.model, self.messages, self.compute_cost, self.prompt_chars)

    async def _ask_repeatedly(self, run_blocking: RunBlocking | None) -> AIMessage:
        """Return the reply of the first attempt that succeeds; without `run_blocking`, never suspend."""
        deadline, wait_deadline = self._find_deadlines()

        async def attempt() -> AIMessage:
            with _limit_wait(wait_deadline):
                try:
                    return await self._attempt(deadline).aask(run_blocking)
                except PermanentModelError as error:
                    with obey_refusal(error, self.messages, self.model):
                        return await self._attempt(deadline).aask(run_blocking)

        async def announce(state: RetryCallState) -> None:
            await (run_blocking or _run_here)(lambda: self._announce(state))

        async def sleep(seconds: float) -> None:
            if run_blocking is None:
                self.cancellation.sleep(seconds)
            else:
                await self.cancellation.asleep(seconds)

        return await AsyncRetrying(sleep=sleep, before_sleep=announce, **self._retry_policy())(attempt)

    def _find_deadlines(self) -> tuple[float, float]:
        """Return when the call ends, and when its last wait must end."""
        now = time.monotonic()
        return now + self.timeout_s, now + min(self.timeout_s, self.max_wait_s)

    def _attempt(self, deadline: float) -> Attempt:
        remaining_s = max(deadline - time.monotonic(), 0.01)
        return Attempt(self.model, self.messages, remaining_s, self.billing, self.cancellation)

    def _announce(self, state: RetryCallState) -> None:
        """Show the wait that the endpoint asks for."""
        error = _get_error(state)
        if error.retry_after_s is None:
            return
        _LOG.warning("%s; it asks to wait %s before the next try", error, format_wait(state.upcoming_sleep))
        if self.on_wait is not None:
            self.on_wait(state.upcoming_sleep, error)

    def _retry_policy(self) -> dict[str, Any]:
        return {
            "retry": retry_if_exception(lambda error: isinstance(error, ModelError) and error.is_transient),
            "stop": _StopAfterTries(self.max_attempts) | stop_before_delay(self.timeout_s),
            "wait": _choose_pause,
            "reraise": True,
        }


class _StopAfterTries(stop_base):
    """Stops after that many tries; one that the endpoint asks to repeat after a wait counts as a part of a try."""

    def __init__(self, max_tries: int) -> None:
        self._max_parts, self._parts = max_tries * WAITS_PER_TRY, 0
        self._is_single = max_tries == 1

    def __call__(self, retry_state: RetryCallState) -> bool:
        wait_s = _get_error(retry_state).retry_after_s or 0.0
        self._parts += 1 if wait_s >= _LEAST_WAIT_S else WAITS_PER_TRY
        return self._is_single or self._parts >= self._max_parts


def _get_error(state: RetryCallState) -> ModelError:
    error = state.outcome and state.outcome.exception()
    assert isinstance(error, ModelError)
    return error


def _choose_pause(state: RetryCallState) -> float:
    """Return the wait that the endpoint asks for; otherwise a pause of our own, which grows with each attempt."""
    wait_s = _get_error(state).retry_after_s if state.outcome and state.outcome.failed else None
    return float(_BACKOFF(state)) if wait_s is None else wait_s


@contextlib.contextmanager
def _limit_wait(deadline: float) -> Iterator[None]:
    """Raise WaitTooLongError for a refusal that asks for a wait beyond the deadline."""
    try:
        yield
    except ModelError as error:
        remaining_s = deadline - time.monotonic()
        if error.is_transient and (error.retry_after_s or 0.0) >= max(remaining_s, 0.01):
            raise WaitTooLongError(error, remaining_s) from None
        raise


def ask_model(
    model: Runnable[Any, Any],
    messages: list[BaseMessage],
    *,
    timeout_s: float,
    count: CallCount | None = None,
    cancellation: Cancellation | None = None,
    compute_cost: ComputeCost | None = None,
) -> AIMessage:
    """Return the reply of a `ModelCall` with the default number of attempts. Raises what its `ask` raises."""
    repair = ConversationRepair(model)
    call = ModelCall(
        model,
        complete_turns(repair.add(adapt_messages(messages, model)), model),
        timeout_s,
        MODEL_TRIES,
        count or CallCount(),
        cancellation or Cancellation(),
        compute_cost,
    )
    return repair.repair_reply(call.ask())


def ask_with_schema(
    model: BaseChatModel,
    messages: list[BaseMessage],
    schema: dict[str, Any] | None,
    *,
    timeout_s: float,
    count: CallCount | None = None,
    compute_cost: ComputeCost | None = None,
    cancellation: Cancellation | None = None,
    on_wait: OnWait | None = None,
    max_wait_s: float = math.inf,
) -> AIMessage:
    """Call `ask_model`; an OpenAI client with a schema asks the endpoint to enforce it first.

    `timeout_s` limits both calls together. Calls of tools in the messages are sent as text.
    """
    messages = repair_messages(write_calls_as_text(adapt_messages(messages, model)), model)
    call = ModelCall(
        model,
        messages,
        timeout_s,
        MODEL_TRIES,
        count or CallCount(),
        cancellation or Cancellation(),
        on_wait=on_wait,
        max_wait_s=max_wait_s,
    )
    with _record_call(model, messages, compute_cost) as describe:
        return describe(_ask_with_schema(call, model, schema))


def _ask_with_schema(call: ModelCall, model: BaseChatModel, schema: dict[str, Any] | None) -> AIMessage:
    deadline = time.monotonic() + call.timeout_s
    if schema is not None and model.get_lc_namespace()[-1:] == ["openai"]:
        strict_schema = {"name": schema["title"], "strict": True, "schema": schema}
        bound = model.bind(response_format={"type": "json_schema", "json_schema": strict_schema})
        # An endpoint without schema support refuses the call; a client may refuse a reply that was cut off.
        try:
            return call._replace(model=bound).ask_unrecorded()
        except ReplyTimeoutError:
            raise
        except ModelError as error:
            if error.retry_after_s is not None:
                raise
            call = call._replace(timeout_s=max(deadline - time.monotonic(), 0.01))
    return call.ask_unrecorded()
