"""Notes on a record, written by a chat model."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from langgraph_takeover.handoff.notes.writer import AskModel, PromptTooLongError, write_notes
from langgraph_takeover.handoff.records.record import HandoffRecord, Notes
from langgraph_takeover.handoff.trace.events import Usage
from langgraph_takeover.nodes.model.calls import ask_with_schema
from langgraph_takeover.nodes.model.errors import ContextWindowError, ModelError
from langgraph_takeover.nodes.model.usage import measure_usage


def build_ask(model: BaseChatModel, *, timeout_s: float) -> AskModel:
    """Return the function by which `write_notes` calls the model."""

    def ask(messages: list[BaseMessage], schema: dict[str, Any] | None) -> tuple[str, Usage]:
        try:
            reply = ask_with_schema(model, messages, schema, timeout_s=timeout_s)
        except ContextWindowError as error:
            raise PromptTooLongError(str(error)) from error
        return reply.text, measure_usage(reply, messages)

    return ask


def write_model_notes(
    record: HandoffRecord, model: BaseChatModel, model_name: str, *, timeout_s: float
) -> Notes | None:
    """Return the notes that a model writes on a record; None if the model fails."""
    try:
        return write_notes(record, build_ask(model, timeout_s=timeout_s), model_name)
    except ModelError:
        return None
