"""Archives of differences: what the kernel's own overlay makes goes round whole, what is hostile is refused."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox import archive
from sandbox.layers import Stack
from sandbox.machine import OutOfDisk, SnapshotCorrupt

from ..conftest import missing

BASE = "sha256:" + "b" * 64
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

NAMES = st.sampled_from(["a", "b", "c d", "größe", "n\nl", "caf\udce9", ".wh.a", ".wh..wh..opq", "é" * 60])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
DEEDS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "write",
                "append",
                "mkdir",
                "remove",
                "link",
                "chmod",
                "rename",
                "hard",
                "fifo",
                "again",
                "sparse",
            ]
        ),
        PATHS,
        PATHS,
        st.binary(max_size=40),
        st.sampled_from([0o644, 0o755, 0o4750, 0o600, 0o1777, 0o000]),
    ),
    max_size=14,
)


@pytest.fixture(scope="module")
def rooms() -> Iterator[Path]:
    if os.geteuid() != 0:
        missing("overlays of the kernel's own marks are mounted by root")
    room = Path(tempfile.mkdtemp(prefix="overlays-"))
    yield room
    shutil.rmtree(room)


class Overlay:
    """A mounted overlay whose layers can be read."""

    def __init__(self, room: Path, lower: tuple[Path, ...], upper: Path, *, user: bool = False) -> None:
        self.upper, self.merged = upper, Path(tempfile.mkdtemp(dir=room))
        work = Path(tempfile.mkdtemp(dir=room))
        upper.mkdir(exist_ok=True)
        options = f"lowerdir={':'.join(map(str, lower))},upperdir={upper},workdir={work}"
        options += ",userxattr" if user else ""
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, self.merged], check=True)

    def __enter__(self) -> Path:
        return self.merged

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", self.merged], check=True)


def do(root: Path, deeds: list[Any]) -> None:
    for kind, one, two, content, mode in deeds:
        place, other = root / one, root / two
        try:
            if place.is_fifo() and kind in ("write", "append", "sparse", "again"):
                continue  # opening one without a reader never ends
            if kind in ("write", "append", "sparse", "fifo", "mkdir", "link"):
                place.parent.mkdir(parents=True, exist_ok=True)
            if kind == "write":
                place.write_bytes(content)
            elif kind == "append":
                with place.open("ab") as out:
                    out.write(content)
            elif kind == "sparse":
                with place.open("wb") as out:
                    out.truncate(700_000)
                    out.seek(600_000)
                    out.write(content)
            elif kind == "mkdir":
                place.mkdir()
            elif kind == "remove":
                shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()
            elif kind == "again":
                shutil.rmtree(place)
                place.mkdir()
            elif kind == "link":
                place.symlink_to(two)
            elif kind == "chmod":
                place.chmod(mode)
            elif kind == "rename":
                place.rename(other)
            elif kind == "hard":
                other.hardlink_to(place)
            elif kind == "fifo":
                os.mkfifo(place, 0o640)
            if kind == "write" and not place.is_symlink():
                os.setxattr(place, "user.note", content + b"!")
        except (OSError, shutil.Error):
            continue


def tree(root: Path) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    links: dict[int, str] = {}
    for parent, directories, files in os.walk(root):
        for name in (*directories, *files):
            place = Path(parent) / name
            info = place.lstat()
            path = os.fspath(place.relative_to(root))
            content: Any = None
            if stat.S_ISREG(info.st_mode):
                content = (place.read_bytes(), os.listxattr(place), links.setdefault(info.st_ino, path))
            elif stat.S_ISLNK(info.st_mode):
                content = place.readlink()
            mtime = None if stat.S_ISDIR(info.st_mode) else info.st_mtime_ns
            found[path] = (info.st_mode, info.st_uid, mtime, content)
    return found


def keep(layers: tuple[Path, ...], base: Path, place: Path) -> str:
    return archive.write(layers, Stack(base), place, base_digest=BASE)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DEEDS, DEEDS, DEEDS)
def test_what_the_kernel_merges_goes_round(
    rooms: Path, first: list[Any], second: list[Any], third: list[Any]
) -> None:
    room = Path(tempfile.mkdtemp(dir=rooms))
    base, lower, upper, again = (room / name for name in ("base", "lower", "upper", "again"))
    base.mkdir()
    do(base, first)
    for path in sorted(base.rglob(".wh.*"), reverse=True):  # a base's own names are its own business
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    with Overlay(room, (base,), lower) as merged:
        do(merged, second)
    with Overlay(room, (lower, base), upper) as merged:
        do(merged, third)
        before = tree(merged)
    digest = keep((upper, lower), base, room / "archive")
    assert archive.content_digest((upper, lower), Stack(base)) == digest
    archive.verify(room / "archive", digest=digest, base_digest=BASE)
    again.mkdir()
    archive.unpack(room / "archive", again, digest=digest, base_digest=BASE, owner=0)
    with Overlay(room, (base,), again, user=True) as merged:
        assert tree(merged) == before
    assert keep((again,), base, room / "second") == digest
    shutil.rmtree(room)


def test_equal_trees_have_one_digest_however_they_came_about(rooms: Path) -> None:
    room = Path(tempfile.mkdtemp(dir=rooms))
    base = room / "base"
    (base / "d").mkdir(parents=True)
    (base / "d/f").write_text("f")
    digests = set()
    for number, script in enumerate(
        (
            "echo x > new; rm d/f",
            "mkdir t; echo x > t/x; mv t/x new; rmdir t; rm d/f; touch d/f; rm d/f",
            "echo y > new; echo x > new; rm d/f",
        )
    ):
        upper = room / f"upper{number}"
        with Overlay(room, (base,), upper) as merged:
            subprocess.run(["sh", "-ec", script], cwd=merged, check=True)
        digests.add(archive.content_digest((upper,), Stack(base)))
    assert len(digests) == 1


Member = tuple[str, bytes, dict[str, Any]]


def made(place: Path, members: list[Member], *, base: str = BASE, header: bool = True) -> Path:
    """An archive with just these members: name, type, and other fields of the header."""
    raw = io.BytesIO()
    headers = {"TAKEOVER.base": base} if header else None
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT, pax_headers=headers) as tar:
        for name, kind, more in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            content = more.get("content", b"")
            for key, value in more.items():
                if key != "content":
                    setattr(info, key, value)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    place.write_bytes(zstandard.compress(raw.getvalue()))
    return place


FILE, LINK, HARD, DIRECTORY = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
HOSTILE: dict[str, tuple[list[Member], str]] = {
    "absolute": ([("/etc/x", FILE, {})], "leads out"),
    "dots": ([("../x", FILE, {})], "leads out"),
    "inner dots": ([("d", DIRECTORY, {}), ("d/../../x", FILE, {})], "leads out"),
    "dot": ([("./x", FILE, {})], "leads out"),
    "empty part": ([("d", DIRECTORY, {}), ("d//x", FILE, {})], "leads out"),
    "empty name": ([("", DIRECTORY, {})], "leads out"),
    "block device": ([("x", tarfile.BLKTYPE, {"devmajor": 8})], "kind"),
    "character device": ([("x", tarfile.CHRTYPE, {"devmajor": 1, "devminor": 3})], "kind"),
    "whiteout device": ([("x", tarfile.CHRTYPE, {})], "kind"),
    "contiguous": ([("x", tarfile.CONTTYPE, {})], "kind"),
    "through a link": ([("l", LINK, {"linkname": "/tmp"}), ("l/x", FILE, {})], "does not lie"),
    "through a file": ([("f", FILE, {}), ("f/x", FILE, {})], "does not lie"),
    "hard link out": ([("h", HARD, {"linkname": "/etc/passwd"})], "link to no file"),
    "hard link up": ([("h", HARD, {"linkname": "../../etc/passwd"})], "link to no file"),
    "hard link to a link": (
        [("l", LINK, {"linkname": "/etc/passwd"}), ("h", HARD, {"linkname": "l"})],
        "link to no file",
    ),
    "hard link ahead": ([("h", HARD, {"linkname": "x"}), ("x", FILE, {})], "link to no file"),
    "twice": ([("x", FILE, {}), ("x", FILE, {"content": b"2"})], "twice"),
    "link, then file": ([("x", LINK, {"linkname": "/tmp/x"}), ("x", FILE, {})], "twice"),
    "gone and there": ([(".wh.x", FILE, {}), ("x", FILE, {})], "twice"),
    "a mark without a name": ([(".wh.", FILE, {})], "no name"),
    "a mark for dots": ([(".wh...", FILE, {})], "no name"),
    "a mark out of place": ([("f", FILE, {}), (".wh..wh..opq", FILE, {})], "hidden by nothing"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives(tmp_path: Path, name: str) -> None:
    members, reason = HOSTILE[name]
    place = made(tmp_path / "archive", members)
    target = tmp_path / "in" / "target"
    target.mkdir(parents=True)
    for deed in (
        lambda: archive.verify(place, digest=EMPTY, base_digest=BASE),
        lambda: archive.unpack(place, target, digest=EMPTY, base_digest=BASE),
    ):
        with pytest.raises(SnapshotCorrupt, match=reason) as refused:
            deed()
        assert "\n" not in str(refused.value)
    outside = [path for path in (tmp_path / "in").rglob("*") if target not in (path, *path.parents)]
    assert outside == []


def test_an_archive_of_nothing_goes_round(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "layer").mkdir()
    place = tmp_path / "archive"
    digest = keep((tmp_path / "layer",), tmp_path / "base", place)
    assert digest == EMPTY
    archive.verify(place, digest=digest, base_digest=BASE)


def test_another_base_and_another_digest(tmp_path: Path) -> None:
    place = made(tmp_path / "archive", [])
    archive.verify(place, digest=EMPTY, base_digest=BASE)
    with pytest.raises(SnapshotCorrupt, match="made for base"):
        archive.verify(place, digest=EMPTY, base_digest="sha256:" + "c" * 64)
    with pytest.raises(SnapshotCorrupt, match="but the snapshot says"):
        archive.verify(place, digest="0" * 64, base_digest=BASE)
    with pytest.raises(SnapshotCorrupt, match="made for base"):
        archive.verify(
            made(tmp_path / "bare", [("x", FILE, {})], header=False), digest=EMPTY, base_digest=BASE
        )


def whole(tmp_path: Path) -> tuple[Path, str]:
    layer, base = tmp_path / "layer", tmp_path / "base"
    base.mkdir()
    (layer / "d").mkdir(parents=True)
    for number in range(40):
        (layer / f"d/f{number}").write_bytes(os.urandom(300))
    (layer / "link").symlink_to("d/f1")
    (layer / "zeros").write_bytes(bytes(50_000))
    place = tmp_path / "archive"
    return place, keep((layer,), base, place)


def test_every_cut_and_every_flip_is_refused(tmp_path: Path) -> None:
    place, digest = whole(tmp_path)
    content = place.read_bytes()
    archive.verify(place, digest=digest, base_digest=BASE)
    step = max(1, len(content) // 150)
    for length in (*range(0, len(content) - 4, step), len(content) - 5):
        place.write_bytes(content[:length])
        with pytest.raises(SnapshotCorrupt):
            archive.verify(place, digest=digest, base_digest=BASE)
    for position in (*range(0, len(content), step), *range(len(content) - 4, len(content))):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        place.write_bytes(flipped)
        with pytest.raises(SnapshotCorrupt):
            archive.verify(place, digest=digest, base_digest=BASE)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_headers_of_any_kind_raise_nothing_else(tmp_path: Path, data: st.DataObject) -> None:
    """Changes under the compression, where no checksum of zstd's helps."""
    if not (tmp_path / "archive").exists():
        whole(tmp_path)
    raw = bytearray(zstandard.ZstdDecompressor().stream_reader((tmp_path / "archive").read_bytes()).read())
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):  # mend the header's own checksum
        start = place // 512 * 512
        block = raw[start : start + 512]
        total = sum(block[:148]) + 256 + sum(block[156:])
        raw[start + 148 : start + 156] = b"%06o\0 " % (total & 0o777777)
    changed = tmp_path / "changed"
    changed.write_bytes(zstandard.compress(bytes(raw)))
    with pytest.raises(SnapshotCorrupt):
        archive.verify(changed, digest="0" * 64, base_digest=BASE)


