"""The ledger: who may write to a thread, its effects, its saved sandbox states, and handoffs.

`store` opens it; `leases` admit one writer at a time; `effects` record what started and ended; `snapshots` name the
sandbox states that can be restored; `handoffs` hold each handoff's state.
"""

from __future__ import annotations

from langgraph_takeover.base.takeover_error import LedgerUnavailableError
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
