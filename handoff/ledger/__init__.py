"""The database of who may act on a thread, what was done there, and which machines are kept.

`store` opens it, `leases` let one writer at a time in, `effects` tell what was begun and ended,
`machines` name the states of machines that can be entered again.
"""

from __future__ import annotations

from handoff.ledger.leases import BadThread, Fenced, Lease, ThreadHeld, acquire
from handoff.ledger.store import Ledger, LedgerUnusable

__all__ = ["BadThread", "Fenced", "Lease", "Ledger", "LedgerUnusable", "ThreadHeld", "acquire"]
