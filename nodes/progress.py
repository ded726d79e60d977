"""What a run tells while it works, for whoever streams its custom events."""

from __future__ import annotations

from typing import Any, Literal

from langgraph.runtime import Runtime

from nodes.state import AgentState

ProgressKind = Literal[
    "started",
    "thinking",
    "acting",
    "observed",
    "point",
    "record",
    "review",
    "passed",
    "stopped",
    "refused",
    "confirmed",
    "delegated",
    "returned",
]
_MAX_TEXT_CHARS = 300


def report_progress(runtime: Runtime[Any], event: ProgressKind, state: AgentState, **fields: Any) -> None:
    """Stream one event: what the run is at, in which step, and a line about it; the rest is in the state."""
    if "text" in fields:
        text = str(fields["text"])
        fields["text"] = text if len(text) <= _MAX_TEXT_CHARS else f"{text[: _MAX_TEXT_CHARS - 1]}…"
    runtime.stream_writer({"moment": event, "step": state.get("steps", 0), **fields})
