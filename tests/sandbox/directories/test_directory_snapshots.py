"""Snapshots of live directories: what is saved, what a restore changes, and what both leave alone."""

from __future__ import annotations

import ast
import os
import random
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from langgraph_takeover.sandbox import (
    DirectorySnapshots,
    OutOfDiskError,
    SandboxUnavailableError,
    SnapshotCorruptError,
)
from langgraph_takeover.sandbox.directories import directory_reader, directory_store

from ...conftest import fill_disk, mount, mount_small_disk, skip_missing
from .saved_trees import describe_tree, open_snapshots


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with every kind of entry that a snapshot holds."""
    directory = tmp_path / "tree"
    (directory / "package" / "deep" / "deeper").mkdir(parents=True)
    (directory / "empty").mkdir(mode=0o750)
    (directory / "package" / "module.py").write_text("one = 1\n")
    (directory / "package" / "deep" / "deeper" / "data.bin").write_bytes(
        random.Random(1).randbytes(2_500_000)
    )
    (directory / "script.sh").write_text("#!/bin/sh\r\necho hi\r\n")
    (directory / "script.sh").chmod(0o751)
    (directory / "nothing").touch()
    (directory / "link").symlink_to("package/module.py")
    (directory / "outside").symlink_to("/etc/passwd")
    (directory / "dangling").symlink_to("a" * 300)
    Path(os.fsdecode(os.fsencode(directory) + b"/\xff\xfe name")).write_bytes(b"bytes")
    (directory / ("n" * 255)).write_text("long")
    (directory / "read-only").mkdir()
    (directory / "read-only" / "file").write_text("kept")
    (directory / "read-only").chmod(0o555)
    for path in (directory / "script.sh", directory / "package", directory / "link"):
        os.utime(path, ns=(1_234_567_890_123_456_789, 1_234_567_890_123_456_789), follow_symlinks=False)
    os.utime(directory / "nothing", ns=(-5_000_000_001, -5_000_000_001))
    return directory


def spoil(directory: Path) -> None:
    """Change everything that can change."""
    (directory / "package" / "module.py").write_text("two = 2\n")
    subprocess.run(["rm", "-rf", directory / "package" / "deep"], check=True)
    (directory / "package" / "deep").write_text("a file now")
    (directory / "empty").rmdir()
    (directory / "script.sh").chmod(0o600)
    (directory / "nothing").unlink()
    (directory / "nothing").mkdir()
    (directory / "nothing" / "new").mkdir()
    (directory / "nothing" / "new" / "file").write_text("new")
    (directory / "link").unlink()
    (directory / "link").write_text("no link")
    (directory / "outside").unlink()
    (directory / "outside").symlink_to("elsewhere")
    Path(os.fsdecode(os.fsencode(directory) + b"/\xff\xfe name")).unlink()
    (directory / "read-only").chmod(0o755)
    (directory / "read-only" / "file").write_text("changed")
    os.utime(directory / ("n" * 255), ns=(1, 1))


def test_a_restore_brings_everything_back(tree: Path) -> None:
    snapshots = open_snapshots(tree)
    before = describe_tree(tree)
    first = snapshots.take(label="first")
    assert (first.files, first.left_out) == (10, ())
    spoil(tree)
    spoiled = describe_tree(tree)
    restored = snapshots.restore(first.id)
    assert describe_tree(tree) == before
    assert restored.left_out == ()
    assert restored.before is not None
    snapshots.restore(restored.before)
    assert describe_tree(tree) == spoiled
    assert [each.label for each in snapshots.list()][:2] == ["first", f"before the restore of {first.id}"]


def test_a_comparison_names_what_a_restore_does(tree: Path) -> None:
    snapshots = open_snapshots(tree)
    first = snapshots.take()
    nothing = snapshots.compare(first.id)
    assert (nothing.created, nothing.changed, nothing.removed) == ((), (), ())
    spoil(tree)
    compared = snapshots.compare(first.id)
    assert "package/module.py" in compared.changed
    assert "script.sh" in compared.changed
    assert "nothing/new/file" in compared.removed
    assert {"empty", "package/deep/deeper/data.bin", "\\xff\\xfe name"} <= set(compared.created)
    assert len(snapshots.list()) == 1
    restored = snapshots.restore(first.id)
    assert snapshots.list()[1].stored_bytes > 0  # the comparison has stored nothing
    assert compared == restored.model_copy(update={"before": None})


def test_only_what_changed_is_read_stored_and_written(tree: Path) -> None:
    snapshots = open_snapshots(tree)
    first = snapshots.take()
    data = tree / "package" / "deep" / "deeper" / "data.bin"
    assert first.stored_bytes > data.stat().st_size
    assert snapshots.take().stored_bytes == 0
    assert _list_opened_files(tree) == []
    (tree / "package" / "module.py").write_text("three = 3\n")
    assert _list_opened_files(tree) == ["module.py"]
    inode, changed = data.stat().st_ino, data.stat().st_ctime_ns
    restored = snapshots.restore(first.id)
    assert (restored.created, restored.changed, restored.removed) == ((), ("package/module.py",), ())
    assert (data.stat().st_ino, data.stat().st_ctime_ns) == (inode, changed)


_LIST_OPENED = """
import os, sys
from pathlib import Path
from langgraph_takeover.sandbox import DirectorySnapshots
tree, opened = Path(sys.argv[1]), []
files = {name for _, _, files in os.walk(tree) for name in files}
sys.addaudithook(lambda event, values: opened.append(values[0]) if event == "open" else None)
DirectorySnapshots(tree, store=tree.parent / f"{tree.name}.store").take()
print([each for each in opened if each in files])
"""


def _list_opened_files(tree: Path) -> list[str]:
    """The names of the files that a snapshot opens."""
    done = subprocess.run(
        [sys.executable, "-c", _LIST_OPENED, tree], capture_output=True, text=True, check=True
    )
    found: list[str] = ast.literal_eval(done.stdout)
    return found


@pytest.mark.parametrize(
    "size", [0, 1, directory_store.BLOCK_BYTES, directory_store.BLOCK_BYTES + 1, 3_500_000]
)
def test_sizes_around_blocks(tmp_path: Path, size: int) -> None:
    directory = tmp_path / "tree"
    directory.mkdir()
    content = os.urandom(size)
    (directory / "file").write_bytes(content)
    snapshots = open_snapshots(directory)
    first = snapshots.take()
    (directory / "file").unlink()
    snapshots.restore(first.id)
    assert (directory / "file").read_bytes() == content


def test_a_file_appended_to_stores_its_last_blocks_only(tmp_path: Path) -> None:
    directory = tmp_path / "tree"
    directory.mkdir()
    (directory / "log").write_bytes(os.urandom(8 * directory_store.BLOCK_BYTES))
    snapshots = open_snapshots(directory)
    snapshots.take()
    with (directory / "log").open("ab") as file:
        file.write(b"one more line\n")
    assert snapshots.take().stored_bytes < 2_000


def test_holes_take_no_space_in_the_store_or_after_a_restore(tmp_path: Path) -> None:
    directory = tmp_path / "tree"
    directory.mkdir()
    with (directory / "sparse").open("wb") as file:
        file.write(b"start")
        file.seek(200 * 1024**2)
        file.write(b"end")
    before = (directory / "sparse").read_bytes()
    snapshots = open_snapshots(directory)
    first = snapshots.take()
    assert first.stored_bytes < 4 * directory_store.BLOCK_BYTES
    (directory / "sparse").unlink()
    snapshots.restore(first.id)
    assert (directory / "sparse").read_bytes() == before
    assert (directory / "sparse").stat().st_blocks * 512 < 8 * 1024**2


def test_hard_links_become_files_of_their_own_and_nothing_is_written_through_them(tmp_path: Path) -> None:
    directory, outside = tmp_path / "tree", tmp_path / "outside"
    directory.mkdir()
    (directory / "file").write_text("first")
    (directory / "second").hardlink_to(directory / "file")
    snapshots = open_snapshots(directory)
    first = snapshots.take()
    (directory / "file").unlink()
    (directory / "second").unlink()
    outside.write_text("first")
    outside.chmod(0o600)
    (directory / "file").hardlink_to(outside)
    (directory / "second").hardlink_to(outside)
    info = outside.stat()
    snapshots.restore(first.id)
    assert (directory / "file").read_text() == (directory / "second").read_text() == "first"
    assert (outside.stat().st_mode, outside.stat().st_mtime_ns) == (info.st_mode, info.st_mtime_ns)
    assert (directory / "file").stat().st_ino != outside.stat().st_ino
    assert (directory / "file").stat().st_nlink == 1


def test_pipes_sockets_and_devices_are_named_and_left_alone(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tree / "socket"))
    snapshots = open_snapshots(tree)
    first = snapshots.take()
    assert {each.path: each.reason for each in first.left_out} == {
        "pipe": "a named pipe",
        "socket": "a socket",
    }
    (tree / "script.sh").unlink()
    os.mkfifo(tree / "script.sh")
    (tree / "new").mkdir()
    os.mkfifo(tree / "new" / "pipe")
    (tree / "new" / "file").touch()
    restored = snapshots.restore(first.id)
    assert {each.path: each.reason for each in restored.left_out} == {
        "pipe": "a named pipe",
        "socket": "a socket",
        "script.sh": "a named pipe",
        "new": "not empty: it has files that are not saved",
        "new/pipe": "a named pipe",
    }
    assert (tree / "pipe").is_fifo()
    assert (tree / "socket").is_socket()
    assert (tree / "script.sh").is_fifo()
    assert [path.name for path in (tree / "new").iterdir()] == ["pipe"]


def test_what_the_snapshot_does_not_have_is_not_removed(tree: Path) -> None:
    """A file too large for the snapshot, a pipe at that time, is not new when it can be saved later."""
    (tree / "large").write_bytes(bytes(2_000))
    os.mkfifo(tree / "pipe")
    first = open_snapshots(tree, max_file_bytes=1_000_000).take()
    small = open_snapshots(tree, max_file_bytes=1_000).take()
    assert {each.path for each in small.left_out} >= {"large", "package/deep/deeper/data.bin"}
    (tree / "pipe").unlink()
    (tree / "pipe").write_text("a file now")
    (tree / "large").write_bytes(bytes(10))
    snapshots = open_snapshots(tree)
    restored = snapshots.restore(small.id)
    assert (tree / "pipe").read_text() == "a file now"
    assert (tree / "large").stat().st_size == 10
    assert ("large", "larger than 1,000 bytes") in {(each.path, each.reason) for each in restored.left_out}
    snapshots.restore(first.id)
    assert (tree / "large").stat().st_size == 2_000


def test_caches_are_neither_saved_nor_removed(tree: Path) -> None:
    for path in ("package/__pycache__", "node_modules/.cache", "node_modules/left-pad", ".cache"):
        (tree / path).mkdir(parents=True)
        (tree / path / "file").write_text("1")
    (tree / "package" / ".mypy_cache").write_text("a file with that name")
    snapshots = open_snapshots(tree)
    first = snapshots.take()
    assert first.left_out == ()
    for path in tree.rglob("file"):
        path.write_text("2")
    subprocess.run(["rm", "-r", tree / "package"], check=True)
    (tree / "package" / "__pycache__").mkdir(parents=True)
    (tree / "package" / "__pycache__" / "later").write_text("2")
    restored = snapshots.restore(first.id)
    assert restored.left_out == ()
    assert (tree / "package" / "__pycache__" / "later").read_text() == "2"
    assert (tree / "node_modules" / ".cache" / "file").read_text() == "2"
    assert (tree / "node_modules" / "left-pad" / "file").read_text() == "1"
    assert (tree / ".cache" / "file").read_text() == "1"
    assert (tree / "package" / ".mypy_cache").read_text() == "a file with that name"
    everything = open_snapshots(tree, ignored_names=()).take()
    assert everything.files == first.files + 2


def test_other_file_systems_are_named_and_left_alone(tree: Path, tmp_path: Path) -> None:
    below, same_disk = tree / "other disk", tmp_path / "same"
    below.mkdir()
    same_disk.mkdir()
    (same_disk / "file").write_text("outside")
    (tree / "bound").mkdir()
    with mount("-t", "tmpfs", "tmpfs", below), mount("--bind", same_disk, tree / "bound"):
        (below / "file").write_text("outside")
        snapshots = open_snapshots(tree)
        first = snapshots.take()
        assert {each.path for each in first.left_out} == {"other disk", "bound"}
        (below / "file").write_text("later")
        (tree / "nothing").write_text("later")
        snapshots.restore(first.id)
        assert (below / "file").read_text() == "later"
        assert (same_disk / "file").read_text() == "outside"
        assert (tree / "nothing").read_text() == ""


def test_a_file_system_that_is_not_listed_as_mounted_is_found_by_its_device(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a subvolume of btrfs, or one mounted since the list was read."""
    (tmp_path / "mounts").touch()
    monkeypatch.setattr(directory_reader, "_MOUNTS_FILE", tmp_path / "mounts")
    (tree / "disk").mkdir()
    with mount("-t", "tmpfs", "tmpfs", tree / "disk"):
        taken = open_snapshots(tree).take()
        assert [(each.path, each.reason) for each in taken.left_out] == [("disk", "another file system")]


