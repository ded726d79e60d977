"""Whether a record is whole: its digest, its snapshot, and that the two tell one story."""

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
from langgraph_takeover.sandbox.snapshots.contents import SnapshotContents, read_contents

_MAX_NAMES = 5
_OLD_PATH = re.compile(r"^(?:diff --git a/(.+) b/\1|rename from (.+))$", re.MULTILINE)


class Verification(NamedTuple):
    """What was found out about one record."""

    problems: tuple[str, ...]
    """What is not as it must be, a line each; nothing where the record is whole."""
    has_snapshot: bool = True
    files_without_digest: tuple[str, ...] = ()
    """The files of a whole record that have no digest, because an older program wrote them."""


def verify_record(directory: Path) -> Verification:
    """Look at everything in a record's directory, or on the daemon that has its image.

    Raises OutOfDiskError where there was no room for looking.
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
    """Where the trace says one thing of a file in the workspace, and the snapshot another.

    A file that the run made may go on being written by what it left running: it must be there, whatever is
    in it. A file that no event changed is asked for only where the patch changes it and the base has it,
    because git may see a base's own differences from its commit, and a machine's first command may make files.
    """
    first, last = _collect_changes(record.trace)
    unhashed = {change.path for event in record.trace for change in event.changes if change.too_large}
    other, missing, left = [], [], []
    for path, after in last.items():
        there = snapshot_contents.files.get(path)
        if after is None:
            is_left = path in snapshot_contents.files or (
                first[path] is not None and not snapshot_contents.is_deleted(path)
            )
            left += [path] if is_left else []
        elif path in snapshot_contents.files:
            is_other = first[path] is not None and there is not None and there != after
            is_other = is_other and path not in unhashed
            other += [path] if is_other else []
        elif snapshot_contents.is_deleted(path) or first[path] != after:
            missing.append(path)
    yield from _describe_problem("holds another content than the trace left in", other)
    yield from _describe_problem("lacks what the trace left in", missing)
    yield from _describe_problem("still has what the trace removed:", left)
    if not snapshot_contents.is_complete:
        untold = [
            path
            for path in _list_patched_files(record.patch)
            if path not in last
            and not is_generated(path)
            and (path in snapshot_contents.files or snapshot_contents.is_deleted(path))
        ]
        yield from _describe_problem("and the patch change what no event of the trace did:", untold)


def _collect_changes(events: Iterable[Event]) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """By path, the content before the first change of it and after the last, in the workspace."""
    first: dict[str, str | None] = {}
    last: dict[str, str | None] = {}
    for event in events:
        for change in event.changes:
            if not change.path.startswith("/") and not change.generated:
                first.setdefault(change.path, change.before)
                last[change.path] = change.after
    return first, last


def _list_patched_files(patch: str) -> Iterator[str]:
    """The files of the base whose content a patch changes, renames or removes; names that git quotes left out."""
    for section in re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE):
        head = section.partition("\n@@ ")[0]
        found = _OLD_PATH.search(head)
        changes = "\nindex " in head or "\nrename " in head
        if found and changes and "\nnew file mode " not in head:
            yield found[1] or found[2]


def _describe_problem(problem: str, paths: list[str]) -> Iterator[str]:
    if paths:
        more = f" and {len(paths) - _MAX_NAMES} more" if len(paths) > _MAX_NAMES else ""
        yield f"the snapshot {problem} {', '.join(sorted(paths)[:_MAX_NAMES])}{more}"
