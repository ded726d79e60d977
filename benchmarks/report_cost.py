"""Time and memory of the report of a whole study, and their growth with the number of takeovers.

Run directories are built from recorded runs, with four takeovers per handoff point, one per view. The report's command
then runs on them in its own process: tables, plots with intervals, and the page.
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

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer

from benchmarks.figures import Figure, Goal, format_count, print_figures, print_progress, refuse, run_command
from benchmarks.recorded_runs import HELP, open_recorded_runs
from benchmarks.synthetic_runs import VIEWS, write_run
from langgraph_takeover.handoff.points.detectors import list_points
from langgraph_takeover.handoff.trace.events import Trace

_STUDY_TAKEOVERS = 724
"""Takeovers of the paper's study for one successor; the goal applies to this size."""
_GOAL_S = 20
_EPILOG = """Examples:

python benchmarks/report_cost.py

python benchmarks/report_cost.py DIR --rounds 3 --json
"""


class ReportCost(NamedTuple):
    seconds: float
    megabytes: float
    """Peak memory of the process."""


def main(
    traces: Annotated[
        list[str] | None, typer.Argument(help=HELP, metavar="TRACE…", show_default=False)
    ] = None,
    takeovers: Annotated[
        int, typer.Option(min=len(VIEWS), help="Takeovers of the large study.")
    ] = _STUDY_TAKEOVERS,
    few: Annotated[int, typer.Option(min=len(VIEWS), help="Takeovers of the small study.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds; figures are medians.")] = 3,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure the report of a small and a large study built from real runs."""
    with open_recorded_runs(traces or ()) as runs, tempfile.TemporaryDirectory(prefix="benchmark-") as work:
        usable = [trace for trace in runs.traces if _has_points(trace)]
        if not usable:
            refuse("no recorded run has a handoff point")
        sizes = {number: Path(work) / str(number) for number in (few, takeovers)}
        for number, out in sizes.items():
            print_progress(f"writing a study of {number} takeovers")
            write_run(out, usable, usable, records=number // len(VIEWS))
        costs: dict[int, list[ReportCost]] = {number: [] for number in sizes}
        for index in range(rounds):
            print_progress(f"round {index + 1} of {rounds}")
            for number, out in sizes.items() if index % 2 == 0 else reversed(sizes.items()):
                costs[number].append(_run_report(out, Path(work) / f"{number}-{index}"))
        title = f"medians of {format_count(rounds, 'round')}, from {runs}"
    print_figures(title, _build_figures(costs[takeovers], takeovers, costs[few], few), as_json=as_json)


def _has_points(trace: Trace) -> bool:
    return "/" not in trace.id and bool(list_points(trace.events, trace.base_directories, trace.workspace))


def _run_report(run: Path, out: Path) -> ReportCost:
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "evals.report", str(run), "--out", str(out)],
        env=os.environ | {"PYTHONPATH": sys.path[0]},
        stdout=subprocess.DEVNULL,
    ) as running:
        _, status, usage = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    if running.returncode != 0:
        raise RuntimeError(f"the report failed with exit code {running.returncode}")
    return ReportCost(seconds, usage.ru_maxrss / 1024)


def _build_figures(
    large: Sequence[ReportCost], takeovers: int, small: Sequence[ReportCost], few: int
) -> Iterator[Figure]:
    def median(costs: Sequence[ReportCost], index: int) -> float:
        return statistics.median(cost[index] for cost in costs)

    for title, unit, index in (("report", "s", 0), ("memory of the report", "MB", 1)):
        goal = Goal(_GOAL_S) if unit == "s" and takeovers >= _STUDY_TAKEOVERS else None
        name, reference = f"{title} of {takeovers} takeovers", f"{few} takeovers"
        yield Figure(name, unit, median(large, index), median(small, index), reference, goal, growth=True)


if __name__ == "__main__":
    run_command(main, _EPILOG)
