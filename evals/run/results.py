"""The results of one or several runs, for reports."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from langgraph_takeover.base.untrusted_input import describe_error
from langgraph_takeover.evals.run.journal import (
    JOURNAL_FILE,
    JournalError,
    get_journals,
    open_journal,
    read_export,
)
from langgraph_takeover.evals.run.measures.replies import list_note_digests
from langgraph_takeover.evals.run.rows import (
    STAGES,
    AgentRow,
    LabelRow,
    NotesRow,
    PredecessorRow,
    Row,
    Takeover,
    find_missing_field,
)
from langgraph_takeover.evals.run.settings.config import (
    CONFIG_FILE,
    RunConfig,
    RunPaths,
    RunUsageError,
    find_model_difference,
    load_config,
)
from langgraph_takeover.evals.run.settings.inputs import find_changed_input
from langgraph_takeover.handoff.readers import TraceError, read_traces
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError
from langgraph_takeover.handoff.trace.events import Trace

_RowT = TypeVar("_RowT", bound=Row)


class RunSource(NamedTuple):
    """One run and its directory."""

    out: Path
    config: RunConfig


class Results(NamedTuple):
    """Rows of runs that are reported together. Each row's `out` is the directory of its run."""

    sources: tuple[RunSource, ...]
    predecessors: tuple[PredecessorRow, ...]
    labels: tuple[LabelRow, ...]
    notes: tuple[NotesRow, ...]
    takeovers: tuple[Takeover, ...]
    warnings: tuple[str, ...]
    """Warnings about unreadable files, one line each."""

    def load_record(self, row: Takeover) -> HandoffRecord | None:
        """The record of a takeover with its notes. None if missing or damaged."""
        return load_record(row.out, row.record_id)

    def load_trace(self, row: AgentRow) -> Trace | None:
        """The trace of a predecessor's or takeover's row. None if missing or damaged."""
        if not row.trace:
            return None
        path = RunPaths(Path(row.out)).traces / f"{row.trace}.json"
        try:
            found = next(iter(read_traces(path)), None) if path.is_file() else None
        except TraceError:
            return None
        return found if isinstance(found, Trace) else None


def load_record(out: str, record_id: str) -> HandoffRecord | None:
    """A record with its notes. None if missing or damaged."""
    try:
        return RunPaths(Path(out)).records.load(record_id)
    except RecordError:
        return None


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
    found = _Stages([], [], [], [])
    for source in sources:
        own = _read_rows(source, url, warnings)
        for name in STAGES:
            getattr(found, name).extend(row.change(out=str(source.out)) for row in getattr(own, name))
    _check_compatible(found.takeovers)
    _check_notes((*found.notes, *found.takeovers))
    return Results(
        sources=sources,
        predecessors=_sort(_merge_shared_rows("predecessors", found.predecessors)),
        labels=_sort(_merge_shared_rows("labels", found.labels)),
        notes=_sort(_merge_shared_rows("notes", found.notes)),
        takeovers=_sort(found.takeovers),
        warnings=tuple(warnings),
    )


class _Stages(NamedTuple):
    """The rows of each stage."""

    predecessors: list[PredecessorRow]
    labels: list[LabelRow]
    notes: list[NotesRow]
    takeovers: list[Takeover]


def _sort(rows: Iterable[_RowT]) -> tuple[_RowT, ...]:
    """The rows by key. Jobs end in any order: no table or note may depend on it."""
    return tuple(sorted(rows, key=lambda row: tuple(map(str, row.key))))


