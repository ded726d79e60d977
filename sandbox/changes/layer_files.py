"""Contents of small files, read from the layers of a sandbox without a process inside."""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Iterable
from typing import NamedTuple

from langgraph_takeover.sandbox.changes.file_states import HashBudget, hash_link_target, size_digest
from langgraph_takeover.sandbox.changes.layers import LayerEntry, LayerLookup, LayerStack
from langgraph_takeover.sandbox.changes.report import Mount


class FileVersion(NamedTuple):
    """A file as it is now, or as it was."""

    size: int
    content: bytes | None
    """None if it is larger than the limit of the reader."""


def read_layer_files(
    stack: LayerStack, mounts: Iterable[Mount], workspace: str, paths: Iterable[str], max_bytes: int
) -> dict[str, FileVersion]:
    """Return the regular files among these paths, which are relative to the workspace or absolute.

    A program inside can change a file meanwhile: verify contents by their digests.
    """
    lookup, found = LayerLookup(stack), {}
    for path in paths:
        whole = posixpath.normpath(posixpath.join(workspace, path))
        for part, inside in mounts:
            start = f"{inside.rstrip('/')}/"
            if whole.startswith(start):
                entry = lookup.find(posixpath.join(part, whole.removeprefix(start)))
                if entry is not None and (version := _read_entry(entry, max_bytes)) is not None:
                    found[path] = version
                break
    return found


def find_file_digest(lookup: LayerLookup, path: str) -> str | None:
    """Return the SHA-256 of a file or a link's target, as a report of changes has it; None if there is neither."""
    entry = lookup.find(path)
    if entry is None:
        return None
    if stat.S_ISLNK(entry.info.st_mode):
        return hash_link_target(entry.link_target())
    if not stat.S_ISREG(entry.info.st_mode):
        return None
    with entry.open_descriptor() as descriptor:
        return HashBudget().compute_sha256(descriptor, entry.info) or size_digest(entry.info)


def _read_entry(entry: LayerEntry, max_bytes: int) -> FileVersion | None:
    if not stat.S_ISREG(entry.info.st_mode):
        return None
    if entry.info.st_size > max_bytes:
        return FileVersion(entry.info.st_size, None)
    try:
        with entry.open_descriptor() as descriptor, open(descriptor, "rb", closefd=False) as file:
            content = file.read(max_bytes + 1)
    except OSError:
        return None
    return FileVersion(len(content), content) if len(content) <= max_bytes else None
