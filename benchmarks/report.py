"""How long the report of a whole study takes, how much memory, and how both grow with its takeovers.

Runs are laid on disk made of recorded ones, each handoff point taken over under four views; then the report's own
command is run on them, in a process of its own: tables, plots with their intervals, and the page.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

# In this directory a file may have the name of a package.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer

from benchmarks.figures import Figure, Goal, format_count, print_figures, print_progress, refuse, run_command
from benchmarks.recorded import HELP, open_recorded_runs
from benchmarks.synthetic_runs import VIEWS, write_run
from langgraph_takeover.handoff.points.detectors import list_points
from langgraph_takeover.handoff.trace.events import Trace

_STUDY_TAKEOVERS = 724
"""Takeovers of the paper's study, for one successor; the goal is for so many."""
_GOAL_S = 20
_EPILOG = """Examples:

python benchmarks/report.py

python benchmarks/report.py ../shared/trajectories --rounds 3 --json
"""


class ReportCost(NamedTuple):
    seconds: float
    megabytes: float
    """The most that its process held."""


def main(
    traces: Annotated[
        list[str] | None, typer.Argument(help=HELP, metavar="TRACE…", show_default=False)
    ] = None,
    takeovers: Annotated[int, typer.Option(min=len(VIEWS), help="Of the large study.")] = _STUDY_TAKEOVERS,
    few: Annotated[int, typer.Option(min=len(VIEWS), help="Of the small one.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to take medians over.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, no table.")] = False,
) -> None:
    """Report on made-up studies of real runs, a small one and a large one."""
    with open_recorded_runs(traces or ()) as found, tempfile.TemporaryDirectory(prefix="benchmark-") as place:
        usable = [trace for trace in found.traces if _has_points(trace)]
        if not usable:
            refuse("none of the recorded runs has a handoff point")
        sizes = {number: Path(place) / str(number) for number in (few, takeovers)}
        for number, out in sizes.items():
            print_progress(f"a study of {number} takeovers is laid")
            write_run(out, usable, usable, records=number // len(VIEWS))
        taken: dict[int, list[ReportCost]] = {number: [] for number in sizes}
        for index in range(rounds):
            print_progress(f"round {index + 1} of {rounds}")
            for number, out in sizes.items() if index % 2 == 0 else reversed(sizes.items()):
                taken[number].append(_run_report(out, Path(place) / f"{number}-{index}"))
        title = f"medians of {format_count(rounds, 'round')}, from {found}"
    print_figures(title, _build_figures(taken[takeovers], takeovers, taken[few], few), as_json=as_json)


def _has_points(trace: Trace) -> bool:
    return "/" not in trace.id and bool(list_points(trace.events, trace.base_directories, trace.workspace))


def _run_report(run: Path, out: Path) -> ReportCost:
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "evals.report", str(run), "--out", str(out)],
        env=os.environ | {"PYTHONPATH": sys.path[0]},
        stdout=subprocess.DEVNULL,
    ) as running:
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began
    if running.returncode != 0:
        raise RuntimeError(f"the report ended with {running.returncode}")
    return ReportCost(seconds, used.ru_maxrss / 1024)


def _build_figures(
    large: Sequence[ReportCost], takeovers: int, small: Sequence[ReportCost], few: int
) -> Iterator[Figure]:
    def median(taken: Sequence[ReportCost], of: int) -> float:
        return statistics.median(each[of] for each in taken)

    for what, unit, of in (("report", "s", 0), ("memory of the report", "MB", 1)):
        goal = Goal(_GOAL_S) if unit == "s" and takeovers >= _STUDY_TAKEOVERS else None
        what, beside = f"{what} of {takeovers} takeovers", f"{few} takeovers"
        yield Figure(what, unit, median(large, of), median(small, of), beside, goal, growth=True)


if __name__ == "__main__":
    run_command(main, _EPILOG)
