"""The results of one or several runs, for reports."""

from __future__ import annotations

import itertools
import json
import os
import reprlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from langgraph_takeover.evals.run.fields import RESULT_FIELDS, RunPaths, describe_type, is_typed
from langgraph_takeover.evals.run.journal import (
    INFRASTRUCTURE_FAILURE,
    JOURNAL_FILE,
    JournalError,
    Row,
    get_journals,
    open_journal,
    read_export,
)
from langgraph_takeover.evals.run.measures.replies import list_note_digests
from langgraph_takeover.evals.run.settings.config import (
    CONFIG_FILE,
    STAGES,
    RunConfig,
    RunUsageError,
    load_config,
)
from langgraph_takeover.evals.run.settings.entries import find_model_difference
from langgraph_takeover.evals.run.settings.inputs import find_changed_input
from langgraph_takeover.handoff.readers import TraceError, read_traces
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError
from langgraph_takeover.handoff.text.files import describe_error
from langgraph_takeover.handoff.trace.events import Trace

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

    Runs that share takeovers, use one name for different records, or read different inputs, cannot be combined.
    """
    for out in outs:
        try:
            holds_run = (out / CONFIG_FILE).is_file()
        except OSError as error:
            raise RunUsageError(f"{str(out)[:200]}: {describe_error(error)}") from error
        if not holds_run:
            raise RunUsageError(f"{out}: not the directory of a run: {CONFIG_FILE} not found")
    sources = tuple(RunSource(out, load_config(out)) for out in outs)
    _check_inputs(sources)
    warnings: list[str] = []
    found: dict[str, list[Row]] = {name: [] for name in STAGES}
    for source in sources:
        for name, rows in _read_rows(source, url, warnings).items():
            found[name] += [row | {"out": str(source.out)} for row in rows]
    _check_compatible(found["takeovers"])
    _check_notes((*found["notes"], *found["takeovers"]))
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
        is_result = row["outcome"] != INFRASTRUCTURE_FAILURE
        needed = (*STAGES[name], *(RESULT_FIELDS[name] if is_result else ()))
        missing = next((field for field in needed if row.get(field) is None), None)
        if missing is not None:
            raise JournalError(
                f"{path}: row {number} ({name}) has no field {missing!r} (restore it from a copy, or delete that row)"
            )
        wrong = next((field for field in row if not is_typed(field, row[field])), None)
        if wrong is not None:
            raise JournalError(
                f"{path}: row {number} ({name}): field {wrong!r:.60} is {reprlib.repr(row[wrong])}, not {describe_type(wrong)} "
                "(restore it from a copy, or delete that row)"
            )
        first = seen.setdefault(_get_key(name, row), number)
        if first != number:
            raise JournalError(
                f"{path}: rows {first} and {number} ({name}) have one id: {_get_key(name, row)} (remove one of them)"
            )


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


def _check_inputs(sources: Sequence[RunSource]) -> None:
    """Raises RunUsageError if two runs read different inputs."""
    for one, other in itertools.combinations(sources, 2):
        changed = find_changed_input(one.config.inputs, other.config.inputs)
        shared = sorted(one.config.models.keys() & other.config.models.keys())
        entries = (find_model_difference(one.config, other.config, name) for name in shared)
        if entry := next(filter(None, entries), None):
            changed = f"the entry {entry}"
        if changed is not None:
            raise RunUsageError(
                f"{one.out} and {other.out} cannot be combined: {changed} between them (leave one of them out, or run it again)"
            )


def _check_notes(rows: Iterable[Row]) -> None:
    """Raises RunUsageError if two rows go back to different notes of one writer about one record."""
    known: dict[tuple[Any, ...], tuple[str, str]] = {}
    for row in rows:
        for note, digest in list_note_digests(row):
            writer = row.get("model") or row.get("notes_model")
            first, out = known.setdefault((row["record_id"], note, writer), (digest, row["out"]))
            if first != digest:
                where = out if out == row["out"] else f"{out} and {row['out']}"
                raise RunUsageError(
                    f"{where}: the {note} note of record {row['record_id']} changed between its takeovers "
                    "(report on the runs with the same note only)"
                )


def _get_key(name: str, row: Row) -> tuple[Any, ...]:
    return tuple(row[field] for field in STAGES[name])
