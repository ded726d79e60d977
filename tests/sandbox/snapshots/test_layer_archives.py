"""Saving layers again and again: small parts, the digest and the files of a whole archive, and nothing lost on the way."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_takeover.sandbox.changes.layers import TRUSTED_OPAQUE, LayerStack
from langgraph_takeover.sandbox.interface import OutOfDiskError, Snapshot, SnapshotCorruptError
from langgraph_takeover.sandbox.snapshots import (
    archive_format,
    archive_parts,
    archive_reader,
    layer_archives,
    transfer,
)
from langgraph_takeover.sandbox.snapshots.archive_format import archive_name
from langgraph_takeover.sandbox.snapshots.layer_archives import LayerArchives

from ...random_examples import SHARED_FIXTURES, examples
from .test_archive import BASE, DEEDS, Overlay, do, keep, rooms, tree, unpack

__all__ = ["rooms"]


def make_archives(base: Path, opaque: str = TRUSTED_OPAQUE) -> LayerArchives:
    return LayerArchives(LayerStack(base, opaque_attribute=opaque), BASE, 0)


def check_snapshot(room: Path, store: Path, digest: str, base: Path, expected: dict[str, Any]) -> None:
    """Check that a snapshot's files alone give the expected tree."""
    archive, again = store / archive_name(digest), Path(tempfile.mkdtemp(dir=room))
    archive_reader.verify(archive, digest=digest, base_digest=BASE)
    unpack(archive, again, digest, owner=0)
    with Overlay(room, (base,), again, user=True) as merged:
        assert tree(merged) == expected


@settings(max_examples=examples(20), suppress_health_check=SHARED_FIXTURES, deadline=None)
@given(st.lists(DEEDS, min_size=2, max_size=6), st.randoms(use_true_random=False), st.booleans())
def test_every_snapshot_has_digest_and_files_of_a_whole_archive(
    rooms: Path, rounds: list[list[Any]], chance: random.Random, is_large: bool
) -> None:
    room = Path(tempfile.mkdtemp(dir=rooms))
    base = room / "base"
    base.mkdir()
    do(base, rounds[0])
    for path in sorted(base.rglob(".wh.*"), reverse=True):  # the base may use these names itself
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if is_large:  # later parts stay apart from it
        rounds.insert(1, [("write", f"large/{n}", "", b"", 0) for n in range(60)])
    layers: tuple[Path, ...] = ()
    with closing(make_archives(base)) as archives:
        for number, deeds in enumerate(rounds[1:]):
            upper, store = room / f"upper{number}", room / f"store{number}"
            with Overlay(room, (*layers, base), upper) as merged:
                do(merged, deeds)
                expected = tree(merged)
            layers = (upper, *layers)
            if chance.random() < 0.2:
                continue  # a snapshot that failed
            digest = archives.save(layers, store)
            assert digest == keep(layers, base, room / "whole", opaque=TRUSTED_OPAQUE)
            check_snapshot(room, store, digest, base, expected)
            if chance.random() < 0.2:
                shutil.rmtree(store)
    shutil.rmtree(room)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    base = tmp_path / "base"
    (base / "d").mkdir(parents=True)
    (base / "d/old").write_text("old")
    return base


def make_layer(path: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content)
    return path


def save_two(tmp_path: Path, base: Path, archives: LayerArchives) -> tuple[Path, str]:
    """Save a large layer, then a small one above it; return the directory and the digest of the second."""
    first = make_layer(tmp_path / "one", {f"large/{n}": f"{n}" for n in range(40)})
    second = make_layer(tmp_path / "two", {"small": "small", "large/1": "changed"})
    archives.save((first,), tmp_path / "first")
    return tmp_path / "second", archives.save((second, first), tmp_path / "second")


def list_names(store: Path) -> list[str]:
    return sorted(path.suffix for path in store.iterdir())


def test_a_later_snapshot_adds_one_small_part(tmp_path: Path, base: Path) -> None:
    with closing(make_archives(base)) as archives:
        store, digest = save_two(tmp_path, base, archives)
        assert list_names(store) == [".part", ".part", ".zst"]
        size = archive_parts.measure_archive(store / archive_name(digest))
        assert size.written < size.total / 2
        # In 100 more steps, each byte is written about as often as the logarithm of all says, and parts stay few.
        layers = (tmp_path / "two", tmp_path / "one")
        written = 0
        for number in range(100):
            layers = (make_layer(tmp_path / f"layer{number}", {f"step{number}": "s" * 9}), *layers)
            digest = archives.save(layers, tmp_path / f"step{number}")
            written += archive_parts.measure_archive(
                tmp_path / f"step{number}" / archive_name(digest)
            ).written
    found = archive_parts.find_part_list(tmp_path / "step99" / archive_name(digest))
    assert found is not None
    assert len(found.parts) <= 8
    whole = archive_parts.measure_archive(tmp_path / "step99" / archive_name(digest)).total
    assert written < 100 * whole / 4
    assert digest == keep(layers, base, tmp_path / "whole")
    for number in range(99):
        shutil.rmtree(tmp_path / f"step{number}")
    archive_reader.verify(tmp_path / "step99" / archive_name(digest), digest=digest, base_digest=BASE)


