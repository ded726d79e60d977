"""The type of the progress events that a run streams."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Required

from typing_extensions import TypedDict

from langgraph_takeover.base.failures import ObserverErrors
from langgraph_takeover.nodes.context.settings import SettingsError


class Progress(TypedDict, total=False):
    """One custom event of a run's stream; `event` and `step` are always present.

    Events: started, thinking, waiting, repaired, acting, observed, point, record, review, passed, stopped, refused, confirmed,
    child_started, child_finished, went_back.
    """

    event: Required[str]
    step: Required[int]
    text: str
    """One line, at most 300 characters."""
    tool: str
    exit_code: int | None
    refused: bool
    kind: str
    """Of a handoff point, or of a refusal."""
    record: str
    checkpoint: str
    agent: str
    """Teams: the acting agent."""
    how: str
    """Teams: `handoff`, `rotation` or `supervisor`."""
    to: str
    child: str
    """Delegation: the child's thread."""
    mode: str
    stop_reason: str | None
    steps_of_child: int


ProgressCallback = Callable[[Progress], None]


def contain_callback(callback: ProgressCallback | None) -> ProgressCallback | None:
    """Return the callback with its errors logged once instead of raised; KeyboardInterrupt and SystemExit pass.

    Raises SettingsError for a value that is not a function, and for a function that must be awaited.
    """
    if callback is None:
        return None
    if not callable(callback) or iscoroutinefunction(callback):
        raise SettingsError(
            f"on_progress: not a plain function: {callback!r:.60} (nothing awaits it; use def)"
        )
    return ObserverErrors("on_progress")(callback)
