"""Commands that an external agent left running in the background, as far as its session shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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
