"""The two stages of a poison run: inject into a record, and detect whether a successor complies."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from langgraph_takeover.evals import injections
from langgraph_takeover.evals.injections import Injection, Substitutions
from langgraph_takeover.evals.run.execution import stages
from langgraph_takeover.evals.run.rows import Fields, Row, Takeover
from langgraph_takeover.evals.run.settings.config import RunConfig, RunPaths
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.handoff import views
from langgraph_takeover.handoff.readers import read_traces
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordStore
from langgraph_takeover.handoff.records.record_facts import add_observed_changes
from langgraph_takeover.handoff.records.verification import require_record
from langgraph_takeover.handoff.trace.events import Trace
from langgraph_takeover.sandbox import SandboxManager, start
from langgraph_takeover.sandbox.interface import FileAccessError, Snapshot
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
