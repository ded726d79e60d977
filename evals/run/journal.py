"""The rows of a run: one database, and exported files. A row counts once it is in the database."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import ValidationError
from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    delete,
    func,
    insert,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import IntegrityError

from langgraph_takeover.base.takeover_error import (
    LedgerUnavailableError,
    TakeoverError,
    describe_other_version,
)
from langgraph_takeover.base.untrusted_input import describe_error, parse_json, read_untrusted_file
from langgraph_takeover.evals.run.rows import (
    STAGES,
    LabelRow,
    NotesRow,
    PredecessorRow,
    Row,
    Takeover,
    describe_row_error,
)
from langgraph_takeover.handoff.ledger.database import (
    Database,
    LedgerVersionError,
    repeat_after_loss,
)
from langgraph_takeover.handoff.records.record import write_durably
from langgraph_takeover.handoff.text.redaction import redact

_RowT = TypeVar("_RowT", bound=Row)
JOURNAL_FILE = "journal.sqlite"
SCHEMA_VERSION = 3
_PAGE_SIZE = 200
_tables = MetaData()
_rows = Table(
    "takeover_rows",
    _tables,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("run", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("row", Text, nullable=False),
    Column("digest", Text, nullable=False),
    UniqueConstraint("run", "stage", "key"),
)
_runs = Table("takeover_runs", _tables, Column("run", Text, primary_key=True))
_version = Table("takeover_journal_schema", _tables, Column("version", Integer, primary_key=True))


class OutputInUseError(TakeoverError, RuntimeError):
    """Another process uses the same output directory."""


class JournalError(TakeoverError, ValueError):
    """A journal with a damaged row, or without the expected run."""


class Journal(Generic[_RowT]):
    """The rows of one stage of a run, one per key, in the order of arrival."""

    def __init__(self, database: Database, run: str, name: str, model: type[_RowT]) -> None:
        self._database = database
        self._model = model
        self.name = name
        self._filter = (_rows.c.run == run, _rows.c.stage == name)
        self._identity = {"run": run, "stage": name}

    def keys(self) -> set[tuple[Any, ...]]:
        """The keys of the rows."""
        query = select(_rows.c.number, _rows.c.key).where(*self._filter)
        with self._database.read_transaction() as connection:
            found = connection.execute(query).all()
        return {self._parse_key(number, key) for number, key in found}

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        query = select(_rows.c.number).where(*self._filter, _rows.c.key == json.dumps(key))
        with self._database.read_transaction() as connection:
            return connection.execute(query).first() is not None

    def rows(self) -> Iterator[_RowT]:
        """Every row, one page in memory at a time. May include rows that arrive meanwhile."""
        last = 0
        while True:
            page = (
                select(_rows)
                .where(*self._filter, _rows.c.number > last)
                .order_by(_rows.c.number)
                .limit(_PAGE_SIZE)
            )
            with self._database.read_transaction() as connection:
                found = connection.execute(page).all()
            for each in found:
                last = each.number
                yield self._parse_row(each)
            if len(found) < _PAGE_SIZE:
                return

    def __len__(self) -> int:
        with self._database.read_transaction() as connection:
            return connection.execute(select(func.count()).where(*self._filter)).scalar_one()

    @repeat_after_loss(idempotent=False)
    def append(self, row: _RowT) -> None:
        """Add a row, durably and without secrets. Raises ValueError if its key has a row."""
        key, row = row.key, row.require_events()
        clean = {**redact(row.to_dict()), **dict(zip(row.key_fields, key, strict=True))}
        values = {
            **self._identity,
            "key": json.dumps(key),
            "outcome": row.outcome,
            "row": json.dumps(clean),
        }
        try:
            with self._database.write_transaction() as connection:
                connection.execute(insert(_rows).values(**values, digest=_compute_digest(**values)))
        except LedgerUnavailableError as error:
            if not isinstance(error.__cause__, IntegrityError):
                raise
            raise ValueError(f"{self.name}: already has a row for {key}") from error

    def _parse_key(self, number: int, key: str) -> tuple[Any, ...]:
        try:
            found = json.loads(key)
        except (ValueError, TypeError, RecursionError) as error:
            raise self._make_damage_error(number, "its key is not JSON") from error
        if not isinstance(found, list) or len(found) != len(self._model.key_fields):
            names = ", ".join(self._model.key_fields)
            raise self._make_damage_error(number, f"its key does not name {names}")
        try:
            hash(tuple(found))
        except TypeError as error:
            raise self._make_damage_error(number, "its key is not a list of names") from error
        return tuple(found)

    def _parse_row(self, stored: Any) -> _RowT:
        number = stored.number
        values = {name: getattr(stored, name) for name in ("run", "stage", "key", "outcome", "row")}
        if not all(isinstance(value, str) for value in values.values()):
            raise self._make_damage_error(number, "it is not text")
        if stored.digest != _compute_digest(**values):
            raise self._make_damage_error(number, "it does not match its digest")
        try:
            row = json.loads(stored.row)
        except (ValueError, RecursionError) as error:
            raise self._make_damage_error(number, "it is not JSON") from error
        if not isinstance(row, dict) or row.get("outcome") != stored.outcome:
            raise self._make_damage_error(number, f"it is not a row with the outcome {stored.outcome!r:.40}")
        # A key may hold what JSON has no type for, such as a tuple.
        if json.dumps([row.get(name) for name in self._model.key_fields]) != stored.key:
            raise self._make_damage_error(number, "its fields are not those of its key")
        try:
            return self._model.model_validate(row)
        except ValidationError as error:
            raise self._make_damage_error(number, f"it {describe_row_error(error)}") from error

    def _make_damage_error(self, number: int, reason: str) -> JournalError:
        return JournalError(
            f"{self._database.name}: row {number} ({self.name}) is damaged: {reason} (restore the database from a copy, or "
            f'delete the row, so that --resume creates it again: "DELETE FROM takeover_rows WHERE number = {number}")'
        )

    def drop_failures(self) -> None:
        """Remove the rows of infrastructure failures, so that their jobs run again."""
        failed = [json.dumps(row.key) for row in self.rows() if row.is_failure]
        with self._database.write_transaction() as connection:
            for key in failed:
                connection.execute(delete(_rows).where(*self._filter, _rows.c.key == key))

    def export(self, directory: Path) -> None:
        """Write the rows to a file with one JSON object per line, replacing an earlier file."""
        write_durably(
            directory / f"{self.name}.jsonl", (json.dumps(row.to_dict()) + "\n" for row in self.rows())
        )


class Journals(NamedTuple):
    """The journals of a run's four stages."""

    predecessors: Journal[PredecessorRow]
    labels: Journal[LabelRow]
    notes: Journal[NotesRow]
    takeovers: Journal[Takeover]


