"""The view that is a delegation: results to start with, in the successor's own history."""

from __future__ import annotations

from langchain_core.messages import BaseMessage, HumanMessage

from handoff.conversation import Step, as_messages, joined, steps
from handoff.fence import entry, fenced, neutral, ticked
from handoff.payload import Payload, payload_of
from handoff.prompts import prompt_text
from handoff.record import HandoffRecord
from handoff.views.frame import ANY, Recipient, closing, opening

_STALE = "\n[stale: files have changed since this was run]"


def payload(record: HandoffRecord, recipient: Recipient = ANY) -> list[BaseMessage]:
    """Files read and commands run as tool results that need no second run, then what not to try again."""
    given = payload_of(record, recipient.window_tokens)
    said = {each.event: _STALE if each.stale else "" for each in (*given.probe_results, *given.ran_commands)}
    said |= {file.event: "" for file in given.read_files if not file.stale}
    taken = [
        Step(action, seen.model_copy(update={"text": seen.text + said[seen.index]}))
        for action, seen in steps(record.trace)
        if seen is not None and seen.index in said
    ]
    return joined(
        [
            HumanMessage(f"{opening()}\n{prompt_text('payload')}"),
            *as_messages(taken, recipient.protocol, thoughts=False),
            HumanMessage(f"{fenced(_told(given))}\n{closing(record)}"),
        ]
    )


def _told(given: Payload) -> str:
    stale = [f"- {_bounded(entry(file.path))}" for file in given.read_files if file.stale]
    dead = [
        f"- {ticked(_bounded(' '.join(neutral(end.what).split())))}: {entry(end.why)}"
        for end in given.dead_ends
    ]
    return (
        "Files that were read and have changed since, so that what was seen of them is stale:\n"
        + ("\n".join(stale) or "none")
        + "\n\nDead ends, not to be tried again as they stand:\n"
        + ("\n".join(dead) or "none")
    )


def _bounded(line: str) -> str:
    return line if len(line) <= 300 else f"{line[:300]}…"