def test_noise_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "archive"
    for content in (b"", b"\0" * 5000, os.urandom(3000), zstandard.compress(os.urandom(3000))):
        place.write_bytes(content)
        with pytest.raises(SnapshotCorrupt):
            archive.verify(place, digest=EMPTY, base_digest=BASE)
    place.unlink()
    with pytest.raises(SnapshotCorrupt, match="gone"):
        archive.verify(place, digest=EMPTY, base_digest=BASE)


def bomb(place: Path, kind: bytes, size: int) -> Path:
    """An archive whose only header claims a size, with a little of it."""
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, size
    with place.open("wb") as raw, zstandard.ZstdCompressor(level=1).stream_writer(raw) as packed:
        packed.write(tarfile.TarInfo.create_pax_global_header({"TAKEOVER.base": BASE}))
        packed.write(header.tobuf(tarfile.GNU_FORMAT))
        packed.write(bytes(8 << 20))
    return place


def test_a_bomb_of_zeros_ends_at_its_header(tmp_path: Path) -> None:
    place = bomb(tmp_path / "archive", tarfile.REGTYPE, archive.LARGEST_LAYER + 1)
    with pytest.raises(SnapshotCorrupt, match="holds more than"):
        archive.verify(place, digest=EMPTY, base_digest=BASE)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_a_bomb_in_a_header_is_not_read_into_memory(tmp_path: Path, kind: bytes) -> None:
    place = bomb(tmp_path / "archive", kind, 4 << 30)
    with pytest.raises(SnapshotCorrupt, match="header is too large"):
        archive.verify(place, digest=EMPTY, base_digest=BASE)


def test_a_full_disk_leaves_no_part(rooms: Path) -> None:
    room = Path(tempfile.mkdtemp(dir=rooms))
    small, layer, base = room / "small", room / "layer", room / "base"
    for directory in (small, layer, base):
        directory.mkdir()
    (layer / "big").write_bytes(os.urandom(3 << 20))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    try:
        with pytest.raises(OutOfDisk, match="disk is full"):
            keep((layer,), base, small / "archive")
        assert list(small.iterdir()) == []
        digest = keep((layer,), base, room / "archive")
        with pytest.raises(OutOfDisk):
            archive.unpack(room / "archive", small, digest=digest, base_digest=BASE)
    finally:
        subprocess.run(["umount", small], check=True)
