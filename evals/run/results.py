"""All that one or several runs left, for whoever reports on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evals.run.config import CONFIG_FILE, STAGES, BadUsage, RunConfig, load_config
from evals.run.journal import JOURNAL_FILE, BadJournal, Row, exported, journals, opened
from evals.run.places import Places
from handoff.readers import BadTrace, read
from handoff.record import HandoffRecord, RecordRefused
from handoff.trace import Trace


class Source(NamedTuple):
    """One run and its directory."""

    out: Path
    config: RunConfig


class Results(NamedTuple):
    """Rows of runs that are reported on as one; each row's `out` is the directory that it comes from.

    What the rows hold is in docs/results.md. A row whose `outcome` is `infrastructure_failure` has no measures.
    """

    sources: tuple[Source, ...]
    predecessors: tuple[Row, ...]
    labels: tuple[Row, ...]
    notes: tuple[Row, ...]
    takeovers: tuple[Row, ...]
    warnings: tuple[str, ...]
    """What could not be read, in one line each."""

    def record(self, row: Row) -> HandoffRecord | None:
        """The record of a row, its notes with it; None where it is not at hand or not whole."""
        try:
            return Places(Path(row["out"])).records.load(row["record_id"])
        except RecordRefused:
            return None

    def trace(self, row: Row) -> Trace | None:
        """The trace of a predecessor's or a takeover's row; None where it is not at hand or not whole."""
        if not row.get("trace"):
            return None
        path = Places(Path(row["out"])).traces / f"{row['trace']}.json"
        try:
            found = next(iter(read(path)), None) if path.is_file() else None
        except BadTrace:
            return None
        return found if isinstance(found, Trace) else None


def load(outs: Sequence[Path], url: str | None = None) -> Results:
    """The rows of all these runs. Raises BadUsage, BadJournal or LedgerUnusable.

    Runs that share takeovers, or call different records by one name, cannot be taken together.
    """
    for out in outs:
        if not (out / CONFIG_FILE).is_file():
            raise BadUsage(f"{out}: it holds no run, for there is no {CONFIG_FILE} in it")
    sources = tuple(Source(out, load_config(out)) for out in outs)
    warnings: list[str] = []
    found: dict[str, list[Row]] = {name: [] for name in STAGES}
    for source in sources:
        for name, rows in _rows(source, url, warnings).items():
            found[name] += [row | {"out": str(source.out)} for row in rows]
    _check_together(found["takeovers"])
    for name in ("predecessors", "labels", "notes"):  # shared by runs that took over the same records
        found[name] = list({_key(name, row): row for row in reversed(found[name])}.values())[::-1]
    together = {name: tuple(rows) for name, rows in found.items()}
    return Results(sources=sources, warnings=tuple(warnings), **together)


def _rows(source: Source, url: str | None, warnings: list[str]) -> dict[str, list[Row]]:
    """From the journal; from the files that it was exported to where there is none."""
    if url is not None or (source.out / JOURNAL_FILE).is_file():
        with opened(source.out, url) as database:
            stages = journals(database, source.config.run_id)
            return {journal.name: list(journal.rows()) for journal in stages}
    found = {}
    for name in STAGES:
        path = source.out / f"{name}.jsonl"
        if name == "takeovers" and not path.is_file():
            raise BadUsage(
                f"{source.out}: it has neither {JOURNAL_FILE} nor {path.name}; nothing to report on"
            )
        found[name], torn = exported(path) if path.is_file() else ([], False)
        _check_rows(path, name, found[name])
        if torn:
            warnings.append(f"{path}: its last line is torn off and does not count")
    return found


def _check_rows(path: Path, name: str, rows: Iterable[Row]) -> None:
    seen: set[tuple[Any, ...]] = set()
    for number, row in enumerate(rows, 1):
        missing = [field for field in STAGES[name] if field not in row]
        if missing:
            raise BadJournal(f"{path}: line {number} has no field {missing[0]!r}")
        if _key(name, row) in seen:
            raise BadJournal(f"{path}: line {number}: there is a row for {_key(name, row)} already")
        seen.add(_key(name, row))


def _check_together(takeovers: list[Row]) -> None:
    owners: dict[tuple[Any, ...], str] = {}
    digests: dict[str, tuple[str, str]] = {}
    for row in takeovers:
        key, out = _key("takeovers", row), row["out"]
        if key in owners:
            raise BadUsage(
                f"{owners[key]} and {out} both have the takeover {' '.join(map(str, key))}; leave one of them out"
            )
        owners[key] = out
        known = digests.setdefault(row["record_id"], (row.get("digest", ""), out))
        if row.get("digest", known[0]) != known[0]:
            raise BadUsage(
                f"{known[1]} and {out} have different records {row['record_id']}; they cannot be one table: "
                "compare them by python -m evals.compare"
            )


def _key(name: str, row: Row) -> tuple[Any, ...]:
    return tuple(row[field] for field in STAGES[name])
