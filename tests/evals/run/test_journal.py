from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import psutil
import pytest

from langgraph_takeover.evals.run.journal import (
    JOURNAL_FILE,
    Journal,
    JournalError,
    OutputInUseError,
    _compute_digest,
    create_journal,
    get_journals,
    lock_output,
    open_journal,
    read_export,
)
from langgraph_takeover.evals.run.rows import LabelRow, Row, Takeover
from langgraph_takeover.handoff.ledger import LedgerUnavailableError
from langgraph_takeover.handoff.ledger.database import Database


class KeyRow(Row):
    key_fields: ClassVar[tuple[str, ...]] = ("a",)

    a: int


class PairRow(KeyRow):
    key_fields: ClassVar[tuple[str, ...]] = ("a", "b")

    b: str


_WRITER = """
import sys
from pathlib import Path
from langgraph_takeover.evals.run.journal import Journal, open_journal
from langgraph_takeover.evals.run.rows import Row
class KeyRow(Row):
    key_fields = ("a",)
with open_journal(Path(sys.argv[1])) as database:
    journal = Journal(database, "run", "rows", KeyRow)
    for number in range(10_000):
        journal.append(KeyRow(a=number, outcome="x", text="y" * 3000))
        print(number, flush=True)
"""


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = request.getfixturevalue("postgres_database") if request.param == "postgres" else None
    with open_journal(tmp_path, url) as found:
        yield found


def test_rows_survive_and_keys_are_unique(database: Database) -> None:
    journal = Journal(database, "run", "rows", PairRow)
    journal.append(PairRow.model_validate({"a": 1, "b": "x", "outcome": "y", "text": "ü\ud800\n\0"}))
    with pytest.raises(ValueError, match="already"):
        journal.append(PairRow(a=1, b="x", outcome="y"))
    again = Journal(database, "run", "rows", PairRow)
    assert [row.to_dict() for row in again.rows()] == [
        {"a": 1, "b": "x", "outcome": "y", "text": "ü\ud800\n\0"}
    ]
    assert again.keys() == {(1, "x")}
    assert len(again) == 1


def test_runs_and_stages_have_separate_rows(database: Database) -> None:
    for run in ("one", "two"):
        get_journals(database, run).labels.append(LabelRow(record_id=run, outcome="graded"))
    assert [row.record_id for row in get_journals(database, "two").labels.rows()] == ["two"]
    assert len(get_journals(database, "two").notes) == 0


def test_rows_of_infrastructure_failures_are_replaced(database: Database) -> None:
    labels = get_journals(database, "run").labels
    labels.append(LabelRow(record_id="a", outcome="graded"))
    labels.append(LabelRow(record_id="b", outcome="infrastructure_failure"))
    labels.drop_failures()
    assert labels.keys() == {("a",)}
    labels.append(LabelRow(record_id="b", outcome="graded"))
    assert len(labels) == 2


def test_a_row_without_events_is_no_result(database: Database) -> None:
    takeovers = get_journals(database, "run").takeovers
    row = {
        "record_id": "a",
        "view": "v",
        "successor": "s",
        "repeat": 1,
        "outcome": "graded",
        "resolved": True,
    }
    takeovers.append(Takeover.model_validate(row | {"events": 0}))
    takeovers.append(Takeover.model_validate(row | {"repeat": 2, "events": 2}))
    first, second = takeovers.rows()
    assert (first.is_failure, first.resolved) == (True, None)
    assert second.resolved is True
    takeovers.drop_failures()
    assert len(takeovers) == 1


@pytest.mark.slow
def test_many_rows_come_page_by_page_in_their_order(database: Database) -> None:
    journal = Journal(database, "run", "rows", KeyRow)
    for number in range(450):
        journal.append(KeyRow(a=number, outcome="x"))
    assert [row.key[0] for row in journal.rows()] == list(range(450))


def test_written_rows_survive_a_kill(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(20)]
    writer.send_signal(signal.SIGKILL)
    lines += writer.stdout.readlines()
    writer.wait()
    with open_journal(tmp_path) as database:
        found = [row.key[0] for row in Journal(database, "run", "rows", KeyRow).rows()]
    assert len(found) >= len([line for line in lines if line.endswith("\n")]) >= 20
    assert found == list(range(len(found)))


