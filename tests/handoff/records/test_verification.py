"""What is wrong with a record is told, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from langgraph_takeover.handoff.records.record import NOTES_FILE, RECORD_FILE, HandoffRecord, RecordStore
from langgraph_takeover.handoff.records.verification import Verification, find_disagreements, verify_record
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.sandbox.interface import FileChange
from langgraph_takeover.sandbox.snapshots.contents import read_contents

from ...graph.conftest import DONE, NOTE, POINTS, RunHarness, scripted_model
from ..conftest import NAME


@pytest.fixture
def copied(record: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(record, tmp_path / "records" / NAME))


def test_what_a_run_leaves_is_whole(kept: RunHarness) -> None:
    assert len(kept.store.list_ids()) == 3
    for name in kept.store.list_ids():
        assert verify_record(kept.store.directory(name)) == Verification(())


def test_what_runs_on_layers_leave_is_whole(layered: RunHarness) -> None:
    for name in layered.store.list_ids():
        assert verify_record(layered.store.directory(name)) == Verification(())


def test_what_a_successor_leaves_is_whole(layered: RunHarness) -> None:
    edit = (
        "```bash\nsed -i 's/n .*/n + n/' pkg/core.py; git checkout -q pkg/__init__.py; rm new/made.txt\n```"
    )
    state = layered.take_over(
        scripted_model(edit, NOTE.format(1), DONE), record=NAME, points=POINTS, run_id="second"
    )
    (name,) = state["records"]
    record = layered.store.load(name)
    assert len(record.trace) > len(layered.store.load(NAME).trace)
    assert verify_record(layered.store.directory(name)) == Verification(())
    shutil.rmtree(layered.store.directory(name))


def test_a_changed_record(copied: Path) -> None:
    file = copied / RECORD_FILE
    file.write_text(file.read_text().replace("n * 3", "n * 4"))
    assert verify_record(copied).problems == ("its content does not match its digest",)
    file.write_text("{")
    assert "damaged, or not JSON" in verify_record(copied).problems[0]


def test_torn_notes(copied: Path) -> None:
    (copied / NOTES_FILE).write_text("{")
    assert NOTES_FILE in verify_record(copied).problems[0]
    (copied / NOTES_FILE).unlink()
    (copied / NOTES_FILE).symlink_to("nowhere")
    assert NOTES_FILE in verify_record(copied).problems[0]


def test_a_snapshot_that_is_gone_or_changed(copied: Path) -> None:
    archive = copied / "snapshot.tar.zst"
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    archive.write_bytes(content)
    (wrong,) = verify_record(copied).problems
    assert str(archive) in wrong
    archive.unlink()
    (wrong,) = verify_record(copied).problems
    assert "archive is gone" in wrong


def test_an_image_that_is_gone(copied: Path, base_image: str) -> None:
    resealed(copied, {"backend": "docker", "location": "sha256:" + "0" * 64})
    (wrong,) = verify_record(copied).problems
    assert "not on this daemon" in wrong


def test_a_trace_that_tells_of_other_files(record: Path, layered: RunHarness) -> None:
    """Whether the snapshot holds everything, or what differs from its base."""
    for directory in (record, layered.store.directory(NAME)):
        found = RecordStore(directory.parent).load(NAME)
        held = read_contents(found.snapshot, directory)
        for path, before, after, told in (
            ("pkg/core.py", "a" * 64, "b" * 64, "has other content than the trace says in pkg/core.py"),
            ("pkg/core.py", "a" * 64, None, "still has files that the trace removed: pkg/core.py"),
            ("pkg/other.py", None, "b" * 64, "lacks what the trace left in pkg/other.py"),
            ("pkg/__init__.py", "a" * 64, "b" * 64, "lacks what the trace left in pkg/__init__.py"),
            ("test_core.py", "a" * 64, None, "still has files that the trace removed: test_core.py"),
        ):
            change = FileChange(path=path, before=before, after=after)
            assert list(find_disagreements(with_changes(found, change), held)) == [f"the snapshot {told}"]
        for path, before, after in (
            ("new/made.txt", None, "b" * 64),  # may go on being written
            ("gone.txt", None, None),
            ("/tmp/elsewhere", "a" * 64, "b" * 64),
        ):
            change = FileChange(path=path, before=before, after=after)
            assert list(find_disagreements(with_changes(found, change), held)) == []


def test_a_patch_that_changes_what_no_event_did(layered: RunHarness) -> None:
    directory = layered.store.directory(NAME)
    found = layered.store.load(NAME)
    assert "not committed" in found.patch  # which the base has brought along
    silent = tuple(event.model_copy(update={"changes": ()}) for event in found.trace)
    (told,) = find_disagreements(
        found.model_copy(update={"trace": silent}), read_contents(found.snapshot, directory)
    )
    assert told.endswith(
        "the patch change files that no event of the trace changed: pkg/__init__.py, pkg/core.py"
    )


def with_changes(record: HandoffRecord, *changes: FileChange) -> HandoffRecord:
    """The record with a trace that ends with these changes."""
    last: Event = record.trace[-1]
    changed = last.model_copy(update={"changes": (*last.changes, *changes)})
    return record.model_copy(update={"trace": (*record.trace[:-1], changed)})


def resealed(directory: Path, update: dict[str, str]) -> None:
    store = RecordStore(directory.parent)
    record = store.load(directory.name)
    assert record.snapshot is not None
    other = record.model_copy(update={"snapshot": record.snapshot.model_copy(update=update)})
    store.create(directory.name, lambda _: other)
