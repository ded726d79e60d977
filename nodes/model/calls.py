"""How a chat model is asked, and how its failures are told apart."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
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

from langgraph_takeover.handoff.text.redaction import find_secrets, redact, redact_known_secrets
from langgraph_takeover.handoff.trace.events import Usage
from langgraph_takeover.nodes.model.encoding import make_storable
from langgraph_takeover.nodes.model.exchange import DeadlineExceededError, Exchange
from langgraph_takeover.sandbox.interface import TakeoverError

_CLIENT_MODULES = {
    "langchain_openai", "openai", "langchain_core", "pydantic", "pydantic_core", "httpx", "httpx2", "httpcore",
    "httpcore2",
}  # fmt: skip
_OVERFLOW_PATTERN = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context|maximum model length|context (size|window|length)"
    r"|prompt is too long|input token count.* exceeds|\binputs\W+tokens.*max_new_tokens",
    re.IGNORECASE,
)
_REPLY_FIELDS = (
    "content",
    "additional_kwargs",
    "response_metadata",
    "tool_calls",
    "invalid_tool_calls",
    "id",
    "name",
)
_MAX_LINE_CHARS = 300
_MAX_SEARCHED_CHARS = 10_000
"""Characters of an error that are searched for the words of an overflow."""
_MAX_REPLY_CHARS = 1 << 20
"""Of a reply, whoever made its client: every later step reads it again."""
_MAX_TOKEN_COUNT = 100_000_000
"""No context window is as large."""
_INVALID_COUNT = -1
_MAX_CHARS_PER_TOKEN = 1_000
"""No tokenizer packs as many characters into its average token."""
_INITIAL_PAUSE_S, _MAX_PAUSE_S = 0.5, 30.0
CHARS_PER_TOKEN = 4
"""The estimate where nobody counts tokens; whatever rests on it says so."""


class ModelError(TakeoverError):
    """The model or its endpoint failed; nothing that the agent did, and never graded."""

    is_transient = True
    """Whether it may go better when it is asked again."""


class PermanentModelError(ModelError):
    """The endpoint will answer the same however often it is asked: no such model, a wrong key, no money left."""

    is_transient = False


class ReplyTimeoutError(ModelError, TimeoutError):
    """The model had not replied when its time was over."""

    is_transient = False


class ReplyTooLargeError(ModelError, ValueError):
    """The reply exceeds what is read of one."""

    is_transient = False


class ContextWindowError(TakeoverError):
    """The conversation no longer fits into the model's context window."""


def ask_model(model: Runnable[Any, Any], messages: list[BaseMessage], *, timeout_s: float) -> AIMessage:
    """The model's reply, whole, but without known secrets. Raises ModelError or ContextWindowError, each with one clear line.

    `timeout_s` bounds the whole call, because an endpoint that sends a byte now and then never
    exceeds a client's own limit.
    """
    exchange, failure = Exchange(timeout_s), None
    try:
        reply = exchange.run(lambda: exchange.bind_model(model).invoke(messages))
    except DeadlineExceededError:
        raise ReplyTimeoutError(f"no whole reply within {timeout_s:.0f} s") from None
    except Exception as error:
        failure = _classify_error(error, model)
        if isinstance(failure, ModelError) and exchange.remaining_s <= 0 and not exchange.refusal:
            # The client may notice that before the caller does.
            failure = ReplyTimeoutError(f"no whole reply within {timeout_s:.0f} s")
        if failure is error:
            raise
    if exchange.refusal:
        raise ReplyTooLargeError(f"the endpoint's reply was refused: {exchange.refusal}")
    if failure is not None:
        # Raised here because the cause would show what the line leaves out: whole answers, and keys in them.
        raise failure
    if not isinstance(reply, AIMessage):
        raise ModelError(f"the endpoint sent a {type(reply).__name__} where a reply was due")
    reply = _clean_reply(reply, find_api_keys(model))
    if not _is_complete(reply.response_metadata):
        raise ModelError("the reply was cut off: it ended without a finish reason")
    return reply


def _is_complete(metadata: dict[str, Any]) -> bool:
    """Whether a server that tells why a reply ended has told it; many a provider's client has no word for it."""
    if "finish_reason" in metadata:
        return bool(metadata["finish_reason"])
    # OpenAI's leaves the reason of a stream that was cut out; its other protocol tells a status instead.
    return metadata.get("model_provider") != "openai" or "status" in metadata


