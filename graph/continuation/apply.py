"""Bring an agent's changes from a record back into the user's checkout: three-way, and nothing of the user's is lost."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.graph.continuation.known_records import load_known
from langgraph_takeover.graph.continuation.user_repository import find_repository, run_git
from langgraph_takeover.graph.continuation.working_tree import escape_name
from langgraph_takeover.graph.usage_errors import ContinuationError
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError, RecordStore
from langgraph_takeover.handoff.records.record_facts import is_unsaved
from langgraph_takeover.sandbox.backends.checkouts import write_checkout
from langgraph_takeover.sandbox.repository import MAX_LEFT_OUT
from langgraph_takeover.sandbox.snapshots.merging import merge_lines
from langgraph_takeover.sandbox.untrusted_trees import list_matches, remove_tree, walk

_PREPARED = ".takeover-apply-"
_GIT_NAMES = (".git", "git~1")
_MAX_MERGED_BYTES = 32 << 20


class Conflict(NamedTuple):
    """A change that cannot be applied without losing something."""

    path: str
    reason: str


class Application(Frozen):
    """What an application changed, or would have changed if it had no conflicts."""

    repository: Path
    base: str
    """Id of the record from which the changes are counted."""
    changed: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()
    """Files that the user had changed too, merged by lines; among `changed`."""
    conflicts: tuple[Conflict, ...] = ()
    ignored: int = 0
    """Number of changed files that git ignores; they stay out."""
    unsaved: tuple[str, ...] = ()
    """Files that a capture left out, so that the agents' changes to them are unknown; they stay as they are."""
    is_written: bool


class _TreeEntry(NamedTuple):
    """A file or a symbolic link."""

    kind: int
    """S_IFREG or S_IFLNK."""
    is_executable: bool
    content: bytes


_Change = tuple[str, _TreeEntry | None, _TreeEntry | None]
"""Path, and the entry before and after; None for an absent entry."""


def apply_record(
    home: Path, record_id: str, *, repository: Path, base: str | None = None, is_partial: bool = False
) -> Application:
    """Apply what changed between a record's ancestor, captured in the repository, and the record; the index is not touched.

    `base` names another record to count from. A file that the user has changed since is merged by lines. With a conflict
    nothing is written, unless `is_partial`; a file with a conflict never is. No setting, hook or filter of a repository runs.
    Raises ContinuationError, CaptureError, RecordError, SnapshotCorruptError, SandboxUnavailableError and OutOfDiskError.
    """
    found = find_repository(repository)
    store = RecordStore(home / "records")
    record = store.load(record_id)
    origin = store.load(base) if base else _find_origin(home, store, record, found.root)
    with tempfile.TemporaryDirectory(prefix="takeover-apply-") as scratch:
        trees = [Path(scratch, name) for name in ("before", "after")]
        for each, tree in zip((origin, record), trees, strict=True):
            write_checkout(each.required_snapshot, store.directory(each.id), tree)
        changes = list(_list_changes(*trees))
        lacking = _list_unsaved(store, record, origin)
        unsaved = {
            path for path, old, _ in changes if old is not None and not lacking.isdisjoint(_list_places(path))
        }
        changes = [each for each in changes if each[0] not in unsaved]
        ignored: set[str] = set()
        # A known file under the rules before the agent's own. Git refuses a path below a directory that has become a link.
        for tree, is_new in zip(trees, (False, True), strict=True):
            paths = [path for path, old, _ in changes if (old is None) == is_new]
            ignored |= _list_ignored(Path(scratch), tree, paths)
        ignored -= set(run_git(found.root, "ls-files", "-z", "--full-name").split("\0"))
        plan = _MergePlan(found.root, Path(scratch), [each for each in changes if each[0] not in ignored])
        is_written = is_partial or not plan.conflicts
        if is_written:
            try:
                plan.write()
            except OSError as error:
                reason = error.strerror or error
                raise ContinuationError(
                    f"{found.root}: {reason} (nothing was applied; make it writable or free space, then try again)"
                ) from error
    return Application(
        repository=found.root,
        base=origin.id,
        changed=tuple(sorted(plan.results)),
        merged=tuple(sorted(plan.merged)),
        conflicts=tuple(sorted(plan.conflicts)),
        ignored=len(ignored),
        unsaved=tuple(sorted(unsaved)),
        is_written=is_written,
    )


