"""The results of one or several runs, for reports."""

from __future__ import annotations

import json
import os
import re
import reprlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from langgraph_takeover.evals.run.journal import (
    INFRASTRUCTURE_FAILURE,
    JOURNAL_FILE,
    JournalError,
    Row,
    get_journals,
    open_journal,
    read_export,
)
from langgraph_takeover.evals.run.paths import RunPaths
from langgraph_takeover.evals.run.settings.config import (
    CONFIG_FILE,
    STAGES,
    RunConfig,
    RunUsageError,
    load_config,
)
from langgraph_takeover.handoff.readers import TraceError, read_traces
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError
from langgraph_takeover.handoff.text.files import describe_error
from langgraph_takeover.handoff.trace.events import Trace

# fmt: off
_TEXT_FIELDS = frozenset((
    "outcome", "task_id", "record_id", "predecessor", "successor", "model", "notes_model", "view", "point", "trace",
    "agent", "agent_version", "digest", "stop_reason", "detail", "patch", "prompts", "handoff_state",
))
_NAME_FIELDS = frozenset(("record_id", "view", "point", "trace"))
"""Fields that become parts of paths."""
_NAME_PATTERN = re.compile(r"(?!\.)[^/\x00-\x1f\ud800-\udfff]{1,250}")
_NUMBER_FIELDS = frozenset((
    "events", "steps", "llm_calls", "prompt_tokens", "cached_tokens", "completion_tokens", "seconds", "repeat",
    "first_prompt_chars", "first_prompt_tokens", "window_tokens", "recalls", "recall_events", "recall_tokens",
    "rediscovery_events", "verification_events", "claims", "contradicted", "unsupported", "repeated",
    "shown_chars", "reshown_chars", "verification_chars", "kept",
    "uncounted_calls", "cost_usd", "empty_replies", "condensed", "fail_to_pass_failures", "pass_to_pass_failures",
    "patch_files", "patch_lines", "left_out_count", "first_request_tokens", "side_requests", "divergence", "divergence_step",
))
_TRUTH_FIELDS = frozenset((
    "resolved", "reexamined", "verified_before_finish", "regressions", "cleaned_resolved",
))
_LIST_FIELDS = frozenset(("records", "scratch_files", "test_files", "truncated", "missed_points", "left_out"))
_COUNT_FIELDS = frozenset(("rediscovery", "session_account", "refused_requests"))
# fmt: on
_ALWAYS_COUNTED = ("events", "steps", "seconds", "repeat")
_LARGEST_NUMBER = 1e15
UNLABELLED = "unlabelled"
"""The handoff state of a record without a valid label."""
_SHARED_STAGES = ("predecessors", "labels", "notes")
"""The stages whose rows a run can reuse from another."""


class RunSource(NamedTuple):
    """One run and its directory."""

    out: Path
    config: RunConfig


class Results(NamedTuple):
    """Rows of runs that are reported together. Each row's `out` is the directory of its run.

    docs/results.md describes the fields. A row whose `outcome` is `infrastructure_failure` has no measures.
    """

    sources: tuple[RunSource, ...]
    predecessors: tuple[Row, ...]
    labels: tuple[Row, ...]
    notes: tuple[Row, ...]
    takeovers: tuple[Row, ...]
    warnings: tuple[str, ...]
    """Warnings about unreadable files, one line each."""

    def load_record(self, row: Row) -> HandoffRecord | None:
        """The record of a row with its notes. None if missing or damaged."""
        try:
            return RunPaths(Path(row["out"])).records.load(row["record_id"])
        except RecordError:
            return None

    def load_trace(self, row: Row) -> Trace | None:
        """The trace of a predecessor's or takeover's row. None if missing or damaged."""
        if not row.get("trace"):
            return None
        path = RunPaths(Path(row["out"])).traces / f"{row['trace']}.json"
        try:
            found = next(iter(read_traces(path)), None) if path.is_file() else None
        except TraceError:
            return None
        return found if isinstance(found, Trace) else None


