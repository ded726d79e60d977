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
from pathlib import Path
from typing import Annotated, Any, NamedTuple

# In this directory a file may have the name of a package.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil
import typer
from rich.console import Console
from rich.table import Table

from evals.run.config import RunConfig, load_config
from evals.run.executors import Job, executor
from evals.run.journal import Journal, Row, opened
from evals.run.places import Places
from evals.run.results import load
from evals.tasks import Task, load_tasks
from sandbox.workbench import Workbench

VIEWS = "repository,trace,summary,structured"
_TEXT = "x" * 3_000
"""About as long as a takeover's row with its patch."""
_EPILOG = """Examples:

python benchmarks/experiment.py

python benchmarks/experiment.py --limit 3 --repeats 1 --json
"""


class Figures(NamedTuple):
    """What was measured; times in seconds, memory in MB."""

    takeovers: int
    workers: int
    seconds: float
    """From the first row to the last, which so many takeovers but one took."""
    a_minute: float
    ours_ms: float
    """Processor time of a takeover in the coordinator and its workers."""
    all_ms: float
    """Processor time of a takeover in everything on this host, the commands in the machines among it."""
    stolen: float
    """The share of this host's processor time that another host took meanwhile: virtual machines only."""
    start_s: float
    """From the process's start to the first row."""
    report_s: float
    """From the last row to the process's end."""
    one_s: float
    """Median of a takeover, grading included, while the others run."""
    limit_s: float
    """Median of the same machine's thaw and the same commands."""
    python_s: float
    """Median of how long a Python that does nothing takes in such a machine; a takeover starts several."""
    pythons: float
    """How many a takeover starts, on average."""
    append_empty_ms: float
    append_full_ms: float
    append_file_ms: float
    memory_few_mb: float
    memory_many_mb: float
    jobs_few: int
    jobs_many: int


