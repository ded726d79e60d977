"""The soak: bad usage, the comparison of rows, and a short real one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.soak import COMPARED_FIELDS, Row, compare_rows, list_temporary_files

ROOT = Path(__file__).parents[2]
ROWS: list[Row] = [
    {"record_id": record, "view": view, "successor": "builtin:oracle", "repeat": 1}
    | dict.fromkeys(COMPARED_FIELDS, "a value")
    for record in ("one.first_source_edit", "two.first_source_edit")
    for view in ("repository", "trace")
]


def soak(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "soak.py"), *words],
        env=os.environ | {"PYTHONPATH": ""} | env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_killed_and_resumed_run_has_its_rows_and_no_resources_left(tmp_path: Path) -> None:
    done = soak("--operations", "1", "--sandbox", "process", "--seed", "7", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1: process: rows equal" in done.stdout
    assert re.search(r"^1 operations, [1-3] signals, 0 wrong; left: nothing; seed 7$", done.stdout, re.M)
    assert list(tmp_path.iterdir()) == []


def test_wrong_missing_duplicate_and_unexpected_rows_are_detected() -> None:
    assert compare_rows(ROWS, ROWS) == []
    (line,) = compare_rows([ROWS[0] | {"resolved": False}, *ROWS[1:]], ROWS)
    assert line.endswith("resolved is False, expected 'a value'")
    (line,) = compare_rows(ROWS[1:], ROWS)
    assert line.endswith("missing")
    (line,) = compare_rows([*ROWS, ROWS[0]], ROWS)
    assert line.endswith("2 rows")
    assert compare_rows([*ROWS, ROWS[0] | {"view": "payload"}], ROWS)[0].endswith("unexpected")


def test_only_the_file_of_a_python_killed_at_its_start_is_not_counted(tmp_path: Path) -> None:
    kill_at_removal = (
        "import os, tempfile; os.unlink = lambda path: os.kill(os.getpid(), 9); tempfile.gettempdir()"
    )
    killed = subprocess.run(
        [sys.executable, "-c", kill_at_removal], env={"TMPDIR": str(tmp_path)}, check=False
    )
    assert killed.returncode == -9
    (left,) = tmp_path.iterdir()
    assert list_temporary_files(tmp_path) == []
    left.write_bytes(b"data")
    (tmp_path / "takeover-empty-abcdefgh").mkdir()
    assert list_temporary_files(tmp_path) == sorted(tmp_path.iterdir())


def test_bad_usage_is_one_line() -> None:
    done = soak("--sandbox", "moon")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --sandbox moon: unknown (choose from: host, docker, process)\n"
