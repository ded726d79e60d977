"""What capture and continuation keep in the user's state directory: known records, their parents, and manifests."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from langgraph_takeover.base.untrusted_input import describe_error, read_untrusted_file
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.graph.usage_errors import ContinuationError
from langgraph_takeover.handoff.interop.session_records import make_replacement, move_texts, read_session
from langgraph_takeover.handoff.readers import TraceError
from langgraph_takeover.handoff.records.record import (
    AgentWork,
    HandoffRecord,
    ParentRecord,
    RecordError,
    RecordStore,
    is_valid_id,
    to_json,
    write_durably,
)
from langgraph_takeover.handoff.records.record_facts import build_parent
from langgraph_takeover.handoff.trace.events import Event, Trace, append_events, sum_forms
from langgraph_takeover.sandbox import untrusted_trees
from langgraph_takeover.sandbox.backends.checkouts import CHECKOUT_WORKSPACE
from langgraph_takeover.sandbox.snapshots.differences import digest_content
from langgraph_takeover.sandbox.untrusted_trees import list_matches, walk

NOTES_DIRECTORY = ".git/takeover"
"""Where git does not see what a successor reads."""
IMAGES_DIRECTORY = "images"
"""There, the images of the captured session."""
_STATE_VARIABLE = "XDG_STATE_HOME"
_PARENTS_FILE = "parents.json"
_ATTEMPTS = 5
_MAX_FILE_BYTES = 1 << 20
_CHANGED_BY_READING = re.compile(r"\.git/(?:opencode|index|modules/.+/index)")
"""`git status` alone rewrites an index; opencode notes in a file of its own which project it is in."""
_Kind = TypeVar("_Kind", bound=Frozen)


class KnownRecord(Frozen):
    """How a record of a home, with exactly that content, came from this user's own commands."""

    repository: str = ""
    """The repository that was captured; empty if it was not captured here."""
    agent: str = ""
    image_of: str = ""
    """The key of the record that `--image` put into an image; empty for a captured one."""


class Inode(Frozen):
    """Identity of a file or a directory on this host."""

    device: int
    number: int


class CreatedFile(Frozen):
    """A file that a continuation wrote."""

    path: str
    sha256: str
    inode: Inode | None = None
    """None until it exists."""


class CreatedDirectory(Frozen):
    """A directory that a continuation created."""

    path: str
    inode: Inode | None = None
    """None until it exists."""


class Manifest(Frozen):
    """Everything that a continuation creates, written before it is created."""

    record: str
    record_digest: str = ""
    home: str = ""
    """Home of the record."""
    agent: str
    view: str
    checkout: str
    staging: str
    """Directory in which the checkout is prepared, beside it."""
    staging_inode: Inode | None = None
    checkout_digest: str = ""
    """Empty until the checkout is complete."""
    checkout_inode: Inode | None = None
    task: str = ""
    """The task of the record."""
    own_texts: tuple[str, ...] = ()
    """How the texts begin that the continuation itself puts into the session as a user's."""
    own_events: tuple[str, ...] = ()
    """Digests of the events in the native session that the continuation wrote, in order: at most 50,000."""
    checkout_existed: bool = False
    """Whether there was an empty directory in its place."""
    files: tuple[CreatedFile, ...] = ()
    """Files outside the checkout: the native session."""
    directories: tuple[CreatedDirectory, ...] = ()
    """Directories that the continuation created for them, the outermost first."""


class StateParents(Frozen):
    """The directories that were created for the user's state directory, the outermost first."""

    directories: tuple[CreatedDirectory, ...] = ()