def load_results(outs: Sequence[Path], url: str | None = None) -> Results:
    """The rows of all these runs. Raises RunUsageError, JournalError or LedgerUnavailableError.

    Runs that share takeovers, or use one name for different records, cannot be combined.
    """
    for out in outs:
        try:
            holds_run = (out / CONFIG_FILE).is_file()
        except OSError as error:
            raise RunUsageError(f"{str(out)[:200]}: {describe_error(error)}") from error
        if not holds_run:
            raise RunUsageError(f"{out}: not the directory of a run: {CONFIG_FILE} not found")
    sources = tuple(RunSource(out, load_config(out)) for out in outs)
    warnings: list[str] = []
    found: dict[str, list[Row]] = {name: [] for name in STAGES}
    for source in sources:
        for name, rows in _read_rows(source, url, warnings).items():
            found[name] += [row | {"out": str(source.out)} for row in rows]
    _check_compatible(found["takeovers"])
    warnings += _drop_old_states(found["labels"])
    for name in _SHARED_STAGES:
        found[name] = _merge_shared_rows(name, found[name])
    # Jobs end in any order: no table or note may depend on it.
    together = {
        name: tuple(sorted(rows, key=lambda row: tuple(map(str, _get_key(name, row)))))
        for name, rows in found.items()
    }
    return Results(sources=sources, warnings=tuple(warnings), **together)


def _read_rows(source: RunSource, url: str | None, warnings: list[str]) -> dict[str, list[Row]]:
    """From the journal, or from exported files if no journal exists."""
    # A journal that cannot be opened must not be replaced by an older export.
    if url is not None or os.path.lexists(source.out / JOURNAL_FILE):
        with open_journal(source.out, url, source.config.run_id) as database:
            stages = get_journals(database, source.config.run_id)
            found = {journal.name: list(journal.rows()) for journal in stages}
        for name, rows in found.items():
            _check_rows(source.out / JOURNAL_FILE if url is None else Path(database.name), name, rows)
        return found
    found = {}
    for name in STAGES:
        path = source.out / f"{name}.jsonl"
        if name == "takeovers" and not path.is_file():
            raise RunUsageError(
                f"{source.out}: nothing to report: neither {JOURNAL_FILE} nor {path.name} found"
            )
        found[name], torn = read_export(path) if path.is_file() else ([], False)
        _check_rows(path, name, found[name])
        if torn:
            warnings.append(f"{path}: its last line is incomplete and ignored")
    return found


def _check_rows(path: Path, name: str, rows: Iterable[Row]) -> None:
    seen: dict[tuple[Any, ...], int] = {}
    for number, row in enumerate(rows, 1):
        missing = [field for field in STAGES[name] if field not in row]
        if missing:
            raise JournalError(f"{path}: row {number} ({name}) has no field {missing[0]!r}")
        wrong = next((field for field in row if not _is_typed(field, row[field])), None)
        if wrong is not None:
            raise JournalError(
                f"{path}: row {number} ({name}): field {wrong!r:.60} is {reprlib.repr(row[wrong])}, not {_describe_type(wrong)} "
                "(restore it from a copy, or delete that row)"
            )
        first = seen.setdefault(_get_key(name, row), number)
        if first != number:
            raise JournalError(
                f"{path}: rows {first} and {number} ({name}) have one id: {_get_key(name, row)} (remove one of them)"
            )


