"""How a chat model is asked, and how its failures are told apart."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Overdue
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable

from handoff.event import Usage


class ModelFailed(Exception):
    """The model or its endpoint failed; nothing that the agent did, and never graded."""


class ContextOverflow(Exception):
    """The conversation no longer fits into the model's context window."""


def ask(model: Runnable[Any, Any], messages: list[BaseMessage], *, timeout_s: float) -> AIMessage:
    """The model's reply, whole. Raises ModelFailed or ContextOverflow, each with one clear line.

    `timeout_s` bounds the whole call, because an endpoint that sends a byte now and then never
    exceeds a client's own limit.
    """
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        reply = pool.submit(model.invoke, messages).result(timeout_s)
    except Overdue as error:
        raise ModelFailed(f"no whole reply within {timeout_s:.0f} s") from error
    except (ModelFailed, ContextOverflow):
        raise
    except Exception as error:
        raise _told_apart(error) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if not isinstance(reply, AIMessage):
        raise ModelFailed(f"the endpoint sent a {type(reply).__name__} where a reply was due")
    if "finish_reason" in reply.response_metadata and not reply.response_metadata["finish_reason"]:
        raise ModelFailed("the reply was cut off: it ended without a finish reason")
    return reply


def usage_of(reply: AIMessage) -> Usage:
    counted = reply.usage_metadata
    if counted is None:
        return Usage()
    return Usage(
        prompt_tokens=counted["input_tokens"],
        cached_tokens=counted.get("input_token_details", {}).get("cache_read"),
        completion_tokens=counted["output_tokens"],
    )


def _told_apart(error: Exception) -> Exception:
    """The failure behind whatever a client library raised; a bug of ours stays what it is."""
    import openai

    text = _first_line(error)
    if isinstance(error, openai.APIStatusError):
        if getattr(error, "code", None) == "context_length_exceeded" or _speaks_of_context(text):
            return ContextOverflow(text)
        return ModelFailed(f"the endpoint answered {error.status_code}: {text}")
    if isinstance(error, openai.APITimeoutError):
        return ModelFailed("the endpoint did not answer in time")
    if isinstance(error, openai.APIConnectionError):
        return ModelFailed(f"the endpoint could not be reached: {_first_line(error.__cause__ or error)}")
    if isinstance(error, openai.OpenAIError):
        return ContextOverflow(text) if _speaks_of_context(text) else ModelFailed(text)
    if isinstance(error, json.JSONDecodeError):
        return ModelFailed(f"the endpoint's answer is not JSON: {text}")
    if _comes_from_client(error):
        return ModelFailed(f"the endpoint's answer is malformed ({type(error).__name__}: {text})")
    return error


def _comes_from_client(error: Exception) -> bool:
    """Whether the error arose in the client library, which trips over replies of a wrong shape."""
    trace = error.__traceback__
    module = ""
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        trace = trace.tb_next
    return module.split(".")[0] in (
        "langchain_openai",
        "openai",
        "langchain_core",
        "pydantic",
        "httpx",
        "httpcore",
    )


def _speaks_of_context(text: str) -> bool:
    lower = text.lower()
    return any(
        sign in lower
        for sign in ("maximum context length", "context_length_exceeded", "context size", "context window")
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