def ensure_private_directory(path: Path) -> Path:
    """Create a directory that only this user can read, unless it exists."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    return path


def require_state_directory() -> Path:
    """Return the user's state directory, which may not exist yet.

    Raises ContinuationError unless the directory belongs to this user and is closed to all others.
    """
    # A relative path would let the current directory decide.
    named = os.environ.get(_STATE_VARIABLE, "")
    try:
        parent = Path(named) if named.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:
        parent = Path()
    if not parent.is_absolute():
        raise ContinuationError(f"no home directory of this user (set HOME, or {_STATE_VARIABLE})")
    path = parent / "takeover"
    try:
        info = path.lstat()
    except FileNotFoundError:
        return path
    except OSError as error:
        raise ContinuationError(
            f"{path}: {describe_error(error)} (set {_STATE_VARIABLE} to a directory of yours)"
        ) from error
    if not stat.S_ISDIR(info.st_mode):
        raise ContinuationError(f"{path}: not a directory (remove it, or set {_STATE_VARIABLE})")
    if info.st_uid != os.geteuid():
        raise ContinuationError(
            f"{path}: belongs to another user (set {_STATE_VARIABLE} to a directory of yours)"
        )
    if info.st_mode & 0o077:
        raise ContinuationError(
            f"{path}: others can enter it (if only you wrote to it: chmod 700 {path}; else remove it)"
        )
    return path


def _ensure_state_directory(*parts: str) -> Path:
    root = require_state_directory()
    try:
        missing = [each for each in root.parents if not each.exists()]
        if not root.exists():
            ensure_private_directory(root)
            created = (CreatedDirectory(path=str(each), inode=identify(each)) for each in reversed(missing))
            write_durably(root / _PARENTS_FILE, to_json(StateParents(directories=tuple(created))))
        return ensure_private_directory(require_state_directory().joinpath(*parts))
    except OSError as error:
        raise ContinuationError(
            f"{root}: {describe_error(error)} (set {_STATE_VARIABLE} to a directory that can be written to)"
        ) from error


def remove_empty_state() -> None:
    """Remove the directories of the user's state that are empty; if all are, also those that were created for it."""
    root = require_state_directory()
    for pattern in ("continuations/*/*", "*/*", "*"):
        for each in root.glob(pattern):
            with contextlib.suppress(OSError):  # not empty
                each.rmdir()
    with contextlib.suppress(OSError):
        if [each.name for each in root.iterdir()] != [_PARENTS_FILE]:
            return
        parents = _load(root / _PARENTS_FILE, StateParents).directories
        (root / _PARENTS_FILE).unlink()
        root.rmdir()
        for parent in reversed(parents):
            if identify(Path(parent.path)) == parent.inode:
                Path(parent.path).rmdir()


def compute_key(record: HandoffRecord) -> str:
    """Return the digest of everything in a record that another agent may read or run: its snapshot, notes and review too."""
    parts = (record.digest, record.required_snapshot.digest, *map(to_json, record.attachments.values()))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def save_known(home: Path, record: HandoffRecord, known: KnownRecord) -> None:
    """Save how a record came from this user's own commands. Raises ContinuationError."""
    for _ in range(_ATTEMPTS):
        directory = _ensure_state_directory("records", _name_home(home))
        with contextlib.suppress(FileNotFoundError):  # another process removed the empty directory
            write_durably(directory / f"{compute_key(record)}.json", to_json(known))
            return
    raise ContinuationError(f"{directory}: removed again and again (try again)")


def load_known(home: Path, record: HandoffRecord) -> KnownRecord | None:
    """Return how a record came from this user's own commands; None if it did not. Raises ContinuationError."""
    path = _known_path(home, record)
    return _load(path, KnownRecord) if os.path.lexists(path) else None


def forget_known(home: Path, record: HandoffRecord) -> None:
    """Remove what `save_known` saved."""
    _known_path(home, record).unlink(missing_ok=True)


def _known_path(home: Path, record: HandoffRecord) -> Path:
    return require_state_directory() / "records" / _name_home(home) / f"{compute_key(record)}.json"


def _name_home(home: Path) -> str:
    return hashlib.sha256(os.fsencode(os.path.realpath(home))).hexdigest()[:32]


def list_manifests(home: Path, record_id: str) -> list[Path]:
    """List the manifests of a record's continuations from a home, the oldest first. Raises ContinuationError."""
    if not is_valid_id(record_id):
        return []
    return list_matches(_manifest_directory(home) / record_id, "[0-9]*.json")


def list_continued(home: Path) -> list[str]:
    """List the records that this user continued from a home. Raises ContinuationError."""
    return sorted({path.parent.name for path in list_matches(_manifest_directory(home), "*/[0-9]*.json")})


def find_manifest_of(checkout: Path) -> Manifest | None:
    """Return the newest manifest of a continuation in that checkout, from any home. Raises ContinuationError."""
    paths: list[tuple[float, Path]] = []
    inode = identify(checkout)
    for path in list_matches(require_state_directory() / "continuations", "*/*/[0-9]*.json"):
        with contextlib.suppress(FileNotFoundError):  # its continuation was undone meanwhile
            paths.append((path.stat().st_mtime, path))
    for _, path in sorted(paths, reverse=True):
        manifest = load_manifest(path)
        if manifest is None or manifest.checkout_inode != inode:
            continue  # another directory, which may have had its name
        if os.path.realpath(manifest.checkout) == os.path.realpath(checkout):
            return manifest
    return None


