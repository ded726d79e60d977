"""What every view shares: the same instructions first, the task last, and for whom it is made."""

from __future__ import annotations

from langchain_core.messages import BaseMessage, HumanMessage
from pydantic import Field

from handoff.action import Protocol
from handoff.fence import TASK, fenced, neutral
from handoff.prompts import prompt_text
from handoff.record import HandoffRecord
from sandbox.machine import Frozen


class Recipient(Frozen):
    """What a view must know of the successor."""

    protocol: Protocol = "text"
    window_tokens: int = Field(default=128_000, ge=1000)
    """Its context window."""


ANY = Recipient()


def framed(record: HandoffRecord, earlier_work: str = "") -> list[BaseMessage]:
    """One message, with what is shown of the earlier work between the instructions and the task."""
    data = fenced(earlier_work) if earlier_work else ""
    return [HumanMessage("\n".join(part for part in (opening(), data, closing(record)) if part))]


def opening() -> str:
    """The instructions that every takeover begins with."""
    return prompt_text("takeover")


def closing(record: HandoffRecord) -> str:
    """The task as it was given."""
    return f"{TASK}\n\n{neutral(record.task.prompt)}"
