"""Archives of differences: overlays of the kernel survive a round trip, hostile archives are refused."""

from __future__ import annotations

import gc
import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_takeover.sandbox.changes.layers import TRUSTED_OPAQUE, USER_OPAQUE, LayerStack
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError, SnapshotCorruptError
from langgraph_takeover.sandbox.snapshots import (
    archive_format,
    archive_parts,
    archive_reader,
    archive_writer,
    differences,
    images,
)
from langgraph_takeover.sandbox.snapshots import archive_members as members

from ...conftest import skip_missing
from ...random_examples import SHARED_FIXTURES, examples

BASE = "sha256:" + "b" * 64
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

NAMES = st.sampled_from(["a", "b", "c d", "größe", "n\nl", "caf\udce9", ".wh.a", ".wh..wh..opq", "é" * 60])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
ACTS = ["write", "append", "mkdir", "remove", "link", "chmod", "rename", "hard", "fifo", "again", "sparse"]
MODES = st.sampled_from([0o644, 0o755, 0o4750, 0o600, 0o1777, 0o000])
DEEDS = st.lists(st.tuples(st.sampled_from(ACTS), PATHS, PATHS, st.binary(max_size=40), MODES), max_size=14)


@pytest.fixture(scope="module")
def rooms() -> Iterator[Path]:
    if os.geteuid() != 0:
        skip_missing("overlays of the kernel's own marks are mounted by root")
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
        path, other = root / one, root / two
        try:
            if path.is_fifo() and kind in ("write", "append", "sparse", "again"):
                continue  # opening one without a reader never ends
            if kind in ("write", "append", "sparse", "fifo", "mkdir", "link"):
                path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "write":
                path.write_bytes(content)
            elif kind == "append":
                with path.open("ab") as out:
                    out.write(content)
            elif kind == "sparse":
                with path.open("wb") as out:
                    out.truncate(700_000)
                    out.seek(600_000)
                    out.write(content)
            elif kind == "mkdir":
                path.mkdir()
            elif kind == "remove":
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            elif kind == "again":
                shutil.rmtree(path)
                path.mkdir()
            elif kind == "link":
                path.symlink_to(two)
            elif kind == "chmod":
                path.chmod(mode)
            elif kind == "rename":
                path.rename(other)
            elif kind == "hard":
                other.hardlink_to(path)
            elif kind == "fifo":
                os.mkfifo(path, 0o640)
            if kind == "write" and not path.is_symlink():
                os.setxattr(path, "user.note", content + b"!")
        except (OSError, shutil.Error):
            continue


def tree(root: Path) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    links: dict[int, str] = {}
    for parent, directories, files in os.walk(root):
        for name in (*directories, *files):
            entry = Path(parent) / name
            info = entry.lstat()
            path = os.fspath(entry.relative_to(root))
            content: Any = None
            if stat.S_ISREG(info.st_mode):
                content = (entry.read_bytes(), os.listxattr(entry), links.setdefault(info.st_ino, path))
            elif stat.S_ISLNK(info.st_mode):
                content = entry.readlink()
            mtime = None if stat.S_ISDIR(info.st_mode) else info.st_mtime_ns
            found[path] = (info.st_mode, info.st_uid, mtime, content)
    return found


def keep(layers: tuple[Path, ...], base: Path, archive_path: Path, *, opaque: str = USER_OPAQUE) -> str:
    stack = LayerStack(base, opaque_attribute=opaque)
    return archive_writer.write(layers, stack, archive_path, base_digest=BASE)


def verify(archive_path: Path, digest: str = EMPTY, **options: Any) -> archive_reader.ArchiveContents:
    return archive_reader.verify(archive_path, digest=digest, **{"base_digest": BASE, **options})


def unpack(archive_path: Path, target: Path, digest: str = EMPTY, **options: Any) -> None:
    target.mkdir(parents=True, exist_ok=True)
    archive_reader.unpack(archive_path, target, digest=digest, base_digest=BASE, **options)


def check_is_refused(
    archive_path: Path, target: Path, reason: str | None = None, digest: str = EMPTY
) -> None:
    """Check that neither reader accepts an archive, and that each says so in a short line."""
    reads = (lambda: verify(archive_path, digest), lambda: unpack(archive_path, target, digest))
    for read in reads:
        with pytest.raises(SnapshotCorruptError, match=reason) as refused:
            read()
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 400