class _JournalDatabase(Database):
    """The database of rows."""

    def __init__(self, url: str, run: str | None) -> None:
        """The database, which must contain the rows of `run` if passed. Raises LedgerUnavailableError or JournalError."""
        self._run = run
        super().__init__(url, _tables, _version, SCHEMA_VERSION, synchronous="FULL")
        try:
            self._check_file()
            if run is not None:
                self._check_run(run)
        except BaseException:
            self.close()
            raise

    def _check_new(self, tables: set[str]) -> None:
        if _rows.name in tables:
            raise LedgerVersionError(
                f"{self.name}: {describe_other_version(None, SCHEMA_VERSION, 'use another database')}"
            )
        if self._run is not None:  # the transaction leaves another program's database unchanged
            raise _make_missing_run_error(self.name, self._run)

    def _check_run(self, run: str) -> None:
        """Raise JournalError if the run is missing."""
        with self.read_transaction() as connection:
            found = connection.execute(select(_runs.c.run).where(_runs.c.run == run)).first()
        if found is None:
            raise _make_missing_run_error(self.name, run)

    def _check_file(self) -> None:
        """Raise LedgerUnavailableError if SQLite reports damage."""
        if not self.is_sqlite:
            return
        with self.read_transaction() as connection:
            found = connection.execute(text("PRAGMA integrity_check(1)")).scalar()
        if found != "ok":
            damage = str(found).strip().splitlines()[-1]
            raise LedgerUnavailableError(
                f"{self.name}: damaged ({damage:.200}); restore it from a copy, or recover its rows: "
                f"sqlite3 {make_url(self.url).database} .recover | sqlite3 NEW, then replace it with NEW"
            )


@contextmanager
def open_journal(out: Path, url: str | None = None, run: str | None = None) -> Iterator[Database]:
    """The database of rows: by URL, else the one in `out`. Created if missing, unless it must contain a `run`.

    Raises LedgerUnavailableError, or JournalError if it does not contain that run.
    """
    file = out / JOURNAL_FILE
    if run is not None and url is None and not (os.path.lexists(file) and not _is_empty(file)):
        raise _make_missing_run_error(str(file), run)
    database = _JournalDatabase(url or f"sqlite:///{file}", run)
    try:
        yield database
    finally:
        database.close()


def create_journal(out: Path, url: str | None, run: str) -> None:
    """Create the journal of a new run. Raises LedgerUnavailableError."""
    with open_journal(out, url) as database, database.write_transaction() as connection:
        connection.execute(insert(_runs).values(run=run))


def _is_empty(file: Path) -> bool:
    return file.is_file() and file.stat().st_size == 0


def _make_missing_run_error(name: str, run: str) -> JournalError:
    return JournalError(
        f"{name}: does not contain the rows of run {run} (restore it from a copy, or start a new run with another --out)"
    )


def _compute_digest(**values: str) -> str:
    content = json.dumps(values, sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def get_journals(database: Database, run: str) -> Journals:
    predecessors, labels, notes, takeovers = STAGES
    return Journals(
        Journal(database, run, predecessors, PredecessorRow),
        Journal(database, run, labels, LabelRow),
        Journal(database, run, notes, NotesRow),
        Journal(database, run, takeovers, Takeover),
    )


def read_export(path: Path, model: type[_RowT]) -> tuple[list[_RowT], bool]:
    """The rows of an exported file, and whether its last line is incomplete. Raises JournalError."""
    try:
        content = read_untrusted_file(path)
    except OSError as error:
        raise JournalError(f"{path}: {describe_error(error)} (restore it from a copy)") from error
    end = content.rfind(b"\n") + 1
    rows = []
    for number, line in enumerate(content[:end].splitlines(), 1):
        try:
            row = parse_json(line, nan_as_none=True)  # both mean that the count is unknown
        except ValueError as error:
            raise JournalError(f"{path}: line {number} is not JSON (repair or remove that line)") from error
        if not isinstance(row, dict) or "outcome" not in row:
            raise JournalError(f"{path}: line {number} is not a row: no field 'outcome'")
        try:
            rows.append(model.model_validate(row))
        except ValidationError as error:
            raise JournalError(
                f"{path}: row {number} ({path.stem}) {describe_row_error(error)} (restore it from a copy, or delete that row)"
            ) from error
    return rows, end < len(content)


@contextmanager
def lock_output(out: Path) -> Iterator[None]:
    """Lock the output directory for this process. Raises OutputInUseError."""
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputInUseError(
                f"{out}: another run uses this directory (wait for it, or choose another --out)"
            ) from error
        yield