@pytest.mark.parametrize("torn", ["{", '{"a": 2, "te', '{"a": 2}'])
def test_a_torn_last_line_of_an_exported_file_does_not_count(tmp_path: Path, torn: str) -> None:
    with open_journal(tmp_path) as database:
        journal = Journal(database, "run", "rows", KeyRow)
        journal.append(KeyRow(a=1, outcome="x"))
        journal.export(tmp_path)
    path = tmp_path / "rows.jsonl"
    assert read_export(path, KeyRow) == ([KeyRow(a=1, outcome="x")], False)
    with path.open("a") as file:
        file.write(torn)
    assert read_export(path, KeyRow) == ([KeyRow(a=1, outcome="x")], True)


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1, "outcome": "x"}\nnonsense\n{"a": 2, "outcome": "x"}\n')
    with pytest.raises(JournalError, match=r"rows\.jsonl: line 2 is not JSON"):
        read_export(path, KeyRow)


def test_one_user_at_a_time(tmp_path: Path) -> None:
    with lock_output(tmp_path), pytest.raises(OutputInUseError), lock_output(tmp_path):
        pass
    with lock_output(tmp_path):
        pass


def _journal(out: Path) -> Path:
    """The journal file of a run with two rows."""
    create_journal(out, None, "run")
    with open_journal(out, run="run") as database:
        journal = Journal(database, "run", "rows", KeyRow)
        for number in range(2):
            journal.append(KeyRow.model_validate({"a": number, "outcome": "x", "text": "y" * 6000}))
    return out / JOURNAL_FILE


def _read(out: Path) -> tuple[Any, Any]:
    with open_journal(out, run="run") as database:
        journal = Journal(database, "run", "rows", KeyRow)
        return journal.keys(), list(journal.rows())


def _overwrite(start: int, content: bytes) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        whole = bytearray(file.read_bytes())
        whole[start : start + len(content)] = content
        file.write_bytes(whole)

    return damage


def _replace(old: bytes, new: bytes) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        whole = file.read_bytes()
        assert old in whole
        file.write_bytes(whole.replace(old, new))

    return damage


def _execute(*statements: str) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        with contextlib.closing(sqlite3.connect(file)) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()

    return damage


def _forge(row: str, number: int = 1) -> Callable[[Path], None]:
    """Replace a row, with the digest that fits."""

    def damage(file: Path) -> None:
        with contextlib.closing(sqlite3.connect(file)) as database:
            columns = ("run", "stage", "key", "outcome")
            query = f"SELECT {', '.join(columns)} FROM takeover_rows WHERE number = {number}"
            stored = dict(zip(columns, database.execute(query).fetchone(), strict=True))
            digest = _compute_digest(**stored, row=row)
            database.execute(
                f"UPDATE takeover_rows SET row = ?, digest = ? WHERE number = {number}", (row, digest)
            )
            database.commit()

    return damage


