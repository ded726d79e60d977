"""From a finished run and what a person asked for to a poison run's fixed settings, every doubt raised before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sandbox
from evals.models import read_name
from evals.plants import plants
from evals.plants.planting import PoisonConfig
from evals.run.config import (
    CONFIG_FILE,
    BadUsage,
    differing,
    load_config,
    load_settings,
    new_run_id,
    read_names,
    read_views,
)
from evals.run.options import FIELDS
from evals.run.setup import check_takeovers, check_unused, lay_down
from evals.tasks import Task, load_tasks
from handoff.record import HandoffRecord, RecordRefused, RecordStore
from handoff.views import NEED_NOTES
from sandbox.machine import BackendName


def prepared(
    source: Path, asked: dict[str, Any], given: set[str], named: Path | None, out: Path, *, resume: bool
) -> tuple[PoisonConfig, dict[str, Task]]:
    """The settings, on disk, and the task of each record. Raises what `evals.setup.prepared` does."""
    if resume and named is None:
        raise BadUsage("--resume: name the run to go on with by --out")
    if resume:
        config = load_settings(out, PoisonConfig)
        settled = _settled(asked)
        again = {field for name in given for field in FIELDS.get(name, (name,))}
        changed = differing(config, {name: settled[name] for name in again if settled[name] is not None})
        if changed is not None or str(source.resolve()) != config.source:
            raise BadUsage(changed or f"{source}: the run was begun with the records of {config.source}")
        records = _records(source)
    else:
        check_unused(out)
        if not (source / CONFIG_FILE).exists():
            raise BadUsage(f"{source} holds no run of evals.takeover: it has no {CONFIG_FILE}")
        before = load_config(source)
        records = _records(source)
        settled = {name: value for name, value in _settled(asked).items() if value is not None}
        config = PoisonConfig.model_validate(
            before.model_dump()
            | {"run_id": new_run_id(), "repeats": 1, "source": str(source.resolve()), "limit": None}
            | {"successors": before.successors[:1], "allow_unisolated": False}
            | _choose_isolated(before.sandbox, asked)
            | {"records": tuple(records)[: asked["limit"]]}
            | settled
        )
    if read_name(config.successors[0]).kind == "replay":
        raise BadUsage("--successor: a replay reads nothing that it is shown; name an LLM")
    missing = [name for name in config.records if name not in records]
    if missing:
        raise BadUsage(f"{source}: its record {missing[0]} is gone")
    chosen = {name: records[name] for name in config.records}
    _check_notes(source, config, chosen)
    tasks = load_tasks(config.tasks, tuple(dict.fromkeys(record.task.id for record in chosen.values())))
    by_id = {task.id: task for task in tasks}
    check_takeovers(config, tasks, out)
    if not resume:
        lay_down(config, out)
    return config, {name: by_id[record.task.id] for name, record in chosen.items()}


def _settled(asked: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, as the settings are named; None where the run that the records are of decides."""
    return {
        "views": read_views(asked["view"]),
        "plants": read_names("--plants", "plant", asked["plants"], tuple(plants())),
        "successors": (asked["successor"],) if asked["successor"] else None,
        "base_url": asked["base_url"],
        "limit": asked["limit"],
        "allow_unisolated": asked["allow_unisolated"] or None,
    }


def _choose_isolated(before: BackendName, asked: dict[str, Any]) -> dict[str, BackendName]:
    """The kind of sandbox where the records' run had an unisolated one and nobody asks for that here."""
    if before != "process" or asked["allow_unisolated"]:
        return {}
    found = sandbox.default_backend()
    if found == "process":
        raise BadUsage(
            f"{CONFIG_FILE}: the records' run was unisolated, and no isolated sandbox is to be had here; see python -m "
            "sandbox probe, or say --allow-unisolated"
        )
    return {"sandbox": found}


def _records(source: Path) -> dict[str, HandoffRecord]:
    store = RecordStore(source / "records")
    try:
        found = {name: store.load(name) for name in store.ids()}
    except RecordRefused as error:
        raise BadUsage(str(error)) from error
    if not found:
        raise BadUsage(f"{source}: it has no records, so there is nothing to plant into")
    if lost := [name for name, record in found.items() if record.snapshot is None]:
        raise BadUsage(f"{source}: the machine of its record {lost[0]} was never kept")
    return found


def _check_notes(source: Path, config: PoisonConfig, records: dict[str, HandoffRecord]) -> None:
    wanting = [view for view in config.views if view in NEED_NOTES]
    without = [name for name, record in records.items() if record.notes is None]
    if wanting and without:
        raise BadUsage(
            f"--view: {source}: its record {without[0]} has no notes, which the {wanting[0]} view shows; run "
            f"evals.takeover with that view first"
        )
