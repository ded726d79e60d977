"""The paths of a run, and the fields of its rows: which a row of each stage has, and the type of each."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from langgraph_takeover import Home, open_home
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.sandbox.interface import SandboxSpec


class RunPaths:
    """The files and directories of a run."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.repositories = out / ".repositories"
        self.logs = out / "grading"
        self.records = RecordStore(out / "records")
        self.traces = out / "traces"

    def home(self) -> AbstractContextManager[Home]:
        """Checkpoints, records and snapshots. Raises LedgerUnavailableError."""
        return open_home(self.out)

    def spec(self, config: RunConfig, task: Task) -> SandboxSpec:
        """The spec of the sandbox in which the task starts."""
        return task.build_spec(config.sandbox, config.run_id, self.repositories)


FieldType = Literal[
    "name", "text", "integer", "fraction", "truth", "list", "counts", "remainders", "usage", "unknown"
]
# fmt: off
_FIELDS_BY_TYPE: dict[FieldType, tuple[str, ...]] = {
    "name": ("record_id", "view", "point", "trace"),
    "text": (
        "outcome", "task_id", "predecessor", "successor", "model", "notes_model", "agent", "agent_version", "digest",
        "stop_reason", "detail", "patch", "prompts", "handoff_state", "retried",
        "summary_digest", "structured_digest", "note_digest", "node",
    ),
    "integer": (
        "events", "steps", "llm_calls", "prompt_tokens", "cached_tokens", "completion_tokens", "repeat",
        "first_prompt_chars", "first_prompt_tokens", "window_tokens", "recalls", "recall_events", "recall_tokens",
        "rediscovery_events", "verification_events", "stated", "contradicted", "claims", "missing_paths",
        "shown_chars", "reshown_chars", "verification_chars", "uncounted_calls", "empty_replies", "condensed",
        "fail_to_pass_failures", "pass_to_pass_failures", "patch_files", "patch_lines", "left_out_count",
        "first_request_tokens", "side_requests", "divergence_step", "tries",
    ),
    "fraction": ("seconds", "cost_usd", "divergence", "kept"),
    "truth": ("resolved", "reexamined", "verified_before_finish", "regressions", "cleaned_resolved", "malformed"),
    "list": ("records", "scratch_files", "test_files", "truncated", "missed_points", "left_out"),
    "counts": ("rediscovery", "session_account", "refused_requests"),
    "remainders": ("remainders",),
    "usage": ("usage",),
}
_COST_FIELDS = (
    "llm_calls", "prompt_tokens", "cached_tokens", "completion_tokens", "uncounted_calls", "cost_usd",
)
_RUN_FIELDS = (
    "outcome", "trace", "stop_reason", "detail", "resolved", "events", "steps", *_COST_FIELDS, "seconds", "prompts",
    "empty_replies", "condensed", "divergence", "divergence_step", "agent", "agent_version", "session_account",
    "side_requests", "refused_requests", "left_out", "left_out_count", "patch",
)
_JOB_FIELDS = ("node", "tries")
"""Of rows of a cluster."""
_TEST_FIELDS = ("fail_to_pass_failures", "pass_to_pass_failures", "regressions")
STAGE_FIELDS: dict[str, tuple[str, ...]] = {
    "predecessors": ("task_id", "predecessor", *_RUN_FIELDS, "records", "remainders", "missed_points", *_JOB_FIELDS),
    "labels": (
        "record_id", "outcome", "handoff_state", *_TEST_FIELDS, "detail", "seconds", "left_out", "left_out_count",
        *_JOB_FIELDS,
    ),
    "notes": (
        "record_id", "model", "outcome", "detail", *_COST_FIELDS, "seconds", "prompts", "usage", "truncated",
        "summary_digest", "structured_digest", "malformed", "retried", "stated", "contradicted", "claims", "missing_paths",
        *_JOB_FIELDS,
    ),
    "takeovers": (
        "record_id", "view", "successor", "repeat", "task_id", "predecessor", "point", "digest", *_RUN_FIELDS,
        *_TEST_FIELDS, "cleaned_resolved", "patch_files", "patch_lines", "scratch_files", "test_files",
        "first_request_tokens", "first_prompt_chars", "first_prompt_tokens", "window_tokens", "notes_model", "note_digest",
        "recalls", "recall_events", "recall_tokens", "shown_chars", "reshown_chars", "verification_chars",
        "rediscovery_events", "rediscovery", "verification_events", "kept", "reexamined", "verified_before_finish",
        *_JOB_FIELDS,
    ),
}
"""The fields of the rows of each stage, in the order of published tables."""
RESULT_FIELDS: dict[str, tuple[str, ...]] = {
    "predecessors": ("events", "stop_reason", "records"),
    "labels": ("handoff_state",),
    "notes": ("usage",),
    "takeovers": ("task_id", "events", "stop_reason", "resolved"),
}
"""The fields that every result of a stage has, beside its key; an infrastructure failure is not a result."""
# fmt: on
_TYPES: dict[str, FieldType] = {field: kind for kind, fields in _FIELDS_BY_TYPE.items() for field in fields}
_NAME_PATTERN = re.compile(r"(?!\.)[^/\x00-\x1f\ud800-\udfff]{1,250}")
_ALWAYS_COUNTED = ("events", "steps", "seconds", "repeat")
_LARGEST_NUMBER = 1e15


def find_type(field: str) -> FieldType:
    """The type of a field; a `name` becomes a part of paths, and an `unknown` field may have any value."""
    return _TYPES.get(field, "unknown")


def is_typed(field: str, value: Any) -> bool:
    """Whether a field of an exported row has its type."""
    kind = find_type(field)
    if kind in ("unknown", "usage"):
        return kind == "unknown" or isinstance(value, dict)
    if kind == "list":
        return isinstance(value, list) and all(isinstance(name, str) for name in value)
    if kind == "remainders":
        return isinstance(value, dict) and all(
            each is None
            or (isinstance(each, dict) and all(is_typed("prompt_tokens", n) for n in each.values()))
            for each in value.values()
        )
    if value is None:  # tokens may be unknown; counts of the runtime are always known
        return field not in ("outcome", "task_id", "rediscovery", *_ALWAYS_COUNTED)
    if kind == "counts":
        return isinstance(value, dict) and all(is_typed("events", each) for each in value.values())
    if kind == "name":
        return isinstance(value, str) and _NAME_PATTERN.fullmatch(value) is not None
    if kind == "truth":
        return isinstance(value, bool)
    if kind == "text":
        return isinstance(value, str)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= _LARGEST_NUMBER


def describe_type(field: str) -> str:
    """The type of a field, for error messages."""
    number = f"a number from 0 to {_LARGEST_NUMBER:,.0f}"
    return {
        "name": "a file name",
        "text": "text",
        "integer": number,
        "fraction": number,
        "truth": "true, false or null",
        "list": "a list of names",
        "counts": "an object of numbers",
        "remainders": "an object of objects of numbers, or nulls",
        "usage": "an object",
        "unknown": "a value",
    }[find_type(field)]
