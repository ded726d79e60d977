"""A released lease stays released, however late its last renewal arrives."""

from __future__ import annotations

from pathlib import Path

from langgraph_takeover.handoff.ledger import Ledger, acquire
from langgraph_takeover.handoff.ledger.renewal import renew


def test_a_renewal_after_the_release_blocks_no_one(tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    lease = acquire(ledger, "thread")
    lease.release()
    renew(lease.ledger, [lease])
    acquire(ledger, "thread").release()
    ledger.close()
