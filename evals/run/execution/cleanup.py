"""Cleanup of a run: remove its sandboxes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langgraph_takeover import Home, sandbox
from langgraph_takeover.evals.run.paths import RunPaths
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.handoff.ledger import snapshots
from langgraph_takeover.nodes.session.snapshots import build_owner_name


@contextmanager
def clean_before_and_after(config: RunConfig, paths: RunPaths, home: Home) -> Iterator[None]:
    """Remove the run's sandboxes before and after it, however it ends."""
    remove_stale_resources(config, paths, home)
    try:
        yield
    finally:
        remove_stale_resources(config, paths, home)


def remove_stale_resources(config: RunConfig, paths: RunPaths, home: Home) -> None:
    """Remove the sandboxes of a killed run, and image snapshots that no record and no checkpoint needs."""
    paths.records.remove_partial()
    home.remove_unused_snapshots(is_exclusive=True)
    keep = paths.records.list_snapshot_locations()
    if keep is not None:
        keep |= {snapshot.location for snapshot in snapshots.list_snapshots(home.ledger)}
    owners = [build_owner_name(config.run_id, home.ledger, thread) for thread in home.threads()]
    sandbox.remove_stale_resources(config.sandbox, config.run_id, *owners, kept_images=keep)
