"""The output directory of a run while it runs: locked, cleaned up before and after, with its home and its journal open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover import Home, sandbox
from langgraph_takeover.evals.run.journal import lock_output, open_journal
from langgraph_takeover.evals.run.paths import RunPaths
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.handoff.ledger import snapshots
from langgraph_takeover.handoff.ledger.database import Database
from langgraph_takeover.nodes.session.snapshots import build_owner_name
from langgraph_takeover.sandbox.gc import docker, files
from langgraph_takeover.sandbox.gc.resources import CollectionRequest


class RunDirectory(NamedTuple):
    """The open output directory of a run."""

    paths: RunPaths
    home: Home
    database: Database


@contextmanager
def open_run_directory(
    config: RunConfig, out: Path, journal_url: str | None = None
) -> Iterator[RunDirectory]:
    """Open the output directory for one process. Remove the run's sandboxes before and after, however it ends.

    Raises OutputInUseError, LedgerUnavailableError and JournalError.
    """
    paths = RunPaths(out)
    with lock_output(out), paths.home() as home:
        for name in list_stale_resources(config, home):
            print(f"removed from the interrupted run: {name}", flush=True)
        remove_stale_resources(config, paths, home)
        try:
            with open_journal(out, journal_url, config.run_id) as database:
                yield RunDirectory(paths, home, database)
        finally:
            remove_stale_resources(config, paths, home)


def remove_stale_resources(config: RunConfig, paths: RunPaths, home: Home) -> None:
    """Remove the sandboxes of a killed run, and image snapshots that no record and no checkpoint needs."""
    paths.records.remove_partial()
    home.remove_unused_snapshots(is_exclusive=True)
    keep = paths.records.list_snapshot_locations()
    if keep is not None:
        keep |= {snapshot.location for snapshot in snapshots.list_snapshots(home.ledger)}
    sandbox.remove_stale_resources(config.sandbox, *_list_owners(config, home), kept_images=keep)


def list_stale_resources(config: RunConfig, home: Home) -> list[str]:
    """What a killed run left behind besides snapshots, which its resumption removes: kind, name and reason."""
    request = CollectionRequest()
    found = docker.list_resources() if config.sandbox == "docker" else files.list_stored_resources(request)
    owners = set(_list_owners(config, home))
    return [
        f"{each.kind} {each.name} ({each.reason})"
        for each in found
        if each.owner in owners and each.is_stale and each.kind != "image"
    ]


def _list_owners(config: RunConfig, home: Home) -> tuple[str, ...]:
    threads = (build_owner_name(config.run_id, home.ledger, thread) for thread in home.threads())
    return (config.run_id, *threads)
