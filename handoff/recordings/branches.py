"""Branches of a conversation: which rows are live, which were withdrawn; and commands that run in the background."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from langgraph_takeover.handoff.shell.syntax import runs_in_background

_MAX_COMMAND_CHARS = 500
_COMMAND_START = r"(?:^|[;&|(\n]|\bsudo\b)[^\S\n]*"
_WAITS = re.compile(rf"{_COMMAND_START}wait\b")
_KILLS = re.compile(rf"{_COMMAND_START}(?:kill|pkill|killall|fuser)\b")
_NOTIFICATION = "<task-notification>"
_TASK_ID = re.compile(r"<task-id>([\w-]{1,40})</task-id>")
_STATUS = re.compile(r"<status>(\w{1,20})</status>")
_NOTIFICATION_CHARS = 2_500
_MAX_NOTIFICATIONS = 1_000
_MAX_COMMANDS = 100
"""Named and unnamed commands that are kept, the newest of each."""


class CommandResult(NamedTuple):
    """What decides whether a command still runs."""

    command: str
    """Empty for a call that only reads or ends a running command."""
    process_id: str | None = None
    """The agent's name for the process that still runs."""
    refused: bool = False


class BackgroundCommands:
    """Collects the commands that an agent started and did not see end.

    The agent names a process that runs after its call. A command that the shell started with `&` has no name: it counts until a
    later command kills a process.
    """

    def __init__(self) -> None:
        self._named: dict[str, str] = {}
        self._unnamed: list[str] = []

    def add_result(self, arguments: Mapping[str, Any], result: CommandResult) -> None:
        """Add the result of a call with the agent's own arguments, which may name a running process."""
        polled = [str(value) for value in arguments.values() if str(value) in self._named]
        command = result.command[:_MAX_COMMAND_CHARS]
        if result.process_id is None:
            for each in polled:
                del self._named[each]
        elif not polled and command:
            self._named[result.process_id] = command
        if result.process_id is None and not result.refused:
            self._add_shell_jobs(result.command)

    def add_notification(self, text: str) -> None:
        """Forget the commands whose end the agent's own notification reports."""
        for part in text.split(_NOTIFICATION, _MAX_NOTIFICATIONS)[1:]:
            task = _TASK_ID.search(part, 0, _NOTIFICATION_CHARS)
            status = _STATUS.search(part, task.end(), _NOTIFICATION_CHARS) if task else None
            if task and status and status[1] != "running":
                self._named.pop(task[1], None)

    def end(self, process_id: str) -> None:
        """Forget a command whose end the session records."""
        self._named.pop(process_id, None)

    def __iter__(self) -> Iterator[str]:
        named = list(self._named.values())[-_MAX_COMMANDS:]
        return iter((*named, *self._unnamed[-_MAX_COMMANDS:]))

    def _add_shell_jobs(self, command: str) -> None:
        kills = _KILLS.search(command) is not None
        if runs_in_background(command) and not kills and not _WAITS.search(command):
            self._unnamed.append(command[:_MAX_COMMAND_CHARS])
        elif kills and self._unnamed:
            self._unnamed.pop()


RowKind = Literal["request", "reply", "result", "note", "other"]
"""A `note` reports about a row, and never begins a branch; `other` rows do where a request does."""


class TreeRow(NamedTuple):
    """What the branches of a session depend on."""

    id: str
    parent: str | None
    """Id of the row before; that of a row which is not in the file means the row before in the file."""
    kind: RowKind
    is_root: bool = False
    """The row has no parent: it begins the conversation anew."""
    reply: str = ""
    """Id of the reply, of which each row has a part."""
    is_automatic: bool = False
    """The agent wrote the row itself to continue: it withdraws no request."""
    calls: frozenset[str] = frozenset()
    """Ids of the calls in a reply, or of those that a result answers."""


