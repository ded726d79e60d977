"""Time and memory of the report of a whole study, and their growth with the number of takeovers.

Run directories are built from recorded runs, with four takeovers per handoff point, one per view. The report's command
then runs on them in its own process: tables, plots with intervals, and the page.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer

from benchmarks.figures import Goal, format_count, print_figures, print_progress, refuse, run_command
from benchmarks.host import start_python
from benchmarks.recorded_runs import Traces, open_recorded_runs
from benchmarks.synthetic_runs import VIEWS, write_run
from benchmarks.turns import AsJson, Comparison, Rounds, measure_in_turns, open_work_directory
from langgraph_takeover.handoff.points.detectors import list_points
from langgraph_takeover.handoff.trace.events import Trace

_STUDY_TAKEOVERS = 724
"""Takeovers of the paper's study for one successor; the goal applies to this size."""
_GOAL_S = 20


def main(
    traces: Traces = None,
    takeovers: Annotated[
        int, typer.Option(min=len(VIEWS), help="Takeovers of the large study.")
    ] = _STUDY_TAKEOVERS,
    few: Annotated[int, typer.Option(min=len(VIEWS), help="Takeovers of the small study.")] = 100,
    rounds: Rounds = 3,
    as_json: AsJson = False,
) -> None:
    """Measure the report of a small and a large study built from real runs."""
    with open_recorded_runs(traces) as runs, open_work_directory() as work:
        usable = [trace for trace in runs.traces if _has_points(trace)]
        if not usable:
            refuse("no recorded run has a handoff point")
        for number in (few, takeovers):
            print_progress(f"writing a study of {number} takeovers")
            write_run(work / str(number), usable, usable, records=number // len(VIEWS))
        samples = measure_in_turns(
            rounds,
            {
                "few": lambda number: _measure_report(work / str(few), work / f"few-{number}"),
                "many": lambda number: _measure_report(work / str(takeovers), work / f"many-{number}"),
            },
        )
    name, small = f"report of {takeovers} takeovers", f"{few} takeovers"
    goal = Goal(_GOAL_S) if takeovers >= _STUDY_TAKEOVERS else None
    figures = samples.compare(
        Comparison(name, "many_time", "few_time", small, goal, "s", growth=True),
        Comparison(f"memory of the {name}", "many_memory", "few_memory", small, unit="MB", growth=True),
    )
    print_figures(f"medians of {format_count(rounds, 'round')}, from {runs}", figures, as_json=as_json)


def _has_points(trace: Trace) -> bool:
    return "/" not in trace.id and bool(list_points(trace.events, trace.base_directories, trace.workspace))


def _measure_report(run: Path, out: Path) -> dict[str, float]:
    """Seconds and peak memory of the report's process."""
    start = time.perf_counter()
    with start_python("-m", "evals.report", run, "--out", out, stdout=subprocess.DEVNULL) as running:
        _, status, usage = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    if running.returncode != 0:
        raise RuntimeError(f"the report failed with exit code {running.returncode}")
    return {"time": seconds, "memory": 1024 * usage.ru_maxrss}


if __name__ == "__main__":
    run_command(main)