def _find_origin(home: Path, store: RecordStore, record: HandoffRecord, root: Path) -> HandoffRecord:
    """Return the nearest ancestor of a record that was captured in the repository."""
    current, seen = record, {record.id}

    def is_captured_here() -> bool:
        known = load_known(home, current)
        return known is not None and os.path.realpath(known.repository or "/") == os.path.realpath(root)

    if record.parent is None and is_captured_here():
        raise ContinuationError(
            f"record {record.id}: the capture of {root} itself, without later work (pass the record of a continuation)"
        )
    while (parent := current.parent) is not None and parent.id not in seen:
        seen.add(parent.id)
        try:
            current = store.load(parent.id)
        except RecordError as error:
            raise ContinuationError(
                f"record {record.id}: its ancestor cannot be read: {error} (pass --base RECORD)"
            ) from error
        if current.digest != parent.digest:
            raise ContinuationError(
                f"record {parent.id}: replaced since by another one of that id (pass --base RECORD)"
            )
        if is_captured_here():
            return current
    raise ContinuationError(
        f"record {record.id}: it continues no record that was captured in {root} (pass --repository DIR, or --base RECORD)"
    )


def _list_unsaved(store: RecordStore, record: HandoffRecord, origin: HandoffRecord) -> set[str]:
    """List the paths that a record after the origin has not saved; "." stands for all, if too many to be named."""
    unsaved, seen = set[str](), {origin.id}
    while record.id not in seen:
        seen.add(record.id)
        named = [each.path.rstrip("/") for each in record.left_out if is_unsaved(each)]
        unsaved.update(named if len(named) < MAX_LEFT_OUT else ["."])
        with suppress(RecordError):
            record = store.load(record.parent.id) if record.parent else record
    return unsaved


def _list_places(path: str) -> list[str]:
    """List a path and the directories above it, as a record names them."""
    return [escape_name(str(each)) for each in (Path(path), *Path(path).parents)]


def _list_changes(before: Path, after: Path) -> Iterable[_Change]:
    """Yield the files and links that differ between two trees, without repositories' own files."""
    infos = [dict(_list_files(tree)) for tree in (before, after)]
    for path in sorted(infos[0].keys() | infos[1].keys()):
        old, new = (_read_entry(tree, path) if path in info else None
                    for tree, info in zip((before, after), infos, strict=True))  # fmt: skip
        if old != new:
            yield path, old, new


def _list_files(tree: Path) -> Iterable[tuple[str, os.stat_result]]:
    for path, info in walk(tree):
        if not any(part.lower() in _GIT_NAMES for part in path.split("/")) and not stat.S_ISDIR(info.st_mode):
            yield path, info


def _read_entry(root: Path, path: str) -> _TreeEntry | None:
    """Return the entry at a path; None if not found. Raises ContinuationError for anything but a file or a link."""
    place = root / path
    if _is_below_link(root, path):
        return None
    try:
        mode = place.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(mode):
        return _TreeEntry(stat.S_IFLNK, False, os.fsencode(place.readlink()))
    if not stat.S_ISREG(mode):
        raise ContinuationError(f"{place}: neither a file nor a link (move it, then try again)")
    return _TreeEntry(stat.S_IFREG, bool(mode & stat.S_IXUSR), place.read_bytes())


def _is_below_link(root: Path, path: str) -> bool:
    return any((root / parent).is_symlink() for parent in list(Path(path).parents)[:-1])


def _is_directory(root: Path, path: str) -> bool:
    place = root / path
    return place.is_dir() and not place.is_symlink() and not _is_below_link(root, path)


def _list_ignored(scratch: Path, tree: Path, paths: list[str]) -> set[str]:
    """Return those paths that the tree's own .gitignore files name."""
    # A repository without settings: the agent could have changed those of its own.
    _run_plain_git(scratch, ["init", "-q", "--bare", "ignoring"])
    command = [f"--git-dir={scratch / 'ignoring'}", f"--work-tree={tree}", "-c", "core.bare=false"]
    listed = _run_plain_git(
        tree,
        [*command, "check-ignore", "--no-index", "-z", "--stdin"],
        b"".join(os.fsencode(f"./{path}") + b"\0" for path in paths),
        codes=(0, 1),
    )
    return {os.fsdecode(each).removeprefix("./") for each in listed.split(b"\0") if each}