def _is_typed(field: str, value: Any) -> bool:
    """Whether a field of an exported row has its type. Unknown fields may have any."""
    if field in _NAME_FIELDS and value is not None:
        return isinstance(value, str) and _NAME_PATTERN.fullmatch(value) is not None
    if field in _TEXT_FIELDS:
        return (value is None and field not in ("outcome", "task_id")) or isinstance(value, str)
    if field in _NUMBER_FIELDS:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # Tokens may be unknown; counts of the runtime are always known.
        return (value is None and field not in _ALWAYS_COUNTED) or (
            is_number and 0 <= value <= _LARGEST_NUMBER
        )
    if field in _TRUTH_FIELDS:
        return value is None or isinstance(value, bool)
    if field in _LIST_FIELDS:
        return isinstance(value, list) and all(isinstance(name, str) for name in value)
    if field in _COUNT_FIELDS:
        return (value is None and field != "rediscovery") or (
            isinstance(value, dict) and all(_is_typed("events", each) for each in value.values())
        )
    if field == "remainders":
        return isinstance(value, dict) and all(
            each is None
            or (isinstance(each, dict) and all(_is_typed("prompt_tokens", n) for n in each.values()))
            for each in value.values()
        )
    return field != "usage" or isinstance(value, dict)


def _describe_type(field: str) -> str:
    """The type of a field, for error messages."""
    if field in _NAME_FIELDS:
        return "a file name"
    if field in _TEXT_FIELDS:
        return "text"
    if field in _NUMBER_FIELDS:
        return f"a number from 0 to {_LARGEST_NUMBER:,.0f}"
    if field in _TRUTH_FIELDS:
        return "true, false or null"
    if field in _LIST_FIELDS:
        return "a list of names"
    kinds = {"remainders": "an object of objects of numbers, or nulls"}
    return kinds.get(field, "an object of numbers" if field in _COUNT_FIELDS else "an object")


def _check_compatible(takeovers: list[Row]) -> None:
    owners: dict[tuple[Any, ...], str] = {}
    digests: dict[str, tuple[str, str]] = {}
    for row in takeovers:
        key, out = _get_key("takeovers", row), row["out"]
        if key in owners:
            raise RunUsageError(
                f"{owners[key]} and {out} both contain the takeover {' '.join(map(str, key))} (leave one of them out)"
            )
        owners[key] = out
        known = digests.setdefault(row["record_id"], (row.get("digest", ""), out))
        if row.get("digest", known[0]) != known[0]:
            raise RunUsageError(
                f"{known[1]} and {out} contain different records {row['record_id']}, so they cannot be combined "
                "(compare them with takeover-compare)"
            )


def _merge_shared_rows(name: str, rows: list[Row]) -> list[Row]:
    """The rows of a stage that runs share if one reuses the records of another. Raises RunUsageError if two differ."""
    merged: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        known = merged.setdefault(_get_key(name, row), row)
        is_complete = INFRASTRUCTURE_FAILURE not in (row["outcome"], known["outcome"])
        if is_complete and _get_content(name, row) != _get_content(name, known):
            raise RunUsageError(
                f"{known['out']} and {row['out']} contain different {name} with the id {' '.join(map(str, _get_key(name, row)))}, "
                "so they cannot be combined (compare them with takeover-compare)"
            )
    return list(merged.values())


def _get_content(name: str, row: Row) -> str:
    """What two runs of the same records have in common, as JSON. A run may grade a snapshot again."""
    own = row.items()
    if name == "labels":
        own = {
            field: row.get(field) for field in ("outcome", "handoff_state", "fail_to_pass_failures")
        }.items()
    content = {field: value for field, value in own if field not in ("out", "seconds")}
    return json.dumps(content, sort_keys=True).replace("NaN", "null")  # an export has null for both


def _drop_old_states(labels: list[Row]) -> list[str]:
    """Replace states of versions in which any regression meant broken, and describe them."""
    old = [
        row
        for row in labels
        if row.get("handoff_state") == "behavior_broken" and "fail_to_pass_failures" not in row
    ]
    for row in old:
        row["handoff_state"] = UNLABELLED
    if not old:
        return []
    return [
        f"labels with behavior_broken in the regression-first order of an earlier version: {len(old)}, shown as {UNLABELLED} "
        "(relabel them in a new run with --from)"
    ]


def _get_key(name: str, row: Row) -> tuple[Any, ...]:
    return tuple(row[field] for field in STAGES[name])