def ask_with_schema(
    model: BaseChatModel, messages: list[BaseMessage], schema: dict[str, Any] | None, *, timeout_s: float
) -> AIMessage:
    """As `ask`; held to a JSON schema where one is given and the endpoint can hold a reply to one."""
    if schema is not None and model.get_lc_namespace()[-1:] == ["openai"]:
        held = {"name": schema["title"], "strict": True, "schema": schema}
        bound = model.bind(response_format={"type": "json_schema", "json_schema": held})
        # An endpoint that knows no schemas refuses the call, and a client may refuse a reply that was cut off.
        with contextlib.suppress(ModelError):
            return ask_model(bound, messages, timeout_s=timeout_s)
    return ask_model(model, messages, timeout_s=timeout_s)


def ask_with_retries(
    model: Runnable[Any, Any], messages: list[BaseMessage], *, timeout_s: float, max_attempts: int
) -> AIMessage:
    """As `ask`, and again after a pause when what failed may pass, `tries` times in all, within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    retrying = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, ModelError) and error.is_transient),
        stop=stop_after_attempt(max_attempts) | stop_before_delay(timeout_s),
        wait=wait_exponential(multiplier=_INITIAL_PAUSE_S, max=_MAX_PAUSE_S)
        + wait_random(0, _INITIAL_PAUSE_S),
        reraise=True,
    )
    return retrying(lambda: ask_model(model, messages, timeout_s=max(deadline - time.monotonic(), 0.01)))


def measure_usage(reply: AIMessage, messages: Sequence[BaseMessage]) -> Usage:
    """What a call cost; an estimate that is marked as one where the server reports nothing, or nothing believable."""
    estimate = Usage(
        prompt_tokens=_estimate_tokens(messages), completion_tokens=_estimate_tokens([reply]), estimated=True
    )
    usage = _parse_usage(reply.usage_metadata)
    if usage is None:
        return estimate
    # Only a provider counts tokens; a person or a program that takes a model's place costs none.
    if reply.response_metadata.get("model_provider") and any(
        counted is None or estimated is None or counted * _MAX_CHARS_PER_TOKEN < estimated * CHARS_PER_TOKEN
        for counted, estimated in (
            (usage.prompt_tokens, estimate.prompt_tokens),
            (usage.completion_tokens, estimate.completion_tokens),
        )
    ):
        return estimate
    return usage


def _parse_usage(reported: Any) -> Usage | None:
    """The usage that a reply reports; None if it contradicts itself or cannot be true."""
    if not isinstance(reported, Mapping):
        return None
    prompt, completion = (
        _parse_token_count(reported, "input_tokens"),
        _parse_token_count(reported, "output_tokens"),
    )
    total, details = _parse_token_count(reported, "total_tokens"), reported.get("input_token_details") or {}
    cached = _parse_token_count(details, "cache_read") if isinstance(details, Mapping) else _INVALID_COUNT
    if prompt is None or completion is None or _INVALID_COUNT in (prompt, completion, total, cached):
        return None
    if (cached or 0) > prompt or (total is not None and total < prompt + completion):
        return None
    # Tokens in neither part, such as reasoning that a server counts apart, were generated.
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion if total is None else total - prompt,
    )


def _parse_token_count(reported: Mapping[Any, Any], name: str) -> int | None:
    """A number of tokens; None if it is absent."""
    value = reported.get(name)
    if value is None or (type(value) is int and 0 <= value <= _MAX_TOKEN_COUNT):
        return value
    return _INVALID_COUNT


def _estimate_tokens(messages: Sequence[BaseMessage]) -> int:
    characters = sum(
        len(message.text) + sum(len(str(call)) for call in getattr(message, "tool_calls", []))
        for message in messages
    )
    return -(-characters // CHARS_PER_TOKEN)


def _clean_reply(reply: AIMessage, keys: Sequence[str]) -> AIMessage:
    """The reply as files, databases and endpoints can take it back, without secrets; every call has an id.

    Raises ModelError if it holds what none of them can take.
    """
    try:
        update = make_storable({name: getattr(reply, name) for name in _REPLY_FIELDS})
    except ValueError as error:
        raise ModelError(f"the endpoint's answer is malformed: {error}") from None
    length = sum(len(str(value)) for value in update.values())
    if length > _MAX_REPLY_CHARS:
        raise ReplyTooLargeError(
            f"the endpoint's reply was refused: it has {length:,} characters, and at most {_MAX_REPLY_CHARS:,} are read"
        )
    update = redact_known_secrets(update, keys)
    for call in (*update["tool_calls"], *update["invalid_tool_calls"]):
        call["id"] = call["id"] or f"call_{uuid4().hex}"
    if _parse_usage(reply.usage_metadata) is None:
        update["usage_metadata"] = None
    return reply.model_copy(update=update)


def _classify_error(error: Exception, model: Runnable[Any, Any]) -> Exception:
    """The failure behind whatever a client library raised; a bug of ours stays what it is."""
    import openai

    if isinstance(error, ModelError | ContextWindowError):
        return error
    text = _format_error_line(_extract_message(error), model)
    if isinstance(error, openai.APIStatusError):
        if error.status_code not in (401, 403, 429) and _is_overflow(f"{error.code} {error.body} {error}"):
            return ContextWindowError(text)
        passes = error.status_code in (408, 409, 429) or error.status_code >= 500
        failure = ModelError if passes and error.code != "insufficient_quota" else PermanentModelError
        return failure(f"the endpoint answered {error.status_code}: {text}")
    if isinstance(error, openai.APITimeoutError):
        return ModelError("the endpoint did not answer in time")
    if isinstance(error, openai.APIConnectionError):
        root: BaseException = error
        while root.__cause__ or root.__context__:
            root = root.__cause__ or root.__context__ or root
        what = (
            "endpoint could not be reached"
            if isinstance(root, OSError)
            else "connection to the endpoint broke"
        )
        return ModelError(f"the {what}: {_format_error_line(str(root), model)}")
    if not isinstance(error, openai.OpenAIError) and not _is_client_error(error):
        return error
    if _is_overflow(str(error)):
        return ContextWindowError(text)
    if isinstance(error, json.JSONDecodeError):
        return ModelError(f"the endpoint's answer is not JSON: {text}")
    return ModelError(f"the endpoint's answer is malformed: {text}")


def _is_overflow(text: str) -> bool:
    return _OVERFLOW_PATTERN.search(text[:_MAX_SEARCHED_CHARS]) is not None


def _is_client_error(error: Exception) -> bool:
    """Whether the error arose in the client library, which trips over replies of a wrong shape."""
    modules = set()
    trace = error.__traceback__
    while trace is not None:
        modules.add(trace.tb_frame.f_globals.get("__name__", "").split(".")[0])
        trace = trace.tb_next
    return modules - {"nodes"} - sys.stdlib_module_names <= _CLIENT_MODULES


def _extract_message(error: BaseException) -> str:
    """What an error says, without the wrapping that its library puts around it."""
    body = getattr(error, "body", None)
    if isinstance(body, dict):
        message = body.get("message") or body.get("detail") or body.get("error")
        if isinstance(message, dict):
            message = message.get("message")
        if isinstance(message, str):
            return message
    text = body if isinstance(body, str) and body.strip() else str(error)
    if re.match(r"\s*<(!doctype|html)", text, re.IGNORECASE) or "got str" in text:
        return "no JSON but text, such as a web page; does the base URL end in /v1?"
    return f"{type(error).__name__}: {text}" if isinstance(error, LookupError | TypeError) else text


def _format_error_line(text: str, model: Runnable[Any, Any]) -> str:
    keys = find_api_keys(model)
    for key in keys:
        text = text.replace(key, "[key]")
    text = redact(text, keys)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:_MAX_LINE_CHARS] if lines else "nothing more is known"


def find_api_keys(*models: Any) -> list[str]:
    """The keys that models, bound or not, are given: secrets, and headers and parameters with a secret's name."""
    found: list[str] = []
    for model in models:
        fields = {**getattr(model, "__dict__", {})}
        found += [value.get_secret_value() for value in fields.values() if isinstance(value, SecretStr)]
        for value in (fields, *fields.values()):
            found += find_secrets(value) if isinstance(value, dict) else []
        found += find_api_keys(fields["bound"]) if "bound" in fields else []
    return [secret for secret in found if secret]
