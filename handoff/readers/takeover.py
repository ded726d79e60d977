"""Reader of this project's own traces: handoff records and events as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from langgraph_takeover.handoff.readers.recorded_run import TraceError, to_mapping
from langgraph_takeover.handoff.trace.events import Trace


def is_own(data: Any) -> bool:
    if isinstance(data, Mapping):
        rows = data.get("trace", data.get("events"))
        return isinstance(rows, list) and _is_event(rows[0] if rows else {"index": 0, "kind": "", "tool": ""})
    return isinstance(data, list) and bool(data) and _is_event(data[0])


def _is_event(row: Any) -> bool:
    return isinstance(row, Mapping) and {"index", "kind", "tool"} <= set(row)


def read(data: Any, name: str) -> Trace:
    """Read a trace, a handoff record or a list of events. Raises TraceError."""
    document: Mapping[str, Any] = data if isinstance(data, Mapping) else {"events": data}
    if "trace" in document:
        document = _convert_record(document)
    elif "format" not in document:
        document = {"id": name, "format": "takeover", "events": document.get("events")}
    try:
        return Trace.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(str(part) for part in first["loc"])
        raise TraceError(f"{name}: {location}: {first['msg']}") from error


def _convert_record(record: Mapping[str, Any]) -> dict[str, Any]:
    task = record.get("task") if isinstance(record.get("task"), Mapping) else {}
    assert isinstance(task, Mapping)
    return {
        "id": record.get("id"),
        "format": "takeover",
        "events": record.get("trace"),
        "workspace": task.get("workspace", ""),
        "base_directories": task.get("base_directories", ()),
        "task": task.get("prompt", ""),
        "model": record.get("predecessor", ""),
        "unknown_forms": to_mapping(to_mapping(record.get("external")).get("unknown_forms")),
    }
