"""Raw tars: of an overlay directory as it lies on the disk, and of an image's layer as Docker writes it."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from sandbox.descriptors import made_readable
from sandbox.layers import USER_OPAQUE, own
from sandbox.machine import OutOfDisk, SandboxUnavailable

_TAR = ("tar", "--sparse", "--xattrs", "--xattrs-include=*", "--numeric-owner")
_WITHOUT_MARKS = "--xattrs-exclude=*.overlay.*"
"""Docker marks in a tar by names; a sandbox may have set overlayfs's attributes."""
_FATAL = 2
"""The least exit code of `tar` that says more than that a file changed or vanished while it was read."""
_FULL = ("No space left on device", "Wrote only", "Disk quota exceeded")
_GONE = ".wh."
_OPAQUE = ".wh..wh..opq"


def pack(directory: Path, raw: Path, *, entering: Sequence[str] = ()) -> None:
    """Keep an overlay's upper directory as it is, marks and attributes and all.

    `entering` begins the command line of `tar`, which then reads with the rights of the sandbox's own root.
    Without it nothing keeps others from writing, so a file that changes meanwhile is no error.
    """
    failure = 1 if entering else _FATAL
    with raw.open("xb") as out:
        _tar("-c", "-f", "-", "-C", os.fspath(directory), ".", entering=entering, stdout=out, failure=failure)


def unpack(raw: Path, directory: Path, *, entering: Sequence[str] = (), options: Sequence[str] = ()) -> None:
    """Lay out what `pack` kept."""
    with raw.open("rb") as packed:
        _tar(*options, "-x", "-p", "-f", "-", "-C", os.fspath(directory), entering=entering, stdin=packed)


def lay_out(layer: IO[bytes], directory: Path) -> None:
    """Lay an image's layer out as an overlay directory."""
    raw = directory.with_name(f"{directory.name}.tar")
    with raw.open("xb") as out:
        shutil.copyfileobj(layer, out)
    unpack(raw, directory, options=[_WITHOUT_MARKS])
    raw.unlink()
    _mark_all(directory)


def _mark_all(directory: Path) -> None:
    with made_readable(directory.parent, directory.name, directory.lstat(), to_write=True):
        for place in list(directory.iterdir()):
            if place.name.startswith(_GONE):
                place.unlink()
                _mark(directory, place.name)
            elif place.is_dir() and not place.is_symlink():
                _mark_all(place)


def lay_out_names(layer: IO[bytes], directory: Path) -> None:
    """Lay out which names a layer has, and which of them are directories: all that a base is asked for."""
    with tarfile.open(fileobj=layer) as tar:
        for member in tar:
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            if not parts or ".." in parts:
                continue
            parent = directory.joinpath(*parts[:-1])
            parent.mkdir(parents=True, exist_ok=True)
            if parts[-1].startswith(_GONE):
                _mark(parent, parts[-1])
            elif member.isdir():
                (parent / parts[-1]).mkdir(exist_ok=True)
            else:
                (parent / parts[-1]).touch()


def mark_among(directory: Path) -> str | None:
    """A path below whose name Docker's layers would read as a mark, and so cannot keep."""
    for item in own(directory):
        if item.path.rpartition("/")[2].startswith(_GONE):
            return item.path
    return None


def _mark(parent: Path, name: str) -> None:
    if name == _OPAQUE:
        os.setxattr(parent, USER_OPAQUE, b"y")
    elif not name.startswith(_GONE * 2):  # others of the old union file system's own
        with contextlib.suppress(FileExistsError):
            os.mknod(parent / name.removeprefix(_GONE), stat.S_IFCHR | 0o600, 0)


def _tar(
    *arguments: str,
    entering: Sequence[str],
    stdin: IO[bytes] | None = None,
    stdout: IO[bytes] | None = None,
    failure: int = 1,
) -> None:
    done = subprocess.run(
        [*entering, *_TAR, *arguments],
        stdin=stdin or subprocess.DEVNULL,
        stdout=stdout or subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode < 0 or done.returncode >= failure:
        complaint = done.stderr.decode(errors="replace").strip()
        if any(words in complaint for words in _FULL):
            raise OutOfDisk("the disk is full; the snapshot was not taken")
        first = (complaint.splitlines() or ["no reason given"])[0]
        raise SandboxUnavailable(f"tar failed: {first[:300]}")
