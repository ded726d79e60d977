"""Uninterrupted remainder: what a predecessor itself still needed after a handoff point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph_takeover.evals.run.measures.costs import count_tokens
from langgraph_takeover.handoff.trace.events import Event


def measure_remainder(
    events: Sequence[Event], point_index: int, stop_reason: str | None
) -> dict[str, Any] | None:
    """The predecessor's effort after a point: events, prompt and completion tokens (None if not counted).

    `point_index` is the index of the point's last event. None if the run was stopped before its end, because its
    remainder is unknown then.
    """
    if stop_reason != "finished":
        return None
    rest = events[point_index + 1 :]
    tokens = count_tokens(rest)
    return {"events": len(rest), "prompt_tokens": tokens.prompt, "completion_tokens": tokens.completion}