def test_a_change_right_after_a_snapshot_is_seen(tmp_path: Path) -> None:
    """Same size, same time of modification, within one tick of the clock: git calls such a file racy."""
    directory = tmp_path / "tree"
    directory.mkdir()
    file = directory / "file"
    snapshots = open_snapshots(directory)
    for number in range(30):
        file.write_text(f"{number:03}")
        os.utime(file, ns=(1_000, 1_000))
        first = snapshots.take()
        file.write_text("new")
        os.utime(file, ns=(1_000, 1_000))
        snapshots.take()
        snapshots.restore(first.id)
        assert file.read_text() == f"{number:03}"


def test_a_file_that_is_written_all_the_time_is_never_saved_half(tmp_path: Path) -> None:
    """Each write replaces every block in place; a mixture would have different blocks."""
    directory = tmp_path / "tree"
    directory.mkdir()
    file = directory / "file"
    file.write_bytes(bytes([1]) * 3_000_000)
    stop = threading.Event()

    def write() -> None:
        number = 0
        with file.open("r+b", buffering=0) as opened:
            while not stop.is_set():
                number = number % 200 + 1
                opened.seek(0)
                opened.write(bytes([number]) * 3_000_000)
                time.sleep(0.02 if number % 7 else 0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        snapshots = open_snapshots(directory)
        taken = [snapshots.take() for _ in range(15)]
    finally:
        stop.set()
        writer.join()
    for each in taken:
        file.unlink(missing_ok=True)
        snapshots.restore(each.id)
        if each.left_out:
            assert [(left.path, left.reason) for left in each.left_out] == [
                ("file", "changed each time it was read")
            ]
        else:
            content = file.read_bytes()
            assert len(content) == 3_000_000
            assert len(set(content)) == 1


def test_pruning_removes_snapshots_and_frees_the_disk(tree: Path) -> None:
    snapshots = open_snapshots(tree)
    first = snapshots.take()
    (tree / "large").write_bytes(os.urandom(6_000_000))
    snapshots.take()
    (tree / "large").unlink()
    last = snapshots.take()
    assert snapshots.prune(keep=[first.id, last.id]) > 5_900_000
    assert [each.id for each in snapshots.list()] == [first.id, last.id]
    assert snapshots.verify() == ()
    spoil(tree)
    spoiled = describe_tree(tree)
    snapshots.prune(keep=[])
    assert snapshots.list() == ()
    again = snapshots.take()
    assert snapshots.verify() == ()
    spoil_again = tree / "script.sh"
    spoil_again.write_text("changed")
    snapshots.restore(again.id)
    assert describe_tree(tree) == spoiled


def test_damage_is_found_and_named(tree: Path) -> None:
    snapshots = open_snapshots(tree)
    first = snapshots.take()
    (tree / "package" / "module.py").write_text("two = 2\n")
    second = snapshots.take()
    (tree / "package" / "module.py").write_text("three = 3\n")
    store = tree.parent / "tree.store" / "snapshots.sqlite"
    with sqlite3.connect(store) as database:
        database.execute("UPDATE objects SET content = ? WHERE content = ?", (b"six = 6\n", b"two = 2\n"))
    database.close()
    assert snapshots.verify() == (second.id,)
    restored = snapshots.restore(second.id)
    assert [(each.path, each.reason) for each in restored.left_out] == [
        ("package/module.py", "damaged in the store")
    ]
    assert (tree / "package" / "module.py").read_text() == "three = 3\n"
    assert snapshots.restore(first.id).left_out == ()
    content = store.read_bytes()
    store.write_bytes(content[:100] + os.urandom(len(content) - 100))
    with pytest.raises(SandboxUnavailableError, match=r"tree\.store"):
        snapshots.take()


def test_unknown_snapshots_are_refused_before_anything_changes(tree: Path) -> None:
    snapshots = open_snapshots(tree)
    with pytest.raises(SnapshotCorruptError, match="snapshot not found: abc"):
        snapshots.restore("abc")
    assert snapshots.list() == ()


def test_a_store_belongs_to_one_directory_and_version(tree: Path, tmp_path: Path) -> None:
    open_snapshots(tree).take()
    store = tmp_path / "tree.store"
    (tmp_path / "other").mkdir()
    with pytest.raises(SandboxUnavailableError, match="has the snapshots of"):
        DirectorySnapshots(tmp_path / "other", store=store).take()
    with sqlite3.connect(store / "snapshots.sqlite") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(SandboxUnavailableError, match="another version"):
        open_snapshots(tree).take()
    (tmp_path / "file").touch()
    with pytest.raises(SandboxUnavailableError, match="pass another store"):
        DirectorySnapshots(tree, store=tmp_path / "file" / "store").take()


def test_too_many_files_are_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_reader, "MAX_FILES", 5)
    snapshots = open_snapshots(tree)
    with pytest.raises(SandboxUnavailableError, match="more than 5 files"):
        snapshots.take()
    assert snapshots.list() == ()


