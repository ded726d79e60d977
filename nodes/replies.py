"""How a chat model is asked, and how its failures are told apart."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Sequence
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

from handoff.event import Usage
from handoff.redaction import redacted, without_known
from nodes.deadline import Overdue, within
from nodes.encodable import encodable

_CLIENT = {
    "langchain_openai", "openai", "langchain_core", "pydantic", "pydantic_core", "httpx", "httpx2", "httpcore",
    "httpcore2",
}  # fmt: skip
_OF_CONTEXT = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context|maximum model length|context (size|window|length)"
    r"|prompt is too long|input token count.* exceeds|\binputs\W+tokens.*max_new_tokens",
    re.IGNORECASE,
)
_SAID = ("content", "additional_kwargs", "response_metadata", "tool_calls", "invalid_tool_calls")
_LONGEST_LINE = 300
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
CHARS_A_TOKEN = 4
"""The estimate where nobody counts tokens; whatever rests on it says so."""


class ModelFailed(Exception):
    """The model or its endpoint failed; nothing that the agent did, and never graded."""

    passes = True
    """Whether it may go better when it is asked again."""


class ModelRefuses(ModelFailed):
    """The endpoint will answer the same however often it is asked: no such model, a wrong key, no money left."""

    passes = False


class ReplyOverdue(ModelFailed, TimeoutError):
    """The model had not replied when its time was over."""

    passes = False


class ContextOverflow(Exception):
    """The conversation no longer fits into the model's context window."""


def ask(model: Runnable[Any, Any], messages: list[BaseMessage], *, timeout_s: float) -> AIMessage:
    """The model's reply, whole, but without known secrets. Raises ModelFailed or ContextOverflow, each with one clear line.

    `timeout_s` bounds the whole call, because an endpoint that sends a byte now and then never
    exceeds a client's own limit.
    """
    try:
        reply = within(timeout_s, lambda: model.invoke(messages))
    except Overdue:
        raise ReplyOverdue(f"no whole reply within {timeout_s:.0f} s") from None
    except Exception as error:
        failure = _told_apart(error, model)
        if failure is error:
            raise
        # The cause would show what the line leaves out: whole answers, and keys in them.
        raise failure from None
    if not isinstance(reply, AIMessage):
        raise ModelFailed(f"the endpoint sent a {type(reply).__name__} where a reply was due")
    if not _has_ended(reply.response_metadata):
        raise ModelFailed("the reply was cut off: it ended without a finish reason")
    return _tidied(reply, keys_of(model))


def _has_ended(told: dict[str, Any]) -> bool:
    """Whether a server that tells why a reply ended has told it; many a provider's client has no word for it."""
    if "finish_reason" in told:
        return bool(told["finish_reason"])
    # OpenAI's leaves the reason of a stream that was cut out; its other protocol tells a status instead.
    return told.get("model_provider") != "openai" or "status" in told


def ask_in_schema(
    model: BaseChatModel, messages: list[BaseMessage], schema: dict[str, Any] | None, *, timeout_s: float
) -> AIMessage:
    """As `ask`; held to a JSON schema where one is given and the endpoint can hold a reply to one."""
    if schema is not None and model.get_lc_namespace()[-1:] == ["openai"]:
        held = {"name": schema["title"], "strict": True, "schema": schema}
        bound = model.bind(response_format={"type": "json_schema", "json_schema": held})
        # An endpoint that knows no schemas refuses the call, and a client may refuse a reply that was cut off.
        with contextlib.suppress(ModelFailed):
            return ask(bound, messages, timeout_s=timeout_s)
    return ask(model, messages, timeout_s=timeout_s)


