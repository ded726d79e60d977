"""What every view shares: the same instructions first, the task last, and for whom it is made."""

from __future__ import annotations

from langchain_core.messages import BaseMessage, HumanMessage
from pydantic import Field

from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.records.envelope import Envelope
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.fence import ENVELOPE, TASK, format_entry, neutralize, wrap_in_fence
from langgraph_takeover.handoff.trace.action import ActionProtocol
from langgraph_takeover.sandbox.interface import Frozen


class Recipient(Frozen):
    """What a view must know of the successor."""

    protocol: ActionProtocol = "text"
    window_tokens: int = Field(default=128_000, ge=1000)
    """Its context window."""


DEFAULT_RECIPIENT = Recipient()


def build_message(record: HandoffRecord, earlier_work: str = "") -> list[BaseMessage]:
    """One message, with what is shown of the earlier work between the instructions and the task."""
    data = wrap_in_fence(earlier_work) if earlier_work else ""
    return [
        HumanMessage("\n".join(part for part in (load_instructions(), data, render_task(record)) if part))
    ]


def load_instructions() -> str:
    """The instructions that every takeover begins with."""
    return load_prompt("takeover")


def render_task(record: HandoffRecord) -> str:
    """What the source of a handoff says beside its record, then the task as it was given."""
    said = f"{wrap_in_fence(render_envelope(record.envelope))}\n" if record.envelope else ""
    return f"{said}{TASK}\n\n{neutralize(record.task.prompt)}"


def render_envelope(envelope: Envelope) -> str:
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
    told = [f"- {name}: {format_entry(said)}" for name, said in lines.items() if said]
    listed = [f"- {name}: {'; '.join(map(format_entry, each))}" for name, each in lists.items() if each]
    return "\n".join([ENVELOPE, "", *told, *listed])
