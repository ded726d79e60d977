"""The bash of a sandbox's shells: a copy that can be executed but not read.

The kernel lets a process without capabilities neither read the memory, descriptors or environment of a process whose
program it may not read, nor attach a debugger to it. So no command can read the random word that marks its end.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from pathlib import Path

from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError
from langgraph_takeover.sandbox.snapshots.bases import Base
from langgraph_takeover.sandbox.storage import host_directories, host_programs

SHELL_PATH_INSIDE = "/dev/bash"
_BASH_PATHS = ("usr/bin/bash", "bin/bash")


def prepare_shell_program(base: Base) -> Path | None:
    """Return the copy for sandboxes on a base, made at the first call; None if the base's own bash is behind a link.

    A repository uses this host's bash, a complete system its own.
    """
    if base.is_system:
        found = next((path for name in _BASH_PATHS if (path := _find_regular_file(base.tree, name))), None)
        return found and _copy_program(found, base.tree.parent / "bash")
    host = shutil.which("bash", path=host_programs.search_path())
    if host is None:
        return None
    program = Path(host).resolve()
    info = program.stat()
    stamp = repr((str(program), info.st_mtime_ns, info.st_ino, info.st_size))
    return _copy_program(
        program, host_directories.ensure_root() / f"bash-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
    )


def _copy_program(program: Path, target: Path) -> Path:
    if target.exists():
        return target
    partial = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
    try:
        with program.open("rb") as source, partial.open("xb") as copy:
            shutil.copyfileobj(source, copy)
            os.fchmod(copy.fileno(), 0o111)
            copy.flush()
            os.fsync(copy.fileno())
        partial.replace(target)
    except OSError as error:
        kind = OutOfDiskError if error.errno in (errno.ENOSPC, errno.EDQUOT) else SandboxUnavailableError
        raise kind(
            f"{program}: cannot be copied to {target}: {error.strerror} (make {target.parent} writable, "
            f"or set {host_directories.ROOT_VARIABLE} to another directory)"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return target


def _find_regular_file(tree: Path, name: str) -> Path | None:
    """Open a file of a tree without following a link out of it."""
    path = tree
    for part in name.split("/"):
        path /= part
        if path.is_symlink():
            return None
    return path if path.is_file() else None
