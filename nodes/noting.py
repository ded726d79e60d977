"""How a chat model is asked for notes on a record."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from handoff.event import Usage
from handoff.notes.writing import Ask, TooLong, write_notes
from handoff.record import HandoffRecord, Notes
from nodes.replies import ContextOverflow, ModelFailed, ask_in_schema, usage_of


def asker(model: BaseChatModel, *, timeout_s: float) -> Ask:
    """What `write_notes` asks by."""

    def asked(messages: list[BaseMessage], schema: dict[str, Any] | None) -> tuple[str, Usage]:
        try:
            reply = ask_in_schema(model, messages, schema, timeout_s=timeout_s)
        except ContextOverflow as error:
            raise TooLong(str(error)) from error
        return reply.text, usage_of(reply, messages)

    return asked


def notes_on(record: HandoffRecord, model: BaseChatModel, name: str, *, timeout_s: float) -> Notes | None:
    """What a model writes about a record; None where it fails, which leaves its fields unknown."""
    try:
        return write_notes(record, asker(model, timeout_s=timeout_s), name)
    except ModelFailed:
        return None