def test_a_full_disk_of_the_store_loses_nothing(tree: Path, tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", "12m") as disk:
        snapshots = DirectorySnapshots(tree, store=disk / "store")
        first = snapshots.take()
        before = describe_tree(tree)
        (tree / "large").write_bytes(os.urandom(20_000_000))
        with pytest.raises(OutOfDiskError, match="the disk is full"):
            snapshots.take()
        with pytest.raises(OutOfDiskError, match="the disk is full"):
            snapshots.restore(first.id)
        assert (tree / "large").stat().st_size == 20_000_000
        assert [each.id for each in snapshots.list()] == [first.id]
        (tree / "large").unlink()
        snapshots.restore(first.id)
        assert describe_tree(tree) == before


def test_a_full_disk_of_the_directory_is_an_unfinished_restore(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", "4m") as disk:
        directory = disk / "tree"
        directory.mkdir()
        for number in range(5):
            (directory / str(number)).write_bytes(os.urandom(300_000))
        snapshots = DirectorySnapshots(directory, store=tmp_path / "store")
        first, before = snapshots.take(), describe_tree(directory)
        for number in range(5):
            (directory / str(number)).write_bytes(b"short")
        filler = fill_disk(disk)
        with pytest.raises(OutOfDiskError, match="the disk is full during the restore"):
            snapshots.restore(first.id)
        assert sorted(path.name for path in directory.iterdir()) == ["0", "1", "2", "3", "4"]
        filler.unlink()
        snapshots.take()
        assert describe_tree(directory) == before


def test_free_space_is_kept_on_the_disk(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_store, "_BYTES_BETWEEN_CHECKS", 1_000_000)
    monkeypatch.setattr(directory_store, "_MIN_FREE_BYTES", 10**18)
    snapshots = open_snapshots(tree)
    with pytest.raises(OutOfDiskError, match="prune old snapshots"):
        snapshots.take()
    assert snapshots.list() == ()


def test_root_restores_owners_and_rights(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        skip_missing("requires root, to give files to other users")
    directory = tmp_path / "tree"
    directory.mkdir()
    (directory / "program").write_text("theirs")
    (directory / "link").symlink_to("program")
    os.chown(directory / "program", 54_321, 54_322)
    os.chown(directory / "link", 54_321, 54_322, follow_symlinks=False)
    (directory / "program").chmod(0o4755)
    before = describe_tree(directory)
    snapshots = open_snapshots(directory)
    first = snapshots.take()
    (directory / "program").unlink()
    (directory / "link").unlink()
    snapshots.restore(first.id)
    assert describe_tree(directory) == before
    os.chown(directory / "program", 0, 0)
    snapshots.restore(first.id)
    assert describe_tree(directory) == before
