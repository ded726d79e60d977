"""What every view shares: the same instructions first, the task last, and for whom it is made."""

from __future__ import annotations

from langchain_core.messages import BaseMessage, HumanMessage
from pydantic import Field

from handoff.action import Protocol
from handoff.envelope import Envelope
from handoff.fence import LETTER, TASK, entry, fenced, neutral
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
    """What the source of a handoff says beside its record, then the task as it was given."""
    said = f"{fenced(letter(record.envelope))}\n" if record.envelope else ""
    return f"{said}{TASK}\n\n{neutral(record.task.prompt)}"


def letter(envelope: Envelope) -> str:
    """What an agent, or a person, tells the one that takes the work: its words, and so data."""
    lists = {
        "Findings": envelope.findings,
        "Uncertain": envelope.uncertainties,
        "Recommended next": envelope.recommendations,
    }
    sure = "" if envelope.confidence is None else f"{envelope.confidence:.0%}"
    lines = {
        "From": envelope.source,
        "To": envelope.target,
        "Status": envelope.status.replace("_", " "),
        "Message": envelope.message,
        "Outcome so far": envelope.outcome,
        "The user": envelope.user_context,
        "Confidence": sure,
    }
    told = [f"- {name}: {entry(said)}" for name, said in lines.items() if said]
    listed = [f"- {name}: {'; '.join(map(entry, each))}" for name, each in lists.items() if each]
    return "\n".join([LETTER, "", *told, *listed])
