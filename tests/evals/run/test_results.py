from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.run.journal import JournalError
from langgraph_takeover.evals.run.results import load_results
from langgraph_takeover.evals.run.settings.config import RunUsageError
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.trace.events import Trace

pytestmark = pytest.mark.slow


@pytest.fixture
def run_files(complete_run: Path, tmp_path: Path) -> Path:
    """A published run, without its database."""
    out = tmp_path / "published"
    out.mkdir()
    for name in ("config.json", "predecessors.jsonl", "labels.jsonl", "notes.jsonl", "takeovers.jsonl"):
        shutil.copy(complete_run / name, out / name)
    return out


def rewrite_file(out: Path, name: str, **changes: Any) -> None:
    """Change fields in every line of a file of rows."""
    path = out / f"{name}.jsonl"
    rows = [json.loads(line) | changes for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_rows_lead_to_records_and_traces(complete_run: Path) -> None:
    results = load_results([complete_run])
    assert (len(results.predecessors), len(results.labels), len(results.notes)) == (2, 5, 5)
    assert len(results.takeovers) == 35
    for row in results.takeovers:
        record, trace = results.load_record(row), results.load_trace(row)
        assert isinstance(record, HandoffRecord)
        assert isinstance(trace, Trace)
        assert len(trace.events) == row.events
        assert trace.continues is not None
        assert trace.continues.record == record.id


def test_every_field_of_a_row_is_a_column(complete_run: Path) -> None:
    results = load_results([complete_run])
    rows = (*results.predecessors, *results.labels, *results.notes, *results.takeovers)
    assert {name for row in rows for name in row.model_extra or ()} == set()


def test_exported_files_equal_the_journal(complete_run: Path, run_files: Path) -> None:
    journal, files = load_results([complete_run]), load_results([run_files])
    for ours, theirs in zip(journal.takeovers, files.takeovers, strict=True):
        assert ours.change(out="") == theirs.change(out="")
    assert files.load_record(files.takeovers[0]) is None
    assert files.load_trace(files.takeovers[0]) is None


def test_a_torn_last_line_is_reported(run_files: Path) -> None:
    path = run_files / "takeovers.jsonl"
    path.write_text(path.read_text()[:-20])
    results = load_results([run_files])
    assert len(results.takeovers) == 34
    assert results.warnings == (f"{path}: its last line is incomplete and ignored",)


def test_runs_of_two_successors_are_one_table(complete_run: Path, run_files: Path) -> None:
    rewrite_file(run_files, "takeovers", successor="openai:other")
    results = load_results([complete_run, run_files])
    assert len(results.takeovers) == 70
    assert len(results.labels) == 5
    assert {row.out for row in results.takeovers} == {str(complete_run), str(run_files)}


def test_overlapping_runs_are_refused(complete_run: Path, run_files: Path) -> None:
    with pytest.raises(RunUsageError, match=r"both contain the takeover .* \(leave one of them out"):
        load_results([complete_run, run_files])


def test_different_records_of_the_same_name_are_refused(complete_run: Path, run_files: Path) -> None:
    rewrite_file(run_files, "takeovers", successor="openai:other", digest="sha256:0")
    with pytest.raises(RunUsageError, match=r"different records .*takeover-compare"):
        load_results([complete_run, run_files])


def test_a_row_without_its_key_is_named(run_files: Path) -> None:
    rewrite_file(run_files, "labels", record_id=None)
    with pytest.raises(JournalError, match=r"labels\.jsonl: row 1 \(labels\) has no field 'record_id'"):
        load_results([run_files])


def test_a_value_of_another_type_is_named(run_files: Path) -> None:
    rewrite_file(run_files, "takeovers", steps="many")
    with pytest.raises(
        JournalError,
        match=r"takeovers\.jsonl: row 1 \(takeovers\) has the field 'steps' 'many': not a number from 0 .*restore",
    ):
        load_results([run_files])


def test_a_directory_without_rows_is_named(run_files: Path) -> None:
    (run_files / "takeovers.jsonl").unlink()
    with pytest.raises(RunUsageError, match="nothing to report: neither"):
        load_results([run_files])


def test_a_torn_trace_is_missing(complete_run: Path, run_files: Path) -> None:
    shutil.copytree(complete_run / "traces", run_files / "traces")
    first, second = load_results([run_files]).takeovers[:2]
    path = run_files / "traces" / f"{first.trace}.json"
    path.write_bytes(path.read_bytes()[:-100])
    assert load_results([run_files]).load_trace(first) is None
    assert isinstance(load_results([run_files]).load_trace(second), Trace)