def _read_rows(source: RunSource, url: str | None, warnings: list[str]) -> _Stages:
    """From the journal, or from exported files if no journal exists."""
    # A journal that cannot be opened must not be replaced by an older export.
    if url is not None or os.path.lexists(source.out / JOURNAL_FILE):
        with open_journal(source.out, url, source.config.run_id) as database:
            journals = get_journals(database, source.config.run_id)
            found = _Stages(
                list(journals.predecessors.rows()),
                list(journals.labels.rows()),
                list(journals.notes.rows()),
                list(journals.takeovers.rows()),
            )
        path = source.out / JOURNAL_FILE if url is None else Path(database.name)
        for name in STAGES:
            _check_rows(path, name, getattr(found, name))
        return found
    path = source.out / "takeovers.jsonl"
    if not path.is_file():
        raise RunUsageError(f"{source.out}: nothing to report: neither {JOURNAL_FILE} nor {path.name} found")
    return _Stages(
        _read_export(source, "predecessors", PredecessorRow, warnings),
        _read_export(source, "labels", LabelRow, warnings),
        _read_export(source, "notes", NotesRow, warnings),
        _read_export(source, "takeovers", Takeover, warnings),
    )


def _read_export(source: RunSource, name: str, model: type[_RowT], warnings: list[str]) -> list[_RowT]:
    """The rows of an exported file; none if it is missing."""
    path = source.out / f"{name}.jsonl"
    rows, torn = read_export(path, model) if path.is_file() else ([], False)
    _check_rows(path, name, rows)
    if torn:
        warnings.append(f"{path}: its last line is incomplete and ignored")
    return rows


def _check_rows(path: Path, name: str, rows: Iterable[Row]) -> None:
    seen: dict[tuple[Any, ...], int] = {}
    for number, row in enumerate(rows, 1):
        missing = None if row.is_failure else find_missing_field(row)
        if missing is not None:
            raise JournalError(
                f"{path}: row {number} ({name}) has no field {missing!r} (restore it from a copy, or delete that row)"
            )
        first = seen.setdefault(row.key, number)
        if first != number:
            raise JournalError(
                f"{path}: rows {first} and {number} ({name}) have one id: {row.key} (remove one of them)"
            )


def _check_compatible(takeovers: Iterable[Takeover]) -> None:
    owners: dict[tuple[Any, ...], str] = {}
    digests: dict[str, tuple[str | None, str]] = {}
    for row in takeovers:
        if row.key in owners:
            raise RunUsageError(
                f"{owners[row.key]} and {row.out} both contain the takeover {' '.join(map(str, row.key))} (leave one of them out)"
            )
        owners[row.key] = row.out
        digest, out = digests.setdefault(row.record_id, (row.digest, row.out))
        if row.digest is not None and row.digest != digest:
            raise RunUsageError(
                f"{out} and {row.out} contain different records {row.record_id}, so they cannot be combined "
                "(compare them with takeover-compare)"
            )


def _merge_shared_rows(name: str, rows: Iterable[_RowT]) -> list[_RowT]:
    """The rows of a stage that runs share if one reuses the records of another. Raises RunUsageError if two differ."""
    merged: dict[tuple[Any, ...], _RowT] = {}
    for row in rows:
        known = merged.setdefault(row.key, row)
        is_complete = not (row.is_failure or known.is_failure)
        if is_complete and _get_content(row) != _get_content(known):
            raise RunUsageError(
                f"{known.out} and {row.out} contain different {name} with the id {' '.join(map(str, row.key))}, "
                "so they cannot be combined (compare them with takeover-compare)"
            )
    return list(merged.values())


def _get_content(row: Row) -> object:
    """What two runs of the same records have in common. A run may grade a snapshot again."""
    if isinstance(row, LabelRow):
        return row.outcome, row.handoff_state, row.fail_to_pass_failures
    return row.change(out="", seconds=None)


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


def _check_notes(rows: Iterable[NotesRow | Takeover]) -> None:
    """Raises RunUsageError if two rows go back to different notes of one writer about one record."""
    known: dict[tuple[Any, ...], tuple[str, str]] = {}
    for row in rows:
        for note, digest in list_note_digests(row):
            writer = row.model if isinstance(row, NotesRow) else row.notes_model
            first, out = known.setdefault((row.record_id, note, writer), (digest, row.out))
            if first != digest:
                where = out if out == row.out else f"{out} and {row.out}"
                raise RunUsageError(
                    f"{where}: the {note} note of record {row.record_id} changed between its takeovers "
                    "(report on the runs with the same note only)"
                )
