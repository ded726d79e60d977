"""Merge the snapshots of branches that began in one state: three ways, path by path, without starting a sandbox."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.sandbox.background_processes import relocate_processes
from langgraph_takeover.sandbox.changes.change_report import GENERATED_DIRECTORIES
from langgraph_takeover.sandbox.interface import (
    MAX_PROCESSES,
    BackgroundProcess,
    SandboxUnavailableError,
    Snapshot,
    SnapshotCorruptError,
)
from langgraph_takeover.sandbox.shell import escape_non_utf8
from langgraph_takeover.sandbox.shell_state import ShellState, build_relocation, parse_state
from langgraph_takeover.sandbox.snapshots.archive_format import archive_name
from langgraph_takeover.sandbox.snapshots.archive_members import ArchiveMember, sort_key
from langgraph_takeover.sandbox.snapshots.archive_parts import ContentEntry
from langgraph_takeover.sandbox.snapshots.archive_reader import Entry, iterate_content, list_entries
from langgraph_takeover.sandbox.snapshots.archive_writer import Copied, MemberContent, write_members_to_store
from langgraph_takeover.sandbox.snapshots.bases import COPY_PREFIX
from langgraph_takeover.sandbox.snapshots.differences import digest_content
from langgraph_takeover.sandbox.snapshots.transfer import find_workspace_prefix, locate_archive

_MAX_MERGED_BYTES = 8 * 1024 * 1024
"""Of one file, all versions together; larger ones are not merged by lines."""
_GIT_TIMEOUT_S = 60.0
_BINARY = 255
_COVERING = frozenset({"file", "link", "fifo", "opaque", "gone"})
"""Kinds of entries that hide what the base has below the path."""
_GIT_BOOKKEEPING = ("index", "COMMIT_EDITMSG", "ORIG_HEAD", "FETCH_HEAD", "gc.log", "logs/", "objects/")
"""In a `.git` directory: what Git writes beside the history, and names that follow from the content."""
_GIT_HISTORY = ("HEAD", "refs/heads/", "packed-refs")
_MAX_NAME_BYTES = 255

Choice = bytes | str | None
"""A file's content, the name of a branch whose version is taken, or None to delete the path."""


class BranchConflict(Frozen):
    """One path that branches changed in ways that contradict each other.

    Example:
        >>> from langgraph_takeover.integrations import BranchConflict
        >>> str(BranchConflict(path="README.md", branches=("writer", "editor"), reason="changed the same lines"))
        'README.md: writer and editor changed the same lines'
    """

    path: str
    """Relative to the workspace, absolute outside."""
    branches: tuple[str, ...]
    reason: str
    base: bytes | None = None
    """Content at the start, of a file that can be merged by lines."""
    versions: dict[str, bytes | None] = Field(default_factory=dict)
    """Content by branch, likewise."""
    left: str = ""
    """How it was resolved; empty if it was not."""

    def __str__(self) -> str:
        return f"{self.path}: {' and '.join(self.branches)} {self.reason}"


MergePolicy = Literal["raise", "markers", "ours", "theirs"] | Callable[[BranchConflict], Choice]
"""What a conflict leads to: an error; conflict markers; the first branch's version; the last one's; or a choice."""


class Branch(NamedTuple):
    """A state to merge: its name in messages, its snapshot, and the directory with the snapshot's file."""

    name: str
    snapshot: Snapshot
    store: Path


class Merge(NamedTuple):
    """The merged state, and what was in conflict."""

    snapshot: Snapshot | None
    """None if conflicts are left that the policy does not resolve."""
    conflicts: tuple[BranchConflict, ...]


class _Choice(NamedTuple):
    """What a path becomes: the entry of a source, with its content, or new content."""

    source: int
    """Index among the archives; the base is the first."""
    entry: Entry
    mode: int
    content: bytes | None = None
    path: str = ""
    """In the source, if it differs."""


_BASE_ENTRY, _ABSENT = Entry("base", 0, b"", 0), Entry("absent", 0, b"", 0)


