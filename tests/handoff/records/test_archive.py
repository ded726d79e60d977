"""Record archives: imported whole, or refused with the reason and without leftovers."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover import open_home
from langgraph_takeover.handoff.records import archive
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError, RecordStore, to_json
from langgraph_takeover.handoff.records.verification import Verification, verify_record
from langgraph_takeover.nodes.state_events import load_events
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError, SnapshotCorruptError
from langgraph_takeover.sandbox.snapshots import transfer

from ...conftest import fill_disk, mount_small_disk
from ...graph.conftest import DONE, RunHarness, scripted_model
from ..conftest import NAME

MAGIC = b"takeover record 1\n"
LOOK = "```bash\ncat pkg/core.py new/made.txt; ls pkg\n```"


def names(store: Path) -> list[str]:
    return sorted(path.name for path in store.iterdir() if path.name != ".importing")


def expect_refusal(content: bytes, directory: Path, reason: str) -> None:
    file = directory / "file"
    file.write_bytes(content)
    with pytest.raises((RecordError, SnapshotCorruptError), match=reason) as found:
        archive.import_record(str(file), directory / "records")
    assert "\n" not in str(found.value)
    assert str(file) in str(found.value) or ".tar.zst" in str(found.value)
    assert names(directory / "records") == []


def header_of(content: bytes) -> tuple[HandoffRecord, bytes]:
    """The record at the start of an archive, and the bytes after its checksum."""
    (size,) = struct.unpack_from(">Q", content, len(MAGIC))
    start = len(MAGIC) + 8
    return HandoffRecord.model_validate_json(content[start : start + size]), content[start + size + 32 :]


def sign_file(header: str, rest: bytes = b"") -> bytes:
    """An archive with the correct checksum."""
    head = MAGIC + struct.pack(">Q", len(header)) + header.encode()
    return head + hashlib.sha256(head).digest() + rest


def test_a_record_survives_a_round_trip(record: Path, record_archive: Path, tmp_path: Path) -> None:
    assert list(record_archive.parent.iterdir()) == [record_archive]
    imported = archive.import_record(str(record_archive), tmp_path / "new" / "records")
    assert imported == tmp_path / "new" / "records" / NAME
    assert {path.name: path.read_bytes() for path in imported.iterdir()} == {
        path.name: path.read_bytes() for path in record.iterdir()
    }
    assert len(list(imported.iterdir())) == 4
    assert verify_record(imported) == Verification(())


def test_a_successor_continues_from_an_imported_record(
    copy_harness: RunHarness, record_archive: Path, tmp_path: Path
) -> None:
    with open_home(tmp_path / "other") as home:
        archive.import_record(str(record_archive), home.records.root)
        state = run_successor(copy_harness, home)
    shown = load_events(state)[1].text
    assert "return n * 2" in shown
    assert shown.splitlines()[-2:] == ["1", "core.py"]
    assert state["view"] == "trace"  # as in the review


@pytest.mark.parametrize("url", ["memory://records/{}", "file://{}"])
def test_fsspec_urls(record: Path, tmp_path: Path, url: str) -> None:
    url = url.format(tmp_path / "file")
    archive.export_record(record, url)
    assert verify_record(archive.import_record(url, tmp_path / "records")) == Verification(())


@pytest.mark.sampled(2)
@pytest.mark.slow
def test_an_image_is_exported_as_an_archive(layer_harness: RunHarness, tmp_path: Path) -> None:
    """On another daemon; the record names the archive, and is as complete as before."""
    directory, url = layer_harness.store.directory(NAME), f"memory://image/{tmp_path.name}"
    before = layer_harness.store.load(NAME)
    archive.export_record(directory, url)
    with open_home(tmp_path / "other") as home:
        imported = archive.import_record(url, home.records.root)
        assert verify_record(imported) == Verification(())
        found = home.records.load(NAME)
        assert (found.digest == before.digest) == (not before.snapshot.location.startswith("sha256:"))
        same = {"snapshot": before.snapshot, "digest": before.digest}
        assert found.model_copy(update=same) == before
        assert (imported / found.snapshot.location).is_file()
        assert "return n * 2" in load_events(run_successor(layer_harness, home))[1].text


def run_successor(bench: RunHarness, home: Any) -> Any:
    other = object.__new__(RunHarness)
    other.home, other.store, other.spec = home, home.records, bench.spec
    return other.take_over(scripted_model(LOOK, DONE), view=None, record=NAME)


def test_an_existing_record_is_kept(record: Path, record_archive: Path, tmp_path: Path) -> None:
    imported = archive.import_record(str(record_archive), tmp_path)
    (imported / "mark").touch()
    with pytest.raises(archive.RecordExistsError, match="exists already"):
        archive.import_record(str(record_archive), tmp_path)
    assert (imported / "mark").exists()
    torn = tmp_path / "torn"
    torn.write_bytes(record_archive.read_bytes()[:-5])
    with pytest.raises(SnapshotCorruptError):
        archive.import_record(str(torn), tmp_path, replace=True)
    assert (imported / "mark").exists()
    assert archive.import_record(str(record_archive), tmp_path, replace=True) == imported
    assert not (imported / "mark").exists()
    assert verify_record(imported) == Verification(())


def test_an_incomplete_record_is_not_exported(record: Path, record_archive: Path, tmp_path: Path) -> None:
    imported = archive.import_record(str(record_archive), tmp_path / "records")
    next(imported.glob("*.tar.zst")).write_bytes(b"")
    with pytest.raises(SnapshotCorruptError):
        archive.export_record(imported, str(tmp_path / "out" / "file"))
    (imported / "record.json").write_text("{}")
    with pytest.raises(RecordError):
        archive.export_record(imported, str(tmp_path / "out" / "file"))
    assert not (tmp_path / "out").exists()


def test_a_truncated_archive_is_refused(record_archive: Path, tmp_path: Path) -> None:
    content = record_archive.read_bytes()
    for length in (*range(0, 60, 7), *range(60, len(content), len(content) // 40), len(content) - 1):
        expect_refusal(content[:length], tmp_path, "truncated|unknown (record|snapshot) format")


def test_every_flipped_bit_is_refused(record_archive: Path, tmp_path: Path) -> None:
    content = record_archive.read_bytes()
    for position in (*range(0, 60, 5), *range(60, len(content), len(content) // 40), len(content) - 1):
        changed = bytearray(content)
        changed[position] ^= 1 << position % 8
        expect_refusal(bytes(changed), tmp_path, "checksum|format|larger than|truncated|continues after")


def test_other_files_are_refused(record_archive: Path, tmp_path: Path) -> None:
    content = record_archive.read_bytes()
    for changed, reason in (
        (b"", "format"),
        (os.urandom(1000), "format"),
        (b"takeover snapshot 1\n" + bytes(100), "`sandbox import` reads a snapshot alone"),
        (content.replace(b"record 1", b"record 2", 1), "format"),
        (content + b"\0", "continues after its end"),
        (MAGIC + struct.pack(">Q", 1 << 40), "larger than any record"),
        (MAGIC + struct.pack(">Q", 1 << 20) + b"{}", "truncated"),
        (sign_file("[" * 100_000), "damaged, or not JSON"),
        (sign_file("[]"), "schema version None"),
        (sign_file("{}"), "schema version None"),
        (sign_file('{"schema_version": 9}'), "schema version 9, which version 0.1 reads"),
        (sign_file('{"schema_version": 99}'), "schema version 99"),
    ):
        expect_refusal(changed, tmp_path, reason)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("notes", {"summary": "evil"}),
        ("notes", {"summary": "evil", "digest": ""}),
        ("review", {"view": "structured", "note": "evil"}),
        ("review", {"digest": "0" * 64}),
    ],
)
def test_an_archive_with_edited_notes_or_review_is_refused(
    record_archive: Path, tmp_path: Path, field: str, change: dict[str, str]
) -> None:
    """Also with a recomputed checksum of the file."""
    record, rest = header_of(record_archive.read_bytes())
    content = json.loads(to_json(record))
    content[field] |= change
    expect_refusal(sign_file(json.dumps(content), rest), tmp_path, f"{field}.json does not match its digest")


@pytest.mark.parametrize("name", ["../out", "a/b", "/tmp/out", "..", ".", ".hidden", "", "a\nb", "x" * 201])
def test_no_id_escapes_the_store(record_archive: Path, tmp_path: Path, name: str) -> None:
    record, rest = header_of(record_archive.read_bytes())
    hostile = record.model_copy(update={"id": name}).seal()
    expect_refusal(sign_file(to_json(hostile), rest), tmp_path, "invalid record id")


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("record.json", "not the name of an archive"),
        ("notes.json", "not the name of an archive"),
        ("review.json", "not the name of an archive"),
        ("sha256:" + "0" * 64, "not the name of an archive"),
        ("", "not the name of an archive"),
        ("../out", "snapshot.location"),
        (".hidden", "snapshot.location"),
    ],
)
def test_invalid_snapshot_locations_are_refused(
    record_archive: Path, tmp_path: Path, location: str, reason: str
) -> None:
    record, rest = header_of(record_archive.read_bytes())
    hostile = record.snapshot.model_copy(update={"location": location})
    sealed = record.model_copy(update={"snapshot": hostile}).seal()
    expect_refusal(sign_file(to_json(sealed), rest), tmp_path, reason)


def test_inconsistent_parts_are_refused(
    copy_harness: RunHarness, record_archive: Path, tmp_path: Path
) -> None:
    record, rest = header_of(record_archive.read_bytes())
    other = copy_harness.store.load("run.first_source_edit")
    expect_refusal(
        sign_file(to_json(other.model_copy(update={"id": "x"}).seal()), rest), tmp_path, "not the one"
    )
    expect_refusal(
        sign_file(to_json(record.model_copy(update={"patch": "x"})), rest), tmp_path, "does not match"
    )
    short = record.model_copy(update={"trace": record.trace[:-1]}).seal()
    expect_refusal(sign_file(to_json(short), rest), tmp_path, "does not end at its handoff point")
    state = record.snapshot.model_copy(update={"shell_state": "rm -rf /"})
    planted = record.model_copy(update={"snapshot": state}).seal()
    expect_refusal(sign_file(to_json(planted), rest), tmp_path, "not the one")
    expect_refusal(sign_file(to_json(record)), tmp_path, "unknown snapshot format")


def test_a_full_disk(record: Path, record_archive: Path, tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "small", str(record_archive.stat().st_size // 2)) as small:
        with pytest.raises(OutOfDiskError, match="disk is full"):
            archive.export_record(record, str(small / "file"))
        assert list(small.iterdir()) == []
        with pytest.raises(OutOfDiskError, match=f"{small}: the disk is full"):
            archive.import_record(str(record_archive), small)
        assert names(small) == []
    with mount_small_disk(tmp_path / "fuller", "10m") as small:
        archive.import_record(str(record_archive), small)
        filler = fill_disk(small)
        with pytest.raises(OutOfDiskError):
            archive.import_record(str(record_archive), small, replace=True)
        assert verify_record(small / NAME) == Verification(())
        filler.unlink()
        archive.import_record(str(record_archive), small, replace=True)


def test_an_unwritable_target(record: Path, record_archive: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for deed in (
        lambda: archive.export_record(record, str(tmp_path / "file" / "x")),
        lambda: archive.export_record(record, str(tmp_path)),
        lambda: archive.export_record(record, "nosuch://place"),
        lambda: archive.import_record(str(record_archive), tmp_path / "file"),
        lambda: archive.import_record("nosuch://place", tmp_path),
        lambda: archive.import_record(str(tmp_path / "none"), tmp_path),
    ):
        with pytest.raises(SandboxUnavailableError):
            deed()
    assert names(tmp_path) == ["file"]


def test_a_kill_at_any_moment_leaves_a_complete_record_or_none(record_archive: Path, tmp_path: Path) -> None:
    """Kill the import at each durable write; the next import completes it."""
    store = RecordStore(tmp_path)
    found = []
    for moment in range(1, 30):
        child = os.fork()
        if child == 0:
            try:
                kill_at(moment)
                archive.import_record(str(record_archive), tmp_path)
            finally:
                os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
            break
        found.append(store.list_ids())
        assert all(verify_record(store.directory(name)) == Verification(()) for name in store.list_ids())
        archive.import_record(str(record_archive), tmp_path, replace=True)
        assert names(tmp_path) == [NAME]
        subprocess.run(["rm", "-r", store.directory(NAME)], check=True)
    assert found[0] == ()
    assert found[-1] == (NAME,)
    assert len(found) > 6


def kill_at(moment: int) -> None:
    """Kill this process after that call of fsync."""
    calls = 0
    fsync = os.fsync

    def counting(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        fsync(descriptor)
        if calls == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = counting


@pytest.mark.slow
@pytest.mark.parametrize("replace", [False, True])
def test_several_imports_at_once(record_archive: Path, tmp_path: Path, replace: bool) -> None:
    argv = [sys.executable, "-m", "handoff", "import", str(record_archive), str(tmp_path)]
    argv += ["--replace"] if replace else []
    root = Path(archive.__file__).parents[3]
    started = [
        subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    ended = [process.communicate(timeout=100) for process in started]
    codes = sorted(process.returncode for process in started)
    assert codes == ([0, 0, 0] if replace else [0, 2, 2]), ended
    assert names(tmp_path) == [NAME]
    assert verify_record(tmp_path / NAME) == Verification(())


def test_a_checksum_covers_the_snapshot_as_well(record_archive: Path) -> None:
    """A complete snapshot archive follows the header."""
    _, rest = header_of(record_archive.read_bytes())
    assert rest.startswith(transfer._MAGIC)
    assert hashlib.sha256(rest[:-32]).digest() == rest[-32:]


COST = """
import resource, sys
from pathlib import Path
from langgraph_takeover.handoff.records import archive as carrying
from langgraph_takeover.handoff.records.record import RecordError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    carrying.import_record(sys.argv[1], Path(sys.argv[2]))
except RecordError as error:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
COSTLY = {
    "wrong events": '{"schema_version": 10, "trace": [' + "1," * 1_900_000 + "1]}",
    "empty events": '{"schema_version": 10, "trace": [' + "[]," * 900_000 + "1]}",
    "wrong changes": '{"schema_version": 10, "trace": [{"changes": [' + "1," * 1_900_000 + "1]}]}",
    "keys": '{"schema_version": 10, ' + ",".join(f'"{key}": 1' for key in range(200_000)) + "}",
    "values": '{"schema_version": 10, "trace": [' + "{}," * 4_000_000 + "1]}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COSTLY)
def test_an_invalid_record_takes_little_memory(name: str, tmp_path: Path) -> None:
    """A wrong value of two bytes took 1,600."""
    file = tmp_path / "file"
    file.write_bytes(sign_file(COSTLY[name]))
    done = subprocess.run(
        [sys.executable, "-c", COST, str(file), str(tmp_path / "records")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(archive.__file__).parents[3])},
    )
    assert int(done.stdout) < 250
