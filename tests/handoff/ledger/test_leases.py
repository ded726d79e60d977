"""Renewal: of a released lease, and while other leases are acquired."""

from __future__ import annotations

import time
from pathlib import Path

from langgraph_takeover.handoff.ledger import Ledger, acquire
from langgraph_takeover.handoff.ledger.leases import renew


def test_a_renewal_after_the_release_blocks_no_one(tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    lease = acquire(ledger, "thread")
    lease.release()
    renew(lease.ledger, [lease])
    acquire(ledger, "thread").release()
    ledger.close()


def test_a_lease_is_renewed_while_others_are_acquired(tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    first = acquire(ledger, "first", ttl_s=1.0)
    ends_at, number = time.monotonic() + 2.5, 0
    while time.monotonic() < ends_at:
        acquire(ledger, f"other-{number}", ttl_s=1.0).release()
        number += 1
        time.sleep(0.02)
    assert not first.is_lost()
    with ledger.write_transaction() as connection:
        first.require(connection)
    first.release()
    ledger.close()
