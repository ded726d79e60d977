"""`python -m benchmarks`: equal figures in table, file and page; failing benchmarks do not stop the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import __main__ as benchmarks
from benchmarks.figures import Figure, Goal, print_wide
from benchmarks.page import Part, ResultsPage, build_table, format_markdown

ROOT = Path(__file__).parents[2]
HEADINGS = ["figure", "value", "reference", "ratio", "goal", "met"]


def run_benchmarks(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
    )


def rows(text: str, bar: str) -> list[list[str]]:
    """The cells of a table by line."""
    lines = [line.strip(bar).split(bar) for line in text.splitlines() if line.startswith(bar)]
    return [[cell.strip() for cell in cells] for cells in lines]


def list_figures(results: dict[str, Any]) -> list[dict[str, Any]]:
    return [figure for part in results["parts"] for figure in part["figures"]]


@pytest.fixture
def trajectory(tmp_path: Path) -> Path:
    """A recorded run that repeatedly lists, edits and tests."""
    commands = ("ls", "sed -i s/1/2/ pkg/a.py", "python -m pytest -q 2>&1 | tail -5")
    messages = [{"role": "system", "content": "You fix."}, {"role": "user", "content": "Please solve it."}]
    for number in range(60):
        command = commands[number % 3]
        messages.append({"role": "assistant", "content": f"On.\n\n```bash\n{command}\n```"})
        output = "<returncode>0</returncode>\n<output>\n1 passed in 0.1s\n</output>"
        messages.append({"role": "user", "content": output})
    path = tmp_path / "run.traj.json"
    info = {"mini_version": "1.14.0", "exit_status": "Submitted", "config": {}}
    path.write_text(json.dumps({"info": info, "messages": messages, "trajectory_format": "mini-swe-agent-1"}))
    return path


@pytest.mark.slow
def test_table_file_and_page_show_the_same(trajectory: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "bench" / "figures.json", tmp_path / "docs" / "performance.md"
    options = ("--quick", "--only", "handoffs,detection", "--traces", trajectory)
    done = run_benchmarks(*options, "--out", out, "--write", page)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(out.read_text())
    assert [(part["name"], part["error"]) for part in results["parts"]] == [
        ("detection", ""),
        ("handoffs", ""),
    ]
    assert results["host"].startswith(f"{len(os.sched_getaffinity(0))} cores of ")
    assert all(0 <= part["stolen"] <= 1 and part["seconds"] > 0 for part in results["parts"])
    assert "events/s" in {figure["unit"] for figure in list_figures(results)}

    printed = [
        cells for cells in rows(done.stdout, "│") if cells[0] in {f["name"] for f in list_figures(results)}
    ]
    written = [cells for cells in rows(page.read_text(), "|") if cells != HEADINGS and "---" not in cells]
    assert printed == written == [_cells(figure) for figure in list_figures(results)]
    assert "a quick run" in page.read_text()
    assert str(tmp_path) not in page.read_text()
    assert done.stderr.count("handoffs from 4 processes, on sqlite") == 1


def _cells(figure: dict[str, Any]) -> list[str]:
    """The expected cells of a figure."""

    def number(value: float, unit: str = "") -> str:
        if value >= 100 or value == int(value):
            return f"{value:,.0f} {unit}".strip()
        places = 1 if value >= 10 else 2
        return f"{value:.{places}f} {unit}".strip() if value >= 1 else f"{value:.2g} {unit}".strip()

    value, reference = figure["value"], figure["reference"]
    goal, unit = figure["goal"], figure["unit"]
    return [
        figure["name"],
        number(value, unit),
        f"{figure['reference_name']}: {number(reference, unit)}" if reference else "",
        f"{value / reference:,.{2 if value < 10 * reference else 0}f}" if reference else "–",
        f"{'≥' if goal['at_least'] else '≤'} {goal['limit']:,.0f} {unit}".strip() if goal else "",
        ("yes" if (value >= goal["limit"]) == goal["at_least"] or value == goal["limit"] else "no")
        if goal
        else "",
    ]


@pytest.mark.slow
def test_a_failing_benchmark_does_not_end_the_others(tmp_path: Path) -> None:
    out, missing = tmp_path / "figures.json", tmp_path / "missing"
    done = run_benchmarks("--quick", "--only", "detection,handoffs", "--traces", missing, "--out", out)
    assert done.returncode == 1
    assert f"detection failed: error: {missing}: no such file or directory" in done.stdout
    first, second = json.loads(out.read_text())["parts"]
    assert (first["figures"], second["error"]) == ([], "")
    assert len(second["figures"]) > 5


def test_an_unknown_benchmark_is_one_line() -> None:
    done = run_benchmarks("--only", "sandbx")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --only sandbx: unknown (choose from: sandboxes, runtime")
    assert done.stderr.count("\n") == 1


def test_a_missing_peer_a_missed_goal_and_growth_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    goal = Goal(limit=0.7, of="ratio")
    step = Figure(name="step", unit="ms", value=5, reference_name="peer", goal=goal, missing="not [here]")
    missed = Figure(
        name="step", unit="ms", value=5, reference=6, reference_name="peer", goal=goal, paired=0.9
    )
    grown = Figure(name="late", unit="ms", value=8, reference=4, reference_name="early", growth=True)
    part = Part(
        name="runtime", about="A|B.", command="c", seconds=10, stolen=0.06, figures=(step, missed, grown)
    )
    page = ResultsPage(
        date="D", command="python -m benchmarks", quick=False, host="2 cores of P", parts=(part,)
    )
    expected = [
        ["step", "5 ms", "peer (not [here])", "–", "ratio ≤ 0.7", "not measured"],
        ["step", "5 ms", "peer: 6 ms", "0.90", "ratio ≤ 0.7", "no"],
        ["late", "8 ms", "early: 4 ms", "2.00", "", ""],
    ]
    monkeypatch.setenv("COLUMNS", "400")
    print_wide(build_table(page))
    assert [cells for cells in rows(capsys.readouterr().out, "│") if cells[0] in ("step", "late")] == expected
    text = format_markdown(page)
    assert [cells for cells in rows(text, "|") if cells[0] in ("step", "late")] == expected
    assert text.index("## Growth") < text.index("| late |")
    assert "0 of 1 measured goals are met; not met: step." in text
    assert "6 % CPU steal" in text


GROWN = Figure(
    name="late step",
    unit="ms",
    value=6,
    reference=4,
    reference_name="early",
    goal=Goal(1.1, "ratio"),
    growth=True,
)


@pytest.mark.parametrize(
    ("options", "value", "error", "code"),
    [
        ([], 4.2, "", 0),
        ([], 6.0, "", benchmarks.GOAL_MISSED),
        (["--quick"], 6.0, "", 0),
        ([], 6.0, "exit code 1", benchmarks.FAILED),
    ],
)
def test_a_missed_goal_has_an_exit_code_of_its_own(
    options: list[str], value: float, error: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Part(
        name="runtime",
        about="A.",
        command="c",
        seconds=1,
        stolen=0,
        error=error,
        figures=(replace(GROWN, value=value),),
    )
    monkeypatch.setattr(benchmarks, "_run_benchmark", lambda name, words: (part, False))
    app = typer.Typer()
    app.command()(benchmarks.main)
    done = CliRunner().invoke(app, ["--only", "runtime", "--out", str(tmp_path / "figures.json"), *options])
    assert done.exit_code == code, done.output
    assert ("goal missed: late step" in done.output) == (value > 4.4)
