"""A record is complete or absent, and every change of it is detected."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.handoff.records.record import (
    NOTES_FILE,
    RECORD_FILE,
    REVIEW_FILE,
    Claim,
    EditedFile,
    HandoffRecord,
    Notes,
    RecordError,
    RecordStore,
    Review,
    TaskBrief,
)
from langgraph_takeover.handoff.trace.events import Event, FileRead, HandoffPoint, Usage
from langgraph_takeover.sandbox.interface import FileChange, Snapshot

ACTION = Event(
    index=0,
    kind="action",
    tool="shell",
    text="I edit.",
    arguments={"command": "sed -i s/a/b/ pkg/core.py"},
    usage=Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=2),
    seconds=1.25,
)
OBSERVATION = Event(
    index=1,
    kind="observation",
    tool="shell",
    text="[exit code 0]\n",
    exit_code=0,
    changes=(FileChange(path="pkg/core.py", before="a" * 64, after="b" * 64),),
    reads=(FileRead(path="pkg/core.py", sha256="a" * 64),),
    tree="c" * 64,
)
PLACE: Any = {"backend": "process", "base": "directory", "location": "s.tar", "digest": "d"}
RECORD = HandoffRecord(
    id="run.first_source_edit",
    task=TaskBrief(id="t", prompt="Do é.", base_commit="abc", base_directories=("pkg", "docs")),
    predecessor="model",
    point=HandoffPoint(kind="first_source_edit", event_index=1, detail="edited pkg/core.py"),
    patch="diff --git a/pkg/core.py b/pkg/core.py\n",
    snapshot=Snapshot(**PLACE, workspace="/w", shell_state="cd /w\n"),
    thread_id="thread",
    checkpoint_id="checkpoint",
    trace=(ACTION, OBSERVATION),
    created_at="2026-01-01T00:00:00+00:00",
)
NOTES = Notes(
    model="m",
    summary="I did it.",
    structured={"work_completed": (Claim(text="all", events=(1,)),)},
    summary_usage=Usage(),
    structured_usage=Usage(prompt_tokens=3),
)


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(tmp_path / "records")


def save_record(store: RecordStore) -> Path:
    store.create(RECORD.id, lambda _: RECORD)
    return store.directory(RECORD.id) / RECORD_FILE


def names(store: RecordStore) -> list[str]:
    return sorted(path.name for path in store.root.iterdir())


def test_a_saved_record_is_loaded(store: RecordStore) -> None:
    def make(directory: Path) -> HandoffRecord:
        (directory / "s.tar").write_bytes(b"files")
        return RECORD

    made = store.create(RECORD.id, make)
    assert made == RECORD.seal()
    assert store.load(RECORD.id) == made
    assert store.list_ids() == (RECORD.id,)
    assert (store.directory(RECORD.id) / "s.tar").read_bytes() == b"files"
    assert names(store) == [RECORD.id]


@pytest.mark.parametrize("failure", [RuntimeError("no"), KeyboardInterrupt()])
def test_a_failed_creation_leaves_nothing(store: RecordStore, failure: BaseException) -> None:
    def make(directory: Path) -> HandoffRecord:
        (directory / "s.tar").write_bytes(b"half")
        raise failure

    with pytest.raises(type(failure)):
        store.create(RECORD.id, make)
    assert names(store) == []
    assert store.list_ids() == ()


def test_a_failed_attempt_keeps_the_existing_record(store: RecordStore) -> None:
    save_record(store)

    def make(_: Path) -> HandoffRecord:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        store.create(RECORD.id, make)
    assert store.load(RECORD.id) == RECORD.seal()


def test_leftovers_of_a_kill_are_replaced(store: RecordStore) -> None:
    partial = store.root / f".partial-{RECORD.id}"
    partial.mkdir(parents=True)
    (partial / "old.tar").write_bytes(b"old")
    assert store.list_ids() == ()
    save_record(store)
    assert names(store) == [RECORD.id]
    assert not (store.directory(RECORD.id) / "old.tar").exists()


def test_a_kill_after_the_rename_leaves_nothing_of_earlier_attempts(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.root / f".partial-{RECORD.id}.0123abcd").mkdir(parents=True)
    rename = Path.rename

    def rename_and_kill(path: Path, target: Path) -> None:
        rename(path, target)
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(Path, "rename", rename_and_kill)
        try:
            save_record(store)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert names(store) == [RECORD.id]


def test_leftovers_of_a_kill_are_removed(store: RecordStore) -> None:
    save_record(store)
    (store.root / ".partial-other").mkdir()
    store.remove_partial()
    assert names(store) == [RECORD.id]


def test_a_record_is_replaced_completely(store: RecordStore) -> None:
    save_record(store)
    store.add_notes(RECORD.id, NOTES)
    store.create(RECORD.id, lambda _: RECORD.model_copy(update={"patch": "other"}))
    loaded = store.load(RECORD.id)
    assert (loaded.patch, loaded.notes) == ("other", None)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    if isinstance(value, list) and value:
        return [leaf for index, item in enumerate(value) for leaf in leaves(item, (*path, index))]
    return [path]


LEAVES = leaves(RECORD.seal().model_dump(mode="json", exclude={"notes", "review", "envelope"}))


@pytest.mark.parametrize("path", LEAVES, ids=lambda path: ".".join(map(str, path)))
def test_a_change_of_any_field_is_refused(store: RecordStore, path: tuple[Any, ...]) -> None:
    file = save_record(store)
    content = json.loads(file.read_text())
    container = content
    for key in path[:-1]:
        container = container[key]
    old = container[path[-1]]
    others = {bool: lambda: not old, int: lambda: old + 1, float: lambda: old + 1}
    container[path[-1]] = others.get(type(old), lambda: f"{old or ''}x")()
    file.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=RECORD.id):
        store.load(RECORD.id)


def test_events_cannot_be_dropped_added_or_swapped(store: RecordStore) -> None:
    for trace in ((ACTION,), (ACTION, OBSERVATION, ACTION), (OBSERVATION, ACTION), ()):
        changed = RECORD.seal().model_copy(update={"trace": trace})
        with pytest.raises(RecordError, match="digest"):
            changed.verify()
    with pytest.raises(RecordError, match="does not end at its handoff point"):
        RECORD.model_copy(update={"trace": (ACTION,)}).seal().verify()


def test_an_unchanged_record_is_read_once(store: RecordStore) -> None:
    store.create(RECORD.id, lambda _: RECORD)
    first = store.load(RECORD.id)
    assert store.load(RECORD.id) is first
    store.add_notes(RECORD.id, NOTES)
    assert store.load(RECORD.id).notes is not None


def test_damage_that_keeps_size_and_time_is_found_after_a_load(store: RecordStore) -> None:
    store.create(RECORD.id, lambda _: RECORD)
    store.load(RECORD.id)
    path = store.directory(RECORD.id) / RECORD_FILE
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"I edit.", b"I added"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    with pytest.raises(RecordError, match="digest"):
        store.load(RECORD.id)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "damaged, or not JSON"),
        ('{"id": "run', "damaged, or not JSON"),
        ("\udcff", "damaged, or not JSON"),
        ("[" * 100_000, "damaged, or not JSON"),
        ("[]", "schema version None; langgraph-takeover .* reads only 10"),
        ("{}", "schema version None; langgraph-takeover .* reads only 10"),
        ('{"schema_version": 10}', "id: Field required"),
    ],
)
def test_other_files_are_refused_in_one_line(store: RecordStore, content: str, says: str) -> None:
    file = save_record(store)
    file.write_text(content, errors="surrogateescape")
    with pytest.raises(RecordError, match=says) as caught:
        store.load(RECORD.id)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (9, r"which version 0\.1 reads; langgraph-takeover .* reads only 10 \(make the record again\)"),
        (11, r"which a newer version wrote; langgraph-takeover .* reads only 10 \(update the program\)"),
    ],
)
def test_a_record_of_another_version_is_refused_in_one_line(
    store: RecordStore, version: int, says: str
) -> None:
    file = save_record(store)
    edit(file, lambda content: content.update(schema_version=version))
    with pytest.raises(RecordError, match=f"schema version {version}, {says}") as caught:
        store.load(RECORD.id)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


EDITED = EditedFile(path="pkg/core.py", sha256="b" * 64, content="b\n")


def test_the_digest_covers_edited_files(store: RecordStore) -> None:
    record = RECORD.model_copy(update={"edited_files": (EDITED,)})
    store.create(RECORD.id, lambda _: record)
    assert store.load(RECORD.id).edited_files == (EDITED,)
    file = store.directory(RECORD.id) / RECORD_FILE
    edit(file, lambda content: content["edited_files"][0].update(content="evil\n"))
    with pytest.raises(RecordError, match="content does not match its digest"):
        store.load(RECORD.id)


def test_a_secret_in_an_edited_file_is_redacted(store: RecordStore) -> None:
    key = "ghp_" + "a1B2" * 9
    edited = EDITED.model_copy(update={"content": f"TOKEN = '{key}'\n"})
    store.create(RECORD.id, lambda _: RECORD.model_copy(update={"edited_files": (edited,)}))
    (found,) = store.load(RECORD.id).edited_files
    assert found.content == "TOKEN = '[redacted]'\n"
    assert found.sha256 == edited.sha256
    assert key not in (store.directory(RECORD.id) / RECORD_FILE).read_text()


def test_a_record_under_another_name_is_refused(store: RecordStore) -> None:
    save_record(store)
    store.directory(RECORD.id).rename(store.directory("other"))
    with pytest.raises(RecordError, match=f"contains the record {RECORD.id}"):
        store.load("other")
    with pytest.raises(RecordError, match="record not found"):
        store.load(RECORD.id)


def test_notes_are_stored_separately(store: RecordStore) -> None:
    file = save_record(store)
    before = file.read_bytes()
    assert store.load(RECORD.id).notes is None
    store.add_notes(RECORD.id, NOTES)
    assert file.read_bytes() == before
    assert store.load(RECORD.id).notes == NOTES.seal_for(RECORD.id)
    assert store.load(RECORD.id).digest == RECORD.seal().digest


REVIEW = Review(decision="refuse", note="Keep it.")
EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a text": lambda content: content.update(summary="evil", note="evil"),
    "its digest removed": lambda content: (content.update(model="x", note="x"), content.pop("digest")),
    "its digest emptied": lambda content: content.update(model="x", note="x", digest=""),
    "another digest": lambda content: content.update(digest="0" * 64),
    "a decision or a usage": lambda content: content.update(
        {"decision": "approve"} if "decision" in content else {"malformed": True}
    ),
}


def with_additions(store: RecordStore, **changes: Any) -> Path:
    saved_as = RECORD.model_copy(update=changes)
    store.create(saved_as.id, lambda _: saved_as)
    store.add_notes(saved_as.id, NOTES)
    store.add_review(saved_as.id, REVIEW)
    return store.directory(saved_as.id)


def edit(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(file.read_text())
    names = set(content)
    change(content)
    file.write_text(json.dumps({name: value for name, value in content.items() if name in names}))


@pytest.mark.parametrize("name", [NOTES_FILE, REVIEW_FILE])
@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_edited_notes_or_a_review_are_refused(store: RecordStore, name: str, change: Any) -> None:
    directory = with_additions(store)
    assert store.load(RECORD.id).attachments.keys() == {NOTES_FILE, REVIEW_FILE}
    edit(directory / name, change)
    refused = f"record {RECORD.id}: {name} does not match its digest"
    for read in (store.load, store.load_notes if name == NOTES_FILE else store.load_review):
        with pytest.raises(RecordError, match=refused):
            read(RECORD.id)


@pytest.mark.parametrize("name", [NOTES_FILE, REVIEW_FILE])
def test_files_of_another_record_are_refused(store: RecordStore, name: str) -> None:
    here, source = with_additions(store), with_additions(store, id="other")
    (here / name).write_bytes((source / name).read_bytes())
    with pytest.raises(RecordError, match=f"{name} does not match its digest"):
        store.load(RECORD.id)


def test_rewritten_notes_are_complete(store: RecordStore) -> None:
    with_additions(store)
    read = store.load(RECORD.id).notes
    assert read is not None
    store.add_notes(RECORD.id, read.model_copy(update={"summary": "written anew"}))
    expected = NOTES.model_copy(update={"summary": "written anew"})
    assert store.load(RECORD.id).notes == expected.seal_for(RECORD.id)


def test_torn_notes_are_refused(store: RecordStore) -> None:
    save_record(store)
    (store.directory(RECORD.id) / NOTES_FILE).write_text('{"model": "m"')
    with pytest.raises(RecordError, match=NOTES_FILE):
        store.load(RECORD.id)


@pytest.mark.parametrize("name", [NOTES_FILE, REVIEW_FILE])
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Path.mkdir, "is a directory"),
        (os.mkfifo, "neither a file nor a directory"),
        (lambda path: path.symlink_to("nowhere"), "a link to a file that does not exist"),
    ],
)
def test_only_a_name_that_does_not_exist_is_absent(
    store: RecordStore, name: str, make: Callable[[Path], None], says: str
) -> None:
    save_record(store)
    path = store.directory(RECORD.id) / name
    make(path)
    for read in (store.load, store.load_notes if name == NOTES_FILE else store.load_review):
        with pytest.raises(RecordError, match=says) as refused:
            read(RECORD.id)
        assert str(refused.value).startswith(str(path))
        assert "\n" not in str(refused.value)


def test_bytes_outside_utf8_survive(store: RecordStore) -> None:
    odd = RECORD.model_copy(update={"patch": "+caf\udce9\n"})
    made = store.create(RECORD.id, lambda _: odd)
    assert store.load(RECORD.id) == made
    assert store.load(RECORD.id).patch.encode("utf-8", "surrogateescape") == b"+caf\xe9\n"