def merge_snapshots(
    base: Branch,
    branches: Sequence[Branch],
    store: Path,
    *,
    policy: MergePolicy = "raise",
    read_base: Callable[[str], bytes | None],
    read_base_mode: Callable[[str], int | None],
) -> Merge:
    """Merge what branches made of a base state into a snapshot in `store`.

    `read_base` returns the content of a file in the base state, by its path as `Sandbox.read_file` takes it, and
    `read_base_mode` the permissions of a directory; None if it does not exist. Raises SnapshotCorruptError,
    SandboxUnavailableError and OutOfDiskError.
    """
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="takeover-merge-") as scratch:
        archives = [stack.enter_context(_open_archive(each)) for each in (base, *branches)]
        merging = _Merging(
            archives, [each.name for each in branches], policy, Path(scratch), read_base, read_base_mode
        )
        conflicts = merging.decide()
        if any(not each.left for each in conflicts):
            return Merge(None, conflicts)
        digest = write_members_to_store(merging.list_members(), store, base_digest=base.snapshot.base)
    first = branches[0].snapshot
    update = {
        "digest": digest,
        "location": archive_name(digest),
        "shell_state": _merge_shells(base.snapshot, [each.snapshot for each in branches]),
        "processes": _merge_processes(base.snapshot, [each.snapshot for each in branches]),
    }
    return Merge(first.model_copy(update=update), conflicts)


class _Archive(NamedTuple):
    path: Path
    snapshot: Snapshot
    entries: dict[str, Entry]
    is_complete: bool
    """Whether it has all files, and not only those that differ from the base."""

    def find(self, path: str) -> Entry:
        """Return what the state has at a path; `_BASE_ENTRY` for what its base has."""
        if (found := self.entries.get(path)) is not None:
            return found
        if self.is_complete:
            return _BASE_ENTRY
        parent = path.rpartition("/")[0]
        while parent:
            above = self.entries.get(parent)
            if above is not None and above.kind in _COVERING:
                return _ABSENT
            parent = parent.rpartition("/")[0]
        return _BASE_ENTRY


@contextlib.contextmanager
def _open_archive(branch: Branch) -> Iterator[_Archive]:
    snapshot = branch.snapshot
    with locate_archive(snapshot, branch.store) as path:
        entries = list_entries(path, digest=snapshot.digest, base_digest=snapshot.base)
        yield _Archive(path, snapshot, entries, snapshot.base.startswith(COPY_PREFIX))


