"""Verify a record: its digests, its snapshot, and that trace and snapshot agree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError, RecordStore
from langgraph_takeover.handoff.text.files import describe_error
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.handoff.trace.file_kinds import is_generated
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError
from langgraph_takeover.sandbox.repository.patches import split_by_file
from langgraph_takeover.sandbox.snapshots.contents import SnapshotContents, read_contents

_MAX_NAMES = 5
_OLD_PATH = re.compile(r"^(?:diff --git a/(.+) b/\1|rename from (.+))$", re.MULTILINE)


class Verification(NamedTuple):
    """The result of verifying one record."""

    problems: tuple[str, ...]
    """The problems, one line each; empty if the record is intact."""
    has_snapshot: bool = True
    files_without_digest: tuple[str, ...] = ()
    """Files of an intact record without a digest, written by an older version."""


def verify_record(directory: Path) -> Verification:
    """Check everything in a record's directory, or on the daemon that has its image.

    Raises OutOfDiskError if there is no disk space for the check.
    """
    try:
        record = RecordStore(directory.parent).load(directory.name)
    except RecordError as error:
        return Verification((str(error).removeprefix(f"record {directory.name}: "),))
    except OSError as error:
        return Verification((f"{error.filename}: {describe_error(error)}",))
    if record.snapshot is None:
        return Verification((), has_snapshot=False, files_without_digest=record.files_without_digest)
    try:
        held = read_contents(record.snapshot, directory)
    except OutOfDiskError:
        raise
    except SandboxUnavailableError as error:
        return Verification((str(error),))
    return Verification(
        tuple(find_disagreements(record, held)), files_without_digest=record.files_without_digest
    )


def find_disagreements(record: HandoffRecord, snapshot_contents: SnapshotContents) -> Iterator[str]:
    """Yield where the trace and the snapshot disagree about a file in the workspace.

    Programs that the run left behind may still write a file that it created: it must exist, with any content. A file that
    no event changed is checked only if the patch changes it and the base has it, because git may see the base's own
    differences from its commit, and a sandbox's first command may create files.
    """
    if record.external is not None and not record.checkpoint_id:
        return  # a captured session: its changes are inferred, and the user may have edited files since
    first, last = _collect_changes(record.trace)
    unhashed = {change.path for event in record.trace for change in event.changes if change.too_large}
    other, missing, left = [], [], []
    for path, after in last.items():
        snapshot_digest = snapshot_contents.files.get(path)
        if after is None:
            is_left = path in snapshot_contents.files or (
                first[path] is not None and not snapshot_contents.is_deleted(path)
            )
            left += [path] if is_left else []
        elif path in snapshot_contents.files:
            is_other = first[path] is not None and snapshot_digest is not None and snapshot_digest != after
            is_other = is_other and path not in unhashed
            other += [path] if is_other else []
        elif snapshot_contents.is_deleted(path) or first[path] != after:
            missing.append(path)
    yield from _describe_problem("has other content than the trace says in", other)
    yield from _describe_problem("lacks what the trace left in", missing)
    yield from _describe_problem("still has files that the trace removed:", left)
    if not snapshot_contents.is_complete:
        untold = [
            path
            for path in _list_patched_files(record.patch)
            if path not in last
            and not is_generated(path)
            and (path in snapshot_contents.files or snapshot_contents.is_deleted(path))
        ]
        yield from _describe_problem("and the patch change files that no event of the trace changed:", untold)


def _collect_changes(events: Iterable[Event]) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """Return, by path, the content before its first change and after its last one, in the workspace."""
    first: dict[str, str | None] = {}
    last: dict[str, str | None] = {}
    for event in events:
        for change in event.changes:
            if not change.path.startswith("/") and not change.generated:
                first.setdefault(change.path, change.before)
                last[change.path] = change.after
    return first, last


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
        yield f"the snapshot {problem} {', '.join(sorted(paths)[:_MAX_NAMES])}{more}"
