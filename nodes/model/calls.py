"""Calls of a chat model: with a time limit, with a JSON schema, with retries."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable
from tenacity import (
    AsyncRetrying,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    stop_before_delay,
    wait_exponential,
    wait_random,
)

from langgraph_takeover.handoff.trace.events import Usage
from langgraph_takeover.nodes.model.attempts import Attempt, CallCount, RunBlocking, find_api_keys
from langgraph_takeover.nodes.model.connections.deadlines import Cancellation
from langgraph_takeover.nodes.model.errors import ModelError, ReplyTimeoutError
from langgraph_takeover.nodes.model.usage import measure_usage
from langgraph_takeover.nodes.telemetry import describe_reply, describe_request, start_chat_span

_INITIAL_PAUSE_S, _MAX_PAUSE_S = 0.5, 30.0
ComputeCost = Callable[[Usage], float]
"""The cost of a call, for its span."""


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
    with _record_call(model, messages, compute_cost) as describe:
        return describe(Attempt(model, messages, timeout_s, count or CallCount(), cancellation).ask())


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
                usage = measure_usage(reply, messages, prompt_chars)
                cost = compute_cost(usage) if compute_cost else None
                describe_reply(span, model, reply, usage, cost, secrets)
            return reply

        yield describe


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
    with _record_call(model, messages, compute_cost) as describe:
        return describe(_attempt_with_schema(model, messages, schema, timeout_s))


def _attempt_with_schema(
    model: BaseChatModel, messages: list[BaseMessage], schema: dict[str, Any] | None, timeout_s: float
) -> AIMessage:
    deadline, count = time.monotonic() + timeout_s, CallCount()
    if schema is not None and model.get_lc_namespace()[-1:] == ["openai"]:
        strict_schema = {"name": schema["title"], "strict": True, "schema": schema}
        bound = model.bind(response_format={"type": "json_schema", "json_schema": strict_schema})
        # An endpoint without schema support refuses the call; a client may refuse a reply that was cut off.
        try:
            return Attempt(bound, messages, timeout_s, count).ask()
        except ReplyTimeoutError:
            raise
        except ModelError:
            timeout_s = max(deadline - time.monotonic(), 0.01)
    return Attempt(model, messages, timeout_s, count).ask()


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

    def ask(self) -> AIMessage:
        """Return the reply. Raises what `ask_model` raises."""
        deadline = time.monotonic() + self.timeout_s
        retrying = Retrying(sleep=self.cancellation.sleep, **self._retry_policy())
        with _record_call(self.model, self.messages, self.compute_cost, self.prompt_chars) as describe:
            return describe(retrying(lambda: self._attempt(deadline).ask()))

    async def aask(self, run_blocking: RunBlocking) -> AIMessage:
        """Like `ask`, awaited; `run_blocking` runs the checks of replies."""
        deadline = time.monotonic() + self.timeout_s
        retrying = AsyncRetrying(sleep=self.cancellation.asleep, **self._retry_policy())

        async def attempt() -> AIMessage:
            return await self._attempt(deadline).aask(run_blocking)

        with _record_call(self.model, self.messages, self.compute_cost, self.prompt_chars) as describe:
            return describe(await retrying(attempt))

    def _attempt(self, deadline: float) -> Attempt:
        remaining_s = max(deadline - time.monotonic(), 0.01)
        return Attempt(self.model, self.messages, remaining_s, self.billing, self.cancellation)

    def _retry_policy(self) -> dict[str, Any]:
        return {
            "retry": retry_if_exception(lambda error: isinstance(error, ModelError) and error.is_transient),
            "stop": stop_after_attempt(self.max_attempts) | stop_before_delay(self.timeout_s),
            "wait": wait_exponential(multiplier=_INITIAL_PAUSE_S, max=_MAX_PAUSE_S)
            + wait_random(0, _INITIAL_PAUSE_S),
            "reraise": True,
        }
