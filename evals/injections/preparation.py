"""From a finished run and what a person asked for to a poison run's fixed settings, every doubt raised before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langgraph_takeover import sandbox
from langgraph_takeover.evals.injections import load_injections
from langgraph_takeover.evals.injections.stages import PoisonConfig
from langgraph_takeover.evals.models import parse_model_name
from langgraph_takeover.evals.run.preparation import check_takeovers, check_unused, create_run
from langgraph_takeover.evals.run.settings.config import (
    CONFIG_FILE,
    RunUsageError,
    find_changed_option,
    load_config,
    load_config_as,
    make_run_id,
    read_names,
    read_views,
)
from langgraph_takeover.evals.run.settings.options import OPTION_FIELDS
from langgraph_takeover.evals.tasks import Task, load_tasks
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError, RecordStore
from langgraph_takeover.handoff.views import VIEWS_WITH_NOTES
from langgraph_takeover.sandbox.interface import BackendName


def prepare_poison_run(
    source: Path,
    options: dict[str, Any],
    explicit_options: set[str],
    named_out: Path | None,
    out: Path,
    *,
    resume: bool,
) -> tuple[PoisonConfig, dict[str, Task]]:
    """The settings, on disk, and the task of each record. Raises what `evals.setup.prepared` does."""
    if resume and named_out is None:
        raise RunUsageError("--resume: name the run to go on with by --out")
    if resume:
        config = load_config_as(out, PoisonConfig)
        settled = _read_settings(options)
        again = {field for name in explicit_options for field in OPTION_FIELDS.get(name, (name,))}
        changed = find_changed_option(
            config, {name: settled[name] for name in again if settled[name] is not None}
        )
        if changed is not None or str(source.resolve()) != config.source:
            raise RunUsageError(changed or f"{source}: the run was begun with the records of {config.source}")
        records = _load_records(source)
    else:
        check_unused(out)
        if not (source / CONFIG_FILE).exists():
            raise RunUsageError(f"{source} holds no run of evals.takeover: it has no {CONFIG_FILE}")
        before = load_config(source)
        records = _load_records(source)
        settled = {name: value for name, value in _read_settings(options).items() if value is not None}
        config = PoisonConfig.model_validate(
            before.model_dump()
            | {"run_id": make_run_id(), "repeats": 1, "source": str(source.resolve()), "limit": None}
            | {"successors": before.successors[:1], "allow_unisolated": False}
            | _choose_isolated_backend(before.sandbox, options)
            | {"records": tuple(records)[: options["limit"]]}
            | settled
        )
    if parse_model_name(config.successors[0]).kind == "replay":
        raise RunUsageError("--successor: a replay reads nothing that it is shown; name an LLM")
    missing = [name for name in config.records if name not in records]
    if missing:
        raise RunUsageError(f"{source}: its record {missing[0]} is gone")
    chosen = {name: records[name] for name in config.records}
    _check_notes(source, config, chosen)
    tasks = load_tasks(config.tasks, tuple(dict.fromkeys(record.task.id for record in chosen.values())))
    by_id = {task.id: task for task in tasks}
    check_takeovers(config, tasks, out)
    if not resume:
        create_run(config, out)
    return config, {name: by_id[record.task.id] for name, record in chosen.items()}


def _read_settings(options: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, as the settings are named; None where the run that the records are of decides."""
    return {
        "views": read_views(options["view"]),
        "injections": read_names(
            "--injections", "injection", options["injections"], tuple(load_injections())
        ),
        "successors": (options["successor"],) if options["successor"] else None,
        "base_url": options["base_url"],
        "limit": options["limit"],
        "allow_unisolated": options["allow_unisolated"] or None,
    }


def _choose_isolated_backend(previous: BackendName, options: dict[str, Any]) -> dict[str, BackendName]:
    """The kind of sandbox where the records' run had an unisolated one and nobody asks for that here."""
    if previous != "process" or options["allow_unisolated"]:
        return {}
    found = sandbox.default_backend()
    if found == "process":
        raise RunUsageError(
            f"{CONFIG_FILE}: the records' run was unisolated, and no isolated sandbox is to be had here; see python -m "
            "sandbox probe, or say --allow-unisolated"
        )
    return {"sandbox": found}


def _load_records(source: Path) -> dict[str, HandoffRecord]:
    store = RecordStore(source / "records")
    try:
        found = {name: store.load(name) for name in store.list_ids()}
    except RecordError as error:
        raise RunUsageError(str(error)) from error
    if not found:
        raise RunUsageError(f"{source}: it has no records, so there is nothing to plant into")
    if lost := [name for name, record in found.items() if record.snapshot is None]:
        raise RunUsageError(f"{source}: the machine of its record {lost[0]} was never kept")
    return found


def _check_notes(source: Path, config: PoisonConfig, records: dict[str, HandoffRecord]) -> None:
    wanting = [view for view in config.views if view in VIEWS_WITH_NOTES]
    without = [name for name, record in records.items() if record.notes is None]
    if wanting and without:
        raise RunUsageError(
            f"--view: {source}: its record {without[0]} has no notes, which the {wanting[0]} view shows; run "
            f"evals.takeover with that view first"
        )
