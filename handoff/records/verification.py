"""Verify a record: its digests, its snapshot, and that trace, snapshot and restored sandbox agree."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.base.secret_names import REDACTED
from langgraph_takeover.base.untrusted_input import describe_error
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError, RecordStore
from langgraph_takeover.handoff.text.patch_sections import split_patch
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.handoff.trace.file_kinds import is_generated
from langgraph_takeover.sandbox.interface import (
    FileChange,
    OutOfDiskError,
    Sandbox,
    SandboxUnavailableError,
    SnapshotCorruptError,
)
from langgraph_takeover.sandbox.repository import RepositoryError, patch_since, split_by_file
from langgraph_takeover.sandbox.snapshots.transfer import SnapshotContents, read_contents

_MAX_NAMES = 5
_UNKNOWN = "?"
"""Stands for the digest of a file that a report of changes describes otherwise."""
_MAX_OUTSIDE = 1000
_TEMPORARY = ("/tmp/", "/var/tmp/", "/run/", "/proc/", "/dev/")
_LOST_CURE = "take over another record, or resume at another checkpoint"
_OLD_PATH = re.compile(r"^(?:diff --git a/(.+) b/\1|rename from (.+))$", re.MULTILINE)


class Verification(NamedTuple):
    """The result of verifying one record."""

    problems: tuple[str, ...]
    """The problems, one line each; empty if the record is intact."""
    has_snapshot: bool = True


def verify_record(directory: Path) -> Verification:
    """Check everything in a record's directory, or on the daemon that has its image.

    Raises OutOfDiskError if the check runs out of disk space.
    """
    try:
        record = RecordStore(directory.parent).load(directory.name)
    except RecordError as error:
        return Verification((str(error).removeprefix(f"record {directory.name}: "),))
    except OSError as error:
        return Verification((f"{error.filename}: {describe_error(error)}",))
    if record.snapshot is None:
        return Verification((), has_snapshot=False)
    try:
        held = read_contents(record.snapshot, directory)
    except OutOfDiskError:
        raise
    except SandboxUnavailableError as error:
        return Verification((str(error),))
    return Verification(tuple(find_disagreements(record, held)))


def find_disagreements(record: HandoffRecord, snapshot_contents: SnapshotContents) -> Iterator[str]:
    """Yield where the trace and the snapshot disagree about a file in the workspace.

    Programs that the run left behind may still write a file that it created: it must exist, with any content. A file that
    no event changed is checked only if the patch changes it and the base has it, because git may see the base's own
    differences from its commit, and a sandbox's first command may create files.
    """
    if _is_captured(record):
        return

    def find_digest(path: str, base: str | None) -> str | None:
        if path in snapshot_contents.files:
            return snapshot_contents.files[path] or _UNKNOWN
        return None if snapshot_contents.is_deleted(path) else base

    histories = _collect_histories(record.trace)
    lost, other, left = [], [], []
    for path, history in histories.items():
        digest = find_digest(path, history.first)
        if digest == history.last:
            continue
        if history.last is None:
            left.append(path)
        elif digest in (None, history.first):
            lost.append(path)
        elif history.first is not None and digest != _UNKNOWN and not history.too_large:
            other.append(path)
    yield from _describe_problem("the snapshot has other content than the trace says in", other)
    yield from _describe_problem("the snapshot lacks what the trace left in", lost)
    yield from _describe_problem("the snapshot still has files that the trace removed:", left)
    if not snapshot_contents.is_complete:
        untold = [
            path
            for path in _list_patched_files(record.patch)
            if path not in histories
            and not is_generated(path)
            and (path in snapshot_contents.files or snapshot_contents.is_deleted(path))
        ]
        yield from _describe_problem(
            "the snapshot and the patch change files that no event of the trace changed:", untold
        )


def require_changes(
    find_digest: Callable[[str], str | None],
    events: Iterable[Event],
    place: str,
    *,
    system: Sandbox | None = None,
) -> None:
    """Raise SnapshotCorruptError, which names `place`, if restored files have lost changes of these events.

    `find_digest` returns the SHA-256 of a file in the workspace, None if it is absent. A change is lost if its file is as
    it was before: absent, or with an earlier content. Any other content was written later, by a program in the background.
    Changes that a reader inferred from a recording do not count. In a `system`, a sandbox with an image's files, those
    outside the workspace must exist, too.
    """
    is_system = system is not None
    histories = {
        path: each
        for path, each in _collect_histories((event for event in events if event.tree), is_system).items()
        if "\\" not in path and REDACTED not in path and not path.startswith(_TEMPORARY)
    }
    outside = [path for path in histories if path.startswith("/")]
    missing = set(_list_missing(system, outside)) if system is not None else set()
    lost: dict[str, str | None] = {}
    intact: set[int] = set()
    for path, each in histories.items():
        digest = None if path in missing else each.last if path.startswith("/") else find_digest(path)
        if digest == each.last or (each.too_large and digest is not None):
            intact.add(each.event)
        elif digest is None or digest in each.earlier:
            lost[path] = digest
    newest = max((each.event for each in histories.values()), default=0)

    def is_short_lived(path: str) -> bool:
        """Whether a program may have removed the file before the snapshot: the last event created it, beside others."""
        each = histories[path]
        return each.event == newest and newest in intact and lost[path] is None and each.earlier == {None}

    found = [path for path in lost if not is_short_lived(path)]
    for problem in _describe_problem("the restored sandbox lacks what the run changed in", found):
        raise SnapshotCorruptError(f"{place}: {problem} ({_LOST_CURE})")


def require_record(sandbox: Sandbox, record: HandoffRecord) -> None:
    """Raise SnapshotCorruptError if the sandbox restored from a record has lost what its trace or its patch changed.

    Git is asked only if the patch changes files that no event changed. A file that only the patch creates may be a
    program's, written after the snapshot.
    """
    place = f"record {record.id}"
    system = sandbox if record.required_snapshot.base.startswith("sha256:") else None
    require_changes(sandbox.sha256, record.trace, place, system=system)
    known = {change.path for event in record.trace for change in event.changes}
    told = split_patch(record.patch)
    untold = {each.path: each for each in told if each.path not in known and not is_generated(each.path)}
    if not untold or _is_captured(record):
        return
    try:
        found = {each.path for each in split_patch(patch_since(sandbox, record.task.base_commit).text)}
    except RepositoryError:
        return
    has_some = any(each.path in found for each in told)
    lost = [path for path, each in untold.items() if path not in found and not (each.is_new and has_some)]
    for problem in _describe_problem("the restored sandbox lacks what the patch changes in", lost):
        raise SnapshotCorruptError(f"{place}: {problem} ({_LOST_CURE})")


def _is_captured(record: HandoffRecord) -> bool:
    """Whether a record is of a session whose changes are inferred; the user may have edited files since."""
    return record.external is not None and not record.checkpoint_id


class _History:
    """What a trace says about one file: its digests, None where it is absent."""

    def __init__(self, first: str | None) -> None:
        self.first = self.last = first
        self.earlier: set[str | None] = set()
        self.event = 0
        """Index of the event that changed it last."""
        self.too_large = False

    def add(self, change: FileChange, event: int) -> None:
        self.earlier |= {change.before, self.last}
        self.last, self.event = change.after, event
        self.earlier.discard(self.last)
        self.too_large |= change.too_large


def _collect_histories(events: Iterable[Event], is_system: bool = False) -> dict[str, _History]:
    """Return the histories of the files in the workspace, by path; with `is_system`, of all files."""
    found: dict[str, _History] = {}
    for event in events:
        for change in event.changes:
            if (is_system or not change.path.startswith("/")) and not change.generated:
                found.setdefault(change.path, _History(change.before)).add(change, event.index)
    return found


def _list_missing(sandbox: Sandbox, paths: list[str]) -> list[str]:
    """List those of these absolute paths, the first 1,000 of them, that name nothing."""
    quoted = " ".join(map(shlex.quote, paths[:_MAX_OUTSIDE]))
    script = 'do [ -e "$path" ] || [ -L "$path" ] || printf \'%s\\0\' "$path"; done'
    return sandbox.inspect(f"for path in {quoted}; {script}").output.split("\0")[:-1] if paths else []


def _list_patched_files(patch: str) -> Iterator[str]:
    """List the base's files that a patch changes, renames or removes, except names that git quotes."""
    for section in split_by_file(patch):
        head = section.partition("\n@@ ")[0]
        found = _OLD_PATH.search(head)
        changes = "\nindex " in head or "\nrename " in head
        if found and changes and "\nnew file mode " not in head:
            yield found[1] or found[2]


def _describe_problem(problem: str, paths: list[str]) -> Iterator[str]:
    if paths:
        more = f" and {len(paths) - _MAX_NAMES} more" if len(paths) > _MAX_NAMES else ""
        yield f"{problem} {', '.join(sorted(paths)[:_MAX_NAMES])}{more}"
