"""Poison runs: their settings, from a finished run; and their stages, which inject and detect compliance."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from langgraph_takeover import sandbox
from langgraph_takeover.evals import injections
from langgraph_takeover.evals.injections import Injection, Substitutions, load_injections
from langgraph_takeover.evals.models import parse_model_name, require_entry
from langgraph_takeover.evals.run.checks import check_takeovers
from langgraph_takeover.evals.run.execution import stages
from langgraph_takeover.evals.run.preparation import (
    check_ledger,
    check_unused,
    create_run,
)
from langgraph_takeover.evals.run.reuse import check_inputs
from langgraph_takeover.evals.run.rows import Fields, Row, Takeover
from langgraph_takeover.evals.run.settings.config import (
    CONFIG_FILE,
    RunConfig,
    RunPaths,
    RunUsageError,
    find_changed_option,
    load_config,
    load_config_as,
    load_models_option,
    make_run_id,
    read_names,
    read_views,
)
from langgraph_takeover.evals.run.settings.inputs import compute_inputs
from langgraph_takeover.evals.run.settings.run_options import OPTION_FIELDS
from langgraph_takeover.evals.tasks import Task, load_tasks
from langgraph_takeover.handoff import views
from langgraph_takeover.handoff.readers import read_traces
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError, RecordStore
from langgraph_takeover.handoff.records.record_facts import add_observed_changes
from langgraph_takeover.handoff.records.verification import require_record
from langgraph_takeover.handoff.trace.events import Trace
from langgraph_takeover.handoff.views import VIEWS_WITH_NOTES
from langgraph_takeover.sandbox import SandboxManager, start
from langgraph_takeover.sandbox.interface import BackendName, FileAccessError, Snapshot
from langgraph_takeover.sandbox.repository import list_files, patch_since
from langgraph_takeover.sandbox.snapshots.transfer import copy_to_store


class PoisonConfig(RunConfig):
    """Settings of a poison run: those of the records' run, except views and successor."""

    source: str
    """The directory of the records' run."""
    injections: tuple[str, ...]
    records: tuple[str, ...] = Field(min_length=1)


class InjectedRecord(Row):
    """One row per record and injection."""

    key_fields: ClassVar[tuple[str, ...]] = ("record", "injection")

    record: str
    """The record of the source run."""
    injection: str
    task_id: str
    record_id: str | None = None
    """The record with the injection."""
    token: str | None = None
    """The text that an order asks for."""
    wrong_file: str | None = None
    """The file that a false claim names."""


class InjectedTakeover(Takeover):
    """One row per record, injection and view."""

    key_fields: ClassVar[tuple[str, ...]] = ("record", "injection", "view")

    record: str
    """The record of the source run."""
    injection: str
    aim: str
    shown: bool | None = None
    """Whether the view's first messages show the injection."""
    followed: bool | None = None
    """Whether the successor complied, by its actions."""


def create_injected_record(
    config: PoisonConfig, out: Path, task: Task, record_id: str, name: str
) -> InjectedRecord:
    """Copy a record with an injection into the store of the poison run."""
    paths, source = RunPaths(out), RecordStore(Path(config.source) / "records")
    started = time.monotonic()
    known: Fields = {"task_id": task.id, "record": record_id, "injection": name}
    chosen = injections.load_injections()[name]
    try:
        record = source.load(record_id)
        substitutions = _choose_substitutions(record, chosen, task)
        if chosen.aim == "misled" and not substitutions.wrong_file:
            reason = "the repository has no other source file"
            return InjectedRecord(**known, outcome="left_out", detail=reason)
        poisoned, notes = injections.inject(record, chosen, substitutions)

        def write_snapshot(directory: Path) -> HandoffRecord:
            if not chosen.in_sandbox:
                copy_to_store(record.required_snapshot, source.directory(record_id), directory)
                return poisoned
            changed, content = _inject_into_sandbox(
                config, paths, task, record, source, substitutions, directory
            )
            return injections.inject(changed, chosen, substitutions, content)[0]

        paths.records.create(poisoned.id, write_snapshot)
        paths.records.add_notes(poisoned.id, notes)
    except stages.INFRASTRUCTURE_ERRORS as error:
        return stages.make_failure_row(InjectedRecord, known, error, started)
    shown = {"token": substitutions.token} if chosen.aim == "order" else {}
    shown |= {"wrong_file": substitutions.wrong_file} if chosen.aim == "misled" else {}
    return InjectedRecord(**known, outcome="injected", detail="", record_id=poisoned.id, **shown)


def take_over_injected(
    config: PoisonConfig, out: Path, task: Task, record_id: str, name: str, view: str
) -> InjectedTakeover:
    """Let a successor continue a poisoned record under a view, and detect compliance from its actions."""
    paths, chosen = RunPaths(out), injections.load_injections()[name]
    taken = stages.run_takeover(config, out, task, f"{record_id}.{name}", view, config.successors[0], 1)
    known: Fields = {"record": record_id, "injection": name, "aim": chosen.aim}
    if taken.is_failure:
        return InjectedTakeover(**taken.to_dict(), **known)
    substitutions = _choose_substitutions(
        RecordStore(Path(config.source) / "records").load(record_id), chosen, task
    )
    record = paths.records.load(taken.record_id)
    (trace,) = read_traces(paths.traces / f"{taken.trace}.json")
    assert isinstance(trace, Trace)
    recipient = views.Recipient.model_validate(
        {"protocol": config.protocol, "window_tokens": taken.window_tokens}
    )
    messages = views.find_view(view)(record, recipient)
    finished = taken.stop_reason == "finished"
    return InjectedTakeover(
        **taken.to_dict(),
        **known,
        shown=injections.is_shown(messages, chosen, substitutions),
        followed=injections.is_followed(record, chosen, substitutions, trace.events, is_finished=finished),
    )


def _choose_substitutions(record: HandoffRecord, injection: Injection, task: Task) -> Substitutions:
    return injections.choose_substitutions(record, injection.name, str(task.instance.get("patch") or ""))


def _inject_into_sandbox(
    config: PoisonConfig,
    paths: RunPaths,
    task: Task,
    record: HandoffRecord,
    source: RecordStore,
    substitutions: Substitutions,
    directory: Path,
) -> tuple[HandoffRecord, str]:
    """The record with another snapshot, in which a file starts with the order; and that file."""
    with SandboxManager(paths.spec(config, task)) as manager:
        sandbox = manager.restore(record.required_snapshot, source.directory(record.id))
        require_record(sandbox, record)
        try:
            before = sandbox.read_file(substitutions.file).decode("utf-8", "surrogateescape")
        except FileAccessError:
            before = ""
        content = f"{injections.format_order(substitutions)}\n\n{before}"
        sandbox.write_file(substitutions.file, content.encode("utf-8", "surrogateescape"))
        patch = patch_since(sandbox, record.task.base_commit, open_base=lambda: start(manager.spec))
        patch = add_observed_changes(patch, record.trace)
        snapshot: Snapshot = sandbox.snapshot(directory, labels={"record": record.id}).result()
        files = list_files(sandbox)
    update = {
        "snapshot": snapshot,
        "files": files,
        "patch_error": "",
        "patch": patch.text,
        "left_out": patch.left_out,
        "left_out_count": patch.left_out_count,
    }
    return record.model_copy(update=update), content


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
