"""The events of agents in users' graphs: a checkpoint carries the id of the last part, and each part names the one before."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from sqlalchemy import insert, select, text

from langgraph_takeover.base.takeover_error import LedgerUnavailableError
from langgraph_takeover.handoff.ledger.database import repeat_after_loss
from langgraph_takeover.handoff.ledger.effects import add_checksum, verify_text
from langgraph_takeover.handoff.ledger.store import Ledger, traces

_LOAD = text("""
    WITH RECURSIVE chain (id, parent, body, place) AS (
        SELECT id, parent, body, 0 FROM takeover_traces WHERE thread = :thread AND id = :id
        UNION ALL
        SELECT t.id, t.parent, t.body, chain.place + 1
        FROM chain JOIN takeover_traces t ON t.thread = :thread AND t.id = chain.parent
    )
    SELECT parent, body FROM chain ORDER BY place DESC
""")
_COPY = text("""
    INSERT INTO takeover_traces (thread, id, parent, body)
    SELECT CAST(:target AS TEXT), id, parent, body FROM takeover_traces WHERE thread = :source
    ON CONFLICT DO NOTHING
""")


class TracePart(NamedTuple):
    """Events and the editor's changes, as JSON."""

    events: list[dict[str, Any]]
    edits: list[dict[str, Any]]


@repeat_after_loss(idempotent=True)
def append(ledger: Ledger, thread: str, part: TracePart, *, after: str) -> str:
    """Store what follows a part, or begins with an empty `after`; return its id, which is equal if it is repeated."""
    body = json.dumps(part._asdict(), ensure_ascii=True)
    part_id = hashlib.sha256(f"{after} {body}".encode()).hexdigest()[:32]
    found = select(traces.c.id).where(traces.c.thread == thread, traces.c.id == part_id)
    with ledger.write_transaction() as connection:
        if connection.execute(found).first() is None:
            row = {"thread": thread, "id": part_id, "parent": after, "body": add_checksum(body)}
            connection.execute(insert(traces).values(row))
    return part_id


@repeat_after_loss(idempotent=True)
def load(ledger: Ledger, thread: str, part_id: str) -> TracePart:
    """Return a part with all before it. Raises LedgerUnavailableError if one is damaged or missing."""
    with ledger.read_transaction() as connection:
        rows = connection.execute(_LOAD, {"thread": thread, "id": part_id}).all()
    if not rows or rows[0].parent:
        raise LedgerUnavailableError(
            f"{ledger.name}: events of thread {thread!r:.60} are missing (copy threads with fork_thread, or restore the "
            "database from a copy)"
        )
    whole = TracePart([], [])
    for row in rows:
        part = json.loads(verify_text(ledger, f"a part of the events of thread {thread!r:.60}", row.body))
        whole.events.extend(part["events"])
        whole.edits.extend(part["edits"])
    return whole


@repeat_after_loss(idempotent=True)
def copy(ledger: Ledger, source: str, target: str) -> None:
    """Give a thread the events of another under the same ids."""
    with ledger.write_transaction() as connection:
        connection.execute(_COPY, {"source": source, "target": target})
