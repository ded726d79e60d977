"""The marks of events on the page: what a timeline shows of each event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph_takeover.evals.reports.html.chunks import TextPool
from langgraph_takeover.evals.run.measures.reshown import StepText
from langgraph_takeover.evals.run.measures.shown_text import join_ranges, split_output
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event

_MAX_LABEL_LENGTH = 80
_MAX_WRAPPING_LINES = 6
"""Lines that a tool puts before the output of a program."""


def mark_event(pool: TextPool, event: Event) -> dict[str, Any]:
    mark: dict[str, Any] = {"index": event.index, "tool": event.tool, "text": pool(event.text)}
    if event.kind == "action":
        mark["label"] = _label_event(event)
        # The text of a native tool call does not contain its arguments.
        hidden = {name: value for name, value in event.arguments.items() if value and value not in event.text}
        if hidden:
            mark["arguments"] = {name: pool(value) for name, value in hidden.items()}
    if event.exit_code is not None:
        mark["exit_code"] = event.exit_code
    mark |= {name: value for name in ("refused", "timed_out", "seconds") if (value := getattr(event, name))}
    if event.is_parallel:
        mark["parallel"] = True
    if event.changes:
        mark["changes"] = [change.path for change in event.changes]
    if event.usage is not None and not event.is_parallel:
        usage = event.usage
        mark["usage"] = [
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            usage.estimated,
        ]
    return mark


def mark_text(event: Event, step: StepText) -> dict[str, Any]:
    """The shown and re-shown characters of an observation, its re-shown lines, and their files."""
    mark: dict[str, Any] = {"chars": step.shown_chars, "reshown": step.reshown_chars}
    if step.reshown_chars:
        lines = event.text.split("\n")
        first = _find_start(lines, split_output(event.text))
        if first is not None:
            mark["lines"] = join_ranges([first + index for index in step.reshown_lines])
            mark["total"] = len(lines)
        mark["files"] = [(file.path, file.ranges) for file in step.files]
    return mark


def _find_start(lines: Sequence[str], part: Sequence[str]) -> int | None:
    """Where the lines without the tool's wrapping begin; None if they were changed."""
    for start in range(min(len(lines), _MAX_WRAPPING_LINES)):
        if list(lines[start : start + len(part)]) == list(part):
            return start
    return None


def _label_event(event: Event) -> str:
    """A short label of an action."""
    if event.tool == UNREADABLE:
        return "no action"
    command = event.arguments.get("command", "")
    if event.tool == "editor":
        command = f"{command} {event.arguments.get('path', '')}"
    line = " ".join(command[: 4 * _MAX_LABEL_LENGTH].split()) or event.tool
    return line if len(line) <= _MAX_LABEL_LENGTH else f"{line[: _MAX_LABEL_LENGTH - 1]}…"