@pytest.mark.slow
@settings(max_examples=examples(100), suppress_health_check=SHARED_FIXTURES)
@given(DEEDS, DEEDS, DEEDS)
def test_overlays_of_the_kernel_survive_a_round_trip(
    rooms: Path, first: list[Any], second: list[Any], third: list[Any]
) -> None:
    room = Path(tempfile.mkdtemp(dir=rooms))
    base, lower, upper, again = (room / name for name in ("base", "lower", "upper", "again"))
    base.mkdir()
    do(base, first)
    for path in sorted(base.rglob(".wh.*"), reverse=True):  # the base may use these names itself
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    with Overlay(room, (base,), lower) as merged:
        do(merged, second)
    with Overlay(room, (lower, base), upper) as merged:
        do(merged, third)
        before = tree(merged)
    digest = keep((upper, lower), base, room / "archive", opaque=TRUSTED_OPAQUE)
    stack = LayerStack(base, opaque_attribute=TRUSTED_OPAQUE)
    assert differences.content_digest((upper, lower), stack) == digest
    verify(room / "archive", digest)
    unpack(room / "archive", again, digest, owner=0)
    with Overlay(room, (base,), again, user=True) as merged:
        assert tree(merged) == before
    assert keep((again,), base, room / "second") == digest
    shutil.rmtree(room)


def test_equal_trees_have_equal_digests(rooms: Path) -> None:
    room = Path(tempfile.mkdtemp(dir=rooms))
    base = room / "base"
    (base / "d").mkdir(parents=True)
    (base / "d/f").write_text("f")
    digests = set()
    scripts = (
        "echo x > new; rm d/f",
        "mkdir t; echo x > t/x; mv t/x new; rmdir t; rm d/f; touch d/f; rm d/f",
        "echo y > new; echo x > new; rm d/f",
    )
    for number, script in enumerate(scripts):
        upper = room / f"upper{number}"
        with Overlay(room, (base,), upper) as merged:
            subprocess.run(["sh", "-ec", script], cwd=merged, check=True)
        digests.add(differences.content_digest((upper,), LayerStack(base)))
    assert len(digests) == 1


Member = tuple[str, bytes, dict[str, Any]]


def make_archive(archive_path: Path, members: list[Member], *, base: str = BASE, header: bool = True) -> Path:
    """An archive with exactly these members: name, type, and other fields of the header."""
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
    archive_path.write_bytes(zstandard.compress(raw.getvalue()))
    return archive_path


