"""Errors of model calls, and how failures of client libraries are classified."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.nodes.model.refusals import (
    find_window,
    format_wait,
    is_output_refused,
    is_overflow,
    list_texts,
    read_wait,
)

_CLIENT_MODULES = {
    "langchain_openai", "openai", "langchain_core", "pydantic", "pydantic_core", "httpx", "httpx2", "httpcore",
    "httpcore2",
}  # fmt: skip
_TRANSPORT_MODULES = {"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "aiohttp"}
_OWN_MODULES = "langgraph_takeover.nodes."
_CLIENT_MARK = "EXTENDS_CLIENT_LIBRARY"
"""A module with this name set only extends a client library, as its own modules do."""
_LASTING = re.compile(
    r"insufficient_(?:quota|balance)|exceeded_current_quota|billing_(?:hard_limit|not_active)"
    r"|request too large for .{1,200}tokens per min",
    re.IGNORECASE,
)
"""A lack of credit, or one request above the limit of a minute: no wait ends it, although its status says so."""
_MAX_SEARCHED_CHARS = 10_000
"""Characters of an error that are searched for lasting refusals."""
_STATUS_BY_CODE = {
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "invalid_prompt": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "too_many_requests": 429,
    "insufficient_quota": 429,
    "overloaded_error": 529,
}
"""HTTP status that stands for an error inside a reply; any other error is the server's own and may be transient."""
_MAX_LINE_CHARS = 300
_LOWER_OUTPUT = " (change the model's maximum reply: max_output_tokens of its entry, or --max-reply-tokens)"


class ModelError(TakeoverError, RuntimeError):
    """The model or its endpoint failed. The agent is not at fault, and the run is never graded."""

    exit_code = 3
    is_transient = True
    """Whether a retry may succeed."""
    status: int | None = None
    """HTTP status of the endpoint's answer; None if it sent none."""
    retry_after_s: float | None = None
    """Seconds that the endpoint asks to wait before the next request; None if it names no usable time."""


class PermanentModelError(ModelError):
    """Every retry will fail the same way: unknown model, wrong key, no credit left."""

    is_transient = False


class WaitTooLongError(ModelError):
    """The endpoint asks for a longer wait than the call's time allows."""

    is_transient = False

    def __init__(self, refusal: ModelError, remaining_s: float) -> None:
        super().__init__(
            f"{refusal}; it asks to wait {format_wait(refusal.retry_after_s or 0.0)}, but the call has "
            f"{format_wait(max(remaining_s, 0.0))} left (resume later, or raise model_timeout_s or max_seconds)"
        )
        self.status, self.retry_after_s = refusal.status, refusal.retry_after_s


class ReplyTimeoutError(ModelError, TimeoutError):
    """The model did not reply within its time limit."""

    is_transient = False


class ReplyTooLargeError(ModelError, ValueError):
    """The reply exceeds a size limit."""

    is_transient = False


class ContextWindowError(TakeoverError, ValueError):
    """The conversation no longer fits into the model's context window."""

    window_tokens: int | None = None
    """The window that the endpoint states; None if it states none."""


def classify_error(error: Exception, keys: Sequence[str]) -> Exception:
    """Return the model error behind an exception of a client library, without API keys.

    An exception that did not arise in a client library is a bug and is returned unchanged.
    """
    if isinstance(error, ModelError | ContextWindowError):
        return error
    text = format_error_line(_extract_message(error), keys)
    if (found := _classify_http_error(error, text, keys)) is not None:
        return found
    if not _is_instance(error, "OpenAIError") and not _is_client_error(error):
        return error
    if is_overflow(400, None, str(error)):
        return make_overflow_error(text, str(error))
    if isinstance(error, json.JSONDecodeError):
        return ModelError(f"the endpoint's answer is not JSON: {text}")
    return ModelError(f"the endpoint's answer is malformed: {text}")


def _classify_http_error(error: Any, text: str, keys: Sequence[str]) -> Exception | None:
    """Return the model error behind an answer or a connection that failed in any client; None for other errors."""
    for each in _list_causes(error):
        status, headers = _read_answer(getattr(each, "response", None))
        if status is not None:
            code = getattr(each, "code", None)
            return classify_status(status, code, _describe(each), text, headers)
    if _is_instance(error, "APITimeoutError"):
        return ModelError("the endpoint did not answer in time")
    if _is_instance(error, "APIConnectionError") or _is_transport_error(error):
        return _classify_connection_error(error, keys)
    if _is_instance(error, "APIError") and error.body is not None:
        return classify_code(error.code or error.type, _describe(error), text)
    return None


def _describe(error: Any) -> str:
    """Return all that an endpoint sent: the texts of the body where the client has it, else of the error."""
    body = getattr(error, "body", None)
    return list_texts(body) if isinstance(body, dict | list) else f"{body or ''} {error}"


def _is_instance(error: Exception, name: str) -> bool:
    """Whether the error is of that class of OpenAI's client, which raised nothing if the process has not imported it."""
    client = sys.modules.get("openai")
    return client is not None and isinstance(error, getattr(client, name))


