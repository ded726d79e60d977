"""Reuse of predecessors, labels and notes of an earlier run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TypeVar

from langgraph_takeover.base.untrusted_input import describe_error
from langgraph_takeover.evals.run.journal import (
    JOURNAL_FILE,
    Journal,
    Journals,
    get_journals,
    open_journal,
)
from langgraph_takeover.evals.run.measures.replies import (
    find_changed_note,
    has_note,
    list_note_digests,
)
from langgraph_takeover.evals.run.rows import NotesRow, Row
from langgraph_takeover.evals.run.settings.config import (
    CONFIG_FILE,
    RunConfig,
    RunPaths,
    RunUsageError,
    find_model_difference,
    load_config,
)
from langgraph_takeover.evals.run.settings.inputs import RunInputs, find_changed_input
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError
from langgraph_takeover.handoff.views import NOTE_BY_VIEW
from langgraph_takeover.sandbox.snapshots.transfer import copy_to_store

_SHARED_SETTINGS = ("prompt", "sandbox", "protocol", "points", "command_timeout_s")


_RowT = TypeVar("_RowT", bound=Row)


_CURE = "restore it from a copy, or leave its task out by --task-ids"


def check_source(config: RunConfig) -> None:
    """Raises RunUsageError if the earlier run's predecessors differ from those that this run would have."""
    source = Path(str(config.records_of))
    try:
        holds_run = (source / CONFIG_FILE).is_file() and os.path.lexists(source / JOURNAL_FILE)
    except OSError as error:
        raise RunUsageError(f"--from: {str(source)[:200]}: {describe_error(error)}") from error
    if not holds_run:
        raise RunUsageError(
            f"--from: {source} is not the directory of a takeover run (pass the --out of one)"
        )
    before = load_config(source)
    tasks = ("tasks",) if _has_other_tasks(before, config) else ()
    for name in (*tasks, *_SHARED_SETTINGS):
        if getattr(before, name) != getattr(config, name):
            raise RunUsageError(
                f"--from: {source} ran with --{name.replace('_', '-')} {_format_setting(before, name)}, this run has "
                f"{_format_setting(config, name)} (pass the same value)"
            )
    known = [model for model in config.predecessors if model in before.predecessors]
    if not known:
        raise RunUsageError(
            f"--from: {source} has no predecessor {config.predecessors[0]} (it has {', '.join(before.predecessors)})"
        )
    for name in known:
        if difference := find_model_difference(before, config, name):
            raise RunUsageError(
                f"--from: {source} ran with another entry {difference} (use the same in --models)"
            )
    check_inputs(before, config.inputs, "--from", source)


def check_inputs(before: RunConfig, now: RunInputs, option: str, source: Path) -> None:
    """Raises RunUsageError if the earlier run in `source` read other tasks, recordings or prompts than `now`."""
    if changed := find_changed_input(before.inputs, now):
        raise RunUsageError(
            f"{option}: {changed} since {source} ran (restore it, or run the predecessors again in a new run)"
        )


def _has_other_tasks(before: RunConfig, config: RunConfig) -> bool:
    """Whether two runs have no task in common; digests recognize those of a moved source."""
    return not before.inputs.tasks.keys() & config.inputs.tasks.keys()


def _format_setting(config: RunConfig, name: str) -> str:
    value = getattr(config, name)
    return ",".join(value) if isinstance(value, tuple) else str(value)


def copy_source_run(config: RunConfig, tasks: dict[str, Task], paths: RunPaths, rows: Journals) -> int:
    """Copy the earlier run's missing predecessors, labels and notes of these tasks. Return the number of predecessors."""
    if config.records_of is None:
        return 0
    source = RunPaths(Path(config.records_of))
    taken = 0
    before = load_config(source.out)
    run = before.run_id
    with open_journal(source.out, run=run) as database:
        theirs = get_journals(database, run)
        check_notes(source, theirs.notes.rows(), "--from")
        labels = {row.record_id: row for row in theirs.labels.rows()}
        notes = {row.record_id: row for row in theirs.notes.rows()}
        done = rows.predecessors.keys()
        for row in theirs.predecessors.rows():
            wanted = row.task_id in tasks and row.predecessor in config.predecessors
            if row.is_failure or not wanted or row.key in done:
                continue
            trace = source.traces / f"{row.trace}.json"
            if not trace.is_file():
                raise RunUsageError(f"--from: trace not found: {trace} ({_CURE})")
            tasks[row.task_id].check_out(paths.repositories, copy_from=source.repositories)
            for record_id in row.records or ():
                note = notes.get(record_id)
                writer = config.choose_writer(row.predecessor)
                is_same = note is not None and note.model == writer
                noted = is_same and not find_model_difference(before, config, writer)
                noted = _copy_record(source, paths, record_id, config.views if noted else ()) and noted
                _copy_row(rows.labels, labels.get(record_id))
                _copy_row(rows.notes, note if noted else None)
            paths.traces.mkdir(exist_ok=True)
            shutil.copy2(trace, paths.traces)
            rows.predecessors.append(row)
            taken += 1
    return taken


def check_notes(paths: RunPaths, rows: Iterable[NotesRow], option: str) -> None:
    """Raises RunUsageError if a run's record has other notes than its row, so that takeovers would show different ones."""
    for row in rows:
        if not list_note_digests(row):
            continue
        try:
            notes = paths.records.load_notes(row.record_id)
        except RecordError:
            continue  # its jobs report it
        if notes is not None and (note := find_changed_note(row, notes)):
            raise RunUsageError(
                f"{option}: the {note} note of record {row.record_id} in {paths.out} changed since it was written "
                "(restore its notes.json, or start a new run)"
            )


def _copy_record(
    source: RunPaths, paths: RunPaths, record_id: str, views_with_notes: Collection[str]
) -> bool:
    """Copy a record, with its notes if it has all that these views show. Return whether it has them."""
    try:
        record = source.records.load(record_id)
    except RecordError as error:
        raise RunUsageError(f"--from: {error} ({_CURE})") from error
    if record_id not in paths.records.list_ids():

        def make(directory: Path) -> HandoffRecord:
            copy_to_store(record.required_snapshot, source.records.directory(record_id), directory)
            return record

        paths.records.create(record_id, make)
    noted = all(has_note(record, view) for view in views_with_notes if view in NOTE_BY_VIEW)
    if noted and views_with_notes and record.notes is not None:
        paths.records.add_notes(record_id, record.notes)
    return noted


def _copy_row(journal: Journal[_RowT], row: _RowT | None) -> None:
    if row is not None and not row.is_failure and row.key not in journal:
        journal.append(row)
