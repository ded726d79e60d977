"""Settings of a poison run, from a finished run and the command-line options; validates everything up front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langgraph_takeover import sandbox
from langgraph_takeover.evals.injections import load_injections
from langgraph_takeover.evals.injections.stages import PoisonConfig
from langgraph_takeover.evals.models import parse_model_name, require_entry
from langgraph_takeover.evals.run.checks import check_takeovers
from langgraph_takeover.evals.run.preparation import (
    check_ledger,
    check_unused,
    create_run,
)
from langgraph_takeover.evals.run.reuse import check_inputs
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
from langgraph_takeover.evals.run.settings.entries import load_models_option
from langgraph_takeover.evals.run.settings.inputs import compute_inputs
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
    """The settings, written to disk, and the task of each record. Raises what `evals.run.preparation.prepare_run` raises."""
    if resume and named_out is None:
        raise RunUsageError("--resume: pass the run's directory as --out")
    if resume:
        config = load_config_as(out, PoisonConfig)
        settled = _read_settings(options)
        again = {field for name in explicit_options for field in OPTION_FIELDS.get(name, (name,))}
        changed = find_changed_option(
            config, {name: settled[name] for name in again if settled[name] is not None}
        )
        if changed is not None or str(source.resolve()) != config.source:
            raise RunUsageError(
                changed
                or f"{source}: the run in --out uses the records of {config.source} (pass that directory)"
            )
        records = _load_records(source)
    else:
        check_unused(out)
        if not (source / CONFIG_FILE).exists():
            raise RunUsageError(f"{source} is not the directory of a takeover run: {CONFIG_FILE} not found")
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
            | {"models": {**before.models, **settled["models"]}}
        )
        require_entry(config.successors[0], config.models)
        used = {name: entry for name, entry in config.models.items() if name in config.successors}
        config = config.model_copy(update={"models": used})
    if parse_model_name(config.successors[0]).kind == "replay":
        raise RunUsageError("--successor: a replay ignores what it reads (use an LLM)")
    missing = [name for name in config.records if name not in records]
    if missing:
        raise RunUsageError(f"{source}: record not found: {missing[0]}")
    chosen = {name: records[name] for name in config.records}
    _check_notes(source, config, chosen)
    tasks = load_tasks(config.tasks, tuple(dict.fromkeys(record.task.id for record in chosen.values())))
    tasks = tuple(task.model_copy(update={"prompt_name": config.prompt}) for task in tasks)
    inputs = compute_inputs(tasks, config.sandbox, {})
    check_inputs(config, inputs, "--resume" if resume else "RUN", out if resume else source)
    by_id = {task.id: task for task in tasks}
    # The command decides whether commands run as the user, never a file in the run's directory.
    check_takeovers(config.model_copy(update={"allow_unisolated": options["allow_unisolated"]}), tasks, out)
    if resume:
        check_ledger(out)
    else:
        create_run(config, out)
    return config, {name: by_id[record.task.id] for name, record in chosen.items()}


def _read_settings(options: dict[str, Any]) -> dict[str, Any]:
    """The options that the user set, named like the settings; None if the records' run decides."""
    return {
        "views": read_views(options["view"]),
        "injections": read_names(
            "--injections", "injection", options["injections"], tuple(load_injections())
        ),
        "successors": (options["successor"],) if options["successor"] else None,
        "base_url": options["base_url"],
        "models": load_models_option(options["models"]),
        "limit": options["limit"],
        "allow_unisolated": options["allow_unisolated"] or None,
    }


def _choose_isolated_backend(previous: BackendName, options: dict[str, Any]) -> dict[str, BackendName]:
    """The back end, if the records' run was unisolated and the user selects none."""
    if previous != "process" or options["allow_unisolated"]:
        return {}
    found = sandbox.default_backend(allow_process=True)
    if found == "process":
        raise RunUsageError(
            f"{CONFIG_FILE}: the records' run was unisolated, and no isolated sandbox is available here (see sandbox "
            "probe, or pass --allow-unisolated)"
        )
    return {"sandbox": found}


def _load_records(source: Path) -> dict[str, HandoffRecord]:
    store = RecordStore(source / "records")
    try:
        found = {name: store.load(name) for name in store.list_ids()}
    except RecordError as error:
        raise RunUsageError(str(error)) from error
    if not found:
        raise RunUsageError(f"{source}: no records, so no place for an injection")
    if lost := [name for name, record in found.items() if record.snapshot is None]:
        raise RunUsageError(f"{source}: the snapshot of record {lost[0]} was not kept")
    return found


def _check_notes(source: Path, config: PoisonConfig, records: dict[str, HandoffRecord]) -> None:
    wanting = [view for view in config.views if view in VIEWS_WITH_NOTES]
    without = [name for name, record in records.items() if record.notes is None]
    if wanting and without:
        raise RunUsageError(
            f"--view: {source}: record {without[0]} has no notes, which the {wanting[0]} view shows (run "
            f"takeover with that view first)"
        )