class _Merging:
    """One merge of several archives, the first of which is the base."""

    def __init__(
        self,
        archives: Sequence[_Archive],
        names: Sequence[str],
        policy: MergePolicy,
        scratch: Path,
        read_base: Callable[[str], bytes | None],
        read_base_mode: Callable[[str], int | None],
    ) -> None:
        if len({each.snapshot.base for each in archives}) > 1:
            raise SandboxUnavailableError(
                "states of different bases cannot be merged (let all branches begin in the same sandbox)"
            )
        self._archives, self._base, self._branches = archives, archives[0], archives[1:]
        self._names, self._policy, self._scratch = names, policy, scratch
        self._read_base, self._read_base_mode = read_base, read_base_mode
        self._prefix = find_workspace_prefix(
            archives[0].snapshot, {p for each in archives for p in each.entries}
        )
        self._changed = [self._list_changed(each) for each in self._branches]
        self._touched = [self._list_touched(each) for each in self._changed]
        self._contents: dict[tuple[int, str], bytes] = {}
        self._result: dict[str, _Choice] = {}
        self._conflicts: list[BranchConflict] = []
        self._merged_at_ns = time.time_ns()

    def _list_changed(self, branch: _Archive) -> dict[str, Entry]:
        """Return what a branch changed, by path."""
        changed = {}
        for path in self._base.entries.keys() | branch.entries.keys():
            before, after = self._base.find(path), branch.find(path)
            if "/.git/objects/" in f"/{path}":  # what one branch packed, the history of another may need
                if _describe(after) == "deleted":
                    continue
                after = after._replace(kind="directory") if after.kind == "opaque" else after
            if not _is_same(before, after):
                changed[path] = after
        return changed

    @staticmethod
    def _list_touched(changed: Mapping[str, Entry]) -> set[str]:
        """Return the directories below which a branch made or changed something; directories alone do not count."""
        touched: set[str] = set()
        for path, entry in changed.items():
            if entry.kind == "directory" or _describe(entry) == "deleted":
                continue
            parent = path.rpartition("/")[0]
            while parent and parent not in touched:
                touched.add(parent)
                parent = parent.rpartition("/")[0]
        return touched

    # Decide

    def decide(self) -> tuple[BranchConflict, ...]:
        """Decide what each path becomes; return the conflicts."""
        self._result = {path: _Choice(0, entry, entry.mode) for path, entry in self._base.entries.items()}
        self._settle_replaced_directories()
        paths = sorted({path for each in self._changed for path in each}, key=sort_key)
        self._load_contents(paths)
        for path in paths:
            self._decide_path(path)
        self._forget_caches()
        self._complete_directories()
        return tuple(self._conflicts)

    def _settle_replaced_directories(self) -> None:
        """Handle directories that one branch removed or replaced, and below which another changed something."""
        tops = {path for each in self._changed for path, entry in each.items() if entry.kind in _COVERING}
        tops |= {
            path
            for each in self._changed
            for path, entry in each.items()
            if entry.kind in ("base", "absent") and self._base.find(path).kind == "directory"
        }
        for path in sorted(tops, key=sort_key):
            removing = [
                n
                for n, each in enumerate(self._changed)
                if path in each
                and each[path].kind != "directory"
                and (each[path].kind == "opaque" or path not in self._touched[n])
            ]
            keeping = [n for n, each in enumerate(self._touched) if path in each and n not in removing]
            if not removing or not keeping:
                continue
            involved = sorted({*removing, *keeping})
            taken = self._resolve_structure(path, involved, keeping)
            for n in involved:
                if n != taken and (n in removing or taken in removing or taken is None):
                    self._withdraw(n, path)

    def _resolve_structure(self, path: str, involved: list[int], keeping: list[int]) -> int | None:
        """Return the branch whose version of a directory is taken; None if the policy does not say."""
        names = tuple(self._names[n] for n in involved)
        conflict = BranchConflict(
            path=self._show(path),
            branches=names,
            reason="changed it, and one removed or replaced it as a directory",
        )
        taken = self._choose_branch(conflict, involved, default=keeping[0])
        left = "" if taken is None else f"the version of {self._names[taken]}"
        self._conflicts.append(conflict.model_copy(update={"left": left}))
        return taken

    def _choose_branch(self, conflict: BranchConflict, involved: list[int], *, default: int) -> int | None:
        if callable(self._policy):
            chosen = self._policy(conflict)
            if isinstance(chosen, str) and chosen in self._names:
                return self._names.index(chosen)
            return None
        choices = {"ours": involved[0], "theirs": involved[-1], "markers": default}
        return choices.get(self._policy)

    def _withdraw(self, branch: int, top: str) -> None:
        """Forget what a branch changed at and below a path."""
        below = f"{top}/"
        for path in [each for each in self._changed[branch] if each == top or each.startswith(below)]:
            del self._changed[branch][path]

    def _decide_path(self, path: str) -> None:
        before = self._base.find(path)
        changed = self._list_versions(path)
        if not changed:
            return
        first = min(changed)
        if len({_identify(each) for each in changed.values()}) == 1 or self._is_derived(path):
            n = first if len(changed) == 1 else self._find_committing(path, changed)
            self._take(path, n, changed[n], changed[n].mode)
            return
        if all(each.kind == "directory" for each in changed.values()):
            self._decide_directory(path, before, changed)
        elif all(each.kind == "file" for each in changed.values()):
            self._merge_files(path, before, changed)
        else:
            self._resolve_kinds(path, changed)

    def _find_committing(self, path: str, changed: Collection[int]) -> int:
        """Return the branch whose history Git's index of a path belongs to: without commits, the first one."""
        top, found, _ = f"/{path}".partition("/.git/")
        histories = tuple(f"{top}/.git/{name}"[1:] for name in _GIT_HISTORY) if found else ()
        committing = [
            n for n in sorted(changed) if any(each.startswith(histories) for each in self._changed[n])
        ]
        return (committing[-1] if self._policy == "theirs" else committing[0]) if committing else min(changed)

    def _list_versions(self, path: str) -> dict[int, Entry]:
        """Return what branches made of a path, without directories in which they made nothing and that another removed."""
        changed = {n: each[path] for n, each in enumerate(self._changed) if path in each}
        parent = path.rpartition("/")[0]
        while parent:
            above = self._result.get(parent)
            if above is not None and above.entry.kind == "opaque":  # the others have only directories below
                changed = {
                    n: each for n, each in changed.items() if self._branches[n].find(parent).kind == "opaque"
                }
            elif above is not None and above.entry.kind in _COVERING:
                return {}
            parent = parent.rpartition("/")[0]
        if any(each.kind != "directory" for each in changed.values()):
            changed = {
                n: each for n, each in changed.items() if each.kind != "directory" or path in self._touched[n]
            }
        return changed

    def _decide_directory(self, path: str, before: Entry, changed: Mapping[int, Entry]) -> None:
        """Take the permissions that a branch changed; of the base's directories no archive has the ones before."""
        mode = before.mode if before.kind == "directory" else self._read_base_mode(self._locate(path))
        found = {n: each.mode for n, each in changed.items() if each.mode != mode}
        n = min(found or changed)
        if len(set(found.values())) > 1:
            self._conflicts.append(
                self._make_conflict(path, [*found], "changed its permissions differently", {}, None)
            )
            if (taken := self._take_whole(path, found)) is None:
                return
            n = taken
        self._take(path, n, changed[n], changed[n].mode)

    def _merge_files(self, path: str, before: Entry, changed: Mapping[int, Entry]) -> None:
        """Merge versions of one file by lines, and their permissions."""
        mode = before.mode if before.kind == "file" else None
        modes = {n: each.mode for n, each in changed.items() if each.mode != mode}
        if len(set(modes.values())) > 1:
            self._resolve_whole(path, changed, "changed its permissions differently")
            return
        chosen_mode = next(iter(modes.values()), next(iter(changed.values())).mode)
        versions = {
            n: each for n, each in changed.items() if each.payload != before.payload or before.kind != "file"
        }
        if len({each.payload for each in versions.values()}) <= 1:
            n = min(versions or changed)
            self._take(path, n, changed[n], chosen_mode)
            return
        contents = {n: self._contents.get((n, path)) for n in versions}
        start = self._find_base_content(path, before)
        if any(each is None for each in contents.values()):
            self._resolve_whole(
                path, versions, "changed it differently, and it is too large to merge by lines"
            )
            return
        known = {n: each for n, each in contents.items() if each is not None}
        self._merge_lines(path, start, known, versions, chosen_mode)

    def _merge_lines(
        self,
        path: str,
        start: bytes | None,
        contents: dict[int, bytes],
        versions: Mapping[int, Entry],
        mode: int,
    ) -> None:
        order = sorted(contents)
        merged, names, clashing = contents[order[0]], [self._names[order[0]]], list[int]()
        option = self._policy if self._policy in ("ours", "theirs") else "markers"
        for n in order[1:]:
            labels = (" and ".join(names), "before", self._names[n])
            found = merge_lines(
                start or b"", merged, contents[n], labels, option=option, scratch=self._scratch
            )
            if found is None:
                self._resolve_whole(
                    path, versions, "changed it differently, and it is not text", contents, start
                )
                return
            merged, has_conflict = found
            names.append(self._names[n])
            clashing += [n] if has_conflict else []
        if clashing:
            reason = "created it with different content" if start is None else "changed the same lines"
            conflict = self._make_conflict(path, order, reason, contents, start)
            if callable(self._policy):
                self._apply_choice(path, conflict, self._policy(conflict), versions, mode)
                return
            left = {"markers": "conflict markers", "raise": ""}.get(
                self._policy, f"the lines of {self._policy}"
            )
            self._conflicts.append(conflict.model_copy(update={"left": left}))
        n = order[0]
        self._result[path] = _Choice(n + 1, versions[n], mode, content=merged)

    def _resolve_kinds(self, path: str, changed: Mapping[int, Entry]) -> None:
        kinds = {"file" if each.kind == "file" else _describe(each) for each in changed.values()}
        is_deleted = "deleted" in kinds
        reason = (
            "changed it, and one deleted it" if is_deleted
            else "changed its link to different targets" if kinds == {"link"}
            else "made it into different kinds of files"
        )  # fmt: skip
        self._resolve_whole(path, changed, reason)

    def _resolve_whole(
        self,
        path: str,
        changed: Mapping[int, Entry],
        reason: str,
        contents: Mapping[int, bytes] | None = None,
        start: bytes | None = None,
    ) -> None:
        """Take one branch's version of a path that cannot be merged, as the policy says."""
        conflict = self._make_conflict(path, [*changed], reason, contents or {}, start)
        if callable(self._policy):
            entry = next(iter(changed.values()))
            self._apply_choice(path, conflict, self._policy(conflict), changed, entry.mode or 0o644)
            return
        existing = [n for n in sorted(changed) if _describe(changed[n]) != "deleted"]
        kept = {"ours": min(changed), "theirs": max(changed), "markers": min(existing, default=min(changed))}
        n = kept.get(self._policy)
        if n is None:
            self._conflicts.append(conflict)
            return
        left = f"the version of {self._names[n]}"
        self._take(path, n, changed[n], changed[n].mode)
        if self._policy == "markers":
            beside = [each for each in existing if each != n and changed[each].kind in ("file", "link")]
            for other in beside:
                name, entry = self._find_free_name(path, self._names[other]), changed[other]
                self._result[name] = _Choice(other + 1, entry, entry.mode, path=path)
                left += f", and that of {self._names[other]} as {self._show(name)}"
        self._conflicts.append(conflict.model_copy(update={"left": left}))

    def _find_free_name(self, path: str, branch: str) -> str:
        """Return a name beside a path that no state has."""
        parent, slash, own = path.rpartition("/")
        for number in itertools.count(1):
            suffix = f".{_make_suffix(branch)}" + (f".{number}" if number > 1 else "")
            kept = os.fsencode(own)[: _MAX_NAME_BYTES - len(os.fsencode(suffix))]
            name = f"{parent}{slash}{os.fsdecode(kept)}{suffix}"
            if (
                name not in self._result
                and not any(name in each.entries for each in self._archives)
                and self._read_base(self._locate(name)) is None
            ):
                return name
        raise AssertionError

    def _take_whole(self, path: str, found: Mapping[int, int]) -> int | None:
        """Return the branch whose permissions of a directory are taken."""
        if callable(self._policy) or self._policy == "raise":
            return None
        n = max(found) if self._policy == "theirs" else min(found)
        last = self._conflicts.pop()
        self._conflicts.append(last.model_copy(update={"left": f"the version of {self._names[n]}"}))
        return n

    def _apply_choice(
        self, path: str, conflict: BranchConflict, choice: Choice, changed: Mapping[int, Entry], mode: int
    ) -> None:
        if isinstance(choice, bytes):
            n = min(changed)
            entry = Entry("file", mode, b"", len(choice))
            self._result[path] = _Choice(n + 1, entry, mode or 0o644, content=choice)
            left = "the chosen content"
        elif choice is None:
            self._remove(path)
            if not self._base.is_complete:
                self._result[path] = _Choice(0, Entry("gone", 0, b"", 0), 0)
            left = "deleted"
        elif choice in self._names and self._names.index(choice) in changed:
            n = self._names.index(choice)
            self._take(path, n, changed[n], changed[n].mode)
            left = f"the version of {choice}"
        else:
            left = ""
        self._conflicts.append(conflict.model_copy(update={"left": left}))

    def _make_conflict(
        self,
        path: str,
        branches: Sequence[int],
        reason: str,
        contents: Mapping[int, bytes],
        start: bytes | None,
    ) -> BranchConflict:
        return BranchConflict(
            path=self._show(path),
            branches=tuple(self._names[n] for n in sorted(branches)),
            reason=reason,
            base=start,
            versions={self._names[n]: contents.get(n) for n in sorted(contents)},
        )

    def _take(self, path: str, branch: int, entry: Entry, mode: int) -> None:
        """Let a path become what it is in a branch."""
        if entry.kind != "directory":
            self._remove(path)
        if entry.kind in ("base", "absent"):
            return
        self._result[path] = _Choice(branch + 1, entry, mode)
        if entry.kind == "opaque":  # it hides what the base state has below
            below = f"{path}/"
            for name, each in self._branches[branch].entries.items():
                if name.startswith(below):
                    self._result[name] = _Choice(branch + 1, each, each.mode)

    def _remove(self, top: str) -> None:
        """Forget what a path becomes, and everything below a directory."""
        found = self._result.pop(top, None)
        if found is None or found.entry.kind not in ("directory", "opaque"):
            return
        below = f"{top}/"
        for path in [each for each in self._result if each.startswith(below)]:
            del self._result[path]

    def _forget_caches(self) -> None:
        """Forget Python's caches of files of several branches: they name a source only by its second and size."""
        merged = {path for path, each in self._result.items() if each.source > 1 or each.content is not None}
        for path in [each for each in self._result if "/__pycache__/" in f"/{each}"]:
            parent, _, name = path.rpartition("/")
            source = f"{parent.removesuffix('__pycache__')}{name.partition('.')[0]}.py"
            if source in merged:
                del self._result[path]

    def _complete_directories(self) -> None:
        """Add the directories on the way to each path, from the branch that has it."""
        for path, choice in [*self._result.items()]:
            parent = path.rpartition("/")[0]
            while parent and parent not in self._result:
                source = choice.source
                if parent not in self._archives[source].entries:
                    source = next(
                        n for n, each in enumerate(self._archives)
                        if parent in each.entries and each.entries[parent].kind in ("directory", "opaque")
                    )  # fmt: skip
                entry = self._archives[source].entries[parent]
                self._result[parent] = _Choice(source, entry, entry.mode)
                parent = parent.rpartition("/")[0]

    # Contents

    def _load_contents(self, paths: Sequence[str]) -> None:
        """Read, once through each archive, the files that several branches changed."""
        wanted: dict[int, set[str]] = {}
        for path in paths:
            versions = {n: each[path] for n, each in enumerate(self._changed) if path in each}
            is_merged = len({each.payload for each in versions.values()}) > 1 and not self._is_derived(path)
            is_merged = is_merged and all(each.kind == "file" for each in versions.values())
            if is_merged and sum(each.size for each in versions.values()) <= _MAX_MERGED_BYTES:
                for n in (-1, *versions):
                    wanted.setdefault(n, set()).add(path)
        for n, names in wanted.items():
            archive = self._archives[n + 1]
            for path, content in _read_files(archive, names).items():
                self._contents[n, path] = content

    def _find_base_content(self, path: str, before: Entry) -> bytes | None:
        """Return a file's content in the base state; None if it did not exist."""
        if before.kind == "file":
            return self._contents.get((-1, path))
        return (
            self._read_base(self._locate(path))
            if before.kind == "base" and not self._base.is_complete
            else None
        )

    def _is_derived(self, path: str) -> bool:
        """Whether a file follows from others: a cache, or what Git keeps beside the history."""
        parts = path.split("/")
        if not GENERATED_DIRECTORIES.isdisjoint(parts):
            return True
        _, found, below = f"/{path}".partition("/.git/")
        return bool(found) and below.startswith(_GIT_BOOKKEEPING)

    def _show(self, path: str) -> str:
        is_inside = path.startswith(self._prefix)
        return escape_non_utf8(path[len(self._prefix) :] if is_inside else f"/{path}")

    def _locate(self, path: str) -> str:
        return path[len(self._prefix) :] if path.startswith(self._prefix) else f"/{path}"

    # Write

    def list_members(self) -> Iterator[Copied]:
        """Yield the members of the merged archive, in its order."""
        with ExitStack() as stack:
            readers = [_Cursor(each) for each in self._archives]
            for reader in readers:
                stack.callback(reader.close)
            for path in sorted(self._result, key=sort_key):
                yield self._make_member(path, self._result[path], readers)

    def _make_member(self, path: str, choice: _Choice, readers: Sequence[_Cursor]) -> Copied:
        entry = choice.entry
        if entry.kind == "gone":
            return Copied(_make_plain_member(path, "file", 0), "gone", b"", None)
        if choice.path:
            if entry.kind == "link":
                member = _make_plain_member(path, "link", entry.mode)
                return Copied(member._replace(target=os.fsdecode(entry.payload)), "link", entry.payload, None)
            return self._copy_file(choice.path, path, choice)
        if choice.content is not None:
            found = readers[choice.source].seek(path)
            return self._make_file(path, choice.content, choice.mode, found.member if found else None)
        found = readers[choice.source].seek(path)
        if found is None:
            raise SnapshotCorruptError(f"{self._archives[choice.source].path}: {path!r:.80} is missing")
        member, _, members = found
        member = member._replace(path=path, mode=choice.mode)
        if choice.source > 1 and member.kind == "file" and not self._is_derived(path):
            member = member._replace(
                mtime_ns=self._merged_at_ns
            )  # as Git does: programs that compare times see a change
        if member.kind == "hard link":
            return self._copy_hard_link(member, choice)
        kind = entry.kind if entry.kind == "opaque" else member.kind
        content: Any = MemberContent(members) if member.kind == "file" else None
        return Copied(member, kind, entry.payload, content)

    def _copy_hard_link(self, member: ArchiveMember, choice: _Choice) -> Copied:
        """Keep a hard link whose first name has the same source; copy the content of another."""
        first = self._result.get(member.target)
        if first is not None and first.source == choice.source and first.content is None and not first.path:
            return Copied(member, "hard link", choice.entry.payload, None)
        return self._copy_file(member.target, member.path, choice)

    def _copy_file(self, source: str, path: str, choice: _Choice) -> Copied:
        """Copy a file of another name, or a hard link to it. Raises SnapshotCorruptError."""
        archive = self._archives[choice.source]
        for member, _, members in iterate_content(archive.path, archive.snapshot.base):
            if member.path == source and member.kind == "hard link":
                return self._copy_file(member.target, path, choice)
            if member.path == source:
                payload = archive.entries[source].payload
                member = member._replace(path=path, mode=choice.mode, mtime_ns=self._merged_at_ns)
                content: Any = MemberContent(members)
                return Copied(member, "file", payload, content)
        raise SnapshotCorruptError(f"{archive.path}: {source!r:.80} is missing")

    def _make_file(self, path: str, content: bytes, mode: int, like: ArchiveMember | None) -> Copied:
        member = like if like is not None and like.kind == "file" else _make_plain_member(path, "file", mode)
        scratch = self._scratch / "content"
        scratch.write_bytes(content)
        with scratch.open("rb") as opened:
            payload = digest_content(opened.fileno())
        member = member._replace(
            path=path, mode=mode, size=len(content), sparse_size=None, mtime_ns=self._merged_at_ns
        )
        return Copied(member, "file", payload, io.BytesIO(content))


