"""The experiment without a model's time: takeovers a minute beside what their commands alone take, and what grows with them.

The built-in model answers at once. The limit of a takeover is to thaw its record's machine and run the very commands that
its successor ran, one after another, with nothing around them. Journal appends are timed on an empty journal and on a
full one, beside a bare file that is synced line by line; memory is the coordinator's, after few jobs and after many.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil
import typer

from benchmarks.figures import Figure, Goal, format_count, print_figures, print_progress, run_command
from benchmarks.host import Meter, ProcessorTime
from langgraph_takeover.evals.run.execution.executors import Job, open_local_executor
from langgraph_takeover.evals.run.journal import Journal, Row, open_journal
from langgraph_takeover.evals.run.paths import RunPaths
from langgraph_takeover.evals.run.results import load_results
from langgraph_takeover.evals.run.settings.config import RunConfig, load_config
from langgraph_takeover.evals.tasks import Task, load_tasks
from langgraph_takeover.sandbox.lifecycle import SandboxManager

VIEWS = "repository,trace,summary,structured"
_TEXT = "x" * 3_000
"""About as long as a takeover's row with its patch."""
_FEW_JOBS = 200
_EPILOG = """Examples:

python benchmarks/experiment.py

python benchmarks/experiment.py --limit 3 --repeats 1 --json
"""