def classify_status(
    status: int, code: str | None, details: str, message: str, headers: Mapping[str, str] | None = None
) -> ModelError | ContextWindowError:
    """Return the error behind an HTTP status.

    Args:
        details: all texts that the endpoint sent, searched for an overflow of the context window.
        message: the line to show, without API keys.
        headers: the answer's headers, with names in any case if they are HTTPX's, else in lower case.
    """
    if is_overflow(status, code, details):
        return make_overflow_error(message, details)
    is_transient = status in (408, 409, 429) or status >= 500
    lasts = _LASTING.search(f"{code} {details}"[:_MAX_SEARCHED_CHARS])
    error_class = PermanentModelError if lasts or not is_transient else ModelError
    cure = _LOWER_OUTPUT if status < 500 and is_output_refused(details) else ""
    error = error_class(f"the endpoint answered {status}: {message}{cure}")
    error.status = status
    if error.is_transient:
        error.retry_after_s = read_wait(status, headers or {}, f"{message} {details}")
    return error


def make_overflow_error(message: str, details: str) -> ContextWindowError:
    """Return the error with the window that the endpoint states in the details."""
    error = ContextWindowError(message)
    error.window_tokens = find_window(details)
    return error


def classify_code(code: Any, details: str, message: str) -> ModelError | ContextWindowError:
    """Return the error that an endpoint sent within a reply; `code` is its name, its type or an HTTP status."""
    name = str(code or "")
    number = int(name) if re.fullmatch("[45][0-9]{2}", name) else 500
    return classify_status(_STATUS_BY_CODE.get(name, number), name, details, message)


def format_error_line(text: str, keys: Sequence[str]) -> str:
    """Return the first line of a text, shortened and without keys."""
    for key in keys:
        text = text.replace(key, "[key]")
    lines = [line.strip() for line in redact(text, keys).splitlines() if line.strip()]
    return lines[0][:_MAX_LINE_CHARS] if lines else "no details"


def _classify_connection_error(error: BaseException, keys: Sequence[str]) -> ModelError:
    root = error
    while cause := root.__cause__ or root.__context__:
        root = cause
    problem = (
        "endpoint could not be reached" if isinstance(root, OSError) else "connection to the endpoint broke"
    )
    return ModelError(f"the {problem}: {format_error_line(str(root), keys)}")


def _is_transport_error(error: BaseException) -> bool:
    """Whether a library for HTTP failed, in whatever client."""
    return any(type(each).__module__.split(".")[0] in _TRANSPORT_MODULES for each in _list_causes(error))


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its explicit causes, without errors that were being handled."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__


def _read_answer(response: Any) -> tuple[int | None, Mapping[str, str]]:
    """Return status and headers of an error's HTTP answer, as clients of HTTPX, requests and botocore have it."""
    if isinstance(response, dict):
        metadata = response.get("ResponseMetadata") or {}
        status, headers = metadata.get("HTTPStatusCode"), metadata.get("HTTPHeaders")
    else:
        status, headers = getattr(response, "status_code", None), getattr(response, "headers", None)
    is_refusal = isinstance(status, int) and status >= 300
    return (status if is_refusal else None), (headers if isinstance(headers, Mapping) else {})


def _is_client_error(error: Exception) -> bool:
    """Whether only client libraries were on the stack: they fail on replies of an unexpected shape."""
    packages = set()
    frames = error.__traceback__
    while frames is not None:
        names = frames.tb_frame.f_globals
        module = names.get("__name__", "")
        if not module.startswith(_OWN_MODULES) and _CLIENT_MARK not in names:
            packages.add(module.split(".")[0])
        frames = frames.tb_next
    return packages - sys.stdlib_module_names <= _CLIENT_MODULES


def _extract_message(error: BaseException) -> str:
    """Return the message of an error without the text that its library adds."""
    body = getattr(error, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], dict):
        body = body[0].get("error") or body[0]
    if isinstance(body, dict):
        message = body.get("message") or body.get("detail") or body.get("error")
        if isinstance(message, dict):
            message = message.get("message") or message.get("detail")
        if isinstance(message, list):
            message = "; ".join(_describe_problem(each) for each in message[:3])
        if isinstance(message, str):
            return message
    text = body if isinstance(body, str) and body.strip() else str(error)
    if re.match(r"\s*<(!doctype|html)", text, re.IGNORECASE) or "got str" in text:
        return "the answer is text, not JSON, such as a web page; does the base URL end in /v1?"
    return f"{type(error).__name__}: {text}" if isinstance(error, LookupError | TypeError) else text


def _describe_problem(problem: Any) -> str:
    """Return where a request is wrong, and why, as FastAPI and Mistral list it."""
    if not isinstance(problem, dict):
        return str(problem)
    place = problem.get("loc")
    path = ".".join(str(each) for each in place[:20]) if isinstance(place, list) else str(place or "")
    return ": ".join(filter(None, (path, str(problem.get("msg") or ""))))
