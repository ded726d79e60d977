"""Attributes of spans that describe a snapshot."""

from __future__ import annotations

from pathlib import Path

from langgraph_takeover.sandbox.interface import Snapshot
from langgraph_takeover.sandbox.storage.observers import ObserverErrors
from langgraph_takeover.sandbox.telemetry import ActiveSpan


@ObserverErrors("telemetry")
def describe_snapshot(span: ActiveSpan, snapshot: Snapshot, store: Path) -> None:
    """Set the snapshot's back end, digest and size, which is unknown for an image."""
    if not span.is_recording:
        return
    span.set(
        {
            "takeover.backend": snapshot.backend,
            "takeover.snapshot.digest": snapshot.digest,
            "takeover.snapshot.bytes": _measure_bytes(store / snapshot.location),
        }
    )


def _measure_bytes(archive: Path) -> int | None:
    try:
        return archive.lstat().st_size
    except OSError:
        return None
