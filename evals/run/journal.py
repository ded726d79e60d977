"""The rows of a run: one database of them, in which a row counts once it is there, and files of them for people."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Column, Integer, MetaData, Table, Text, UniqueConstraint, delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from evals.run.config import STAGES
from handoff.ledger.database import Database, LedgerUnusable
from handoff.record import write_durably
from handoff.redaction import redacted

Row = dict[str, Any]
JOURNAL_FILE = "journal.sqlite"
FAILED = "infrastructure_failure"
_PAGE = 200
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
    UniqueConstraint("run", "stage", "key"),
)


class OutInUse(RuntimeError):
    """Another process works on the same output directory."""


class BadJournal(ValueError):
    """A journal that cannot be read."""


class Journal:
    """The rows of one stage of a run, one a key, in the order that they came in."""

    def __init__(self, database: Database, run: str, name: str, *key: str) -> None:
        self._database = database
        self._key = key
        self.name = name
        self._mine = (_rows.c.run == run, _rows.c.stage == name)
        self._named = {"run": run, "stage": name}

    def key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self._key)

    def keys(self) -> set[tuple[Any, ...]]:
        """The keys that have a row."""
        with self._database.reading() as connection:
            found = connection.execute(select(_rows.c.key).where(*self._mine)).scalars().all()
        return {tuple(json.loads(key)) for key in found}

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        asked = select(_rows.c.number).where(*self._mine, _rows.c.key == json.dumps(key))
        with self._database.reading() as connection:
            return connection.execute(asked).first() is not None

    def rows(self) -> Iterator[Row]:
        """Every row, a page of them in memory at a time; those that come meanwhile may be among them."""
        last = 0
        while True:
            page = (
                select(_rows.c.number, _rows.c.row)
                .where(*self._mine, _rows.c.number > last)
                .order_by(_rows.c.number)
                .limit(_PAGE)
            )
            with self._database.reading() as connection:
                found = connection.execute(page).all()
            for number, row in found:
                last = number
                yield json.loads(row)
            if len(found) < _PAGE:
                return

    def __len__(self) -> int:
        with self._database.reading() as connection:
            return connection.execute(select(func.count()).where(*self._mine)).scalar_one()

    def append(self, row: Row) -> None:
        """Add a row, durably and without secrets. Raises ValueError when its key has one already."""
        key = self.key(row)
        clean = {**redacted(row), **dict(zip(self._key, key, strict=True))}
        values = {"key": json.dumps(key), "outcome": row["outcome"], "row": json.dumps(clean)}
        try:
            with self._database.writing() as connection:
                connection.execute(insert(_rows).values(**self._named, **values))
        except LedgerUnusable as error:
            if not isinstance(error.__cause__, IntegrityError):
                raise
            raise ValueError(f"{self.name}: there is a row for {key} already") from error

    def drop_failures(self) -> None:
        """Take out the rows whose infrastructure had failed, so that they are tried again."""
        with self._database.writing() as connection:
            connection.execute(delete(_rows).where(*self._mine, _rows.c.outcome == FAILED))

    def export(self, directory: Path) -> None:
        """Write the rows to a file of one JSON object a line, which takes the place of an earlier one."""
        write_durably(directory / f"{self.name}.jsonl", (json.dumps(row) + "\n" for row in self.rows()))


class Journals(NamedTuple):
    """Those of a run's four stages."""

    predecessors: Journal
    labels: Journal
    notes: Journal
    takeovers: Journal


@contextmanager
def opened(out: Path, url: str | None = None) -> Iterator[Database]:
    """The database of rows: by URL, else the one in `out`. Raises LedgerUnusable."""
    database = Database(url or f"sqlite:///{out / JOURNAL_FILE}", _tables, synchronous="FULL")
    try:
        yield database
    finally:
        database.close()


def journals(database: Database, run: str) -> Journals:
    return Journals(*(Journal(database, run, name, *key) for name, key in STAGES.items()))


def exported(path: Path) -> tuple[list[Row], bool]:
    """The rows of an exported file, and whether its last line is torn off. Raises BadJournal."""
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    rows = []
    for number, line in enumerate(content[:end].splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadJournal(f"{path}: line {number} is not JSON; mend or remove that line") from error
        if not isinstance(row, dict) or "outcome" not in row:
            raise BadJournal(f"{path}: line {number} is no row: it has no field 'outcome'")
        rows.append(row)
    return rows, end < len(content)


@contextmanager
def sole_user(out: Path) -> Iterator[None]:
    """Hold the output directory for this process alone. Raises OutInUse."""
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutInUse(
                f"{out}: another run is at work there; wait for it or choose another --out"
            ) from error
        yield