def main(
    limit: Annotated[int, typer.Option(min=1, help="Of so many bundled tasks.")] = 12,
    repeats: Annotated[int, typer.Option(min=1, help="Takeovers of each point and view.")] = 2,
    workers: Annotated[int, typer.Option(min=1, help="Processes side by side.")] = 2,
    sandbox: Annotated[str, typer.Option(help="host or process.")] = "host",
    rows: Annotated[int, typer.Option(min=1_000, help="Rows of the full journal.")] = 50_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure what the experiment costs beside its models."""
    with tempfile.TemporaryDirectory(prefix="takeover-experiment-") as place:
        out = Path(place) / "run"
        spans = _takeovers(out, limit, repeats, workers, sandbox)
        few, many = 200, 20_000
        taken = load([out]).takeovers
        figures = Figures(
            len(taken),
            workers,
            spans.seconds,
            60 * (len(taken) - 1) / spans.seconds,
            1e3 * spans.ours / (len(taken) - 1),
            1e3 * spans.everybody / (len(taken) - 1),
            spans.stolen,
            spans.start,
            spans.report,
            statistics.median(row["seconds"] for row in taken),
            *_bare(out, taken),
            *_appends(Path(place), rows),
            _memory(few),
            _memory(many),
            few,
            many,
        )
    if as_json:
        print(json.dumps(figures._asdict(), indent=1))
    else:
        _show(figures, rows)


class Spans(NamedTuple):
    """Seconds of the takeovers' process, and of processors between the first row and the last."""

    start: float
    seconds: float
    report: float
    ours: float
    everybody: float
    stolen: float


def _takeovers(out: Path, limit: int, repeats: int, workers: int, sandbox: str) -> Spans:
    """Run everything before the takeovers, then these alone."""
    base = [sys.executable, "-m", "evals.takeover", "--out", str(out), "--workers", str(workers)]
    asked = ["--view", VIEWS, "--limit", str(limit), "--repeats", str(repeats), "--sandbox", sandbox]
    environment = os.environ | {"PYTHONPATH": sys.path[0]}
    before = [*base, *asked, "--stages", "predecessors,labels,notes"]
    subprocess.run(before, env=environment, check=True, stdout=subprocess.DEVNULL)
    moments = [(time.perf_counter(), psutil.cpu_times(), 0.0)]
    with subprocess.Popen(
        [*base, "--resume", "--stages", "takeovers"], env=environment, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("takeovers: "):
                moments.append((time.perf_counter(), psutil.cpu_times(), _spent(running.pid)))
    if running.returncode != 0:
        raise RuntimeError(f"the takeovers ended with {running.returncode}")
    ended, (began, _, _) = time.perf_counter(), moments[0]
    (first, before_all, before_ours), (last, after_all, after_ours) = moments[1], moments[-1]
    spent = [now - then for now, then in zip(after_all, before_all, strict=True)]
    share = dict(zip(after_all._fields, spent, strict=True))
    # A guest's time is in its user's already.
    whole = sum(seconds for name, seconds in share.items() if not name.startswith("guest"))
    busy = whole - sum(share.get(name, 0.0) for name in ("idle", "iowait", "steal"))
    stolen = share.get("steal", 0.0) / whole
    return Spans(first - began, last - first, ended - last, after_ours - before_ours, busy, stolen)


def _spent(process: int) -> float:
    """The processor seconds of a process and its workers so far, without what they started."""
    coordinator = psutil.Process(process)
    total = 0.0
    for each in (coordinator, *coordinator.children()):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system
    return total


def _bare(out: Path, taken: tuple[Row, ...]) -> tuple[float, float, float]:
    """Of one takeover of each record and view: median seconds of a thaw and its commands, those of a Python, and how many."""
    config, places = load_config(out), Places(out)
    tasks = {task.id: task for task in load_tasks(config.tasks, config.task_ids, config.limit)}
    results, found, starts, pythons = load([out]), [], [], 0
    for row in [row for row in taken if row["repeat"] == 1][:40]:
        trace, record = results.trace(row), results.record(row)
        assert trace is not None
        assert record is not None
        commands = [
            event.arguments["command"]
            for event in trace.events
            if event.kind == "action" and event.tool == "shell"
        ]
        began = time.perf_counter()
        with Workbench(places.spec(config, tasks[row["task_id"]])) as workbench:
            machine = workbench.thaw(record.machine, places.records.directory(record.id))
            for command in commands:
                machine.run(command, timeout_s=120)
            found.append(time.perf_counter() - began)
            pythons += sum(command.startswith("python3 ") for command in commands)
            starts.append(machine.run("python3 -c pass", timeout_s=120).seconds)
    return statistics.median(found), statistics.median(starts), pythons / len(found)


def _appends(place: Path, rows: int) -> tuple[float, float, float]:
    """Medians in milliseconds: on an empty journal, on a full one, and of a bare file."""
    with opened(place) as database:
        journal = Journal(database, "run", "takeovers", "number")
        empty = _timed(journal, range(200))
        _fill(journal, range(200, rows))
        full = _timed(journal, range(rows, rows + 200))
    with (place / "bare.jsonl").open("a") as file:
        bare = []
        for number in range(200):
            began = time.perf_counter()
            file.write(json.dumps(_row(number)) + "\n")
            file.flush()
            os.fsync(file.fileno())
            bare.append(1e3 * (time.perf_counter() - began))
    return empty, full, statistics.median(bare)


def _row(number: int) -> Row:
    return {"number": number, "outcome": "graded", "patch": _TEXT}


def _timed(journal: Journal, numbers: range) -> float:
    taken = []
    for number in numbers:
        began = time.perf_counter()
        journal.append(_row(number))
        taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken)


def _fill(journal: Journal, numbers: range) -> None:
    for number in numbers:
        journal.append(_row(number))


def _nothing(config: RunConfig, out: Path, task: Task, number: int) -> Row:
    return _row(number)


def _memory(jobs: int) -> float:
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
    with tempfile.TemporaryDirectory() as place, opened(Path(place)) as database, executor(2) as machinery:
        journal = Journal(database, "run", "takeovers", "number")
        asked = (Job(_nothing, config, Path(place), (task, number), (number,)) for number in range(jobs))
        for row in machinery.run(asked):
            journal.append(row)
        assert sum(1 for _ in journal.rows()) == jobs
        journal.export(Path(place))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _show(figures: Figures, rows: int) -> None:
    table = Table(title=f"{figures.takeovers} takeovers by {figures.workers} workers, no model's time")
    for name in ("what", "ours", "beside", "ratio"):
        table.add_column(name, justify="left" if name in ("what", "beside") else "right")
    unstolen = figures.a_minute / (1 - figures.stolen)
    table.add_row(
        "takeovers a minute",
        f"{figures.a_minute:.0f}",
        f"without the {figures.stolen:.0%} that other hosts took of this one: {unstolen:.0f}",
        f"{figures.a_minute / unstolen:.2f}",
    )
    table.add_row(
        "processor time of one, ms",
        f"{figures.ours_ms:.0f}",
        f"everything on this host, its commands too: {figures.all_ms:.0f}",
        f"{figures.ours_ms / figures.all_ms:.2f}",
    )
    table.add_row(
        "one takeover, s",
        f"{figures.one_s:.2f}",
        f"its thaw and its commands alone, one at a time: {figures.limit_s:.2f}",
        f"{figures.one_s / figures.limit_s:.2f}",
    )
    table.add_row(
        f"{figures.pythons:.1f} Pythons that it starts, s",
        f"{figures.pythons * figures.python_s:.2f}",
        f"one that does nothing: {figures.python_s:.3f}",
        f"{figures.pythons:.2f}",
    )
    table.add_row("to the first row, s", f"{figures.start_s:.1f}", "", "")
    table.add_row("report of them, s", f"{figures.report_s:.1f}", "", "")
    table.add_row(
        f"journal append after {rows:,} rows, ms",
        f"{figures.append_full_ms:.2f}",
        f"on an empty journal: {figures.append_empty_ms:.2f}",
        f"{figures.append_full_ms / figures.append_empty_ms:.2f}",
    )
    table.add_row(
        "the same",
        f"{figures.append_full_ms:.2f}",
        f"a bare file, synced: {figures.append_file_ms:.2f}",
        f"{figures.append_full_ms / figures.append_file_ms:.2f}",
    )
    table.add_row(
        f"coordinator's memory, {figures.jobs_many:,} jobs, MB",
        f"{figures.memory_many_mb:.0f}",
        f"{figures.jobs_few:,} jobs: {figures.memory_few_mb:.0f}",
        f"{figures.memory_many_mb / figures.memory_few_mb:.2f}",
    )
    Console().print(table)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=_EPILOG)(main)
    app()