def _run_plain_git(
    directory: Path, arguments: list[str], text: bytes = b"", codes: tuple[int, ...] = (0,)
) -> bytes:
    """Run git without any settings but its own defaults."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1",
                   "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CEILING_DIRECTORIES": str(directory.parent), "LC_ALL": "C"}  # fmt: skip
    done = subprocess.run(
        ["git", *arguments], cwd=directory, input=text, capture_output=True, env=environment, check=False
    )
    if done.returncode not in codes:
        reason = done.stderr.decode(errors="replace").strip().partition("\n")[0][:300]
        raise ContinuationError(f"git {arguments[-1]}: {reason or 'failed'} (try again)")
    return done.stdout


class _MergePlan:
    """The changes to a checkout, decided before anything is written."""

    def __init__(self, root: Path, scratch: Path, changes: list[_Change]) -> None:
        self._root, self._scratch = root, scratch
        self._deleted: set[str] = set()
        self._before: dict[str, _TreeEntry | None] = {}
        self.results: dict[str, _TreeEntry | None] = {}
        self.merged: list[str] = []
        self.conflicts: list[Conflict] = []
        # First what goes: only what really does makes room for another kind of entry.
        for path, old, new in sorted(changes, key=lambda change: change[2] is not None):
            try:
                self._decide(path, old, new)
            except (ContinuationError, OSError) as error:
                self.conflicts.append(Conflict(path, str(error)))

    def _decide(self, path: str, old: _TreeEntry | None, new: _TreeEntry | None) -> None:
        if reason := self._find_obstacle(path, new):
            self.conflicts.append(Conflict(path, reason))
            return
        mine = _read_entry_or_directory(self._root, path)
        self._before[path] = mine
        if mine == new:
            return
        if mine == old:
            self.results[path] = new
            if new is None:
                self._deleted.add(path)
        elif (merged := self._merge(mine, old, new)) is not None:
            if merged != mine:
                self.results[path] = merged
                self.merged.append(path)
        else:
            reason = (
                "you have deleted or never had it" if mine is None
                else "the agent has deleted it, and you have changed it" if new is None
                else "you have another file of this name" if old is None
                else "both have changed it"
            )  # fmt: skip
            self.conflicts.append(Conflict(path, reason))

    def _find_obstacle(self, path: str, new: _TreeEntry | None) -> str:
        """Return the reason why a path cannot be written, whatever it holds; empty if it can."""
        for parent in list(Path(path).parents)[-2::-1]:
            place = self._root / parent
            if os.path.lexists(place) and not _is_directory(self._root, str(parent)):
                if new is None or str(parent) in self._deleted:
                    break
                return f"{parent} is {'a link' if place.is_symlink() else 'no directory'} in your checkout"
            if (place / ".git").exists():
                return f"{parent} is a repository of its own (apply it there by hand)"
        if new is not None and new.kind == stat.S_IFLNK:
            content = os.fsdecode(new.content)
            target = os.path.normpath(os.path.join(os.path.dirname(path), content))  # noqa: PTH118, PTH120
            if target.startswith("/") or target.split("/")[0] == "..":
                return "the agent's link leads out of the checkout"
            # The name may be a link itself.
            if content.split("/").count("..") != os.path.normpath(content).split("/").count(".."):
                return "the agent's link has .. after a name, and may lead out of the checkout"
        if new is not None and _is_directory(self._root, path):
            found = walk(self._root / path)
            if {f"{path}/{each}" for each, info in found if not stat.S_ISDIR(info.st_mode)} - self._deleted:
                return "a directory in your checkout"
        return ""

    def _merge(
        self, mine: _TreeEntry | None, old: _TreeEntry | None, new: _TreeEntry | None
    ) -> _TreeEntry | None:
        """Merge two versions of a text file by lines; None if that is impossible."""
        versions = [each for each in (mine, old, new) if each is not None and each.kind == stat.S_IFREG]
        if len(versions) < 3 or sum(len(each.content) for each in versions) > _MAX_MERGED_BYTES:
            return None
        ours, base, theirs = versions
        content = ours.content
        if theirs.content != base.content and theirs.content != ours.content:
            merged = merge_lines(base.content, ours.content, theirs.content, scratch=self._scratch)
            if merged is None or merged[1]:
                return None
            content = merged[0]
        mode = theirs if ours.is_executable == base.is_executable else ours
        return _TreeEntry(stat.S_IFREG, mode.is_executable, content)

    def write(self) -> None:
        """Write all changes; after an error, restore the earlier contents.

        New contents and the user's versions are first prepared in one directory of the checkout, so that a full disk
        is met before the first change, and an undo needs no space.
        """
        # First what goes, so that a directory can become a file.
        ordered = sorted(self.results.items(), key=lambda item: item[1] is not None)
        if not ordered:
            return
        with tempfile.TemporaryDirectory(prefix=_PREPARED, dir=self._root) as directory, _hold(directory):
            self._remove_leftovers()
            Path(directory, ".gitignore").write_text("*\n")
            moves = [
                _Move(self._root / path, Path(directory, str(number)))
                for number, (path, _) in enumerate(ordered)
            ]
            for move, (path, entry) in zip(moves, ordered, strict=True):
                if _read_entry_or_directory(self._root, path) != self._before[path]:
                    raise ContinuationError(
                        f"{self._root / path}: changed meanwhile (nothing was applied; try again)"
                    )
                move.prepare(entry, has_before=self._before[path] is not None)
            started: list[_Move] = []
            try:
                for move in moves:
                    started.append(move)
                    move.make(self._root)
            except BaseException:
                for move in reversed(started):
                    move.undo(self._root)
                raise

    def _remove_leftovers(self) -> None:
        """Remove what processes that were killed had prepared."""
        for leftover in list_matches(self._root, f"{_PREPARED}*"):
            with suppress(OSError), _hold(leftover):
                remove_tree(leftover)


@contextmanager
def _hold(directory: str | Path) -> Iterator[None]:
    """Hold a directory of prepared files. Raises OSError if another process does, or it is a link."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _read_entry_or_directory(root: Path, path: str) -> _TreeEntry | None:
    return None if _is_directory(root, path) else _read_entry(root, path)


