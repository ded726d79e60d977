"""Verification reports every defect of a record, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.handoff.records.record import NOTES_FILE, RECORD_FILE, HandoffRecord, RecordStore
from langgraph_takeover.handoff.records.verification import (
    Verification,
    find_disagreements,
    require_changes,
    verify_record,
)
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.sandbox.interface import FileChange, SnapshotCorruptError
from langgraph_takeover.sandbox.snapshots.transfer import read_contents

from ...graph.conftest import DONE, NOTE, POINTS, RunHarness, scripted_model
from ..conftest import NAME


@pytest.fixture
def record_copy(record: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(record, tmp_path / "records" / NAME))


def test_records_of_a_run_are_complete(copy_harness: RunHarness) -> None:
    assert len(copy_harness.store.list_ids()) == 3
    for name in copy_harness.store.list_ids():
        assert verify_record(copy_harness.store.directory(name)) == Verification(())


@pytest.mark.slow
def test_records_of_runs_on_layers_are_complete(layer_harness: RunHarness) -> None:
    for name in layer_harness.store.list_ids():
        assert verify_record(layer_harness.store.directory(name)) == Verification(())


@pytest.mark.cases(2)
def test_records_of_a_successor_are_complete(layer_harness: RunHarness) -> None:
    edit = (
        "```bash\nsed -i 's/n .*/n + n/' pkg/core.py; git checkout -q pkg/__init__.py; rm new/made.txt\n```"
    )
    state = layer_harness.take_over(
        scripted_model(edit, NOTE.format(1), DONE), record=NAME, points=POINTS, run_id="second"
    )
    (name,) = state["records"]
    record = layer_harness.store.load(name)
    assert len(record.trace) > len(layer_harness.store.load(NAME).trace)
    assert verify_record(layer_harness.store.directory(name)) == Verification(())
    shutil.rmtree(layer_harness.store.directory(name))


def test_a_changed_record(record_copy: Path) -> None:
    file = record_copy / RECORD_FILE
    file.write_text(file.read_text().replace("n * 3", "n * 4"))
    assert verify_record(record_copy).problems == ("its content does not match its digest",)
    file.write_text("{")
    assert "damaged, or not JSON" in verify_record(record_copy).problems[0]


def test_torn_notes(record_copy: Path) -> None:
    (record_copy / NOTES_FILE).write_text("{")
    assert NOTES_FILE in verify_record(record_copy).problems[0]
    (record_copy / NOTES_FILE).unlink()
    (record_copy / NOTES_FILE).symlink_to("nowhere")
    assert NOTES_FILE in verify_record(record_copy).problems[0]


def test_a_lost_or_changed_snapshot(record_copy: Path) -> None:
    (archive,) = record_copy.glob("*.tar.zst")
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    archive.write_bytes(content)
    (wrong,) = verify_record(record_copy).problems
    assert str(archive) in wrong
    archive.unlink()
    (wrong,) = verify_record(record_copy).problems
    assert "archive is missing (restore it from a copy)" in wrong


def test_a_lost_image(record_copy: Path, base_image: str) -> None:
    reseal_record(record_copy, {"backend": "docker", "location": "sha256:" + "0" * 64})
    (wrong,) = verify_record(record_copy).problems
    assert "not on this daemon" in wrong


@pytest.mark.cases(1)
def test_a_trace_that_disagrees_with_the_snapshot(record: Path, layer_harness: RunHarness) -> None:
    """For complete snapshots, and for those of differences from a base."""
    for directory in (record, layer_harness.store.directory(NAME)):
        found = RecordStore(directory.parent).load(NAME)
        contents = read_contents(found.snapshot, directory)
        for path, before, after, problem in (
            ("pkg/core.py", "a" * 64, "b" * 64, "has other content than the trace says in pkg/core.py"),
            ("pkg/core.py", "a" * 64, None, "still has files that the trace removed: pkg/core.py"),
            ("pkg/other.py", None, "b" * 64, "lacks what the trace left in pkg/other.py"),
            ("pkg/__init__.py", "a" * 64, "b" * 64, "lacks what the trace left in pkg/__init__.py"),
            ("test_core.py", "a" * 64, None, "still has files that the trace removed: test_core.py"),
        ):
            change = FileChange(path=path, before=before, after=after)
            assert list(find_disagreements(with_changes(found, change), contents)) == [
                f"the snapshot {problem}"
            ]
        for path, before, after in (
            ("new/made.txt", None, "b" * 64),  # may still be written to
            ("gone.txt", None, None),
            ("/tmp/elsewhere", "a" * 64, "b" * 64),
        ):
            change = FileChange(path=path, before=before, after=after)
            assert list(find_disagreements(with_changes(found, change), contents)) == []


def test_a_patch_with_changes_of_no_event(layer_harness: RunHarness) -> None:
    directory = layer_harness.store.directory(NAME)
    found = layer_harness.store.load(NAME)
    assert "not committed" in found.patch  # from the base
    silent = tuple(event.model_copy(update={"changes": ()}) for event in found.trace)
    (problem,) = find_disagreements(
        found.model_copy(update={"trace": silent}), read_contents(found.snapshot, directory)
    )
    assert problem.endswith(
        "the patch change files that no event of the trace changed: pkg/__init__.py, pkg/core.py"
    )


OLD, NEW, OTHER = "a" * 64, "b" * 64, "c" * 64


def make_events(*changes: tuple[str, str | None, str | None], tree: str = "t") -> list[Event]:
    """One observation for each change."""
    return [
        Event(
            index=index,
            kind="observation",
            tool="shell",
            text="",
            tree=tree,
            changes=(FileChange(path=path, before=before, after=after),),
        )
        for index, (path, before, after) in enumerate(changes)
    ]


@pytest.mark.parametrize(
    ("changes", "files", "lost"),
    [
        ([("a.py", OLD, NEW)], {"a.py": NEW}, ""),
        ([("a.py", OLD, NEW)], {"a.py": OLD}, "a.py"),
        ([("a.py", OLD, NEW)], {}, "a.py"),
        ([("a.py", OLD, NEW)], {"a.py": OTHER}, ""),  # a program wrote it later
        ([("a.py", None, OLD), ("a.py", OLD, NEW)], {"a.py": OLD}, "a.py"),
        ([("a.py", None, NEW)], {}, "a.py"),
        ([("a.py", OLD, None)], {"a.py": OLD}, "a.py"),
        ([("a.py", OLD, None)], {"a.py": OTHER}, ""),
        ([("a.py", OLD, NEW), ("a.py", NEW, OLD)], {"a.py": OLD}, ""),
        ([("a.py", OLD, NEW), ("b.py", None, NEW), ("c.py", None, NEW)], {"a.py": NEW, "c.py": NEW}, "b.py"),
        ([("/elsewhere", OLD, NEW)], {}, ""),
        ([("caf\\xe9.py", OLD, NEW)], {}, ""),  # the name of an event is not the file's
    ],
)
def test_changes_that_a_restored_sandbox_lacks(changes: Any, files: dict[str, str], lost: str) -> None:
    events = make_events(*changes)
    if not lost:
        require_changes(files.get, events, "thread 't'")
        return
    with pytest.raises(
        SnapshotCorruptError, match=rf"^thread 't': the restored sandbox lacks .* in {lost} \("
    ):
        require_changes(files.get, events, "thread 't'")
    require_changes(files.get, make_events(*changes, tree=""), "thread 't'")  # inferred by a reader


def test_a_short_lived_file_beside_a_change() -> None:
    """A database's journal is gone by the time of the snapshot; what earlier events created is not excused."""
    both = (
        FileChange(path="db", before=OLD, after=NEW),
        FileChange(path="db-journal", before=None, after=OLD),
    )
    (event,) = (each.model_copy(update={"changes": both}) for each in make_events(("x", None, OLD)))
    require_changes({"db": NEW}.get, [event], "thread 't'")
    later = event.model_copy(update={"index": 1, "changes": (FileChange(path="x", before=None, after=OLD),)})
    with pytest.raises(SnapshotCorruptError, match="db-journal"):
        require_changes({"db": NEW, "x": OLD}.get, [event, later], "thread 't'")


def with_changes(record: HandoffRecord, *changes: FileChange) -> HandoffRecord:
    """The record with a trace that ends with these changes."""
    last: Event = record.trace[-1]
    changed = last.model_copy(update={"changes": (*last.changes, *changes)})
    return record.model_copy(update={"trace": (*record.trace[:-1], changed)})


def reseal_record(directory: Path, update: dict[str, str]) -> None:
    store = RecordStore(directory.parent)
    record = store.load(directory.name)
    assert record.snapshot is not None
    other = record.model_copy(update={"snapshot": record.snapshot.model_copy(update=update)})
    store.create(directory.name, lambda _: other)
