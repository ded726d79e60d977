"""Usage errors of the main command, each in one line before any work; and its help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from langgraph_takeover.evals.run.preparation import load_all_tasks
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.evals.run.settings.inputs import compute_inputs

from .conftest import ROOT, RunCommand, assert_refused

BAD = {
    "view": (("--view", "telepathy"), "unknown view 'telepathy' (use repository, trace"),
    "point": (("--points", "last_edit"), "unknown point 'last_edit'"),
    "model": (("--model", "gpt-5"), "use openai:NAME, replay:FILE or builtin:oracle"),
    "key": (("--model", "openai:gpt-5"), "OPENAI_API_KEY is not set"),
    "task": (("--task-ids", "ledger__ledger-13"), "task not found: ledger__ledger-13 (choose from its "),
    "file": (("--tasks", "/nowhere/tasks.jsonl"), "/nowhere/tasks.jsonl: no such file"),
    "parquet": (("--tasks", "README.md"), "not a task file"),
    "ids": (("--task-ids", "@/nowhere/ids.txt"), "/nowhere/ids.txt: no such file"),
    "replay": (
        ("--predecessor", "replay:/nowhere.json"),
        "error: replay:/nowhere.json: no such file or directory (pass a recording",
    ),
    "sandbox": (("--sandbox", "cloud"), "unknown value 'cloud' (use auto, docker, host, process)"),
    "protocol": (("--protocol", "xml"), "unknown value 'xml' (use text, native)"),
    "unisolated": (
        ("--sandbox", "process", "--model", "openai:m", "--base-url", "http://127.0.0.1:1/v1"),
        "--allow-unisolated",
    ),
    "no ids": (("--task-ids", ","), "contains no task id"),
    "resume nothing": (("--resume",), "pass the run's directory as --out"),
    "resume": (("--resume", "--out", "/nowhere/out"), "run not found (pass the directory of a run)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_usage_is_one_clear_line(run_main: RunCommand, name: str, tmp_path: Path) -> None:
    arguments, message = BAD[name]
    where = () if {"--out", "--resume"} & set(arguments) else ("--out", tmp_path / "out")
    assert_refused(run_main(*arguments, *where), message)
    assert not (tmp_path / "out").exists()


def test_the_directory_of_a_run_does_not_let_commands_run_as_the_user(
    run_main: RunCommand, tmp_path: Path
) -> None:
    """Its settings may be anybody's: only the option allows it, also when a run is resumed."""
    settings = json.loads((Path(__file__).parent / "published" / "config.json").read_text()) | {
        "sandbox": "process", "allow_unisolated": True, "tasks": "bundled", "limit": 1, "views": ["repository"],
        "predecessors": ["openai:m"], "successors": ["openai:m"], "base_url": "http://127.0.0.1:1/v1",
    }  # fmt: skip
    config = RunConfig.model_validate(settings)
    tasks = load_all_tasks(config)
    config.model_copy(update={"inputs": compute_inputs(tasks, "process", {})}).save(tmp_path)
    assert_refused(run_main("--resume", "--out", tmp_path), "--allow-unisolated")
    done = run_main("--resume", "--out", tmp_path, "--allow-unisolated", "--list-tasks")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_no_docker_daemon(takeover: RunCommand, tmp_path: Path) -> None:
    done = takeover(
        "--sandbox", "docker", "--out", tmp_path / "out", DOCKER_HOST="unix:///nowhere/docker.sock"
    )
    assert_refused(done, "no Docker daemon answers")


def test_a_task_file_with_a_bad_line(run_main: RunCommand, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"instance_id": "a"}\n{"instance_id": \n')
    assert_refused(run_main("--tasks", tasks, "--out", tmp_path / "out"), "tasks.jsonl: line 2: not JSON")


def test_a_task_without_an_image(run_main: RunCommand, tmp_path: Path) -> None:
    names = ("problem_statement", "repo", "version", "eval_script", "log_parser")
    row = {
        "instance_id": "a",
        "eval_type": "pass_and_fail",
        **dict.fromkeys(names, "x"),
        "FAIL_TO_PASS": ["x"],
    }
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps(row) + "\n")
    model = ("--model", "openai:m", "--base-url", "http://127.0.0.1:1/v1", "--sandbox", "docker")
    assert_refused(run_main("--tasks", tasks, *model, "--out", tmp_path / "out"), "no Docker image")


def test_an_invalid_database(run_main: RunCommand, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "takeover.sqlite").write_text("This is a letter. " * 100)
    assert_refused(run_main("--out", out), "it is no SQLite database")


@pytest.mark.parametrize(
    ("argument", "shown", "heavy"),
    [
        ("--help", "Examples", {"langgraph", "langchain_core", "swebench", "docker", "pydantic", "datasets"}),
        ("--list-tasks", "galley__galley-31", {"langgraph", "langsmith", "sqlalchemy", "docker", "datasets"}),
    ],
)
def test_listings_import_no_heavy_modules(argument: str, shown: str, heavy: set[str]) -> None:
    script = (
        "import sys, runpy\n"
        f"sys.argv = ['takeover', '{argument}']\n"
        "try: runpy.run_module('evals.takeover', run_name='__main__')\n"
        "except SystemExit: pass\n"
        f"heavy = {heavy} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


def test_help_states_the_meaning_of_an_omitted_option() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "evals.takeover", "--help"],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "[default: the server's limit]" in done.stdout
