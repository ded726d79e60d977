"""Threads of Codex in several files: a rewind or a fork begins a file, which names what it continues (`history_base`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from langgraph_takeover.base.untrusted_input import (
    MAX_FILE_BYTES,
    check_values,
    parse_json,
    read_untrusted_file,
)
from langgraph_takeover.handoff.readers.recorded_run import to_mapping
from langgraph_takeover.sandbox.untrusted_trees import list_matches

Row = Mapping[str, Any]
WITHDRAWN = "is_withdrawn"
"""Field of a row that a rewind withdrew."""
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_FILE_NAME = re.compile(rf"rollout-[\dT-]{{19}}-(?P<thread>{_UUID})(?:_(?P<segment>{_UUID}))?\.jsonl")
_STORED = {"sessions": "*/*/*/rollout-*.jsonl", "archived_sessions": "rollout-*.jsonl"}
"""Directories of a home, with the files in them."""
_MAX_FILES = 1_000


class RolloutName(NamedTuple):
    """The ids in the name of a rollout file."""

    thread: str
    segment: str
    """That of a thread's first file is the thread's id."""


class _Segment(NamedTuple):
    """A rollout file, divided where another one continues it."""

    thread: str
    head: Row
    kept: Sequence[Row]
    rest: Sequence[Row]
    is_complete: bool
    """The file reaches the place of the division."""


def parse_name(path: Path) -> RolloutName | None:
    """Parse the name of a rollout file; None for any other name."""
    found = _FILE_NAME.fullmatch(path.name)
    return found and RolloutName(found["thread"], found["segment"] or found["thread"])


def _sort_by_age(paths: Iterable[Path]) -> list[Path]:
    """The first file of a thread before its segments, whose ids begin with their time; names have local or other time."""

    def get_age(path: Path) -> tuple[bool, str]:
        name = parse_name(path)
        return (name.segment != name.thread, name.segment) if name else (False, path.name)

    return sorted(paths, key=get_age)


def drop_continued(paths: Iterable[Path]) -> list[Path]:
    """Return the paths without rollout files of a thread that has a later one."""
    latest: dict[str, Path] = {}
    for path in _sort_by_age(paths):
        name = parse_name(path)
        latest[name.thread if name else str(path)] = path
    return list(latest.values())


def join_segments(path: Path, rows: Sequence[Row]) -> tuple[list[Row], int]:
    """Return the rows of a rollout file with those that it continues, and the number of unreadable lines among the latter.

    The other files are in the directory of the file, or in the sessions of its home, also the archived ones. Rows that the user
    withdrew before the file began have the field `WITHDRAWN`. `history_base` of the first row names the file that is not found
    or incomplete, if any.
    """
    head = next((row for row in rows if row.get("type") == "session_meta"), None)
    name = parse_name(path)
    if head is None or not (_find_base(head) or (name and name.segment != name.thread)):
        return list(rows), 0
    files = _ThreadFiles(path)
    parts: list[Sequence[Row]] = [rows]
    threads = {str(to_mapping(head.get("payload")).get("id"))}
    withdrawn: list[Row] = []
    current, base = head, _find_base(head)
    while base:
        end, end_byte = base.get("end_ordinal_exclusive"), base.get("end_byte_offset")
        segment = files.read(str(base.get("thread_id")), end, end_byte)
        if segment is None:
            break
        parts.append(segment.kept)
        threads.add(segment.thread)
        withdrawn += _list_before(current, segment.rest)
        if not segment.is_complete:
            break
        current, base = segment.head, _find_base(segment.head)
    # What is left of it is not found.
    head = {**head, "payload": {**to_mapping(head.get("payload")), "history_base": base}}
    for each in files.list_unread(threads):
        other = files.read(each, 0, 0)
        withdrawn += _list_before(head, other.rest) if other else ()
    joined: list[Row] = [{**row, WITHDRAWN: True} for row in withdrawn]
    joined += [row for part in reversed(parts) for row in part]
    return [head, *(row for row in joined if row.get("type") != "session_meta")], files.skipped


class _ThreadFiles:
    """The rollout files in reach of one of them, each read once."""

    def __init__(self, path: Path) -> None:
        self.skipped = 0
        """Number of unreadable lines."""
        path = path.resolve()
        found = set(list_matches(path.parent, "rollout-*.jsonl"))
        for directory in path.parents:
            if directory.name in _STORED:
                for stored, pattern in _STORED.items():
                    found.update(list_matches(directory.parent / stored, pattern))
                break
        self._files: dict[str, tuple[str, Path]] = {}
        for each in _sort_by_age(found):
            names = parse_name(each)
            if names and each != path and not each.is_symlink():
                self._files[names.segment] = (names.thread, each)
        self._unread = set(self._files)
        self._bytes = MAX_FILE_BYTES

    def list_unread(self, threads: set[str]) -> list[str]:
        """The ids of the files of threads that were not read, the oldest first."""
        return [
            each for each, (thread, _) in self._files.items() if each in self._unread and thread in threads
        ]

    def read(self, segment: str, end: Any, end_byte: Any) -> _Segment | None:
        """Read a file up to an ordinal; None if it is not found, was read before or cannot be read."""
        if segment not in self._unread or len(self._files) - len(self._unread) >= _MAX_FILES:
            return None
        self._unread.remove(segment)
        thread, path = self._files[segment]
        try:
            raw = read_untrusted_file(path, self._bytes)
            check_values(raw)
        except (OSError, ValueError):
            return None
        self._bytes -= len(raw)
        kept: list[Row] = []
        rest: list[Row] = []
        offset, has_ordinals, reached = 0, False, -1
        for line in raw.splitlines(keepends=True):
            row = self._parse_line(line)
            ordinal = row.get("ordinal")
            if isinstance(ordinal, int):
                has_ordinals, reached = True, max(reached, ordinal)
            is_kept = _is_less(ordinal, end) if isinstance(ordinal, int) else _is_less(offset, end_byte)
            if row:
                (kept if is_kept else rest).append(row)
            offset += len(line)
        is_complete = _is_less(end, reached + 2) if has_ordinals else _is_less(end_byte, offset + 1)
        heads = [row for row in (*kept, *rest) if row.get("type") == "session_meta"]
        return _Segment(thread, heads[0] if heads else {}, kept, rest, is_complete)

    def _parse_line(self, line: bytes) -> Row:
        """The row in a line; empty if the line is blank or unreadable."""
        try:
            row = parse_json(line) if line.strip() else {}
        except ValueError:
            row = None
        self.skipped += not isinstance(row, Mapping)
        return to_mapping(row)


def _is_less(first: Any, second: Any) -> bool:
    return isinstance(first, int) and isinstance(second, int) and first < second


def _find_base(head: Row) -> Row:
    """What a file continues, as its first row says; empty if nothing."""
    return to_mapping(to_mapping(head.get("payload")).get("history_base"))


def _list_before(head: Row, rows: Sequence[Row]) -> list[Row]:
    """The rows that were written before a file began."""
    return [row for row in rows if str(row.get("timestamp")) < str(head.get("timestamp"))]