class _Cursor:
    """Reads an archive once, from member to member."""

    def __init__(self, archive: _Archive) -> None:
        self._content = iterate_content(archive.path, archive.snapshot.base)
        self._next = next(self._content, None)

    def seek(self, path: str) -> ContentEntry | None:
        """Return the member at a path, which comes after that of the last call; None if it is missing."""
        key = sort_key(path)
        while self._next is not None and self._next.member.path != path:
            if sort_key(self._next.member.path) > key:
                return None
            self._next = next(self._content, None)
        return self._next

    def close(self) -> None:
        self._content.close()  # type: ignore[attr-defined]


def _read_files(archive: _Archive, paths: set[str]) -> dict[str, bytes]:
    """Return the content of files of an archive, hard links included."""
    targets: dict[str, list[str]] = {}
    found: dict[str, bytes] = {}
    for member, _, _ in iterate_content(archive.path, archive.snapshot.base):
        if member.path in paths and member.kind == "hard link":
            targets.setdefault(member.target, []).append(member.path)
    wanted = (paths | targets.keys()) & archive.entries.keys()
    for member, _, members in iterate_content(archive.path, archive.snapshot.base):
        if member.path in wanted and member.kind == "file" and member.sparse_size is None:
            content = b"".join(members.read_content())
            for path in ({member.path} & paths) | {*targets.get(member.path, ())}:
                found[path] = content
    return found


