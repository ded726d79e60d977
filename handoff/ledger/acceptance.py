"""A receiver's checks before it accepts a handoff."""

from __future__ import annotations

from pydantic import Field, ValidationError

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.ledger import Ledger, handoffs
from langgraph_takeover.handoff.ledger.handoffs import Handoff
from langgraph_takeover.handoff.notes.parsing import clean_reply, find_first_object
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.records.envelope import Refusal, RefusalKind, Understanding
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError, RecordStore
from langgraph_takeover.handoff.records.verification import verify_record
from langgraph_takeover.handoff.text.fence import format_entry

_MAX_IDLE_PASSES = 4
_REQUEST_EVENTS = 2
"""The events of a request itself: an action and its answer."""


class Receiver(Frozen):
    """Who may accept a handoff."""

    name: str
    max_tokens: int | None = Field(default=None, gt=0)


def find_refusal(ledger: Ledger, store: RecordStore, handoff: Handoff, receiver: Receiver) -> Refusal | None:
    """Return why the receiver cannot accept the handoff; None if it can."""
    if handoff.target != receiver.name:
        return _refuse(
            "target",
            f"it is for {handoff.target}",
            f"this is {receiver.name}: offer it to that name, or deliver it as {handoff.target}",
        )
    if handoff.source == handoff.target:
        return _refuse(
            "self", f"{handoff.source} would hand over to itself", "name another target, or resume the thread"
        )
    try:
        record = store.load(handoff.record)
    except RecordError as error:
        return _refuse_unreadable(store, handoff.record, str(error))
    if record.digest != handoff.digest:
        return _refuse(
            "checksum", f"record {record.id} is not the record that was offered", "send the one that was offered, or offer this one"
        )  # fmt: skip
    if record.task.id != handoff.task:
        return _refuse(
            "task",
            f"the record belongs to task {record.task.id}, not {handoff.task}",
            "send the record of that task",
        )
    if record.thread_id != handoff.thread:
        return _refuse(
            "checkpoint", f"the record's checkpoint belongs to thread {record.thread_id}, not {handoff.thread}",
            "send the record that was made there",
        )  # fmt: skip
    if receiver.max_tokens is not None and handoff.envelope.needs_tokens > receiver.max_tokens:
        return _refuse(
            "budget", f"it needs {handoff.envelope.needs_tokens:,} tokens, and {receiver.name} has {receiver.max_tokens:,}",
            "ask for less, or give the target a larger budget",
        )  # fmt: skip
    if idle := _find_idle_passes(ledger, store, handoff, record):
        return _refuse(
            "cycle",
            f"it went {' -> '.join(idle)} without any action in between",
            "do something, or ask a person",
        )
    found = verify_record(store.directory(handoff.record))
    if found.problems:
        return _refuse("snapshot", found.problems[0], "take a new snapshot, and make another record")
    return None


def _refuse_unreadable(store: RecordStore, record: str, message: str) -> Refusal:
    kind: RefusalKind = "checksum"
    if "record not found" in message or "invalid record id" in message:
        kind = "no_record"
    elif "schema version" in message:
        kind = "schema"
    cure = {
        "no_record": "send it: handoff export, then handoff import",
        "schema": "make it again with this version",
        "checksum": "send it again, complete",
    }[kind]
    return _refuse(kind, message, cure)


def _find_idle_passes(
    ledger: Ledger, store: RecordStore, handoff: Handoff, record: HandoffRecord
) -> tuple[str, ...]:
    """Return the agents that passed the same state of the work around without any action."""
    passed = [handoff.target, handoff.source]
    while len(passed) <= _MAX_IDLE_PASSES:
        earlier = handoffs.find_by_successor(ledger, record.thread_id)
        if earlier is None:
            return ()
        done = len(record.trace)
        try:
            record = store.load(earlier.record)
        except RecordError:
            return ()
        if len(record.trace) + _REQUEST_EVENTS < done:
            return ()
        passed.append(earlier.source)
    return tuple(reversed(passed))


def is_confirmation_request(message: str) -> bool:
    """Whether the text of a prompt's last message asks the receiver to confirm an offered handoff.

    Example:
        >>> from langgraph_takeover.protocol import is_confirmation_request
        >>> is_confirmation_request("Make the tests pass.")
        False
    """
    return load_prompt("confirm", "nodes") in message


def parse_understanding(reply: str) -> Understanding | None:
    """Parse a reply as the runtime does: its first JSON object with the three keys; None does not accept the handoff.

    Each text becomes one line. Other text, thoughts and other keys are ignored.

    Example:
        >>> from langgraph_takeover.protocol import parse_understanding
        >>> reply = '{"goal": "All tests pass.", "next_step": "I run them.", "verify_first": "That wrap() fails."}'
        >>> parse_understanding(f"Sure.\\n{reply}").next_step
        'I run them.'
        >>> parse_understanding("I accept.") is None
        True
    """
    names = tuple(Understanding.model_fields)
    found = find_first_object(clean_reply(reply), names) or {}
    try:
        return Understanding.model_validate({name: format_entry(str(found.get(name, ""))) for name in names})
    except ValidationError:
        return None


def _refuse(kind: RefusalKind, what: str, resend: str) -> Refusal:
    return Refusal(kind=kind, what=what, resend=resend)