FILE, LINK, HARD, DIRECTORY = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
OUTSIDE = "is not in a directory of the snapshot"
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
    "through a link": ([("l", LINK, {"linkname": "/tmp"}), ("l/x", FILE, {})], OUTSIDE),
    "through a file": ([("f", FILE, {}), ("f/x", FILE, {})], OUTSIDE),
    "hard link out": ([("h", HARD, {"linkname": "/etc/passwd"})], "link to no file"),
    "hard link up": ([("h", HARD, {"linkname": "../../etc/passwd"})], "link to no file"),
    "hard link to a link": (
        [("a", LINK, {"linkname": "/etc"}), ("h", HARD, {"linkname": "a"})],
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
    archive_path = make_archive(tmp_path / "archive", members)
    target = tmp_path / "in" / "target"
    check_is_refused(archive_path, target, reason)
    outside = [path for path in (tmp_path / "in").rglob("*") if target not in (path, *path.parents)]
    assert outside == []


def test_an_empty_archive_survives_a_round_trip(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "layer").mkdir()
    archive_path = tmp_path / "archive"
    digest = keep((tmp_path / "layer",), tmp_path / "base", archive_path)
    assert digest == EMPTY
    verify(archive_path, digest)


def test_a_writer_leaves_nothing_in_memory(tmp_path: Path) -> None:
    """The garbage collector sees no cycle through a compressor, which takes 2 MB."""

    def count_open() -> int:
        gc.collect()
        return sum(isinstance(each, tarfile.TarFile) for each in gc.get_objects())

    (tmp_path / "layer").mkdir()
    before = count_open()
    archive_writer.write((tmp_path / "layer",), LayerStack(), tmp_path / "archive", base_digest=BASE)
    with pytest.raises(NotADirectoryError):
        archive_writer.write((tmp_path / "archive",), LayerStack(), tmp_path / "other", base_digest=BASE)
    assert count_open() == before


def test_another_base_and_another_digest(tmp_path: Path) -> None:
    archive_path = make_archive(tmp_path / "archive", [])
    verify(archive_path)
    with pytest.raises(SnapshotCorruptError, match="made for base"):
        verify(archive_path, base_digest="sha256:" + "c" * 64)
    with pytest.raises(SnapshotCorruptError, match="but the snapshot says"):
        verify(archive_path, "0" * 64)
    with pytest.raises(SnapshotCorruptError, match="made for base"):
        verify(make_archive(tmp_path / "bare", [("x", FILE, {})], header=False))


def whole(tmp_path: Path) -> tuple[Path, str]:
    layer, base = tmp_path / "layer", tmp_path / "base"
    base.mkdir()
    (layer / "d").mkdir(parents=True)
    for number in range(40):
        (layer / f"d/f{number}").write_bytes(os.urandom(300))
    (layer / "link").symlink_to("d/f1")
    (layer / "zeros").write_bytes(bytes(50_000))
    archive_path = tmp_path / "archive"
    return archive_path, keep((layer,), base, archive_path)


def test_every_cut_and_every_flip_is_refused(tmp_path: Path) -> None:
    archive_path, digest = whole(tmp_path)
    content = archive_path.read_bytes()
    verify(archive_path, digest)
    step = max(1, len(content) // 150)
    for length in (*range(0, len(content) - 4, step), len(content) - 5):
        archive_path.write_bytes(content[:length])
        with pytest.raises(SnapshotCorruptError):
            verify(archive_path, digest)
    accepted = 0
    for position in (*range(0, len(content), step), *range(len(content) - 4, len(content))):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        archive_path.write_bytes(flipped)
        try:
            verify(archive_path, digest)
        except SnapshotCorruptError:
            continue
        # zstd can encode the same bytes in several ways, and its header has unused bits.
        assert decompress(flipped) == decompress(content)
        accepted += 1
    assert accepted < 10


def decompress(content: bytes) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(content).read()


@settings(max_examples=examples(300), suppress_health_check=SHARED_FIXTURES)
@given(st.data())
def test_random_headers_raise_only_typed_errors(tmp_path: Path, data: st.DataObject) -> None:
    """Changes below the compression, which zstd's checksum does not detect."""
    if not (tmp_path / "archive").exists():
        whole(tmp_path)
    raw = bytearray(decompress((tmp_path / "archive").read_bytes()))
    for _ in range(data.draw(st.integers(1, 6))):
        offset = data.draw(st.integers(0, len(raw) - 1))
        raw[offset] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):  # fix the header's own checksum
        start = offset // 512 * 512
        block = raw[start : start + 512]
        total = sum(block[:148]) + 256 + sum(block[156:])
        raw[start + 148 : start + 156] = b"%06o\0 " % (total & 0o777777)
    changed = tmp_path / "changed"
    changed.write_bytes(zstandard.compress(bytes(raw)))
    check_is_refused(changed, Path(tempfile.mkdtemp(dir=tmp_path)), digest="0" * 64)


def test_noise_is_refused(tmp_path: Path) -> None:
    archive_path = tmp_path / "archive"
    for content in (b"", b"\0" * 5000, os.urandom(3000), zstandard.compress(os.urandom(3000))):
        archive_path.write_bytes(content)
        with pytest.raises(SnapshotCorruptError):
            verify(archive_path)
    archive_path.unlink()
    with pytest.raises(SnapshotCorruptError, match="archive is missing"):
        verify(archive_path)


END = bytes(tarfile.RECORDSIZE)
GLOBAL = tarfile.TarInfo.create_pax_global_header({"TAKEOVER.base": BASE})


def block(
    name: bytes = b"x",
    kind: bytes = FILE,
    *,
    size: bytes = b"%011o\0" % 0,
    mode: bytes = b"0000644\0",
    uid: bytes = b"0000000\0",
    mtime: bytes = b"%011o\0" % 0,
    target: bytes = b"",
    version: bytes = b"ustar\00000",
    rest: bytes = b"",
) -> bytes:
    """One header with arbitrary fields and the matching checksum."""
    whole = name.ljust(100, b"\0") + mode + uid + uid + size + mtime + b" " * 8 + kind
    whole = (whole + target.ljust(100, b"\0") + version + rest).ljust(512, b"\0")
    return whole[:148] + b"%06o\0 " % sum(whole) + whole[156:]


def number(value: int) -> bytes:
    return b"%011o\0" % value


def record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    while length != len(key) + len(value) + 3 + len(str(length)):
        length = len(key) + len(value) + 3 + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def make_extended_header(*records: tuple[bytes, bytes] | bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """An extended header with these records, or with this text."""
    body = b"".join(one if isinstance(one, bytes) else record(*one) for one in records)
    return block(b"././@PaxHeader", kind, size=number(len(body))) + body + bytes(-len(body) % 512)


def extended(*records: tuple[bytes, bytes] | bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """An empty file after such a header."""
    return make_extended_header(*records, kind=kind) + block()


def pack_archive(archive_path: Path, *chunks: bytes, **options: Any) -> Path:
    """An archive of these bytes after the global header."""
    with (
        archive_path.open("wb") as raw,
        zstandard.ZstdCompressor(**options).stream_writer(raw, closefd=False) as compressor,
    ):
        for chunk in (GLOBAL, *chunks):
            compressor.write(chunk)
    return archive_path


def sparse(*records: tuple[bytes, bytes]) -> bytes:
    named = [(b"GNU.sparse." + key, value) for key, value in records]
    return make_extended_header(*named) + block(size=number(512)) + b"0\n".ljust(512, b"\0")


NEGATIVE = str(-(10**15)).encode()
FORMAT = "does not have the format of a snapshot"
MALFORMED: dict[str, tuple[bytes, str]] = {
    "negative size": (extended((b"size", b"-512")), "its size b'-512'"),
    "size in words": (extended((b"size", b"1e3")), "its size"),
    "size with a sign": (extended((b"size", b"+5")), "its size"),
    "huge size": (extended((b"size", b"9" * 19)), "its size"),
    "long size": (extended((b"size", b"9" * 5000)), "its size"),
    "binary size": (block(size=b"\x80" + bytes(10) + b"\1"), FORMAT),
    "binary negative size": (block(size=b"\xff" * 12), FORMAT),
    "signed octal": (block(size=b"-0000000777\0"), FORMAT),
    "blank size": (block(size=b" " * 12), FORMAT),
    "claimed size": (block(size=number(8**11 - 1)) + bytes(1 << 20), "truncated"),
    "claimed sizes": (
        b"".join(make_extended_header((b"size", b"%d" % (40 << 30))) + block(name) for name in (b"x", b"y")),
        "truncated",
    ),
    "more than any layer": (extended((b"size", b"%d" % (65 << 30))), "more than 64 GiB"),
    "sparse 0.0": (sparse((b"size", b"%d" % (30 << 30)), (b"numblocks", b"0")), "GNU.sparse.size"),
    "sparse 0.1": (sparse((b"map", b"0,0"), (b"size", b"9")), "GNU.sparse.map"),
    "sparse 1.0": (sparse((b"major", b"1"), (b"minor", b"0"), (b"realsize", NEGATIVE)), "form"),
    "sparse of old": (block(kind=tarfile.GNUTYPE_SPARSE, version=b"ustar  \0"), "kind"),
    "GNU version": (block(version=b"ustar  \0"), FORMAT),
    "GNU name": (block(kind=tarfile.GNUTYPE_LONGNAME, size=number(512)) + bytes(512) + block(), "kind"),
    "GNU target": (block(kind=tarfile.GNUTYPE_LONGLINK, size=number(512)) + bytes(512) + block(), "kind"),
    "Solaris header": (extended((b"path", b"y"), kind=b"X"), "kind"),
    "another global header": (extended((b"path", b"y"), kind=b"g"), "kind"),
    "a prefix": (block(rest=bytes(80) + b"directory"), FORMAT),
    "an owner's name": (block(rest=b"root"), FORMAT),
    "header upon header": (make_extended_header((b"mtime", b"1")) * 2000 + block(), "kind"),
    "header without a member": (make_extended_header((b"mtime", b"1")), "checksum"),
    "header names twice": (extended((b"path", b"y"), (b"path", b"z")), "twice"),
    "unknown record": (extended((b"LIBARCHIVE.creationtime", b"1")), "LIBARCHIVE"),
    "other character set": (extended((b"GNU.charset", b"1")), "GNU.charset"),
    "record without length": (extended(b"path=x\n"), "malformed"),
    "record of length 0": (extended(b"0 path=x\n"), "malformed"),
    "record too short": (extended(b"3 path=x\n"), "malformed"),
    "record too long": (extended(b"99 path=x\n"), "malformed"),
    "record of negative length": (extended(b"-9 path=x\n"), "malformed"),
    "record without value": (extended(b"7 path\n"), "without a value"),
    "large header": (extended((b"SCHILY.xattr.user.a", bytes(1 << 20))), "header is too large"),
    "claimed header": (block(kind=tarfile.XHDTYPE, size=number(4 << 30)) + bytes(8 << 20), "is too large"),
    "no time": (extended((b"mtime", b"nan")), "time"),
    "endless time": (extended((b"mtime", b"inf")), "time"),
    "overflowing time": (extended((b"mtime", b"1e400")), "time"),
    "huge time": (extended((b"mtime", b"9" * 400)), "time"),
    "time beyond 64 bits": (extended((b"mtime", b"%d.5" % 2**63)), "time"),
    "time long ago": (extended((b"mtime", b"-" + b"9" * 30)), "time"),
    "picoseconds": (extended((b"mtime", b"1.0000000001")), "time"),
    "exponent of nanoseconds": (extended((b"mtime", b"1.5e5")), "time"),
    "underscored time": (extended((b"mtime", b"1_0")), "time"),
    "empty time": (extended((b"mtime", b"")), "time"),
    "binary time": (block(mtime=b"\x80" + b"\xff" * 11), FORMAT),
    "huge user": (extended((b"uid", b"9" * 10)), "uid"),
    "negative group": (extended((b"gid", b"-1")), "gid"),
    "capability": (extended((b"SCHILY.xattr.security.capability", b"\1\0")), "attribute"),
    "overlay's mark": (extended((b"SCHILY.xattr.trusted.overlay.opaque", b"y")), "attribute"),
    "overlay's own": (extended((b"SCHILY.xattr.user.overlay.redirect", b"/etc")), "attribute"),
    "attribute with a NUL": (extended((b"SCHILY.xattr.user.\0", b"y")), "attribute"),
    "attribute of a link": (
        make_extended_header((b"SCHILY.xattr.user.a", b"y")) + block(kind=LINK, target=b"y"),
        "attributes that a link",
    ),
    "content of a directory": (block(kind=DIRECTORY, size=number(512)) + bytes(512), "that a directory"),
    "content of a mark": (block(b".wh.x", size=number(512)) + bytes(512), "is no mark"),
    "mark that is a directory": (block(b".wh.x", DIRECTORY), "is no mark"),
    "link without a target": (block(kind=LINK), "no target"),
    "link with a NUL": (make_extended_header((b"linkpath", b"a\0b")) + block(kind=LINK), "no target"),
    "long target": (make_extended_header((b"linkpath", b"a/" * 2048)) + block(kind=LINK), "no target"),
    "file with a target": (block(target=b"y"), "no target"),
    "name with a NUL": (extended((b"path", b"a\0b")), "leads out"),
    "renamed out": (extended((b"path", b"../x")), "leads out"),
    "long name": (extended((b"path", b"n" * 256)), "too long"),
    "deep": (extended((b"path", b"/".join([b"d"] * 202))), "too deep"),
    "out of order": (block(b"b") + block(b"a"), "out of order"),
    "late beginning": (block(b"a") + block(b".", DIRECTORY), "not at the start"),
    "beginning that is a file": (block(b"."), "not at the start"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_members_are_refused_at_once(tmp_path: Path, name: str) -> None:
    chunk, reason = MALFORMED[name]
    archive_path = pack_archive(tmp_path / "archive", chunk, END)
    began = time.process_time()
    check_is_refused(archive_path, tmp_path / "target", reason)
    assert time.process_time() - began < 1


def test_every_file_time_survives_a_round_trip(tmp_path: Path) -> None:
    archive_path = tmp_path / "archive"
    for number_, text in enumerate(("0", "-1", "-1.5", "1700000000.123456789", f"{2**63 - 1}.999999999")):
        pack_archive(archive_path, extended((b"mtime", text.encode())), END)
        target = tmp_path / str(number_)
        unpack(archive_path, target, read_digest(archive_path))
        if len(text) < 25:
            assert (target / "x").stat().st_mtime_ns == Decimal(text) * 10**9


def read_digest(archive_path: Path) -> str:
    """The digest of an archive's members."""
    with archive_path.open("rb") as raw:
        found = members.ArchiveMembers(archive_path, raw)
        found.read_base()
        limit = archive_format.MAX_LAYER_BYTES
        content = archive_parts.list_content(found)
        return archive_reader._ArchiveReader(archive_path, content, None, None, limit).read()


COST = """
import resource, sys, time
from pathlib import Path
from langgraph_takeover.sandbox.snapshots import archive_reader, images, archive_members as members
from langgraph_takeover.sandbox.interface import SnapshotCorruptError
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
try:
    archive_reader.verify(Path(sys.argv[1]), digest="0" * 64, base_digest=sys.argv[2])
except SnapshotCorruptError as error:
    assert sys.argv[3] in str(error), error
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10, time.process_time() - began)
"""


def run_python(script: str, *arguments: str | Path) -> str:
    command = [sys.executable, "-c", script, *arguments]
    path = {**os.environ, "PYTHONPATH": str(Path(archive_reader.__file__).parents[3])}
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=path).stdout


def cost(archive_path: Path, reason: str) -> tuple[float, float]:
    """The cost of verifying: peak MiB and CPU seconds."""
    mib, seconds = map(float, run_python(COST, archive_path, BASE, reason).split())
    return mib, seconds


@pytest.mark.slow
def test_many_members_are_cheap(tmp_path: Path) -> None:
    for prefix in (b"", b".wh."):
        blocks = (block(b"%sm%07d" % (prefix, n)) for n in range(60_000))
        archive_path = pack_archive(tmp_path / "archive", *blocks, END)
        mib, seconds = cost(archive_path, "but the snapshot says")
        assert mib < 20
        assert seconds < 6


def test_a_window_takes_no_memory(tmp_path: Path) -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    chunks = (block(size=number(160 << 20)), *[bytes(1 << 20)] * 160, END)
    archive_path = pack_archive(tmp_path / "archive", *chunks, compression_params=wide)
    mib, _ = cost(archive_path, "Frame requires too much memory")
    assert mib < 20


def test_attributes_take_no_memory(tmp_path: Path) -> None:
    """Attributes of parent directories, 190 MiB in total."""
    many = [(b"SCHILY.xattr.user.%03d" % number, bytes([65]) * 60_000) for number in range(16)]
    paths = [b"/".join([b"d"] * (depth + 1)) for depth in range(200)]
    chunks = (make_extended_header((b"path", path), *many) + block(kind=DIRECTORY) for path in paths)
    mib, _ = cost(pack_archive(tmp_path / "archive", *chunks, END), "but the snapshot says")
    assert mib < 20


def test_members_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive_path = pack_archive(tmp_path / "archive", *(block(b"m%02d" % n) for n in range(60)), END)
    verify(archive_path, read_digest(archive_path))
    limits = (("MAX_MEMBERS", 59, "more than 59 members"), ("MAX_TOTAL_PATH_BYTES", 100, "its paths take"))
    for limit, value, reason in limits:
        with monkeypatch.context() as patched:
            patched.setattr(members, limit, value)
            with pytest.raises(SnapshotCorruptError, match=reason):
                verify(archive_path)
    monkeypatch.setattr(members, "MAX_TOTAL_EXTENDED_HEADER_BYTES", 500)
    timed = (make_extended_header((b"mtime", b"1")) + block(b"m%02d" % n) for n in range(60))
    pack_archive(archive_path, *timed, END)
    with pytest.raises(SnapshotCorruptError, match="header is too large"):
        verify(archive_path)


def test_time_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = (block(size=number(8**10)), *[bytes(1 << 20)] * 1024, END)
    archive_path = pack_archive(tmp_path / "archive", *chunks)
    monkeypatch.setattr(members, "_CPU_S", 0.1)
    began = time.thread_time()
    with pytest.raises(SnapshotCorruptError, match="takes too long"):
        verify(archive_path)
    assert time.thread_time() - began < 0.5


def test_a_file_of_another_user_is_not_archived(tmp_path: Path) -> None:
    layer, base = tmp_path / "layer", tmp_path / "base"
    layer.mkdir()
    base.mkdir()
    (layer / "file").write_text("of this host")
    other = {"base_digest": BASE, "root_uid": os.getuid() + 1}
    with pytest.raises(SandboxUnavailableError, match="file: belongs to a user of this host"):
        archive_writer.write((layer,), LayerStack(base), tmp_path / "archive", **other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "layer"]


def test_other_file_types_are_refused_and_closed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    before = set(Path("/proc/self/fd").iterdir())
    for path in (tmp_path, tmp_path / "fifo"):
        with pytest.raises(SnapshotCorruptError, match=f"{path}: is not a regular file"):
            verify(path, "")
    assert set(Path("/proc/self/fd").iterdir()) <= before


def test_an_archive_larger_than_a_sandbox_is_refused(tmp_path: Path) -> None:
    """Holes count only where they are written, and are dropped where unnecessary."""
    archive_path, target = tmp_path / "archive", tmp_path / "target"
    content = (b"data".ljust(4096, b"\0") + bytes(252 << 10)) * 64
    pack_archive(archive_path, block(size=number(len(content))), content, END)
    digest = read_digest(archive_path)
    unpack(archive_path, target, digest, max_bytes=1 << 20)
    assert (target / "x").read_bytes() == content
    assert (target / "x").stat().st_blocks * 512 < 1 << 20
    for deed in (
        lambda: unpack(archive_path, target, digest, max_bytes=100 << 10),
        lambda: verify(archive_path, digest, max_bytes=15 << 20),
    ):
        (target / "x").unlink(missing_ok=True)
        with pytest.raises(OutOfDiskError, match=r"more than \d+ MB, the sandbox's limit; raise disk_mb"):
            deed()


def test_data_after_the_end_is_refused(tmp_path: Path) -> None:
    archive_path = pack_archive(tmp_path / "archive", block(), END)
    digest, whole = read_digest(archive_path), archive_path.read_bytes()
    for more, reason in (
        (b"junk" * 100, "Unknown frame"),
        (zstandard.compress(b"junk"), "continues after its end"),
        (zstandard.compress(bytes(tarfile.RECORDSIZE)), "continues after its end"),
    ):
        archive_path.write_bytes(whole + more)
        with pytest.raises(SnapshotCorruptError, match=reason):
            verify(archive_path, digest)
    for end in (b"", bytes(512), END + END, END[:-512] + b"x" + bytes(511)):
        pack_archive(archive_path, block(), end)
        with pytest.raises(SnapshotCorruptError, match=r"truncated|continues after"):
            verify(archive_path, digest)


MEMBERS = st.sampled_from([b".", b"a", b"a/b", b".wh.a", b"a/.wh..wh..opq"])
KINDS = st.sampled_from([b"0", b"1", b"2", b"3", b"5", b"6", b"g", b"x", b"L", b"S", b"\0"])
TWELVE_BYTES, EIGHT_BYTES = (st.binary(min_size=size, max_size=size) for size in (12, 8))
OPTIONAL = {
    "name": MEMBERS | st.binary(max_size=20),
    "kind": KINDS,
    "size": st.integers(0, 600).map(number) | TWELVE_BYTES,
    "mtime": st.integers(0, 8**11 - 1).map(number) | TWELVE_BYTES,
    "mode": st.integers(0, 0o7777).map(lambda n: b"%07o\0" % n) | EIGHT_BYTES,
    "target": st.sampled_from([b"", b"a", b"a/b", b"/etc/passwd", b"../x"]),
}
FIELDS = st.fixed_dictionaries({}, optional=OPTIONAL)
VALUES = st.one_of(
    st.binary(max_size=12),
    st.integers(-(2**70), 2**70).map(lambda n: str(n).encode()),
    st.decimals(allow_nan=True).map(lambda n: str(n).encode()),
    st.sampled_from([b"a", b"a/b", b"d", b"BINARY", b"1e400"]),
)
KEYS = (b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime", b"hdrcharset", b"TAKEOVER.literal")
KEYS += (b"SCHILY.xattr.user.a", b"GNU.sparse.realsize")
RECORDS = st.lists(st.tuples(st.sampled_from(KEYS), VALUES), max_size=4)


@settings(max_examples=examples(400), suppress_health_check=SHARED_FIXTURES)
@given(st.lists(st.tuples(st.booleans(), RECORDS, FIELDS, st.binary(max_size=512)), max_size=5))
def test_random_members_raise_only_typed_errors(
    tmp_path: Path, given_: list[tuple[bool, Any, dict[str, bytes], bytes]]
) -> None:
    chunks = []
    for is_extended, records, fields, content in given_:
        if is_extended:
            chunks.append(make_extended_header(*records))
        if content and "size" not in fields:
            fields = {**fields, "size": number(len(content))}
        chunks += [block(**fields), content + bytes(-len(content) % 512)]  # type: ignore[arg-type]
    archive_path = pack_archive(tmp_path / "archive", *chunks, END)
    target = Path(tempfile.mkdtemp(dir=tmp_path)) / "in" / "target"
    for deed in (
        lambda: verify(archive_path, "0" * 64),
        lambda: unpack(archive_path, target, "0" * 64, max_bytes=1000),
    ):
        with pytest.raises((SnapshotCorruptError, OutOfDiskError)):
            deed()
    assert {*target.parents[1].rglob("*")} <= {target.parent, target, *target.rglob("*")}


@given(
    st.dictionaries(
        st.text("ab./\udcff", min_size=1, max_size=6),
        st.tuples(st.binary(min_size=32, max_size=32), st.integers(0, 2)),
    )
)
def test_sums_are_a_mapping(expected: dict[str, tuple[bytes, int]]) -> None:
    sums = members.DigestsByPath()
    for path in sorted(expected, key=members.sort_key):
        sums.add(members.sort_key(path), *expected[path])
    rows = expected.items()
    assert dict(sums) == {
        path: None if kind == sums.UNREPORTED else sum_.hex() for path, (sum_, kind) in rows
    }
    assert sums.get("c") is None
    for path, (sum_, kind) in expected.items():
        assert sums.find_file(path) == (None if kind == sums.LINK else (sum_, kind))


def test_closed_directories_with_hard_links() -> None:
    """An ordinary user can unpack directories without access permission."""
    room = Path(tempfile.mkdtemp(dir="/var/tmp"))  # open to other users, unlike a test's own directory
    try:
        chunks = [
            block(b"a", DIRECTORY, mode=b"0000000\0") + block(b"a/f", mode=b"0000000\0"),
            block(b"b", DIRECTORY, mode=b"0000500\0"),
            block(b"b/h", HARD, target=b"a/f"),
        ]
        archive_path = pack_archive(room / "archive", *chunks, END)
        digest, target = read_digest(archive_path), room / "target"
        target.mkdir()
        script = "import os, sys; from pathlib import Path; from langgraph_takeover.sandbox.snapshots import archive_reader\n"
        script += "if os.geteuid() == 0: os.setresuid(12345, 12345, 12345)\n"
        script += "archive_reader.unpack(Path(sys.argv[1]), Path(sys.argv[2]), digest=sys.argv[3], base_digest=sys.argv[4])"
        if os.geteuid() == 0:
            os.chown(target, 12345, 12345)
            archive_path.chmod(0o644)
            room.chmod(0o755)
        run_python(script, archive_path, target, digest, BASE)
        assert stat.S_IMODE((target / "a").stat().st_mode) == 0
        assert stat.S_IMODE((target / "b").stat().st_mode) == 0o500
        (target / "a").chmod(0o700)
        assert (target / "a/f").stat().st_nlink == 2
    finally:
        shutil.rmtree(room)


def test_a_pipe_instead_of_an_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "archive")
    with pytest.raises(SnapshotCorruptError, match="not a regular file"):
        verify(tmp_path / "archive")


def test_a_writer_refuses_trees_that_no_reader_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_writer, "MAX_MEMBERS", 20)
    layer = tmp_path / "layer"
    layer.mkdir()
    for number in range(25):
        (layer / str(number)).touch()
    with pytest.raises(SandboxUnavailableError, match="more than 20 files"):
        archive_writer.write((layer,), LayerStack(), tmp_path / "archive", base_digest=BASE)
    assert not list(tmp_path.glob("archive*"))


def test_attributes_with_unsupported_names(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "file").touch()
    (layer / "old").touch()
    os.utime(layer / "old", ns=(-500_000_000, -500_000_000))
    for name in (b"user.a=b", b"user.\xff", b"user.plain"):
        os.setxattr(layer / "file", name, b"value")
    digest = archive_writer.write((layer,), LayerStack(), tmp_path / "archive", base_digest=BASE)
    target = tmp_path / "target"
    unpack(tmp_path / "archive", target, digest)
    assert os.listxattr(target / "file") == ["user.plain"]
    assert (target / "old").stat().st_mtime_ns == -500_000_000


def test_a_docker_whiteout_is_refused_before_the_daemon_sees_it(tmp_path: Path) -> None:
    header = make_extended_header((b"TAKEOVER.literal", b"1"))
    archive_path = pack_archive(tmp_path / "archive", header + block(b".wh.x"), END)
    digest = read_digest(archive_path)
    assert verify(archive_path, digest).literal_path == ".wh.x"
    with pytest.raises(SnapshotCorruptError, match="cannot keep a file named"):
        images.load_archive(archive_path, digest, {"Id": BASE}, {}, "tag")


@pytest.mark.slow
def test_a_repository_with_its_packages_is_read(tmp_path: Path) -> None:
    """200,000 files, a tenth of them hard links to others."""
    chunks = [block(b"node_modules", DIRECTORY)]
    for number_ in range(2000):
        directory = b"node_modules/package-%04d" % number_
        chunks.append(block(directory, DIRECTORY))
        for part in range(100):
            name, origin = b"%s/module-%02d.js" % (directory, part), b"%s/module-00.js" % directory
            times = make_extended_header((b"mtime", b"1700000000.%09d" % part))
            if part % 10 == 9:
                chunks.append(times + block(name, HARD, target=origin))
            else:
                chunks.append(times + block(name, size=number(4)) + (b"%04d" % number_).ljust(512, b"\0"))
    archive_path = pack_archive(tmp_path / "archive", *chunks, END)
    assert len(verify(archive_path, read_digest(archive_path)).files) == 200_000
    mib, seconds = cost(archive_path, "but the snapshot says")
    assert mib < 60
    assert seconds < 30


def test_a_full_disk_leaves_no_partial_archive(rooms: Path) -> None:
    room = Path(tempfile.mkdtemp(dir=rooms))
    small, layer, base = room / "small", room / "layer", room / "base"
    for directory in (small, layer, base):
        directory.mkdir()
    (layer / "big").write_bytes(os.urandom(3 << 20))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    try:
        with pytest.raises(OutOfDiskError, match="disk is full"):
            keep((layer,), base, small / "archive")
        assert list(small.iterdir()) == []
        digest = keep((layer,), base, room / "archive")
        with pytest.raises(OutOfDiskError):
            unpack(room / "archive", small, digest)
    finally:
        subprocess.run(["umount", small], check=True)