def test_no_snapshot_waits_for_many_files_to_be_written_again(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until there are many parts, which are then merged."""
    monkeypatch.setattr(layer_archives, "_MAX_MERGED_BYTES", 30 * 4096)
    layers: tuple[Path, ...] = ()
    most, counts, digest = 0, [], ""
    with closing(make_archives(base)) as archives:
        for number in range(60):
            layers = (
                make_layer(tmp_path / f"layer{number}", {f"{number}/{n}": "" for n in range(40)}),
                *layers,
            )
            store = tmp_path / f"step{number}"
            digest = archives.save(layers, store)
            found = archive_parts.find_part_list(store / archive_name(digest))
            counts.append(len(found.parts) if found else 1)
            size = archive_parts.measure_archive(store / archive_name(digest))
            if number < archive_format.MAX_PARTS // 2:
                most = max(most, size.written / size.total * (number + 1))
    assert most < 6, "no more than a few layers at once"
    assert max(counts) <= archive_format.MAX_PARTS
    assert digest == keep(layers, base, tmp_path / "whole")


@pytest.mark.parametrize("change", ["overwritten", "directory hidden", "link changed too"])
def test_a_hard_link_keeps_its_content_when_its_first_name_changes(
    tmp_path: Path, base: Path, change: str
) -> None:
    """As in cvmfs/cvmfs#4286: a layer's archive has a hard link to a file of another one."""
    names = ("n/b", "n/c", "z")
    first = make_layer(tmp_path / "one", {"a/first": "content", **{f"large/{n}": "" for n in range(60)}})
    (first / "n").mkdir()
    for name in names:
        (first / name).hardlink_to(first / "a/first")
    os.setxattr(first / "z", "user.note", b"kept")
    second = make_layer(tmp_path / "two", {"a/first": "new"})
    if change == "directory hidden":
        os.setxattr(second / "a", "user.overlay.opaque", b"y")
        (second / "a/first").unlink()
    elif change == "link changed too":
        make_layer(second, {"n/b": "other"})
    with closing(make_archives(base, "user.overlay.opaque")) as archives:
        archives.save((first,), tmp_path / "first")
        digest = archives.save((second, first), tmp_path / "second")
    assert ".part" in list_names(tmp_path / "second")
    assert digest == keep((second, first), base, tmp_path / "whole")
    unpack(tmp_path / "second" / archive_name(digest), tmp_path / "again", digest)
    left = names[1:] if change == "link changed too" else names
    assert [(tmp_path / "again" / name).read_text() for name in left] == ["content"] * len(left)
    assert len({(tmp_path / "again" / name).stat().st_ino for name in left}) == 1
    assert os.getxattr(tmp_path / "again/z", "user.note") == b"kept"


@pytest.mark.parametrize("before", ["gone", "file"])
def test_a_plain_directory_in_place_of_something_else_hides_what_was_below(
    tmp_path: Path, base: Path, before: str
) -> None:
    """As in moby/buildkit#2614 and #2710, google/go-containerregistry#2191, gilbertchen/duplicacy#429."""
    first = make_layer(tmp_path / "one", {"d/first": "", **{f"large/{n}": "" for n in range(200)}})
    second = make_layer(tmp_path / "two", {f"more/{n}": "" for n in range(60)})
    if before == "gone":
        os.mknod(second / "d", stat.S_IFCHR, 0)
    else:
        (second / "d").write_text("file")
    third = make_layer(tmp_path / "three", {"d/new": "new"})
    layers: tuple[Path, ...] = ()
    with closing(make_archives(base, "user.overlay.opaque")) as archives:
        for layer in (first, second, third):
            layers = (layer, *layers)
            digest = archives.save(layers, tmp_path / "saved" / layer.name)
            assert digest == keep(layers, base, tmp_path / "whole")
    archive = tmp_path / "saved/three" / archive_name(digest)
    found = archive_parts.find_part_list(archive)
    assert found is not None
    assert len(found.parts) == 3
    unpack(archive, tmp_path / "again", digest)
    assert [path.name for path in (tmp_path / "again/d").iterdir()] == ["new"]
    assert os.getxattr(tmp_path / "again/d", "user.overlay.opaque") == b"y"


def test_a_restored_snapshot_is_saved_on_with_small_parts(tmp_path: Path, base: Path) -> None:
    with closing(make_archives(base)) as archives:
        store, digest = save_two(tmp_path, base, archives)
    unpack(store / archive_name(digest), tmp_path / "restored", digest)
    third = make_layer(tmp_path / "three", {"third": "third"})
    with closing(make_archives(base)) as archives:
        archives.remember_restored((tmp_path / "restored",), store / archive_name(digest), digest)
        after = archives.save((third, tmp_path / "restored"), tmp_path / "third")
    assert after == keep((third, tmp_path / "restored"), base, tmp_path / "whole")
    size = archive_parts.measure_archive(tmp_path / "third" / archive_name(after))
    assert size.written < size.total / 2


@pytest.mark.parametrize("loss", ["removed", "changed"])
def test_a_part_that_is_lost_is_written_again(tmp_path: Path, base: Path, loss: str) -> None:
    third = make_layer(tmp_path / "three", {"third": "third"})
    with closing(make_archives(base)) as archives:
        store, _ = save_two(tmp_path, base, archives)
        for directory in (tmp_path / "first", store):
            for path in directory.iterdir():
                path.unlink() if loss == "removed" else path.write_bytes(b"changed")
        layers = (third, tmp_path / "two", tmp_path / "one")
        digest = archives.save(layers, tmp_path / "third")
    archive_reader.verify(tmp_path / "third" / archive_name(digest), digest=digest, base_digest=BASE)


def write_list(archive: Path, text: bytes, *, length: int | None = None) -> None:
    archive.write_bytes(struct.pack("<II", 0x184D2A5B, len(text) if length is None else length) + text)


def change_parts(archive: Path, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    found = json.loads(archive.read_bytes()[8:])
    found["parts"] = change(found["parts"]) or found["parts"]
    write_list(archive, json.dumps(found).encode())


HOSTILE: dict[str, Callable[[Path], Any]] = {
    "a missing part": lambda archive: next(archive.parent.glob("*.part")).unlink(),
    "a shortened part": lambda archive: os.truncate(next(archive.parent.glob("*.part")), 100),
    "a link to another file": lambda archive: exchange_for_link(next(archive.parent.glob("*.part"))),
    "another order": lambda archive: change_parts(archive, lambda parts: parts[::-1]),
    "a part twice": lambda archive: change_parts(archive, lambda parts: [*parts, parts[0]]),
    "one part": lambda archive: change_parts(archive, lambda parts: parts[:1]),
    "a million parts": lambda archive: change_parts(
        archive, lambda parts: [{"sha256": f"{n:064x}", "size_bytes": 1} for n in range(1_000_000)]
    ),
    "a path": lambda archive: change_parts(archive, lambda parts: parts[0].update(sha256="../" + "a" * 61)),
    "a list as a part": lambda archive: change_parts(archive, lambda parts: loop(archive, parts)),
    "an endless list": lambda archive: write_list(archive, b"{}", length=2**32 - 1),
    "no list": lambda archive: write_list(archive, b"[" * 60_000),
    "another field": lambda archive: write_list(archive, b'{"parts": [], "more": 1}'),
    "nothing": lambda archive: archive.write_bytes(b""),
}


def exchange_for_link(part: Path) -> None:
    part.unlink()
    part.symlink_to("/dev/zero")


def loop(archive: Path, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    name = "a" * 64
    shutil.copy(archive, archive.with_name(f"{name}.part"))
    return [{"sha256": name, "size_bytes": archive.stat().st_size}, *parts]


@pytest.mark.parametrize("damage", HOSTILE)
def test_a_hostile_list_of_parts_is_refused_in_one_line(tmp_path: Path, base: Path, damage: str) -> None:
    with closing(make_archives(base)) as archives:
        store, digest = save_two(tmp_path, base, archives)
    archive = store / archive_name(digest)
    HOSTILE[damage](archive)
    (tmp_path / "again").mkdir()
    for read in (
        lambda: archive_reader.verify(archive, digest=digest, base_digest=BASE),
        lambda: unpack(archive, tmp_path / "again", digest),
        lambda: transfer.export_snapshot(make_snapshot(digest), store, str(tmp_path / "exported")),
    ):
        with pytest.raises(SnapshotCorruptError) as refused:
            read()
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 400
    assert not (tmp_path / "exported").exists()


def make_snapshot(digest: str) -> Snapshot:
    location = archive_name(digest)
    return Snapshot(
        backend="host", base=BASE, location=location, digest=digest, workspace="/w", shell_state="{}"
    )


def test_a_copy_and_an_export_have_all_parts(tmp_path: Path, base: Path) -> None:
    with closing(make_archives(base)) as archives:
        store, digest = save_two(tmp_path, base, archives)
    snapshot = make_snapshot(digest)
    transfer.copy_to_store(snapshot, store, tmp_path / "copy")
    transfer.export_snapshot(snapshot, store, str(tmp_path / "exported"))
    contents = transfer.read_archive_contents(snapshot, store)
    shutil.rmtree(store)
    shutil.rmtree(tmp_path / "first")
    assert transfer.read_archive_contents(snapshot, tmp_path / "copy").files == contents.files
    assert transfer.import_snapshot(str(tmp_path / "exported"), tmp_path / "new") == snapshot
    assert list_names(tmp_path / "new") == [".zst"]
    assert transfer.read_archive_contents(snapshot, tmp_path / "new").files == contents.files


def test_a_directory_without_links_gets_copies(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMLINK, "too many links")

    monkeypatch.setattr(os, "link", refuse)
    with closing(make_archives(base)) as archives:
        store, digest = save_two(tmp_path, base, archives)
    assert all(path.stat().st_nlink == 1 for path in store.iterdir())
    archive_reader.verify(store / archive_name(digest), digest=digest, base_digest=BASE)


def test_parts_are_removed_when_no_snapshot_names_them(tmp_path: Path, base: Path) -> None:
    with closing(make_archives(base)) as archives:
        store, digest = save_two(tmp_path, base, archives)
    parts = [*store.glob("*.part")]
    assert not any(map(archive_parts.remove_unused_part, parts))
    (store / archive_name(digest)).unlink()
    with archive_parts.hold_store(store):  # another process writes a snapshot that may name them
        assert not any(map(archive_parts.remove_unused_part, parts))
    (store / f"{'0' * 64}.tar.zst").write_bytes(struct.pack("<II", 0x184D2A5B, 9))
    assert archive_parts.list_unused_parts(store) == []  # a snapshot that cannot be read may name them
    (store / f"{'0' * 64}.tar.zst").unlink()
    assert all(map(archive_parts.remove_unused_part, parts))
    assert list_names(store) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.snapshots.layer_archives import LayerArchives
room, left = Path(sys.argv[1]), int(sys.argv[2])
def end(event, arguments):
    global left
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if armed and (writes or event in ("os.link", "os.rename", "os.remove", "os.mkdir")):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
armed = False
sys.addaudithook(end)
archives = LayerArchives(LayerStack(room / "base"), sys.argv[3], 0)
archives.save((room / "one",), room / "first")
armed = True
archives.save((room / "two", room / "one"), room / "second")
"""


def test_a_kill_at_any_file_operation_leaves_a_whole_snapshot_or_none(tmp_path: Path, base: Path) -> None:
    make_layer(tmp_path / "one", {f"large/{n}": f"{n}" for n in range(40)})
    make_layer(tmp_path / "two", {"small": "small"})
    digest = keep((tmp_path / "two", tmp_path / "one"), base, tmp_path / "whole")
    for operations in range(30):
        shutil.rmtree(tmp_path / "second", ignore_errors=True)
        done = subprocess.run(
            [sys.executable, "-c", KILLED, tmp_path, str(operations), BASE], check=False, capture_output=True
        )
        archive = tmp_path / "second" / archive_name(digest)
        if archive.exists():
            archive_reader.verify(archive, digest=digest, base_digest=BASE)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        first = next((tmp_path / "first").glob("*.zst"))
        archive_reader.verify(first, digest=first.name.partition(".")[0], base_digest=BASE)
    assert done.returncode == 0
    assert operations >= 5


def test_two_processes_save_into_one_directory(tmp_path: Path, base: Path) -> None:
    make_layer(tmp_path / "one", {f"large/{n}": f"{n}" for n in range(40)})
    make_layer(tmp_path / "two", {"small": "small"})
    (tmp_path / "second").mkdir()
    command = [sys.executable, "-c", KILLED, str(tmp_path), "1000", BASE]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    digest = keep((tmp_path / "two", tmp_path / "one"), base, tmp_path / "whole")
    archive_reader.verify(tmp_path / "second" / archive_name(digest), digest=digest, base_digest=BASE)
    assert not [*(tmp_path / "second").glob(".*")]


@pytest.mark.parametrize("failing", ["link", "write"])
def test_a_full_disk_leaves_no_snapshot_and_the_next_has_everything(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    with closing(make_archives(base)) as archives:
        save_two(tmp_path, base, archives)
        layers = (tmp_path / "two", tmp_path / "one")
        layers = (make_layer(tmp_path / "three", {"third": "third"}), *layers)

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "link" if failing == "link" else "fsync", refuse)
            with pytest.raises(OutOfDiskError):
                archives.save(layers, tmp_path / "full")
        assert ".zst" not in list_names(tmp_path / "full")
        digest = archives.save(layers, tmp_path / "full")
    archive_reader.verify(tmp_path / "full" / archive_name(digest), digest=digest, base_digest=BASE)
