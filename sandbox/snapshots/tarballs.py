"""Raw tars: of an overlay directory as it is on disk, and of an image's layer as Docker writes it."""

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

from langgraph_takeover.sandbox.changes.layers import USER_OPAQUE, require_shallow, walk_layer
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError
from langgraph_takeover.sandbox.storage.safe_open import make_readable

_TAR_COMMAND = ("tar", "--sparse", "--xattrs", "--xattrs-include=*", "--numeric-owner")
_EXCLUDE_OVERLAY_ATTRIBUTES = "--xattrs-exclude=*.overlay.*"
"""Docker marks in a tar by names; a sandbox may have set overlayfs's attributes."""
_FATAL_EXIT_CODE = 2
"""The least exit code of `tar` that says more than that a file changed or vanished while it was read."""
_DISK_FULL_MESSAGES = ("No space left on device", "Wrote only", "Disk quota exceeded")
_WHITEOUT_PREFIX = ".wh."
_OPAQUE_MARK = ".wh..wh..opq"


def pack(directory: Path, raw: Path, *, entry_command: Sequence[str] = ()) -> None:
    """Archive an overlay's upper directory with its whiteouts and attributes.

    `entry_command` begins the command line of `tar`, which then reads with the rights of the sandbox's own root.
    Without it other processes may write, so a file that changes meanwhile is not an error.
    """
    failure = 1 if entry_command else _FATAL_EXIT_CODE
    with raw.open("xb") as out:
        _run_tar(
            "-c",
            "-f",
            "-",
            "-C",
            os.fspath(directory),
            ".",
            entry_command=entry_command,
            stdout=out,
            failure_code=failure,
        )


def unpack(
    raw: Path, directory: Path, *, entry_command: Sequence[str] = (), options: Sequence[str] = ()
) -> None:
    """Unpack what `pack` stored."""
    with raw.open("rb") as packed:
        _run_tar(
            *options,
            "-x",
            "-p",
            "-f",
            "-",
            "-C",
            os.fspath(directory),
            entry_command=entry_command,
            stdin=packed,
        )


def unpack_layer(layer: IO[bytes], directory: Path) -> None:
    """Lay an image's layer out as an overlay directory."""
    raw = directory.with_name(f"{directory.name}.tar")
    with raw.open("xb") as out:
        shutil.copyfileobj(layer, out)
    unpack(raw, directory, options=[_EXCLUDE_OVERLAY_ATTRIBUTES])
    raw.unlink()
    _apply_marks(directory)


def _apply_marks(directory: Path, shown: str = "") -> None:
    require_shallow(shown)
    with make_readable(directory.parent, directory.name, directory.lstat(), to_write=True):
        for path in list(directory.iterdir()):
            if path.name.startswith(_WHITEOUT_PREFIX):
                path.unlink()
                _apply_mark(directory, path.name)
            elif path.is_dir() and not path.is_symlink():
                _apply_marks(path, f"{shown}/{path.name}")


def unpack_layer_names(layer: IO[bytes], directory: Path) -> None:
    """Build a directory with the names of a layer and their kinds, which is all that a base must provide."""
    with tarfile.open(fileobj=layer) as tar:
        for member in tar:
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            if not parts or ".." in parts:
                continue
            parent = directory.joinpath(*parts[:-1])
            parent.mkdir(parents=True, exist_ok=True)
            if parts[-1].startswith(_WHITEOUT_PREFIX):
                _apply_mark(parent, parts[-1])
            elif member.isdir():
                (parent / parts[-1]).mkdir(exist_ok=True)
            else:
                (parent / parts[-1]).touch()


def find_reserved_name(directory: Path) -> str | None:
    """A path below whose name Docker's layers would read as a mark, and so cannot keep."""
    for item in walk_layer(directory):
        if item.path.rpartition("/")[2].startswith(_WHITEOUT_PREFIX):
            return item.path
    return None


def _apply_mark(parent: Path, name: str) -> None:
    if name == _OPAQUE_MARK:
        os.setxattr(parent, USER_OPAQUE, b"y")
    elif not name.startswith(_WHITEOUT_PREFIX * 2):  # others of the old union file system's own
        with contextlib.suppress(FileExistsError):
            os.mknod(parent / name.removeprefix(_WHITEOUT_PREFIX), stat.S_IFCHR | 0o600, 0)


def _run_tar(
    *arguments: str,
    entry_command: Sequence[str],
    stdin: IO[bytes] | None = None,
    stdout: IO[bytes] | None = None,
    failure_code: int = 1,
) -> None:
    done = subprocess.run(
        [*entry_command, *_TAR_COMMAND, *arguments],
        stdin=stdin or subprocess.DEVNULL,
        stdout=stdout or subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode < 0 or done.returncode >= failure_code:
        complaint = done.stderr.decode(errors="replace").strip()
        if any(words in complaint for words in _DISK_FULL_MESSAGES):
            raise OutOfDiskError("the disk is full; the snapshot was not taken")
        first = (complaint.splitlines() or ["no reason given"])[0]
        raise SandboxUnavailableError(f"tar failed: {first[:300]}")
