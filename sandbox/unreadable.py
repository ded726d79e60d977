"""The bash of a sandbox's shells: a copy that can be executed and not be read.

The kernel lets nobody without capabilities look into a process whose program they may not read: not into its memory, its
descriptors or its environment, and no debugger attaches. So no command can read the random word that marks its end.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from pathlib import Path

from sandbox import storage
from sandbox.bases import Base
from sandbox.machine import OutOfDisk, SandboxUnavailable

INSIDE = "/dev/bash"
_PLACES = ("usr/bin/bash", "bin/bash")


def shell_program(base: Base) -> Path | None:
    """The copy for machines on a base, made at the first call; None where the base's own bash is behind a link.

    A repository has this host's bash, a whole system its own.
    """
    if base.whole:
        found = next((path for name in _PLACES if (path := _plain(base.tree, name))), None)
        return found and _copied(found, base.tree.parent / "bash")
    host = shutil.which("bash")
    if host is None:
        return None
    program = Path(host).resolve()
    info = program.stat()
    stamp = repr((str(program), info.st_mtime_ns, info.st_ino, info.st_size))
    return _copied(program, storage.place() / f"bash-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}")


def _copied(program: Path, place: Path) -> Path:
    if place.exists():
        return place
    partial = place.with_name(f".{place.name}-{secrets.token_hex(4)}")
    try:
        with program.open("rb") as source, partial.open("xb") as copy:
            shutil.copyfileobj(source, copy)
            os.fchmod(copy.fileno(), 0o111)
            copy.flush()
            os.fsync(copy.fileno())
        partial.replace(place)
    except OSError as error:
        kind = OutOfDisk if error.errno in (errno.ENOSPC, errno.EDQUOT) else SandboxUnavailable
        raise kind(
            f"{program}: cannot be copied to {place}: {error.strerror}; make {place.parent} writable, "
            f"or set {storage.PLACE_VARIABLE} to another directory"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return place


def _plain(tree: Path, name: str) -> Path | None:
    """A file of a tree that no link on the way leads out of."""
    path = tree
    for part in name.split("/"):
        path /= part
        if path.is_symlink():
            return None
    return path if path.is_file() else None
