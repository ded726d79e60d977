"""Cost of the experiment without model time: throughput, the limit of bare commands, and growth.

The built-in model answers instantly. The limit of a takeover is to restore the record's sandbox and run the successor's
commands, one after another. Journal appends are timed on an empty and a full journal, compared with a bare file that is
synced after each line. Memory is the coordinator's, after few and after many jobs.
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
from typing import Annotated, Any, ClassVar, NamedTuple, cast

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil
import typer

from benchmarks.figures import Figure, Goal, format_count, print_figures, print_progress, run_command
from benchmarks.host import Meter, ProcessorTime
from langgraph_takeover.evals.run.execution.executors import Job, open_local_executor
from langgraph_takeover.evals.run.journal import Journal, open_journal
from langgraph_takeover.evals.run.results import load_results
from langgraph_takeover.evals.run.rows import AgentRow, Takeover
from langgraph_takeover.evals.run.settings.config import RunConfig, RunPaths, load_config
from langgraph_takeover.evals.tasks import Task, load_tasks
from langgraph_takeover.sandbox import SandboxManager

VIEWS = "repository,trace,summary,structured"
_TEXT = "x" * 3_000
"""About the length of a takeover's row with its patch."""
_FEW_JOBS = 200
_EPILOG = """Examples:

python benchmarks/experiment.py

python benchmarks/experiment.py --limit 3 --repeats 1 --json
"""