def _make_plain_member(path: str, kind: str, mode: int) -> ArchiveMember:
    return ArchiveMember(path, kind, mode, 0, "", 0, (), is_literal=False)


def _is_same(one: Entry, other: Entry) -> bool:
    """Whether an entry is as before."""
    return _identify(one) == _identify(other)


def _identify(entry: Entry) -> tuple[str, int, bytes]:
    return entry.kind, 0 if entry.kind in ("link", "gone") else entry.mode, entry.payload


def _describe(entry: Entry) -> str:
    return "deleted" if entry.kind in ("gone", "base", "absent") else entry.kind


def _make_suffix(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)[:40] or "other"


def merge_lines(
    base: bytes,
    ours: bytes,
    theirs: bytes,
    labels: tuple[str, str, str] = ("ours", "base", "theirs"),
    *,
    option: str = "markers",
    scratch: Path,
) -> tuple[bytes, bool] | None:
    """Merge two versions of a text file by lines; return the result, and whether both changed the same lines.

    With `ours` or `theirs` as `option`, such lines are that version's. Returns None for files that are not text. `scratch`
    is a directory for files. Raises SandboxUnavailableError without Git.
    """
    names = ("ours", "base", "theirs")
    for name, content in zip(names, (ours, base, theirs), strict=True):
        (scratch / name).write_bytes(content)
    options = [f"--{option}"] if option in names else []
    command = ["git", "merge-file", "-p", "-q", *options]
    for label in labels:
        command += ["-L", "".join(each if each.isprintable() else "?" for each in label)[:200]]
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CEILING_DIRECTORIES": str(scratch.parent),
        "LC_ALL": "C",
    }
    try:
        done = subprocess.run(
            [*command, *names],
            cwd=scratch,
            env=environment,
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise SandboxUnavailableError("git is missing, which merges files by lines (install git)") from error
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == _BINARY:
        return None
    return done.stdout, done.returncode > 0


# The shell and the processes


def _merge_processes(base: Snapshot, branches: Sequence[Snapshot]) -> tuple[BackgroundProcess, ...] | None:
    """Merge lists of processes: what a branch started is added, what a branch ended is removed; None if one is unknown."""
    listed_by_state = []
    for state in (base, *branches):
        if state.processes is None:
            return None
        relocation = build_relocation({state.workspace: branches[0].workspace})
        listed_by_state.append(
            state.processes if relocation is None else relocate_processes(state.processes, relocation)
        )
    before, *after = listed_by_state
    kept = [each for each in before if all(each in listed for listed in after)]
    kept += [each for listed in after for each in listed if each not in before]
    return tuple(each for number, each in enumerate(kept) if each not in kept[:number])[:MAX_PROCESSES]


def _merge_shells(base: Snapshot, branches: Sequence[Snapshot]) -> str:
    """Merge shell states: what one branch changed is taken; of what several changed, the first one's."""
    workspace = branches[0].workspace
    before, *after = (
        parse_state(each.shell_state).relocate({each.workspace: workspace}) for each in (base, *branches)
    )
    update = {name: _merge_values(getattr(before, name), [getattr(each, name) for each in after])
              for name in ShellState.model_fields}  # fmt: skip
    return ShellState.model_validate(update).to_json()


def _merge_values(before: object, after: Sequence[object]) -> object:
    if not isinstance(before, dict):
        return next((each for each in after if each != before), before)
    found = {}
    for name in dict.fromkeys(key for each in (before, *after) if isinstance(each, dict) for key in each):
        versions = [each.get(name) for each in after if isinstance(each, dict)]
        kept = next((each for each in versions if each != before.get(name)), before.get(name))
        if kept is not None:
            found[name] = kept
    return found
