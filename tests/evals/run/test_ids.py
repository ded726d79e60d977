"""One id means one thing: two rows, labels, notes or models with the same id are refused, and both are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.notes import main as notes_main
from langgraph_takeover.evals.reports.detector_labels import LabelError, read_labels
from langgraph_takeover.evals.run.journal import JournalError
from langgraph_takeover.evals.run.results import load_results
from langgraph_takeover.evals.run.settings.config import RunUsageError

from ...chat_server import ChatServer
from ...command_line import call_main
from ..conftest import RunCommand, assert_refused, rewrite_rows
from ..models.test_recordings import edit, write_recording


@pytest.fixture
def other_rows(published_rows: Path, tmp_path: Path) -> Path:
    """The same records, taken over by another successor."""
    other = Path(shutil.copytree(published_rows, tmp_path / "other"))
    rewrite_rows(other, lambda row: row | {"successor": f"{row['successor']}-2"})
    return other


@pytest.mark.parametrize(
    ("stage", "changes"),
    [
        ("predecessors", {"patch": "other"}),
        ("labels", {"handoff_state": "already_solved", "fail_to_pass_failures": 0}),
        ("notes", {"prompt_tokens": 1}),
    ],
)
def test_runs_with_different_rows_of_one_id_are_refused(
    published_rows: Path, other_rows: Path, stage: str, changes: dict[str, Any]
) -> None:
    rewrite_rows(other_rows, lambda row: row | {"seconds": 1.0}, stage)
    both = load_results([published_rows, other_rows])
    assert getattr(both, stage) == getattr(load_results([published_rows]), stage)
    rewrite_rows(other_rows, lambda row: row | changes, stage)
    with pytest.raises(
        RunUsageError, match=rf"^{published_rows} and {other_rows} contain different {stage} "
    ):
        load_results([published_rows, other_rows])
    rewrite_rows(other_rows, lambda row: row | {"outcome": "infrastructure_failure"}, stage)
    load_results([published_rows, other_rows])


@pytest.mark.parametrize("stage", ["predecessors", "labels", "notes", "takeovers"])
def test_two_rows_of_one_id_in_a_file_are_refused(published_rows: Path, stage: str) -> None:
    path = published_rows / f"{stage}.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[1]]))
    with pytest.raises(JournalError, match=rf"{path}: rows 2 and {len(lines) + 1} \({stage}\) have one id"):
        load_results([published_rows])


@pytest.mark.parametrize("role", ["predecessor", "successor"])
def test_two_models_with_one_file_name_are_refused(run_main: RunCommand, tmp_path: Path, role: str) -> None:
    path = write_recording(tmp_path / "oracle", edit("galley"))
    names = (
        f"--{role}",
        "builtin:oracle",
        f"--{role}",
        "openai:oracle",
        "--base-url",
        "http://127.0.0.1:1/v1",
    )
    other = {"predecessor": "successor", "successor": "predecessor"}[role]
    done = run_main("--limit", "1", *names, f"--{other}", "builtin:oracle", "--out", path.parent / "out")
    assert_refused(
        done, f"--{role}: records of builtin:oracle and openai:oracle would have one name, 'oracle'"
    )


def test_a_file_with_two_labels_of_one_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    label = {"trace": "a.json", "points": {}, "validations": []}
    lines = [json.dumps(label), "", json.dumps(label | {"trace": "a.json#1"}), json.dumps(label)]
    path.write_text("\n".join(lines))
    with pytest.raises(LabelError, match=rf"{path}: lines 1 and 4 label the same trace, a\.json \(remove"):
        read_labels(path)


def test_notes_of_another_model_are_not_taken_for_this_ones(chat_server: ChatServer, tmp_path: Path) -> None:
    trace = write_recording(
        tmp_path / "run.traj.json", edit("galley"), ("python3 -m unittest", 0, "Ran 1 test in 0s\n\nOK\n")
    )
    chat_server.answer = lambda request: chat_server.reply('{"work_completed": ["Edited it"]}')

    def write(model: str) -> Any:
        url = ("--base-url", chat_server.url)
        return call_main(notes_main, trace, "--model", f"openai:{model}", *url, "--out", tmp_path / "notes")

    assert write("first").returncode == write("first").returncode == 0
    calls = len(chat_server.requests)
    assert_refused(write("second"), "notes of openai:first, not of openai:second")
    assert len(chat_server.requests) == calls
