"""Stop the run on a thread from any process that can open its database."""

from __future__ import annotations

from typing import Literal

from sqlalchemy import text

from langgraph_takeover.base.values import TakeoverError
from langgraph_takeover.handoff.ledger.database import repeat_after_loss
from langgraph_takeover.handoff.ledger.store import Ledger
from langgraph_takeover.sandbox.ownership import process_state

StopMode = Literal["step", "now"]
"""After the current step, or at once: the running command and the model call in flight are ended and repeated later."""
_SELECT_LEASE = text("SELECT token, process, expires_at FROM takeover_leases WHERE thread = :thread")
_SELECT_STOP = text("SELECT token, mode FROM takeover_stops WHERE thread = :thread")
# A request to stop at once is never weakened.
_UPSERT_STOP = text(
    "INSERT INTO takeover_stops (thread, token, mode) VALUES (:thread, :token, :mode) ON CONFLICT (thread) DO UPDATE "
    "SET mode = CASE WHEN takeover_stops.token = excluded.token AND takeover_stops.mode = 'now' THEN 'now' "
    "ELSE excluded.mode END, token = excluded.token"
)


class RunStoppedError(TakeoverError):
    """A stop of the run was requested; `resume` continues from its last step."""


@repeat_after_loss(idempotent=True)
def request_stop(ledger: Ledger, thread: str, mode: StopMode) -> bool:
    """Ask the holder of a thread to stop; False if no process holds it. The request ends with the holder's lease."""
    with ledger.write_transaction() as connection:
        row = connection.execute(_SELECT_LEASE, {"thread": thread}).first()
        if row is None or row.expires_at <= ledger.now(connection) or process_state(row.process) == "dead":
            return False
        connection.execute(_UPSERT_STOP, {"thread": thread, "token": row.token, "mode": mode})
    return True


@repeat_after_loss(idempotent=True)
def read_stop(ledger: Ledger, thread: str, token: int | None = None) -> StopMode | None:
    """Return the stop that was requested from the holder of a lease (default: the present one), if any."""
    with ledger.read_transaction() as connection:
        stop = connection.execute(_SELECT_STOP, {"thread": thread}).first()
        if stop is not None and token is None:
            token = connection.execute(_SELECT_LEASE, {"thread": thread}).one().token
    if stop is None or stop.token != token:
        return None
    return "now" if stop.mode == "now" else "step"
