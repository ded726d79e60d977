"""What the main command requests, refuses and prints."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.cli import runner
from langgraph_takeover.evals.run.execution import stages
from langgraph_takeover.evals.run.execution.executors import Job
from langgraph_takeover.evals.run.journal import get_journals, open_journal
from langgraph_takeover.evals.run.measures.replies import has_note
from langgraph_takeover.evals.run.rows import PredecessorRow, Row
from langgraph_takeover.evals.run.settings.config import RunConfig, RunPaths
from langgraph_takeover.evals.tasks import BUNDLED, load_tasks

from ..chat_server import ChatServer
from .conftest import ONE_POINT, RunCommand, assert_refused, read_rows
from .models.test_recordings import GALLEY, LEDGER, edit, write_recording

UNISOLATED = ("--sandbox", "process", "--allow-unisolated")


@pytest.mark.parametrize("option", ["--from", "--out", "--view", "--task-ids"])
def test_an_option_that_counts_once_is_not_passed_twice(run_main: RunCommand, option: str) -> None:
    assert_refused(run_main(option, "a", option, "b"), f"{option}: passed 2 times (pass it once)")


def test_a_repeatable_option_is_passed_twice(run_main: RunCommand, tmp_path: Path) -> None:
    names = ("--successor", "builtin:oracle", "--successor", "builtin:oracle+0.1s")
    assert run_main(*ONE_POINT, *names, "--dry-run", "--out", tmp_path / "out").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("views", "requested"),
    [
        (("repository", "trace", "structured", "cited"), {"structured"}),
        (("repository", "summary"), {"summary"}),
    ],
)
def test_only_the_notes_that_a_view_shows_are_requested(
    run_main: RunCommand, chat_server: ChatServer, tmp_path: Path, views: tuple[str, ...], requested: set[str]
) -> None:
    chat_server.answer = lambda request: chat_server.reply("I know nothing.")
    out = tmp_path / "out"
    writer = ("--notes-model", "openai:m", "--base-url", chat_server.url)
    stage = ("--stages", "predecessors,notes")
    done = run_main(*ONE_POINT, "--view", ",".join(views), *writer, *stage, "--out", out)
    assert done.returncode == 0, done.stderr
    (row,) = read_rows(out, "notes")
    used = {kind for kind, usage in row["usage"].items() if usage["prompt_tokens"]}
    assert used == requested
    assert row["llm_calls"] == len(chat_server.requests) == (2 if "structured" in requested else 1)
    (record_id,) = read_rows(out, "predecessors")[0]["records"]
    record = RunPaths(out).records.load(record_id)
    assert {view for view in ("summary", "structured") if has_note(record, view)} == requested
    # A stage that was not run has no empty table.
    assert "No takeover yet." in done.stdout
    assert "Takeovers by view" not in done.stdout


def test_the_plan_of_a_replay_reads_its_points_from_the_recording(
    run_main: RunCommand, tmp_path: Path
) -> None:
    test_run = ("python -m pytest", 1, "1 failed in 0.1s\n")
    write_recording(tmp_path / "a.json", edit("galley"), test_run, edit("galley"), instance_id=GALLEY)
    write_recording(tmp_path / "b.json", ("ls", 0, ""), edit("ledger"), instance_id=LEDGER)
    models = ("--predecessor", f"replay:{tmp_path}", "--successor", "builtin:oracle")
    options = ("--task-ids", f"{GALLEY},{LEDGER}", "--dry-run", "--out", tmp_path / "out")
    done = run_main(*models, *options)
    assert done.returncode == 0, done.stderr
    expected = "2 first_source_edit, 1 first_validation, 1 first_post_failure_edit"
    assert f"points: 4 ({expected}), as in the recordings" in done.stdout
    done = run_main(*models, "--predecessor", "builtin:oracle", *options)
    assert "estimated from the paper's rates and the recordings" in done.stdout


def test_a_log_file_gets_a_line_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SIGN_OF_LIFE_S", 0.01)
    printed = io.StringIO()

    class Waiting:
        """An executor whose second job ends once the first two signs of life are printed."""

        def run(self, jobs: Iterable[Job]) -> Iterator[Row]:
            for number, job in enumerate(jobs):
                deadline = time.monotonic() + 30
                while number and printed.getvalue().count("1 of 2 done") < 2:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                task_id, model = job.key
                yield PredecessorRow(task_id=task_id, predecessor=model, outcome="run")

    config = RunConfig(
        run_id="a",
        views=("repository",),
        predecessors=("m",),
        successors=("m",),
        tasks=BUNDLED,
        sandbox="host",
    )
    jobs: list[Any] = [
        Job(stages.run_predecessor, config, tmp_path, (task, "m"), (task.id, "m"))
        for task in load_tasks(BUNDLED, limit=2)
    ]
    with open_journal(tmp_path) as database, contextlib.redirect_stdout(printed):
        journal = get_journals(database, "a").predecessors
        runner.run_jobs(runner.make_console(), Waiting(), journal, jobs)
    line = next(line for line in printed.getvalue().splitlines() if "1 of 2 done" in line)
    assert line == f"predecessors: 1 of 2 done after 0 min; next: {jobs[1].key[0]} m"
