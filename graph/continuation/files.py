"""What capture and continuation leave in a home: the origin of each record, and a manifest of each continuation."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from langgraph_takeover.graph.errors import ContinuationError
from langgraph_takeover.handoff.records.record import is_valid_id, to_json, write_durably
from langgraph_takeover.handoff.text.files import describe_error, read_untrusted_file
from langgraph_takeover.sandbox.interface import Frozen
from langgraph_takeover.sandbox.storage import safe_open
from langgraph_takeover.sandbox.storage.removal import list_matches, walk

_MAX_FILE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20
_CHANGED_BY_READING = re.compile(r"\.git/(?:opencode|index|modules/.+/index)")
"""`git status` alone rewrites an index; opencode notes in a file of its own which project it is in."""
_Kind = TypeVar("_Kind", bound=Frozen)


class CaptureOrigin(Frozen):
    """Where a record was captured. Only this host has it: no archive of a record brings one."""

    repository: str
    agent: str


class CreatedFile(Frozen):
    """A file that a continuation wrote."""

    path: str
    sha256: str


class Manifest(Frozen):
    """Everything that a continuation creates, written before it is created."""

    record: str
    agent: str
    view: str
    checkout: str
    staging: str
    """Directory in which the checkout is prepared, beside it."""
    checkout_digest: str = ""
    """Empty until the checkout is complete."""
    task: str = ""
    """The task of the record."""
    own_texts: tuple[str, ...] = ()
    """How the texts begin that the continuation itself puts into the session as a user's."""
    checkout_existed: bool = False
    """Whether there was an empty directory in its place."""
    files: tuple[CreatedFile, ...] = ()
    """Files outside the checkout: the native session."""
    directories: tuple[str, ...] = ()
    """Directories that the continuation created for them, the outermost first."""


def ensure_private_directory(path: Path) -> Path:
    """Create a directory that only this user can read, unless it exists."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    return path


def save_origin(home: Path, record_id: str, origin: CaptureOrigin) -> None:
    """Save where a record is captured."""
    write_durably(ensure_private_directory(home / "captures") / f"{record_id}.json", to_json(origin))


def load_origin(home: Path, record_id: str) -> CaptureOrigin | None:
    """Return where a record was captured; None if that was not in this home. Raises ContinuationError."""
    path = _origin_path(home, record_id)
    return _load(path, CaptureOrigin) if os.path.lexists(path) else None


def remove_origin(home: Path, record_id: str) -> None:
    """Remove where a record was captured."""
    _origin_path(home, record_id).unlink(missing_ok=True)


def _origin_path(home: Path, record_id: str) -> Path:
    return home / "captures" / f"{record_id}.json"


def list_manifests(home: Path, record_id: str) -> list[Path]:
    """List the manifests of a record's continuations, the oldest first."""
    if not is_valid_id(record_id):
        return []
    return list_matches(home / "continuations" / record_id, "[0-9]*.json")


def find_manifest_of(home: Path, checkout: Path) -> Manifest | None:
    """Return the newest manifest of a continuation in that checkout, if any. Raises ContinuationError."""
    paths: list[tuple[float, Path]] = []
    for path in list_matches(home / "continuations", "*/[0-9]*.json"):
        with contextlib.suppress(FileNotFoundError):  # its continuation was undone meanwhile
            paths.append((path.stat().st_mtime, path))
    for _, path in sorted(paths, reverse=True):
        manifest = load_manifest(path)
        if manifest is not None and os.path.realpath(manifest.checkout) == os.path.realpath(checkout):
            return manifest
    return None


def reserve_manifest(home: Path, record_id: str) -> Path:
    """Create an empty manifest with the next number, which no other process has."""
    directory = ensure_private_directory(home / "continuations" / record_id)
    for number in range(1, 10_000):
        path = directory / f"{number:04}.json"
        with contextlib.suppress(FileExistsError):
            path.open("xb").close()
            return path
    raise ContinuationError(
        f"{directory}: too many continuations (undo them: handoff continue {record_id} --undo)"
    )


def save_manifest(path: Path, manifest: Manifest) -> None:
    """Replace a manifest durably."""
    write_durably(path, to_json(manifest))


def load_manifest(path: Path) -> Manifest | None:
    """Return a manifest; None if nothing was created yet. Raises ContinuationError."""
    with contextlib.suppress(FileNotFoundError):
        return _load(path, Manifest) if path.stat().st_size else None
    return None


def _load(path: Path, kind: type[_Kind]) -> _Kind:
    try:
        return kind.model_validate_json(read_untrusted_file(path, _MAX_FILE_BYTES))
    except OSError as error:
        raise ContinuationError(f"{path}: {describe_error(error)}") from error
    except ValidationError as error:
        raise ContinuationError(f"{path}: damaged: {error.errors()[0]['msg']} (remove it)") from error


def hash_file(path: Path) -> str | None:
    """Return the SHA-256 of a regular file; None if it is anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _hash(descriptor) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    finally:
        os.close(descriptor)


def hash_tree(root: Path) -> str:
    """Return a digest of a directory's files: names, modes, link targets and contents, without what reading changes."""
    digest = hashlib.sha256()
    for path, info in sorted(walk(root)):
        if _CHANGED_BY_READING.fullmatch(path):
            continue
        mode = info.st_mode
        content = ""
        if stat.S_ISREG(mode):
            with safe_open.open_safely(root, path) as descriptor:
                content = _hash(descriptor)
        elif stat.S_ISLNK(mode):
            content, mode = os.fsdecode(safe_open.read_link_target(root, path)), stat.S_IFLNK
        digest.update(os.fsencode(f"{path}\0{mode:o}\0{content}\0"))
    return digest.hexdigest()


def _hash(descriptor: int) -> str:
    digest = hashlib.sha256()
    while block := os.read(descriptor, _BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()