def main(
    limit: Annotated[int, typer.Option(min=1, help="Number of bundled tasks.")] = 12,
    repeats: Annotated[int, typer.Option(min=1, help="Takeovers per point and view.")] = 2,
    workers: Annotated[int, typer.Option(min=1, help="Processes side by side.")] = 2,
    sandbox: Annotated[str, typer.Option(help="host or process.")] = "host",
    rows: Annotated[int, typer.Option(min=1_000, help="Rows of the full journal.")] = 50_000,
    jobs: Annotated[
        int, typer.Option(min=2 * _FEW_JOBS, help="Jobs of the coordinator whose memory is measured.")
    ] = 20_000,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure what the experiment costs beside its models."""
    with tempfile.TemporaryDirectory(prefix="takeover-experiment-") as place:
        out = Path(place) / "run"
        spans = _time_takeovers(out, limit, repeats, workers, sandbox)
        taken = load_results([out]).takeovers
        figures = [
            *_build_speed_figures(spans, taken),
            *_build_baseline_figures(out, taken),
            *_build_append_figures(Path(place), rows),
            _build_memory_figure(jobs),
        ]
    title = f"{len(taken)} takeovers by {format_count(workers, 'worker')} in `{sandbox}`, no model's time"
    print_figures(title, figures, as_json=as_json)


class TimeSpans(NamedTuple):
    """Seconds of the takeovers' process, and processor seconds between the first row and the last."""

    start: float
    """From the process's start to the first row."""
    seconds: float
    report: float
    """From the last row to the process's end."""
    own_s: float
    """Of the coordinator and its workers."""
    host_s: float
    """Of all processes on this host, the commands in the sandboxes included."""
    stolen_share: float
    """The share that other hosts took of this one's processors."""


def _time_takeovers(out: Path, limit: int, repeats: int, workers: int, sandbox: str) -> TimeSpans:
    """Run everything before the takeovers, then these alone."""
    base = [sys.executable, "-m", "evals.takeover", "--out", str(out), "--workers", str(workers)]
    asked = ["--view", VIEWS, "--limit", str(limit), "--repeats", str(repeats), "--sandbox", sandbox]
    environment = os.environ | {"PYTHONPATH": sys.path[0]}
    print_progress("predecessors, labels and notes")
    before = [*base, *asked, "--stages", "predecessors,labels,notes"]
    subprocess.run(before, env=environment, check=True, stdout=subprocess.DEVNULL)
    print_progress("takeovers")
    began, meter = time.perf_counter(), Meter()
    moments: list[tuple[float, ProcessorTime, float]] = []
    with subprocess.Popen(
        [*base, "--resume", "--stages", "takeovers"], env=environment, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("takeovers: "):
                if not moments:
                    meter = Meter()
                moments.append((time.perf_counter(), meter.read(), _read_processor_time(running.pid)))
                if len(moments) % 50 == 0:
                    print_progress(f"{len(moments)} takeovers")
    if running.returncode != 0:
        raise RuntimeError(f"the takeovers ended with {running.returncode}")
    ended = time.perf_counter()
    (first, _, ours_before), (last, spent, ours_after) = moments[0], moments[-1]
    ours = ours_after - ours_before
    return TimeSpans(first - began, last - first, ended - last, ours, spent.busy_s, spent.stolen_share)


def _read_processor_time(process: int) -> float:
    """The processor seconds of a process and its workers so far, without what they started."""
    coordinator = psutil.Process(process)
    total = 0.0
    for each in (coordinator, *coordinator.children()):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system
    return total


def _build_speed_figures(spans: TimeSpans, takeovers: tuple[Row, ...]) -> Iterator[Figure]:
    # The time between the first row and the last is that of all takeovers but one.
    number = len(takeovers) - 1
    a_minute, stolen = 60 * number / spans.seconds, f"{100 * spans.stolen_share:.0f} %"
    title = f"without the {stolen} that other hosts took of this one"
    goal = Goal(120, at_least=True)
    yield Figure("takeovers a minute", "", a_minute, a_minute / (1 - spans.stolen_share), title, goal)
    ours_ms, all_ms = 1e3 * spans.own_s / number, 1e3 * spans.host_s / number
    title = "everything on this host, its commands too"
    yield Figure("processor time of a takeover", "ms", ours_ms, all_ms, title)
    yield Figure("from the start to the first row", "s", spans.start)
    yield Figure("report of them", "s", spans.report)


def _build_baseline_figures(out: Path, takeovers: tuple[Row, ...]) -> Iterator[Figure]:
    """Of one takeover of each record and view, beside a thaw and its commands, and the Pythons that these start."""
    print_progress("the same commands alone")
    config, places = load_config(out), RunPaths(out)
    tasks = {task.id: task for task in load_tasks(config.tasks, config.task_ids, config.limit)}
    results, found, starts, pythons = load_results([out]), [], [], 0
    for row in [row for row in takeovers if row["repeat"] == 1][:40]:
        trace, record = results.load_trace(row), results.load_record(row)
        assert trace is not None
        assert record is not None
        commands = [
            event.arguments["command"]
            for event in trace.events
            if event.kind == "action" and event.tool == "shell"
        ]
        began = time.perf_counter()
        with SandboxManager(places.spec(config, tasks[row["task_id"]])) as workbench:
            machine = workbench.restore(record.required_snapshot, places.records.directory(record.id))
            for command in commands:
                machine.run(command, timeout_s=120)
            found.append(time.perf_counter() - began)
            pythons += sum(command.startswith("python3 ") for command in commands)
            starts.append(machine.run("python3 -c pass", timeout_s=120).seconds)
    ours, commands_s = statistics.median(row["seconds"] for row in takeovers), statistics.median(found)
    title = "its thaw and its commands alone, one at a time"
    yield Figure("a takeover, grading included", "s", ours, commands_s, title)
    each, start_s = pythons / len(found), statistics.median(starts)
    yield Figure(f"{each:.1f} Pythons that it starts", "s", each * start_s, start_s, "one that does nothing")


def _build_append_figures(directory: Path, rows: int) -> Iterator[Figure]:
    """Medians: on a full journal, beside an empty one and a bare file."""
    print_progress(f"a journal of {rows:,} rows")
    with open_journal(directory) as database:
        journal = Journal(database, "run", "takeovers", "number")
        empty = _measure_median_ms(journal.append, range(200))
        for number in range(200, rows):
            journal.append(_make_row(number))
        full = _measure_median_ms(journal.append, range(rows, rows + 200))
    with (directory / "bare.jsonl").open("a") as file:

        def append_line(row: Row) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

        bare = _measure_median_ms(append_line, range(200))
    what = f"journal append after {rows:,} rows"
    yield Figure(what, "ms", full, empty, "on an empty journal", growth=True)
    yield Figure(what, "ms", full, bare, "a line of a bare file, synced")


def _make_row(number: int) -> Row:
    return {"number": number, "outcome": "graded", "patch": _TEXT}


def _measure_median_ms(append: Callable[[Row], object], numbers: range) -> float:
    spent = []
    for number in numbers:
        began = time.perf_counter()
        append(_make_row(number))
        spent.append(1e3 * (time.perf_counter() - began))
    return statistics.median(spent)


def _do_nothing(config: RunConfig, out: Path, task: Task, number: int) -> Row:
    return _make_row(number)


def _build_memory_figure(jobs: int) -> Figure:
    print_progress(f"a coordinator of {jobs:,} jobs")
    what = f"coordinator's memory, {jobs:,} jobs"
    return Figure(
        what,
        "MB",
        _measure_coordinator(jobs),
        _measure_coordinator(_FEW_JOBS),
        f"{_FEW_JOBS:,} jobs",
        growth=True,
    )


def _measure_coordinator(jobs: int) -> float:
    """The most that a coordinator of its own process takes, in MB, for so many jobs that do nothing."""
    code = f"from benchmarks.experiment import coordinate; print(coordinate({jobs}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": sys.path[0]},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return float(done.stdout)


def coordinate(jobs: int) -> float:
    """Journal so many rows of two workers, and read them all again; the process's most memory in MB."""
    (task,) = load_tasks("bundled", limit=1)
    config: Any = None
    with (
        tempfile.TemporaryDirectory() as place,
        open_journal(Path(place)) as database,
        open_local_executor(2) as machinery,
    ):
        journal = Journal(database, "run", "takeovers", "number")
        asked = (Job(_do_nothing, config, Path(place), (task, number), (number,)) for number in range(jobs))
        for row in machinery.run(asked):
            journal.append(row)
        assert sum(1 for _ in journal.rows()) == jobs
        journal.export(Path(place))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    run_command(main, _EPILOG)
