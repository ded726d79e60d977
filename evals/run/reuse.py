"""Predecessors, labels and notes of an earlier run, taken over so that nothing is paid for twice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from evals.run.config import CONFIG_FILE, BadUsage, RunConfig, load_config
from evals.run.journal import FAILED, JOURNAL_FILE, Journal, Journals, Row, journals, opened
from evals.run.places import Places
from evals.tasks import Task
from handoff.outside import describe_error
from handoff.record import HandoffRecord
from sandbox.transfer import bring

_SAME = ("tasks", "sandbox", "protocol", "points", "max_steps", "max_seconds", "command_timeout_s")


def check_source(config: RunConfig) -> None:
    """Raises BadUsage where the earlier run's predecessors are not what this run's would be."""
    source = Path(str(config.records_of))
    try:
        holds_run = (source / CONFIG_FILE).is_file() and os.path.lexists(source / JOURNAL_FILE)
    except OSError as error:
        raise BadUsage(f"--from: {str(source)[:200]}: {describe_error(error)}") from error
    if not holds_run:
        raise BadUsage(f"--from: {source} holds no run of evals.takeover")
    before = load_config(source)
    for name in _SAME:
        if getattr(before, name) != getattr(config, name):
            raise BadUsage(
                f"--from: {source} was run with --{name.replace('_', '-')} {_shown(before, name)}, this run with "
                f"{_shown(config, name)}; give it the same"
            )
    strangers = [model for model in config.predecessors if model not in before.predecessors]
    if strangers:
        raise BadUsage(
            f"--from: {source} has no predecessor {strangers[0]}; it has {', '.join(before.predecessors)}"
        )


def _shown(config: RunConfig, name: str) -> str:
    value = getattr(config, name)
    return ",".join(value) if isinstance(value, tuple) else str(value)


def take_up(config: RunConfig, tasks: dict[str, Task], places: Places, rows: Journals) -> int:
    """Copy what the earlier run has of these tasks and this one has not; how many predecessors those were."""
    if config.records_of is None:
        return 0
    source = Places(Path(config.records_of))
    taken = 0
    run = load_config(source.out).run_id
    with opened(source.out, run=run) as database:
        theirs = journals(database, run)
        labels, notes = _by_record(theirs.labels), _by_record(theirs.notes)
        done = rows.predecessors.keys()
        for row in theirs.predecessors.rows():
            wanted = row["task_id"] in tasks and row["predecessor"] in config.predecessors
            if row["outcome"] != "run" or not wanted or rows.predecessors.key(row) in done:
                continue
            tasks[row["task_id"]].check_out(places.work, like=source.work)
            for record_id in row["records"]:
                note = notes.get(record_id, {})
                noted = note.get("model") == config.writer(row["predecessor"])
                _bring(source, places, record_id, noted=noted)
                _take_over(rows.labels, labels.get(record_id))
                _take_over(rows.notes, note if noted else None)
            places.traces.mkdir(exist_ok=True)
            shutil.copy2(source.traces / f"{row['trace']}.json", places.traces)
            rows.predecessors.append(row)
            taken += 1
    return taken


def _bring(source: Places, places: Places, record_id: str, *, noted: bool) -> None:
    record = source.records.load(record_id)
    if record_id not in places.records.ids():

        def make(directory: Path) -> HandoffRecord:
            bring(record.machine, source.records.directory(record_id), directory)
            return record

        places.records.create(record_id, make)
    if noted and record.notes is not None:
        places.records.add_notes(record_id, record.notes)


def _take_over(journal: Journal, row: Row | None) -> None:
    if row is not None and row["outcome"] != FAILED and journal.key(row) not in journal:
        journal.append(row)


def _by_record(journal: Journal) -> dict[str, Row]:
    return {row["record_id"]: row for row in journal.rows()}
