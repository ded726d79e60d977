"""The database of who may act on a thread, what was done there, which machines are kept, and what is handed over.

`store` opens it, `leases` let one writer at a time in, `effects` tell what was begun and ended,
`machines` name the states of machines that can be entered again, `handoffs` say how far each handoff has come.
"""

from __future__ import annotations

from langgraph_takeover.handoff.ledger.database import LedgerUnavailableError
from langgraph_takeover.handoff.ledger.leases import (
    FencedError,
    HandedOverError,
    Lease,
    ThreadHeldError,
    ThreadNameError,
    acquire,
)
from langgraph_takeover.handoff.ledger.store import Ledger

__all__ = [
    "FencedError",
    "HandedOverError",
    "Lease",
    "Ledger",
    "LedgerUnavailableError",
    "ThreadHeldError",
    "ThreadNameError",
    "acquire",
]