class _Move:
    """The change of one path: its new entry and the user's own, prepared beside each other."""

    def __init__(self, place: Path, prepared: Path) -> None:
        self._place, self._new, self._before = place, prepared, prepared.with_name(f"{prepared.name}.before")

    def prepare(self, entry: _TreeEntry | None, *, has_before: bool) -> None:
        if has_before:
            try:
                os.link(self._place, self._before, follow_symlinks=False)
            except OSError:  # a file of someone else, or a file system without hard links
                shutil.copy2(self._place, self._before, follow_symlinks=False)
        if entry is None:
            return
        if entry.kind == stat.S_IFLNK:
            self._new.symlink_to(os.fsdecode(entry.content))
            return
        self._new.write_bytes(entry.content)
        source = self._place if has_before and not self._place.is_symlink() else self._new
        mode = stat.S_IMODE(source.stat().st_mode)
        self._new.chmod(mode | (mode & 0o444) >> 2 if entry.is_executable else mode & ~0o111)

    def make(self, root: Path) -> None:
        if os.path.lexists(self._new):
            self._place.parent.mkdir(parents=True, exist_ok=True)
            self._new.replace(self._place)
        else:
            self._place.unlink(missing_ok=True)
            _prune(root, self._place)

    def undo(self, root: Path) -> None:
        with suppress(OSError):
            if os.path.lexists(self._before):
                self._place.parent.mkdir(parents=True, exist_ok=True)
                self._before.replace(self._place)
                return
            if not os.path.lexists(self._new):
                self._place.unlink(missing_ok=True)
            _prune(root, self._place)


def _prune(root: Path, place: Path) -> None:
    """Remove the directories above a path that are empty."""
    for parent in list(place.relative_to(root).parents)[:-1]:
        with suppress(OSError):  # not empty
            (root / parent).rmdir()
