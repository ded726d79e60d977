from __future__ import annotations

from pathlib import Path

import pytest

from evals.journal import BadJournal, Journal, OutInUse, open_journals, sole_user


def test_rows_survive_and_keys_are_unique(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl", "a", "b")
    journal.append({"a": 1, "b": "x", "text": "ü\ud800\n"})
    with pytest.raises(ValueError, match="already"):
        journal.append({"a": 1, "b": "x"})
    again = Journal(tmp_path / "rows.jsonl", "a", "b")
    assert again.rows() == [{"a": 1, "b": "x", "text": "ü\ud800\n"}]
    assert (1, "x") in again
    assert (1, "y") not in again


@pytest.mark.parametrize("torn", [b"{", b'{"a": 2, "te', b'{"a": 2}'])
def test_a_torn_last_line_is_taken_out_before_the_next_row(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n' + torn)
    journal = Journal(path, "a")
    assert journal.rows() == [{"a": 1}]
    journal.append({"a": 3})
    assert path.read_bytes() == b'{"a": 1}\n{"a": 3}\n'


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\nnonsense\n{"a": 2}\n')
    with pytest.raises(BadJournal, match=r"rows\.jsonl: line 2 is not JSON"):
        Journal(path, "a")


def test_rows_of_failed_infrastructure_are_made_anew(tmp_path: Path) -> None:
    _, labels, _, _ = open_journals(tmp_path)
    labels.append({"record_id": "a", "outcome": "graded"})
    labels.append({"record_id": "b", "outcome": "infrastructure_failure"})
    _, again, _, _ = open_journals(tmp_path)
    assert [row["record_id"] for row in again.rows()] == ["a"]
    again.append({"record_id": "b", "outcome": "graded"})
    assert len(open_journals(tmp_path)[1].rows()) == 2


def test_one_user_at_a_time(tmp_path: Path) -> None:
    with sole_user(tmp_path), pytest.raises(OutInUse), sole_user(tmp_path):
        pass
    with sole_user(tmp_path):
        pass
