"""Shell commands with their output, as events."""

from __future__ import annotations

from typing import Any

from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.sandbox.interface import FileChange


def build_steps(*taken: tuple[Any, ...]) -> tuple[Event, ...]:
    """Build events from tuples of command, output and the changed files: paths, or paths with both digests."""
    events: list[Event] = []
    for command, output, *changed in taken:
        number = len(events)
        changes = tuple(
            FileChange(path=each[0], before=each[1], after=each[2])
            for each in (
                (path, f"{number}", f"{number + 1}") if isinstance(path, str) else path for path in changed
            )
        )
        code = 127 if "not found" in output else 0
        arguments = {"command": command}
        events += [
            Event(index=number, kind="action", tool="shell", text=command, arguments=arguments),
            Event(
                index=number + 1,
                kind="observation",
                tool="shell",
                text=output,
                exit_code=code,
                changes=changes,
            ),
        ]
    return tuple(events)