def find_live_rows(rows: Sequence[TreeRow], leaf: str = "") -> list[bool]:
    """Whether each row is live: on the path to the leaf, or a part of a reply on it.

    The leaf is the last row, unless the session names one. Results and parallel calls of live replies are live, and so is an
    interrupted reply: one without an answered call, which the agent itself left out when it resumed. Repeated rows are like
    the first of their id.
    """
    if not rows:
        return []
    positions: dict[str, int] = {}
    for number, row in enumerate(rows):
        positions.setdefault(row.id, number)
    parents = _find_parents(rows, positions)
    path = _find_last_path(rows, parents, positions)
    if leaf in positions and _goes_back(rows, path, positions[leaf]):
        path = _list_path(parents, positions[leaf])
    live = [False] * len(rows)
    for number in path:
        live[number] = True
    next_on_path = dict(zip(path[1:], path, strict=False))
    messages = _find_messages_before(rows, parents)
    answered = {
        (messages[n], call) for n, row in enumerate(rows) if row.kind == "result" for call in row.calls
    }
    for number, row in enumerate(rows):
        first, parent, message = positions[row.id], parents[number], messages[number]
        if first != number:
            live[number] = live[first]
        elif not live[number] and message is not None and live[message]:
            sibling = None if parent is None else next_on_path.get(parent)
            live[number] = _is_part_of(row, rows[message]) or (
                sibling is not None
                and rows[sibling].kind != "reply"
                and _is_interrupted(number, row, answered)
            )
    return live


def _find_last_path(
    rows: Sequence[TreeRow], parents: Sequence[int | None], positions: dict[str, int]
) -> list[int]:
    """The path of the last row. A late result or note at an earlier row leaves the path of the last message as it is."""
    path = _list_path(parents, positions[rows[-1].id])
    last = next((row for row in reversed(rows) if row.kind in ("request", "reply")), rows[-1])
    message = positions[last.id]
    if message in path:
        return path
    whole = _list_path(parents, message)
    fork = set(path).intersection(whole)
    left = next((after for after, number in itertools.pairwise(whole) if number in fork), message)
    return path if rows[-1].kind == "other" and rows[left].kind == "request" else whole


def _find_messages_before(rows: Sequence[TreeRow], parents: Sequence[int | None]) -> list[int | None]:
    """The position of the message before each row; notes and other rows may stand between."""
    found: list[int | None] = []
    for number, parent in enumerate(parents):
        is_message = parent is None or rows[parent].kind not in ("note", "other")
        found.append(parent if is_message or parent is None or parent >= number else found[parent])
    return found


def _find_parents(rows: Sequence[TreeRow], positions: dict[str, int]) -> list[int | None]:
    """The position of each row's parent; None for a root. A wrong parent, which agents write at times, is the row before."""
    parents: list[int | None] = []
    requests: list[int] = []
    """Number of requests up to each row."""
    asked: set[int] = set()
    """Rows that a request follows."""
    before: int | None = None
    for row in rows:
        parent = positions.get(row.parent) if row.parent is not None else None
        if row.is_root:
            parent = None
        elif parent is None:
            parent = before
        elif before is not None and parent < len(requests):
            is_late = row.kind == "request" and rows[parent].kind == "note" and parent not in asked
            if is_late or (row.is_automatic and requests[before] > requests[parent]):
                parent = before
        parents.append(parent)
        requests.append(
            (requests[parent] if parent is not None and parent < len(requests) else 0)
            + (row.kind == "request")
        )
        if row.kind == "request" and parent is not None:
            asked.add(parent)
        before = positions[row.id]
    return parents


def _list_path(parents: Sequence[int | None], leaf: int) -> list[int]:
    """The positions from a leaf to its root; a cycle ends it."""
    path: list[int] = []
    seen: set[int] = set()
    current: int | None = leaf
    while current is not None and current not in seen:
        seen.add(current)
        path.append(current)
        current = parents[current]
    return path


def _goes_back(rows: Sequence[TreeRow], path: Sequence[int], leaf: int) -> bool:
    """Whether a named leaf leaves out a request: it lies on another branch, or before a request on the path."""
    later = path[: path.index(leaf)] if leaf in path else None
    return later is None or any(rows[number].kind == "request" for number in later)


def _is_part_of(row: TreeRow, parent: TreeRow) -> bool:
    """Whether a row belongs to the reply of its parent: the result of one of its calls, or another part of it."""
    if parent.kind != "reply":
        return False
    if row.kind == "result":
        return bool(row.calls & parent.calls)
    return row.kind == "reply" and bool(row.reply) and row.reply == parent.reply


def _is_interrupted(number: int, row: TreeRow, answered: set[tuple[int | None, str]]) -> bool:
    is_open = bool(row.calls) and not any((number, call) in answered for call in row.calls)
    return row.kind == "reply" and is_open
