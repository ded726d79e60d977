"""Uninterrupted remainder: what a predecessor itself still needed after a handoff point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph_takeover.evals.run.measures.costs import count_tokens
from langgraph_takeover.handoff.trace.events import Event


def measure_remainder(
    events: Sequence[Event], point_index: int, stop_reason: str | None, uncounted_calls: int = 0
) -> dict[str, Any] | None:
    """The predecessor's effort after a point: events, prompt and completion tokens (None if not counted).

    `point_index` is the index of the point's last event. `uncounted_calls` are those of the whole run that the runtime
    counted: failed attempts have no event, so that their place is unknown, and with it the tokens after the point.
    None if the run was stopped before its end, because its remainder is unknown then.
    """
    if stop_reason != "finished":
        return None
    rest = events[point_index + 1 :]
    attempts = uncounted_calls - count_tokens(events).uncounted_calls
    tokens = count_tokens(rest, max(attempts, 0))
    return {"events": len(rest), "prompt_tokens": tokens.prompt, "completion_tokens": tokens.completion}
