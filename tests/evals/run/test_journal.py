from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evals.run.journal import BadJournal, Journal, OutInUse, exported, journals, opened, sole_user
from handoff.ledger.database import Database

_WRITER = """
import sys
from pathlib import Path
from evals.run.journal import Journal, opened
with opened(Path(sys.argv[1])) as database:
    journal = Journal(database, "run", "rows", "a")
    for number in range(10_000):
        journal.append({"a": number, "outcome": "x", "text": "y" * 3000})
        print(number, flush=True)
"""


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = request.getfixturevalue("postgres_database") if request.param == "postgres" else None
    with opened(tmp_path, url) as found:
        yield found


def test_rows_survive_and_keys_are_unique(database: Database) -> None:
    journal = Journal(database, "run", "rows", "a", "b")
    journal.append({"a": 1, "b": "x", "outcome": "y", "text": "ü\ud800\n\0"})
    with pytest.raises(ValueError, match="already"):
        journal.append({"a": 1, "b": "x", "outcome": "y"})
    again = Journal(database, "run", "rows", "a", "b")
    assert list(again.rows()) == [{"a": 1, "b": "x", "outcome": "y", "text": "ü\ud800\n\0"}]
    assert again.keys() == {(1, "x")}
    assert len(again) == 1


def test_runs_and_stages_have_rows_of_their_own(database: Database) -> None:
    for run in ("one", "two"):
        journals(database, run).labels.append({"record_id": run, "outcome": "graded"})
    assert [row["record_id"] for row in journals(database, "two").labels.rows()] == ["two"]
    assert len(journals(database, "two").notes) == 0


def test_rows_of_failed_infrastructure_are_made_anew(database: Database) -> None:
    labels = journals(database, "run").labels
    labels.append({"record_id": "a", "outcome": "graded"})
    labels.append({"record_id": "b", "outcome": "infrastructure_failure"})
    labels.drop_failures()
    assert labels.keys() == {("a",)}
    labels.append({"record_id": "b", "outcome": "graded"})
    assert len(labels) == 2


def test_many_rows_come_page_by_page_in_their_order(database: Database) -> None:
    journal = Journal(database, "run", "rows", "a")
    for number in range(450):
        journal.append({"a": number, "outcome": "x"})
    assert [row["a"] for row in journal.rows()] == list(range(450))


def test_rows_that_were_written_outlive_a_kill(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert writer.stdout is not None
    told = [writer.stdout.readline() for _ in range(20)]
    writer.send_signal(signal.SIGKILL)
    told += writer.stdout.readlines()
    writer.wait()
    with opened(tmp_path) as database:
        found = [row["a"] for row in Journal(database, "run", "rows", "a").rows()]
    assert len(found) >= len([line for line in told if line.endswith("\n")]) >= 20
    assert found == list(range(len(found)))


@pytest.mark.parametrize("torn", ["{", '{"a": 2, "te', '{"a": 2}'])
def test_a_torn_last_line_of_an_exported_file_does_not_count(tmp_path: Path, torn: str) -> None:
    with opened(tmp_path) as database:
        journal = Journal(database, "run", "rows", "a")
        journal.append({"a": 1, "outcome": "x"})
        journal.export(tmp_path)
    path = tmp_path / "rows.jsonl"
    assert exported(path) == ([{"a": 1, "outcome": "x"}], False)
    with path.open("a") as file:
        file.write(torn)
    assert exported(path) == ([{"a": 1, "outcome": "x"}], True)


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"outcome": "x"}\nnonsense\n{"outcome": "x"}\n')
    with pytest.raises(BadJournal, match=r"rows\.jsonl: line 2 is not JSON"):
        exported(path)


def test_one_user_at_a_time(tmp_path: Path) -> None:
    with sole_user(tmp_path), pytest.raises(OutInUse), sole_user(tmp_path):
        pass
    with sole_user(tmp_path):
        pass
