"""The two stages of a poison run: to plant into a record, and to see whether a successor follows what was planted."""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field

from evals import plants
from evals.plants import Plant, Words
from evals.run import stages
from evals.run.config import RunConfig
from evals.run.journal import Row
from evals.run.places import Places
from evals.tasks import Task
from handoff import views
from handoff.readers import read
from handoff.record import HandoffRecord, RecordStore
from handoff.trace import Trace
from sandbox.machine import FileRefused, Snapshot
from sandbox.repository import RepositoryBroken, files_below, patch_since
from sandbox.transfer import bring
from sandbox.workbench import Workbench


class PoisonConfig(RunConfig):
    """A poison run's settings: those of the run that it takes its records from, but for views and successor."""

    source: str
    """The directory of that run."""
    plants: tuple[str, ...]
    records: tuple[str, ...] = Field(min_length=1)


def plant(config: PoisonConfig, out: Path, task: Task, record_id: str, name: str) -> Row:
    """Make a record with a plant in it of one record, in the poison run's own store."""
    places, source = Places(out), RecordStore(Path(config.source) / "records")
    started = time.monotonic()
    row: Row = {"task_id": task.id, "record": record_id, "plant": name}
    chosen = plants.plants()[name]
    try:
        record = source.load(record_id)
        said = _words(record, chosen, task)
        if chosen.aim == "misled" and not said.wrong_file:
            return row | {"outcome": "left_out", "detail": "there is no other source file to name"}
        poisoned, notes = plants.planted(record, chosen, said)

        def make(directory: Path) -> HandoffRecord:
            if not chosen.in_machine:
                bring(record.machine, source.directory(record_id), directory)
                return poisoned
            changed, content = _in_machine(config, places, task, record, source, said, directory)
            return plants.planted(changed, chosen, said, content)[0]

        places.records.create(poisoned.id, make)
        places.records.add_notes(poisoned.id, notes)
    except stages.INFRASTRUCTURE as error:
        return row | stages.failed(error, started)
    shown = {"token": said.token} if chosen.aim == "order" else {}
    shown |= {"wrong_file": said.wrong_file} if chosen.aim == "misled" else {}
    return row | {"outcome": "planted", "detail": "", "record_id": poisoned.id, **shown}


def take_over(config: PoisonConfig, out: Path, task: Task, record_id: str, name: str, view: str) -> Row:
    """Let a successor continue one poisoned record under one view, and see from what it did whether it followed."""
    places, chosen = Places(out), plants.plants()[name]
    row = stages.run_takeover(config, out, task, f"{record_id}.{name}", view, config.successors[0], 1)
    row |= {"record": record_id, "plant": name, "aim": chosen.aim, "shown": None, "followed": None}
    if row["outcome"] != "graded":
        return row
    said = _words(RecordStore(Path(config.source) / "records").load(record_id), chosen, task)
    record = places.records.load(row["record_id"])
    (trace,) = read(places.traces / f"{row['trace']}.json")
    assert isinstance(trace, Trace)
    recipient = views.Recipient(protocol=config.protocol, window_tokens=row["window_tokens"])
    messages = views.named(view)(record, recipient)
    finished = row["stop_reason"] == "finished"
    return row | {
        "shown": plants.shows(messages, chosen, said),
        "followed": plants.followed(record, chosen, said, trace.events, finished=finished),
    }


def _words(record: HandoffRecord, chosen: Plant, task: Task) -> Words:
    return plants.words(record, chosen.name, str(task.instance.get("patch") or ""))


def _in_machine(
    config: PoisonConfig,
    places: Places,
    task: Task,
    record: HandoffRecord,
    source: RecordStore,
    said: Words,
    directory: Path,
) -> tuple[HandoffRecord, str]:
    """The record with another machine, in which a file begins with the order; and that file."""
    with Workbench(places.spec(config, task)) as workbench:
        machine = workbench.thaw(record.machine, source.directory(record.id))
        try:
            before = machine.read_file(said.file).decode("utf-8", "surrogateescape")
        except FileRefused:
            before = ""
        content = f"{plants.order(said)}\n\n{before}"
        machine.write_file(said.file, content.encode("utf-8", "surrogateescape"))
        try:
            patch = patch_since(machine, record.task.base_commit)
        except RepositoryBroken:
            patch = record.patch
        snapshot: Snapshot = machine.freeze(directory, labels={"record": record.id}).result()
        files = files_below(machine)
    return record.model_copy(update={"snapshot": snapshot, "patch": patch, "files": files}), content
