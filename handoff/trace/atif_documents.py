"""Traces as documents of ATIF, the Agent Trajectory Interchange Format.

ATIF allows other fields only inside `extra`. Data without an ATIF field (exit codes, file changes, trees) goes
there, so that `handoff.readers` restores the identical trace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph_takeover.base.takeover_error import find_program_version
from langgraph_takeover.handoff.trace.events import Event, Trace, Usage

_ESCAPED = "ud[89a-f][0-9a-f]{2}|u005c"
_PLAIN = re.compile(rf"[\ud800-\udfff]|\\(?={_ESCAPED})")
_ESCAPE = re.compile(rf"\\({_ESCAPED})")


def has_surrogates(value: Any) -> bool:
    """Whether a text in a JSON-like value has a lone surrogate."""
    if isinstance(value, str):
        return not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, Mapping):
        return any(has_surrogates(key) or has_surrogates(item) for key, item in value.items())
    return isinstance(value, list | tuple) and any(map(has_surrogates, value))


def encode_surrogates(value: Any) -> Any:
    r"""Write each lone surrogate of a JSON-like value as text, such as `\udce9`; `decode_surrogates` is the inverse."""
    return _map_texts(value, lambda text: _PLAIN.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def decode_surrogates(value: Any) -> Any:
    """Restore a value from `encode_surrogates`."""
    return _map_texts(value, lambda text: _ESCAPE.sub(lambda match: chr(int(match[1][1:], 16)), text))


def _map_texts(value: Any, transform: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return transform(value)
    if isinstance(value, Mapping):
        return {_map_texts(key, transform): _map_texts(item, transform) for key, item in value.items()}
    return [_map_texts(item, transform) for item in value] if isinstance(value, list | tuple) else value


SCHEMA_VERSION = "ATIF-v1.8"
TRACE_KEY, EVENTS_KEY = "takeover_trace", "takeover_events"
ESCAPED_KEY = "takeover_escaped_surrogates"
"""Set if the texts of the document are those of `encode_surrogates`."""
COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")
"""Fields of a usage that are ATIF metrics."""
_NATIVE_FIELDS = {"text", "arguments", "usage"}
"""Event fields that have an ATIF field."""
_UNKNOWN = "unknown"


class SuccessorDocument(NamedTuple):
    """The document of one successor, referenced by the document of its predecessor."""

    file: str
    trace: Trace


def build_document(
    trace: Trace, successors: Sequence[SuccessorDocument] = (), session: str | None = None
) -> dict[str, Any]:
    """Build the ATIF document of a trace; `successors` are the takeovers that continue it.

    `continued_trajectory_ref` can reference only one file, so several successors are listed in `extra`. All documents of
    a chain of takeovers have one `session`: the id of its first trace, by default that of the predecessor.
    """
    steps: list[dict[str, Any]] = []
    if trace.task:
        steps.append({"step_id": 1, "source": "user", "message": trace.task})
    for action, observation in _pair_events(trace.events):
        steps.append(_build_step(len(steps) + 1, trace, action, observation))
    if not steps:
        steps.append({"step_id": 1, "source": "system", "message": "The run has no events."})
    extra: dict[str, Any] = {TRACE_KEY: trace.model_dump(mode="json", exclude={"events", "task"})}
    if successors:
        extra["continued_by"] = [_build_continuation(successor, trace) for successor in successors]
    if trace.continues is not None:
        extra["continues"] = trace.continues.model_dump(mode="json")
    document = {
        "schema_version": SCHEMA_VERSION,
        "session_id": session or (trace.continues.trace if trace.continues else trace.id),
        "trajectory_id": trace.id,
        "agent": _build_agent(trace),
        "steps": steps,
        "final_metrics": _build_final_metrics(trace.events, len(steps)),
        "continued_trajectory_ref": successors[0].file if len(successors) == 1 else None,
        "extra": extra,
    }
    document = {key: value for key, value in document.items() if value is not None}
    if has_surrogates(document):
        extra[ESCAPED_KEY] = True
        document = encode_surrogates(document)
    return document


def _pair_events(events: Sequence[Event]) -> list[tuple[Event | None, Event | None]]:
    """Pair every action with its observation; either may be missing in a broken trace."""
    pairs: list[tuple[Event | None, Event | None]] = []
    for event in events:
        if event.kind == "observation" and pairs and pairs[-1][0] is not None and pairs[-1][1] is None:
            pairs[-1] = (pairs[-1][0], event)
        else:
            pairs.append((event, None) if event.kind == "action" else (None, event))
    return pairs


def _build_step(number: int, trace: Trace, action: Event | None, observation: Event | None) -> dict[str, Any]:
    other_fields = [
        e.model_dump(mode="json", exclude=_NATIVE_FIELDS) for e in (action, observation) if e is not None
    ]
    step: dict[str, Any] = {"step_id": number, "source": "agent" if action else "system", "message": ""}
    if action is not None:
        step["message"] = action.text
        call = {
            "tool_call_id": f"call_{action.index}",
            "function_name": action.tool,
            "arguments": dict(action.arguments),
        }
        step["tool_calls"] = [call]
        if action.usage is not None:
            step["metrics"] = _build_metrics(action.usage)
    if observation is not None:
        result: dict[str, Any] = {"content": observation.text}
        if action is not None:
            result["source_call_id"] = f"call_{action.index}"
        step["observation"] = {"results": [result]}
    step["extra"] = {EVENTS_KEY: other_fields}
    return step


def _build_agent(trace: Trace) -> dict[str, Any]:
    if trace.agent:
        agent = {"name": trace.agent, "version": trace.agent_version or _UNKNOWN}
    elif trace.format == "takeover":
        agent = {"name": "takeover", "version": find_program_version()}
    else:
        agent = {"name": trace.format, "version": _UNKNOWN}
    if trace.model:
        agent["model_name"] = trace.model
    return agent


def _build_metrics(usage: Usage) -> dict[str, Any]:
    counts = {name: getattr(usage, name) for name in COUNTS if getattr(usage, name) is not None}
    return {**counts, "extra": {"estimated": usage.estimated}}


def _build_final_metrics(events: Sequence[Event], steps: int) -> dict[str, Any]:
    metrics: dict[str, Any] = {"total_steps": steps}
    usages = [event.usage for event in events if event.usage is not None]
    for name in COUNTS:
        known = [value for usage in usages if (value := getattr(usage, name)) is not None]
        if known:
            metrics[f"total_{name}"] = sum(known)
    if usages:
        metrics["extra"] = {"estimated": any(usage.estimated for usage in usages)}
    return metrics


def _build_continuation(successor: SuccessorDocument, trace: Trace) -> dict[str, Any]:
    continuation = successor.trace.continues
    if continuation is None:
        return {"file": successor.file}
    offset = 2 if trace.task else 1
    step = next(
        (
            n
            for n, pair in enumerate(_pair_events(trace.events))
            if any(e and e.index == continuation.point.event_index for e in pair)
        ),
        None,
    )
    return {
        "file": successor.file,
        "record": continuation.record,
        "view": continuation.view,
        "point": continuation.point.kind,
        "after_step_id": None if step is None else step + offset,
    }
