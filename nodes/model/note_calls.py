"""Notes on a record, written by a chat model."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from langgraph_takeover.handoff.notes.writer import AskModel, PromptTooLongError, write_notes
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordStore
from langgraph_takeover.handoff.trace.events import Usage
from langgraph_takeover.nodes.model.calls import CallCount, OnWait, ask_with_schema
from langgraph_takeover.nodes.model.deadlines import Cancellation
from langgraph_takeover.nodes.model.message_content import describe_empty_reply, is_truncated
from langgraph_takeover.nodes.model.model_errors import ContextWindowError, ModelError
from langgraph_takeover.nodes.model.usage import count_uncounted_calls, estimate_tokens, measure_usage

MODEL_TIMEOUT_S = 600.0


class NotesCall(NamedTuple):
    """One call of the model that writes notes."""

    note: Literal["summary", "structured"]
    usage: Usage
    uncounted_calls: int
    """Requests whose tokens are unknown: this one, and refused or failed attempts before it."""
    empty_reply: str
    """What a reply without text had instead; empty for any other reply."""
    is_truncated: bool
    """Whether the reply ended at its length limit."""


def build_ask(
    model: BaseChatModel,
    *,
    timeout_s: float,
    window_tokens: int | None = None,
    begin_call: Callable[[], CallCount] = CallCount,
    on_call: Callable[[NotesCall], None] = lambda call: None,
    cancellation: Cancellation | None = None,
    on_wait: OnWait | None = None,
    max_wait_s: float = math.inf,
) -> AskModel:
    """Return the function by which `write_notes` calls the model.

    A prompt that exceeds the known window is not sent. `begin_call` makes the counter of a call's requests, and `on_call`
    learns of every call.
    """

    def ask(messages: list[BaseMessage], schema: dict[str, Any] | None) -> tuple[str, Usage]:
        if window_tokens is not None and estimate_tokens(messages) >= window_tokens:
            raise PromptTooLongError(f"the prompt exceeds the window of {window_tokens:,} tokens")
        try:
            reply = ask_with_schema(
                model,
                messages,
                schema,
                timeout_s=timeout_s,
                count=begin_call(),
                cancellation=cancellation,
                on_wait=on_wait,
                max_wait_s=max_wait_s,
            )
        except ContextWindowError as error:
            raise PromptTooLongError(str(error)) from error
        usage = measure_usage(reply, messages)
        uncounted = count_uncounted_calls(reply, usage)
        note: Literal["summary", "structured"] = "summary" if schema is None else "structured"
        on_call(NotesCall(note, usage, uncounted, describe_empty_reply(reply), is_truncated(reply)))
        # A sum without the earlier attempts would be a part.
        return reply.text, usage.model_copy(update={"estimated": uncounted > 0})

    return ask


def complete_notes(
    record: HandoffRecord,
    model: BaseChatModel,
    model_name: str,
    *,
    records: RecordStore | None,
    guard: Callable[[], AbstractContextManager[None]] = nullcontext,
    timeout_s: float,
    cancellation: Cancellation | None = None,
    on_wait: OnWait | None = None,
    max_wait_s: float = math.inf,
) -> HandoffRecord:
    """Return a record with notes that a model writes, unless it has some or the model fails.

    They are saved in `records` inside `guard()`; those that another process saved first are returned.
    """
    if record.notes is not None:
        return record
    ask = build_ask(
        model, timeout_s=timeout_s, cancellation=cancellation, on_wait=on_wait, max_wait_s=max_wait_s
    )
    try:
        notes = write_notes(record, ask, model_name)
    except ModelError:
        return record
    if records is not None:
        with guard():
            records.add_notes(record.id, notes)
            notes = records.load_notes(record.id) or notes
    return record.model_copy(update={"notes": notes})
