"""Append-only files of rows that survive a kill at any moment."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from handoff.record import write_durably
from handoff.redaction import redacted

Row = dict[str, Any]


class OutInUse(RuntimeError):
    """Another process works on the same output directory."""


class BadJournal(ValueError):
    """A journal with a line that cannot be read."""


class Journal:
    """One JSON object a line, one line a key; a row counts once its line is whole and on disk."""

    def __init__(self, path: Path, *key: str) -> None:
        self._path = path
        self._key = key
        self.name = path.stem
        self._rows = {self.key(row): row for row in self._whole_rows()}

    def key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self._key)

    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return key in self._rows

    def append(self, row: Row) -> None:
        """Add a row, durably and without secrets. Raises ValueError when its key has one already."""
        key = self.key(row)
        if key in self._rows:
            raise ValueError(f"{self._path}: there is a row for {key} already")
        row = {**redacted(row), **dict(zip(self._key, key, strict=True))}
        with self._path.open("ab") as file:
            file.write(json.dumps(row, ensure_ascii=True).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._rows[key] = row

    def drop(self, rows: list[Row]) -> None:
        """Take rows out again, so that they can be made anew."""
        if not rows:
            return
        for row in rows:
            self._rows.pop(self.key(row))
        write_durably(self._path, "".join(json.dumps(row) + "\n" for row in self._rows.values()))

    def _whole_rows(self) -> Iterator[Row]:
        if not self._path.exists():
            return
        content = self._path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            # A kill in the middle of a write leaves a torn last line; it never counted.
            with self._path.open("r+b") as file:
                file.truncate(end)
        for number, line in enumerate(content[:end].splitlines(), 1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise BadJournal(
                    f"{self._path}: line {number} is not JSON; mend or remove that line"
                ) from error


def open_journals(out: Path) -> tuple[Journal, Journal, Journal, Journal]:
    """Predecessors, labels, notes and takeovers, without the rows whose infrastructure had failed."""
    journals = (
        Journal(out / "predecessors.jsonl", "task_id"),
        Journal(out / "labels.jsonl", "record_id"),
        Journal(out / "notes.jsonl", "record_id"),
        Journal(out / "takeovers.jsonl", "record_id", "view", "successor", "repeat"),
    )
    drop_failures(*journals)
    return journals


def drop_failures(*journals: Journal) -> None:
    """Take out the rows whose infrastructure had failed, so that they are tried again."""
    for journal in journals:
        journal.drop([row for row in journal.rows() if row["outcome"] == "infrastructure_failure"])


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