def main(
    limit: Annotated[int, typer.Option(min=1, help="Number of bundled tasks.")] = 12,
    repeats: Annotated[int, typer.Option(min=1, help="Takeovers per point and view.")] = 2,
    workers: Annotated[int, typer.Option(min=1, help="Number of worker processes.")] = 2,
    sandbox: Annotated[str, typer.Option(help="Back end: host or process.")] = "host",
    rows: Annotated[int, typer.Option(min=1_000, help="Number of rows of the full journal.")] = 50_000,
    jobs: Annotated[
        int, typer.Option(min=2 * _FEW_JOBS, help="Number of jobs for the memory of the coordinator.")
    ] = 20_000,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure the cost of the experiment without its models."""
    with tempfile.TemporaryDirectory(prefix="takeover-experiment-") as work:
        out = Path(work) / "run"
        spans = _time_takeovers(out, limit, repeats, workers, sandbox)
        takeovers = load_results([out]).takeovers
        figures = [
            *_build_speed_figures(spans, takeovers),
            *_build_baseline_figures(out, takeovers),
            *_build_append_figures(Path(work), rows),
            _build_memory_figure(jobs),
        ]
    title = (
        f"{len(takeovers)} takeovers by {format_count(workers, 'worker')} in `{sandbox}`, without model time"
    )
    print_figures(title, figures, as_json=as_json)


class TimeSpans(NamedTuple):
    """Seconds of the takeovers' process, and processor seconds between its first and last row."""

    start: float
    """From the process's start to the first row."""
    seconds: float
    report: float
    """From the last row to the process's end."""
    own_s: float
    """Processor time of the coordinator and its workers."""
    host_s: float
    """Processor time of all processes on this host, including commands in sandboxes."""
    stolen_share: float
    """CPU steal as a share of all processor time."""


def _time_takeovers(out: Path, limit: int, repeats: int, workers: int, sandbox: str) -> TimeSpans:
    """Run the stages before the takeovers, then time the takeovers alone."""
    base = [sys.executable, "-m", "evals.takeover", "--out", str(out), "--workers", str(workers)]
    options = ["--view", VIEWS, "--limit", str(limit), "--repeats", str(repeats), "--sandbox", sandbox]
    environment = os.environ | {"PYTHONPATH": sys.path[0]}
    print_progress("predecessors, labels and notes")
    preparation = [*base, *options, "--stages", "predecessors,labels,notes"]
    subprocess.run(preparation, env=environment, check=True, stdout=subprocess.DEVNULL)
    print_progress("takeovers")
    start, meter = time.perf_counter(), Meter()
    samples: list[tuple[float, ProcessorTime, float]] = []
    with subprocess.Popen(
        [*base, "--resume", "--stages", "takeovers"], env=environment, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("takeovers: "):
                if not samples:
                    meter = Meter()
                samples.append((time.perf_counter(), meter.read(), _read_processor_time(running.pid)))
                if len(samples) % 50 == 0:
                    print_progress(f"{len(samples)} takeovers")
    if running.returncode != 0:
        raise RuntimeError(f"the takeovers failed with exit code {running.returncode}")
    end = time.perf_counter()
    (first, _, own_before), (last, host, own_after) = samples[0], samples[-1]
    return TimeSpans(
        first - start, last - first, end - last, own_after - own_before, host.busy_s, host.stolen_share
    )


def _read_processor_time(process: int) -> float:
    """Processor seconds of a process and its workers so far, without the programs that they started."""
    coordinator = psutil.Process(process)
    total = 0.0
    for each in (coordinator, *coordinator.children()):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system
    return total


def _build_speed_figures(spans: TimeSpans, takeovers: tuple[Takeover, ...]) -> Iterator[Figure]:
    # The time between the first and the last row covers all takeovers except one.
    number = len(takeovers) - 1
    per_minute, steal = 60 * number / spans.seconds, f"{100 * spans.stolen_share:.0f} %"
    title = f"without {steal} CPU steal"
    goal = Goal(120, at_least=True)
    yield Figure("takeovers per minute", "", per_minute, per_minute / (1 - spans.stolen_share), title, goal)
    own_ms, host_ms = 1e3 * spans.own_s / number, 1e3 * spans.host_s / number
    title = "all processes on this host, including commands"
    yield Figure("processor time per takeover", "ms", own_ms, host_ms, title)
    yield Figure("start to first row", "s", spans.start)
    yield Figure("report on the takeovers", "s", spans.report)


def _build_baseline_figures(out: Path, takeovers: tuple[Takeover, ...]) -> Iterator[Figure]:
    """One takeover per record and view, compared with a restore and its bare commands, and their Python start-up."""
    print_progress("bare commands")
    config, paths = load_config(out), RunPaths(out)
    tasks = {task.id: task for task in load_tasks(config.tasks, config.task_ids, config.limit)}
    results, durations, start_times, python_count = load_results([out]), [], [], 0
    for row in [row for row in takeovers if row.repeat == 1][:40]:
        trace, record = results.load_trace(row), results.load_record(row)
        assert trace is not None
        assert record is not None
        commands = [
            event.arguments["command"]
            for event in trace.events
            if event.kind == "action" and event.tool == "shell"
        ]
        start = time.perf_counter()
        with SandboxManager(paths.spec(config, tasks[str(row.task_id)])) as manager:
            restored = manager.restore(record.required_snapshot, paths.records.directory(record.id))
            for command in commands:
                restored.run(command, timeout_s=120)
            durations.append(time.perf_counter() - start)
            python_count += sum(command.startswith("python3 ") for command in commands)
            start_times.append(restored.run("python3 -c pass", timeout_s=120).seconds)
    takeover_s, commands_s = (
        statistics.median(row.seconds or 0 for row in takeovers),
        statistics.median(durations),
    )
    title = "its restore and commands alone, one at a time"
    yield Figure("takeover with grading", "s", takeover_s, commands_s, title)
    per_takeover, start_s = python_count / len(durations), statistics.median(start_times)
    yield Figure(
        f"start-up of its {per_takeover:.1f} Python processes",
        "s",
        per_takeover * start_s,
        start_s,
        "one process",
    )


def _build_append_figures(directory: Path, rows: int) -> Iterator[Figure]:
    """Median appends to a full journal, compared with an empty one and a bare file."""
    print_progress(f"a journal of {rows:,} rows")
    with open_journal(directory) as database:
        journal = Journal(database, "run", "takeovers", _NumberedRow)
        empty = _measure_median_ms(journal.append, range(200))
        for number in range(200, rows):
            journal.append(_make_row(number))
        full = _measure_median_ms(journal.append, range(rows, rows + 200))
    with (directory / "bare.jsonl").open("a") as file:

        def append_line(row: _NumberedRow) -> None:
            file.write(json.dumps(row.to_dict()) + "\n")
            file.flush()
            os.fsync(file.fileno())

        bare = _measure_median_ms(append_line, range(200))
    name = f"journal append after {rows:,} rows"
    yield Figure(name, "ms", full, empty, "empty journal", growth=True)
    yield Figure(name, "ms", full, bare, "line of a bare file, synced")


class _NumberedRow(AgentRow):
    key_fields: ClassVar[tuple[str, ...]] = ("number",)

    number: int


def _make_row(number: int) -> _NumberedRow:
    return _NumberedRow(number=number, outcome="graded", patch=_TEXT)


def _measure_median_ms(append: Callable[[_NumberedRow], object], numbers: range) -> float:
    durations = []
    for number in numbers:
        start = time.perf_counter()
        append(_make_row(number))
        durations.append(1e3 * (time.perf_counter() - start))
    return statistics.median(durations)


def _do_nothing(config: RunConfig, out: Path, task: Task, number: int) -> _NumberedRow:
    return _make_row(number)


def _build_memory_figure(jobs: int) -> Figure:
    print_progress(f"coordinator of {jobs:,} jobs")
    return Figure(
        f"memory of the coordinator, {jobs:,} jobs",
        "MB",
        _measure_coordinator(jobs),
        _measure_coordinator(_FEW_JOBS),
        f"{_FEW_JOBS:,} jobs",
        growth=True,
    )


def _measure_coordinator(jobs: int) -> float:
    """Peak memory in MB of a separate coordinator process with this many empty jobs."""
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
    """Journal the rows of two workers and read them again; return the peak memory of the process in MB."""
    (task,) = load_tasks("bundled", limit=1)
    config: Any = None
    with (
        tempfile.TemporaryDirectory() as directory,
        open_journal(Path(directory)) as database,
        open_local_executor(2) as executor,
    ):
        journal = Journal(database, "run", "takeovers", _NumberedRow)
        queue = (
            Job(_do_nothing, config, Path(directory), (task, number), (number,)) for number in range(jobs)
        )
        for row in executor.run(queue):
            journal.append(cast(_NumberedRow, row))
        assert sum(1 for _ in journal.rows()) == jobs
        journal.export(Path(directory))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    run_command(main, _EPILOG)
