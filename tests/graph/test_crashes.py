"""Killed runs lose nothing and repeat nothing: a sample of `tests/crash_matrix.py`, drawn by `TAKEOVER_TEST_SEED`.

The first tier samples three eighths of the kinds of crash points; both tiers together test every kind.
`TAKEOVER_CRASHES=all` in the environment tests every crash point, which takes hours.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import skip_missing
from ..random_examples import SEED, draw

_MATRIX = Path(__file__).parents[1] / "crash_matrix.py"
_SEED = int(SEED or 0)
_ALL = os.environ.get("TAKEOVER_CRASHES") == "all"


@pytest.mark.timeout(0 if _ALL else 600)
@pytest.mark.parametrize(
    ("backend", "saver", "kept_at", "points", "randomly", "again"),
    [
        pytest.param("process", "sqlite", "step", "kinds-1/8", 0, 1, marks=pytest.mark.slow),
        ("host", "sqlite", "point", "kinds-2/8", 0, 0),
        pytest.param("docker", "sqlite", "step", "kinds-8/8", 0, 0, marks=pytest.mark.slow),
        *(
            pytest.param("process", "sqlite", "step", points, 1, 1, marks=pytest.mark.slow)
            for points in draw(["kinds-1/4", "kinds-3/4"], 1)
        ),
        *(
            pytest.param("host", "sqlite", "point", points, 0, 1, marks=pytest.mark.slow)
            for points in draw(["kinds-2/8", "kinds-6/8"], 1)
        ),
        pytest.param("process", "postgres", "step", "kinds-4/8", 0, 1, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_ends_like_an_uninterrupted_one(
    backend: str,
    saver: str,
    kept_at: str,
    points: str,
    randomly: int,
    again: int,
    request: pytest.FixtureRequest,
) -> None:
    if backend == "docker":
        request.getfixturevalue("base_image")
    if backend == "host":
        from langgraph_takeover.sandbox.backends.host import unavailable_reason

        if reason := unavailable_reason():
            skip_missing(reason)
    if saver == "postgres" and importlib.util.find_spec("psycopg") is None:
        skip_missing("psycopg is not installed: install this project with its extra `postgres`")
    if _ALL:
        points, randomly, again = "all", 20, 40
    words = ["--backends", backend, "--savers", saver, "--snapshots", kept_at, "--seed", str(_SEED)]
    words += ["--points", points, "--random", str(randomly), "--again", str(again), "--json"]
    done = subprocess.run([sys.executable, str(_MATRIX), *words], capture_output=True, text=True, check=False)
    print(f"python {_MATRIX} {' '.join(words)}\n{done.stderr}")
    assert done.stdout, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [run for run in runs if run["problems"]] == []
    assert sum(run["deaths"] == 2 for run in runs) >= again
    # A case that should die at a random time may have ended before it.
    assert sum(run["deaths"] for run in runs) >= len(runs) + again - randomly > 0


@pytest.mark.slow
def test_usage_errors_of_the_matrix() -> None:
    for words, expected in (
        (["--backends", "vax"], "--backends 'vax': give one or more of process, host, docker"),
        (
            ["--points", "every-0th"],
            "--points 'every-0th': give all, none, numbers such as 3,14, every-5th or kinds-1/4",
        ),
    ):
        done = subprocess.run([sys.executable, str(_MATRIX), *words], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(expected)
        assert done.stderr.count("\n") == 1
