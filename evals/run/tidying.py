"""What a run leaves behind when it ends, however it ends: of its machines, nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sandbox
from evals.run.config import RunConfig
from evals.run.places import Places
from graph import Home
from handoff.ledger import machines
from nodes.session import owner_of


@contextmanager
def tidied(config: RunConfig, places: Places, home: Home) -> Iterator[None]:
    """Before and after a run, however it ends, no machine of it is left."""
    tidy(config, places, home)
    try:
        yield
    finally:
        tidy(config, places, home)


def tidy(config: RunConfig, places: Places, home: Home) -> None:
    """Remove what a killed run left: its machines, and frozen images that no record and no checkpoint needs."""
    places.records.remove_partial()
    home.remove_unused_machines(alone=True)
    keep = places.records.snapshot_locations()
    if keep is not None:
        keep |= {snapshot.location for snapshot in machines.snapshots(home.ledger)}
    owners = [owner_of(config.run_id, home.ledger, thread) for thread in home.threads()]
    sandbox.remove_leftovers(config.sandbox, config.run_id, *owners, keep=keep)
