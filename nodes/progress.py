"""What a run tells while it works, for whoever streams its custom events."""

from __future__ import annotations

from typing import Any, Literal

from langgraph.runtime import Runtime

from nodes.state import AgentState

Moment = Literal[
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
_LONGEST = 300


def tell(runtime: Runtime[Any], moment: Moment, state: AgentState, **told: Any) -> None:
    """Stream one event: what the run is at, in which step, and a line about it; the rest is in the state."""
    if "text" in told:
        text = str(told["text"])
        told["text"] = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    runtime.stream_writer({"moment": moment, "step": state.get("steps", 0), **told})