def _put(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        file.unlink()
        make(file)

    return damage


_DAMAGED_JOURNALS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda file: os.truncate(file, 20_000), "restore it from a copy"),
    "header": (_overwrite(0, b"x" * 100), "no SQLite database"),
    "zero pages": (_overwrite(4096, bytes(60_000)), "restore it from a copy"),
    "schema": (_replace(b"CREATE TABLE", b"CREAXE TABLE"), "restore it from a copy"),
    "renamed column": (_replace(b"outcome TEXT", b"autcome TEXT"), "restore it from a copy"),
    "index": (_replace(b"rows[0]", b"rows[2]"), "damaged .*; restore it from a copy"),
    "letter of a row": (
        _replace(b"yyyy" * 700, b"yyyx" * 700),
        r"row 1 \(rows\) is damaged: it does not match",
    ),
    "bytes": (_execute("UPDATE takeover_rows SET row = x'ff00'"), "row 1 .* not text"),
    "encoding": (_execute("UPDATE takeover_rows SET row = CAST(x'ff00' AS TEXT)"), "restore it from a copy"),
    "not JSON": (_forge("[1", 2), "row 2 .* is not JSON"),
    "nesting": (_forge("[" * 100_000), "row 1 .* is not JSON"),
    "list": (_forge("[1]"), "row 1 .* not a row with"),
    "field": (_forge('{"outcome": "x", "a": 7}'), "row 1 .* not those of its key"),
    "key": (_execute("UPDATE takeover_rows SET key = '{}' WHERE number = 1"), "row 1 .* does not name a"),
    "nested key": (
        _execute("UPDATE takeover_rows SET key = '[[1]]' WHERE number = 1"),
        "row 1 .* list of names",
    ),
    "newer": (
        _execute("UPDATE takeover_journal_schema SET version = 99"),
        "schema version 99.*update the program",
    ),
    "older": (
        _execute("UPDATE takeover_journal_schema SET version = 2"),
        r"schema version 2, which version 0\.1 reads",
    ),
    "oldest": (_execute("DROP TABLE takeover_journal_schema"), "schema version None"),
    "run": (_execute("DELETE FROM takeover_runs"), r"does not contain the rows of run run \(restore it"),
    "missing": (Path.unlink, r"does not contain the rows of run run \(restore it"),
    "empty": (lambda file: file.write_bytes(b""), r"does not contain the rows of run run \(restore it"),
    "another program's": (
        _put(_execute("CREATE TABLE bookmarks (a)")),
        "does not contain the rows of run run",
    ),
    "directory": (_put(Path.mkdir), "a directory; .*move journal.sqlite away"),
    "fifo": (_put(os.mkfifo), "a FIFO; .*move journal.sqlite away"),
    "device": (_put(lambda file: file.symlink_to("/dev/zero")), "a device; .*move journal.sqlite away"),
    "dangling": (_put(lambda file: file.symlink_to("nowhere")), "a symlink to a missing file; "),
    "loop": (_put(lambda file: file.symlink_to(file.name)), "too many levels of symbolic links"),
}


@pytest.mark.cases(8)
@pytest.mark.parametrize("kind", _DAMAGED_JOURNALS)
def test_a_damaged_journal_is_a_one_line_error(tmp_path: Path, kind: str) -> None:
    damage, expected = _DAMAGED_JOURNALS[kind]
    file = _journal(tmp_path)
    damage(file)
    with pytest.raises((JournalError, LedgerUnavailableError), match=expected) as raised:
        _read(tmp_path)
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_no_bit_flip_in_a_journal_changes_a_row(tmp_path: Path) -> None:
    file = _journal(tmp_path)
    whole, random = file.read_bytes(), Random(22)
    found = _read(tmp_path)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[random.randrange(len(whole))] ^= 1 << random.randrange(8)
        file.write_bytes(damaged)
        for beside in ("-wal", "-shm"):
            Path(f"{file}{beside}").unlink(missing_ok=True)
        try:
            assert _read(tmp_path) == found
        except (JournalError, LedgerUnavailableError):
            refused += 1
    assert refused > 10


def test_another_programs_database_is_left_unchanged(tmp_path: Path) -> None:
    file = tmp_path / JOURNAL_FILE
    _execute("CREATE TABLE bookmarks (a)")(file)
    with pytest.raises(JournalError), open_journal(tmp_path, run="run"):
        pass
    with contextlib.closing(sqlite3.connect(file)) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("bookmarks",)]


def test_a_damaged_row_can_be_deleted_and_replaced(tmp_path: Path) -> None:
    file = _journal(tmp_path)
    _execute("UPDATE takeover_rows SET row = '{}' WHERE number = 1")(file)
    with pytest.raises(JournalError) as raised:
        _read(tmp_path)
    _execute(str(raised.value).split('"')[1])(file)
    with open_journal(tmp_path, run="run") as database:
        assert Journal(database, "run", "rows", KeyRow).keys() == {(1,)}


def test_a_refused_database_is_closed(tmp_path: Path) -> None:
    create_journal(tmp_path, None, "run")
    newer = tmp_path / "newer.sqlite"
    with sqlite3.connect(newer) as connection:
        connection.execute("CREATE TABLE takeover_journal_schema (version INTEGER)")
        connection.execute("INSERT INTO takeover_journal_schema VALUES (99)")
    connection.close()
    # The caught errors keep references to the frames that raised them.
    with pytest.raises(JournalError) as missing, open_journal(tmp_path, run="other"):
        pass
    with pytest.raises(LedgerUnavailableError) as refused, open_journal(tmp_path, f"sqlite:///{newer}"):
        pass
    assert "other" in str(missing.value)
    assert "schema version 99" in str(refused.value)
    assert [each for each in psutil.Process().open_files() if each.path.startswith(str(tmp_path))] == []