def ask_patiently(
    model: Runnable[Any, Any], messages: list[BaseMessage], *, timeout_s: float, tries: int
) -> AIMessage:
    """As `ask`, and again after a pause when what failed may pass, `tries` times in all, within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    retrying = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, ModelFailed) and error.passes),
        stop=stop_after_attempt(tries) | stop_before_delay(timeout_s),
        wait=wait_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S)
        + wait_random(0, _FIRST_PAUSE_S),
        reraise=True,
    )
    return retrying(lambda: ask(model, messages, timeout_s=max(deadline - time.monotonic(), 0.01)))


def usage_of(reply: AIMessage, asked: Sequence[BaseMessage]) -> Usage:
    """What a call cost; where the server does not say, an estimate that is marked as one."""
    counted = reply.usage_metadata
    if counted is None:
        return Usage(prompt_tokens=_estimate(asked), completion_tokens=_estimate([reply]), estimated=True)
    return Usage(
        prompt_tokens=counted["input_tokens"],
        cached_tokens=counted.get("input_token_details", {}).get("cache_read"),
        completion_tokens=counted["output_tokens"],
    )


def _estimate(messages: Sequence[BaseMessage]) -> int:
    characters = sum(
        len(message.text) + sum(len(str(call)) for call in getattr(message, "tool_calls", []))
        for message in messages
    )
    return -(-characters // CHARS_A_TOKEN)


def _tidied(reply: AIMessage, keys: Sequence[str]) -> AIMessage:
    """The reply as files and endpoints can take it back: no lone surrogates, no secret, and every call has an id."""
    update = without_known({name: encodable(getattr(reply, name)) for name in _SAID}, keys)
    for call in (*update["tool_calls"], *update["invalid_tool_calls"]):
        call["id"] = call["id"] or f"call_{uuid4().hex}"
    return reply.model_copy(update=update)


def _told_apart(error: Exception, model: Runnable[Any, Any]) -> Exception:
    """The failure behind whatever a client library raised; a bug of ours stays what it is."""
    import openai

    if isinstance(error, ModelFailed | ContextOverflow):
        return error
    text = _line(_said(error), model)
    if isinstance(error, openai.APIStatusError):
        if error.status_code not in (401, 403, 429) and _OF_CONTEXT.search(
            f"{error.code} {error.body} {error}"
        ):
            return ContextOverflow(text)
        passes = error.status_code in (408, 409, 429) or error.status_code >= 500
        failure = ModelFailed if passes and error.code != "insufficient_quota" else ModelRefuses
        return failure(f"the endpoint answered {error.status_code}: {text}")
    if isinstance(error, openai.APITimeoutError):
        return ModelFailed("the endpoint did not answer in time")
    if isinstance(error, openai.APIConnectionError):
        root: BaseException = error
        while root.__cause__ or root.__context__:
            root = root.__cause__ or root.__context__ or root
        what = (
            "endpoint could not be reached"
            if isinstance(root, OSError)
            else "connection to the endpoint broke"
        )
        return ModelFailed(f"the {what}: {_line(str(root), model)}")
    if not isinstance(error, openai.OpenAIError) and not _comes_from_client(error):
        return error
    if _OF_CONTEXT.search(str(error)):
        return ContextOverflow(text)
    if isinstance(error, json.JSONDecodeError):
        return ModelFailed(f"the endpoint's answer is not JSON: {text}")
    return ModelFailed(f"the endpoint's answer is malformed: {text}")


def _comes_from_client(error: Exception) -> bool:
    """Whether the error arose in the client library, which trips over replies of a wrong shape."""
    modules = set()
    trace = error.__traceback__
    while trace is not None:
        modules.add(trace.tb_frame.f_globals.get("__name__", "").split(".")[0])
        trace = trace.tb_next
    return modules - {"nodes"} - sys.stdlib_module_names <= _CLIENT


def _said(error: BaseException) -> str:
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


def _line(text: str, model: Runnable[Any, Any]) -> str:
    for key in keys_of(model):
        text = text.replace(key, "[key]")
    text = redacted(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:_LONGEST_LINE] if lines else "nothing more is known"


def keys_of(*models: Any) -> list[str]:
    """The keys that models, bound or not, are given, whatever their names."""
    found = []
    for model in models:
        fields = {**getattr(model, "__dict__", {})}
        found += [value.get_secret_value() for value in fields.values() if isinstance(value, SecretStr)]
        found += keys_of(fields["bound"]) if "bound" in fields else []
    return [secret for secret in found if secret]