def _manifest_directory(home: Path) -> Path:
    return require_state_directory() / "continuations" / _name_home(home)


def reserve_manifest(home: Path, record_id: str) -> Path:
    """Create an empty manifest with the next number, which no other process has. Raises ContinuationError."""
    for number in range(1, 10_000):
        directory = _ensure_state_directory("continuations", _name_home(home), record_id)
        path = directory / f"{number:04}.json"
        # Not found: another process removed the empty directory.
        with contextlib.suppress(FileExistsError, FileNotFoundError):
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


def identify(path: Path) -> Inode | None:
    """Return the identity of a file or a directory, never of a link's target; None if it does not exist."""
    try:
        info = path.lstat()
    except OSError:
        return None
    return Inode(device=info.st_dev, number=info.st_ino)


def hash_file(path: Path) -> str | None:
    """Return the SHA-256 of a regular file; None if it is anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return digest_content(descriptor).hex() if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
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
            with untrusted_trees.open_safely(root, path) as descriptor:
                content = digest_content(descriptor).hex()
        elif stat.S_ISLNK(mode):
            content, mode = os.fsdecode(untrusted_trees.read_link_target(root, path)), stat.S_IFLNK
        digest.update(os.fsencode(f"{path}\0{mode:o}\0{content}\0"))
    return digest.hexdigest()


_MAX_DIGESTS, _DIGEST_CHARS = 50_000, 12


class Parent(NamedTuple):
    """The record that a session continued."""

    reference: ParentRecord
    record: HandoffRecord | None
    """None if it is gone, damaged or another one."""
    own_events: int
    """Number of the session's first events, which the continuation wrote."""

    def extend(self, trace: Trace) -> Trace:
        """Return the trace of a session after the events of the record, which are moved to the same workspace.

        They replace the first events of the session, which the continuation wrote; without the record these stay.
        """
        if self.record is None:
            return trace
        workspace, external = self.record.task.workspace, self.record.external
        replace = make_replacement({workspace: CHECKOUT_WORKSPACE} if workspace else {})
        # The continuation wrote the earlier agent's model into the session.
        is_written = bool(self.own_events) and trace.model == self.record.predecessor
        withdrawn = (*(external.withdrawn_files if external else ()), *trace.withdrawn_files)
        return trace.model_copy(
            update={
                "events": append_events(
                    move_texts(self.record.trace, replace), trace.events[self.own_events :]
                ),
                "model": "" if is_written else trace.model,
                "withdrawn_files": tuple(dict.fromkeys(withdrawn)),
                "unknown_forms": sum_forms([external.unknown_forms if external else {}, trace.unknown_forms]),
            }
        )


def find_parent(home: Path, manifest: Manifest, events: tuple[Event, ...]) -> Parent:
    """Return the record that a session continued, or the reason why its events are lost."""
    own = _count_own_events(events, manifest.own_events)
    store = RecordStore(Path(manifest.home or home) / "records")
    try:
        record = store.load(manifest.record)
        if manifest.record_digest not in ("", record.digest):
            raise RecordError(f"record {record.id}: replaced since by another one of that id")
    except RecordError as error:
        reason = str(error).partition(" (known records:")[0]
        copied = (AgentWork(agent="the earlier agents, as the session was given their work", events=own),)
        lost = ParentRecord(
            id=manifest.record,
            digest=manifest.record_digest,
            view=manifest.view,
            agents=copied if own else (),
            lost=reason,
        )
        return Parent(lost, None, own)
    return Parent(build_parent(record, manifest.view), record, own)


def digest_session(paths: Iterable[Path], agent: str, workspace: Path) -> tuple[str, ...]:
    """Return the digests of the events in the session that a continuation wrote."""
    for path in paths:
        with suppress(TraceError):
            events = read_session(path, agent, str(workspace)).events
            return tuple(map(_digest, events[:_MAX_DIGESTS]))
    return ()


def _count_own_events(events: tuple[Event, ...], digests: tuple[str, ...]) -> int:
    """Count a session's first events that the continuation wrote; fewer if the user went back."""
    number = 0
    for event, digest in zip(events, digests, strict=False):
        if _digest(event) != digest:
            break
        number += 1
    return number


def _digest(event: Event) -> str:
    content = json.dumps([event.kind, event.tool, dict(event.arguments), event.text], sort_keys=True)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
