"""Files with large holes: saved without them, read by others too, and equal afterwards."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from pathlib import Path

import pytest

from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.interface import OutOfDiskError, SnapshotCorruptError
from langgraph_takeover.sandbox.snapshots import archive_format, archive_reader, archive_writer
from langgraph_takeover.sandbox.snapshots.archive_members import open_decompressed
from langgraph_takeover.sandbox.snapshots.differences import content_digest

BASE = "sha256:" + "b" * 64
SIZE = 1 << 40
DATA = {0: b"first", 5 << 30: os.urandom(600_000), (9 << 30) + 77: b"odd", SIZE - 3: b"end"}


def make_sparse(path: Path, size: int = SIZE) -> Path:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
        for start, data in DATA.items():
            if start + len(data) <= size:
                file.seek(start)
                file.write(data)
    return path


def write(layer: Path, archive: Path) -> str:
    return archive_writer.write((layer,), LayerStack(), archive, base_digest=BASE)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, str]:
    make_sparse(tmp_path / "layer" / "disk.img").chmod(0o640)
    os.setxattr(tmp_path / "layer" / "disk.img", "user.kind", b"disk")
    (tmp_path / "layer" / "twin").hardlink_to(tmp_path / "layer" / "disk.img")
    (tmp_path / "layer" / "whole").write_text("whole")
    return tmp_path / "archive", write(tmp_path / "layer", tmp_path / "archive")


def test_a_tebibyte_of_holes(tmp_path: Path, saved: tuple[Path, str]) -> None:
    archive, digest = saved
    assert archive.stat().st_size < 2 << 20
    assert content_digest((tmp_path / "layer",), LayerStack()) == digest
    found = archive_reader.verify(archive, digest=digest, base_digest=BASE)
    assert dict(found.files)["disk.img"] is None
    target = tmp_path / "target"
    target.mkdir()
    archive_reader.unpack(archive, target, digest=digest, base_digest=BASE, max_bytes=2 << 20)
    info = (target / "disk.img").stat()
    assert (info.st_size, info.st_mode & 0o777, info.st_nlink) == (SIZE, 0o640, 2)
    assert info.st_blocks * 512 < 2 << 20
    with (target / "disk.img").open("rb") as file:
        for start, data in DATA.items():
            file.seek(start)
            assert file.read(len(data)) == data
    assert content_digest((target,), LayerStack()) == digest


def test_holes_count_where_a_daemon_writes_them(saved: tuple[Path, str]) -> None:
    archive, digest = saved
    with pytest.raises(OutOfDiskError, match="raise disk_mb"):
        archive_reader.verify(archive, digest=digest, base_digest=BASE, max_bytes=1 << 30)


def test_tar_reads_it(tmp_path: Path) -> None:
    make_sparse(tmp_path / "layer" / "disk.img", 6 << 30)
    write(tmp_path / "layer", tmp_path / "archive")
    (tmp_path / "tar").mkdir()
    with (tmp_path / "archive").open("rb") as raw:
        unpacking = subprocess.Popen(["tar", "-x", "-C", tmp_path / "tar"], stdin=subprocess.PIPE)
        assert unpacking.stdin is not None
        for block in iter(lambda: stream.read(1 << 20), b"") if (stream := open_decompressed(raw)) else ():
            unpacking.stdin.write(block)
        unpacking.stdin.close()
        assert unpacking.wait() == 0
    layers = (tmp_path / "layer", tmp_path / "tar")
    first, second = (content_digest((each,), LayerStack()) for each in layers)
    assert first == second


def test_zeros_that_are_written_count_as_a_hole(tmp_path: Path) -> None:
    """Where the file system keeps zeros as data, the saved form is the same."""
    digests = set()
    for name, zeros in (("hole", 0), ("zeros", 3 << 20)):
        path = make_sparse(tmp_path / name / "disk.img", 1 << 30)
        with path.open("r+b") as file:
            file.seek(512 << 20)
            file.write(bytes(zeros))
        digests.add(content_digest((tmp_path / name,), LayerStack()))
    assert len(digests) == 1


def test_a_file_with_too_many_spans_is_saved_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_sparse(tmp_path / "layer" / "disk.img", 1 << 27)
    with (tmp_path / "layer" / "disk.img").open("r+b") as file:
        for start in range(0, 1 << 24, 1 << 20):
            file.seek(start)
            file.write(b"x")
    monkeypatch.setattr(archive_format, "MAX_SPANS", 4)
    digest = write(tmp_path / "layer", tmp_path / "archive")
    archive_reader.verify(tmp_path / "archive", digest=digest, base_digest=BASE)


def read_map(saved_map: bytes, data: bytes, real_size: int) -> list[tuple[int, bytes]]:
    padded = saved_map + bytes(-len(saved_map) % 512) + data
    blocks = (padded[at : at + 700] for at in itertools.count(0, 700))
    return list(archive_format.MapReader(real_size, itertools.takewhile(bool, blocks)))


def test_a_map() -> None:
    assert read_map(b"3\n0\n3\n10\n2\n20\n0\n", b"abcde", 20) == [(0, b"abc"), (10, b"de")]
    assert read_map(b"1\n20\n0\n", b"", 20) == []
    assert read_map(b"1\n0\n3\n", b"abc", 3) == [(0, b"abc")]


@pytest.mark.parametrize(
    ("saved_map", "data"),
    [
        (b"1\n0\n20\n", b"ab"),
        (b"1\n17\n3\n", b"abcd"),
        (b"2\n17\n3\n0\n3\n", b"abcdef"),
        (b"2\n0\n18\n17\n3\n", b"a" * 21),
        (b"1\n19\n3\n", b"abc"),
        (b"2\n0\n0\n17\n3\n", b"abc"),
        (b"1\n0\n3\n", b"abc"),
        (b"0\n", b""),
        (b"1\n-1\n3\n", b"abc"),
        (b"1\n0\n+3\n", b"abc"),
        (b"1\n0\n3\n7\n", b"abc"),
        (b"99999\n", b""),
        (b"x\n", b""),
        (b"\n", b""),
        (b"", b""),
        (b"1\n" + b"0" * 900, b""),
        (b"1\n0\n" + b"9" * 30 + b"\n", b"abc"),
    ],
)
def test_malformed_maps_are_refused(saved_map: bytes, data: bytes) -> None:
    with pytest.raises(ValueError, match="sparse file"):
        read_map(saved_map, data, 20)


def test_a_changed_archive_is_refused(tmp_path: Path, saved: tuple[Path, str]) -> None:
    archive, _ = saved
    with pytest.raises(SnapshotCorruptError, match=re.escape("has digest")):
        archive_reader.verify(archive, digest="0" * 64, base_digest=BASE)
