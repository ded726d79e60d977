"""Files that usually contain secrets, by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.sandbox.snapshots.transfer import read_contents

_SECRET_FILE = re.compile(
    r"(?:^|/)(?:\.env(?:\.[\w-]+)?|[^/]*\.(?:pem|p12|pfx|key)|id_(?:rsa|ed25519|ecdsa)|\.netrc|\.npmrc)$"
)
_HARMLESS_FILE = re.compile(r"\.(?:example|sample|template|dist)$")


def select_secret_files(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths of a repository whose names are those of files that usually contain secrets."""
    return tuple(
        path
        for path in sorted(paths)
        if _SECRET_FILE.search(path) and not _HARMLESS_FILE.search(path) and not path.startswith(".git/")
    )


def list_secret_files(directory: Path) -> tuple[str, ...]:
    """Return those files of a record's snapshot. Raises RecordError, SnapshotCorruptError and SandboxUnavailableError."""
    snapshot = RecordStore(directory.parent).load(directory.name).snapshot
    return select_secret_files(read_contents(snapshot, directory).files) if snapshot is not None else ()
