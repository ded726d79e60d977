"""The soak: a very short one for real, and that what it watches and audits cannot be fooled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import soak_growth, soak_samples
from benchmarks.soak_runs import key, wrong_rows
from sandbox.host import unavailable
from sandbox.storage import PLACE_VARIABLE

from .conftest import missing

ROOT = Path(__file__).parents[1]
PLACES = Path("/var/tmp")
SOAK = ROOT / "benchmarks" / "soak.py"
DESCRIPTOR = "open descriptors"
DEPOT = "runs in the depot"
ROWS = [
    {
        "record_id": f"{task}.first_source_edit",
        "view": view,
        "successor": "builtin:oracle",
        "repeat": 1,
        "outcome": "graded",
        "resolved": True,
        "stop_reason": "finished",
        "events": 9,
        "patch": "a patch",
    }
    for task in ("one", "two")
    for view in ("repository", "trace")
]
LEAKING = f"""
import os, sys
from pathlib import Path
from benchmarks import soak_growth, soak_samples

plant, found, opened = sys.argv[1], [], []
for number in range(6):
    runs = Path(os.environ["{PLACE_VARIABLE}"]) / "runs"
    if plant == "descriptor":
        opened.append(open(os.devnull))
    if plant == "directory":
        (runs / f"left-{{number}}").mkdir(parents=True)
    values = soak_samples.of_process() | soak_samples.of_depot()
    found.append(soak_growth.Sample(number / 60, number, values))
watched = [each for each in soak_samples.MEASURES if each.name in values]
for line in soak_growth.lines(found, watched):
    if line.verdict != "holds":
        print(line.measure.name, line.verdict, sep=": ")
"""


def soak(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SOAK), *words],
        env=os.environ | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )


def test_a_short_one_is_all_right_and_leaves_nothing() -> None:
    if reason := unavailable():
        missing(reason)
    before = set(PLACES.glob("takeover-soak-*"))
    done = soak("--operations", "6", "--sandbox", "host", "--seed", "3", "--json")
    told = json.loads(done.stdout)
    wrong = [(one["name"], one["told"]["wrong"]) for one in told["operations"] if one["told"]["wrong"]]
    assert wrong == []
    assert told["wrong"] == 0
    assert [sample["operations"] for sample in told["samples"]] == [0, 3, 6]
    assert {line["watched"] for line in told["watched"]} == {each.name for each in soak_samples.MEASURES}
    first, last = (told["samples"][at]["values"] for at in (0, -1))
    for name in ("children", "zombies", "mounts", "machines in the home", "temporary files"):
        assert last[name] == first[name], name
    assert done.returncode == 0, done.stderr
    assert set(PLACES.glob("takeover-soak-*")) == before


@pytest.mark.parametrize(
    ("plant", "told"),
    [("descriptor", f"{DESCRIPTOR}: leak"), ("directory", f"{DEPOT}: leak"), ("nothing", "")],
)
def test_a_planted_leak_is_noticed_and_nothing_else(plant: str, told: str, tmp_path: Path) -> None:
    own = {PLACE_VARIABLE: str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", LEAKING, plant], env=os.environ | own, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == told


def test_a_planted_wrong_row_is_noticed() -> None:
    wanted = {key(row): row for row in ROWS}
    assert wrong_rows(ROWS, wanted) == []
    (line,) = wrong_rows([ROWS[0] | {"resolved": False}, *ROWS[1:]], wanted)
    assert "resolved is False, else True" in line
    (line,) = wrong_rows(ROWS[1:], wanted)
    assert line.endswith("no row")
    (line,) = wrong_rows([*ROWS, ROWS[0]], wanted)
    assert line.endswith("2 rows")
    (line,) = wrong_rows([*ROWS, ROWS[0] | {"view": "payload"}], wanted)
    assert line.endswith("nobody asked for it")


def test_growth_within_its_bound_is_no_leak() -> None:
    places = [float(number) for number in range(8)]
    flat = soak_growth.growth(places, [5.0, 5.1, 4.9, 5.0, 5.1, 4.9, 5.0, 5.0])
    assert flat is not None
    assert flat.low < 0 < flat.high
    rising = soak_growth.growth(places, [5.0 + 2 * place for place in places])
    assert rising is not None
    assert rising.low == pytest.approx(2.0)
    assert soak_growth.growth(places, [5.0] * 8) == (0, 0, 0)
    assert soak_growth.growth(places[:3], [1.0, 2.0, 3.0]) is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--sandbox", "moon"), "--sandbox 'moon': give one or more of host, docker, process"),
        (("--sandbox", "host", "--keep", str(ROOT)), "name a directory that is not there yet"),
    ],
)
def test_bad_usage_is_one_line(words: tuple[str, ...], told: str) -> None:
    done = soak(*words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert told in line
