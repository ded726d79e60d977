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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, cast

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil
import typer

from benchmarks.figures import Goal, format_count, print_figures, print_progress, run_command
from benchmarks.host import Meter, ProcessorTime, run_python, start_python
from benchmarks.turns import AsJson, Comparison, Samples, open_work_directory
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
_WORKERS, _FEW_JOBS = 2, 200


def main(
    limit: Annotated[int, typer.Option(min=1, help="Number of bundled tasks.")] = 12,
    repeats: Annotated[int, typer.Option(min=1, help="Takeovers per point and view.")] = 2,
    rows: Annotated[int, typer.Option(min=1_000, help="Number of rows of the full journal.")] = 50_000,
    jobs: Annotated[
        int, typer.Option(min=2 * _FEW_JOBS, help="Number of jobs for the memory of the coordinator.")
    ] = 20_000,
    as_json: AsJson = False,
) -> None:
    """Measure the cost of the experiment without its models."""
    samples = Samples()
    with open_work_directory() as work:
        _measure_takeovers(samples, work / "run", limit, repeats)
        takeovers = load_results([work / "run"]).takeovers
        processes = _measure_bare_commands(samples, work / "run", takeovers)
        _measure_appends(samples, work, rows)
    print_progress(f"coordinator of {jobs:,} jobs")
    for name, number in (("few", _FEW_JOBS), ("many", jobs)):
        code = f"from benchmarks.experiment import coordinate; print(coordinate({number}))"
        samples.add(f"{name}_jobs", float(run_python("-c", code)))
    append, memory = f"journal append after {rows:,} rows", f"memory of the coordinator, {jobs:,} jobs"
    whole_host, bare = (
        "all processes on this host, including commands",
        "its restore and commands alone, one at a time",
    )
    steal = f"without {100 * samples.values['steal'][0]:.0f} % CPU steal"
    figures = samples.compare(
        Comparison("takeovers per minute", "rate", "rate_without_steal", steal, Goal(120, at_least=True), ""),
        Comparison("processor time per takeover", "processor", "host_processor", whole_host),
        Comparison("start to first row", "start", unit="s"),
        Comparison("report on the takeovers", "report", unit="s"),
        Comparison("takeover with grading", "takeover", "bare", bare, unit="s"),
        Comparison(
            f"start-up of its {processes:.1f} Python processes", "pythons", "python", "one process", unit="s"
        ),
        Comparison(append, "full_append", "empty_append", "empty journal", growth=True),
        Comparison(append, "full_append", "bare_append", "line of a bare file, synced"),
        Comparison(memory, "many_jobs", "few_jobs", f"{_FEW_JOBS:,} jobs", unit="MB", growth=True),
    )
    title = f"{len(takeovers)} takeovers by {format_count(_WORKERS, 'worker')} in `host`, without model time"
    print_figures(title, figures, as_json=as_json)


class _Moment(NamedTuple):
    """The time at which a row is written, and the processor time until then."""

    time: float
    host: ProcessorTime
    """Processor time of all processes on this host since the first row, including commands in sandboxes."""
    own_s: float
    """Processor time of the coordinator and its workers."""


def _measure_takeovers(samples: Samples, out: Path, limit: int, repeats: int) -> None:
    """Run the stages before the takeovers, then time the takeovers alone."""
    base = ["-m", "evals.takeover", "--out", str(out), "--workers", str(_WORKERS)]
    options = ["--view", VIEWS, "--limit", str(limit), "--repeats", str(repeats), "--sandbox", "host"]
    print_progress("predecessors, labels and notes")
    run_python(*base, *options, "--stages", "predecessors,labels,notes")
    print_progress("takeovers")
    start, meter, moments = time.perf_counter(), Meter(), list[_Moment]()
    with start_python(*base, "--resume", "--stages", "takeovers", stdout=subprocess.PIPE) as running:
        for line in running.stdout or ():
            if line.startswith("takeovers: "):
                meter = meter if moments else Meter()
                own_s = _read_processor_time(running.pid)
                moments.append(_Moment(time.perf_counter(), meter.read(), own_s))
                if len(moments) % 50 == 0:
                    print_progress(f"{len(moments)} takeovers")
    if running.returncode != 0:
        raise RuntimeError(f"the takeovers failed with exit code {running.returncode}")
    end, first, last = time.perf_counter(), moments[0], moments[-1]
    # The time between the first and the last row covers all takeovers except one.
    number = len(moments) - 1
    rate, steal = 60 * number / (last.time - first.time), last.host.stolen_share
    for name, value in (
        ("rate", rate),
        ("rate_without_steal", rate / (1 - steal)),
        ("steal", steal),
        ("processor", (last.own_s - first.own_s) / number),
        ("host_processor", last.host.busy_s / number),
        ("start", first.time - start),
        ("report", end - last.time),
    ):
        samples.add(name, value)


def _read_processor_time(process: int) -> float:
    """Processor seconds of a process and its workers so far, without the programs that they started."""
    coordinator = psutil.Process(process)
    total = 0.0
    for each in (coordinator, *coordinator.children()):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system
    return total


def _measure_bare_commands(samples: Samples, out: Path, takeovers: tuple[Takeover, ...]) -> float:
    """Time takeovers, and a restore with the same commands; return the number of Python processes of a takeover."""
    print_progress("bare commands")
    config, paths = load_config(out), RunPaths(out)
    tasks = {task.id: task for task in load_tasks(config.tasks, config.task_ids, config.limit)}
    results, python_count = load_results([out]), 0
    for row in takeovers:
        samples.add("takeover", row.seconds or 0)
    for row in [row for row in takeovers if row.repeat == 1][:40]:
        trace, record = results.load_trace(row), results.load_record(row)
        assert trace is not None
        assert record is not None
        actions = [event for event in trace.events if event.kind == "action" and event.tool == "shell"]
        commands = [action.arguments["command"] for action in actions]
        start = time.perf_counter()
        with SandboxManager(paths.spec(config, tasks[str(row.task_id)])) as manager:
            restored = manager.restore(record.required_snapshot, paths.records.directory(record.id))
            for command in commands:
                restored.run(command, timeout_s=120)
            samples.add("bare", time.perf_counter() - start)
            python_count += sum(command.startswith("python3 ") for command in commands)
            samples.add("python", restored.run("python3 -c pass", timeout_s=120).seconds)
    per_takeover = python_count / len(samples.values["bare"])
    samples.add("pythons", per_takeover * (samples.median("python") or 0))
    return per_takeover


class _NumberedRow(AgentRow):
    key_fields: ClassVar[tuple[str, ...]] = ("number",)

    number: int


def _make_row(number: int) -> _NumberedRow:
    return _NumberedRow(number=number, outcome="graded", patch=_TEXT)


def _measure_appends(samples: Samples, directory: Path, rows: int) -> None:
    """Time appends to an empty and a full journal, and to a bare file."""
    print_progress(f"a journal of {rows:,} rows")

    def measure(name: str, append: Callable[[_NumberedRow], object], first: int = 0) -> None:
        for number in range(first, first + 200):
            with samples.measure_time(name):
                append(_make_row(number))

    with open_journal(directory) as database:
        journal = Journal(database, "run", "takeovers", _NumberedRow)
        measure("empty_append", journal.append)
        for number in range(200, rows):
            journal.append(_make_row(number))
        measure("full_append", journal.append, rows)
    with (directory / "bare.jsonl").open("a") as file:

        def append_line(row: _NumberedRow) -> None:
            file.write(json.dumps(row.to_dict()) + "\n")
            file.flush()
            os.fsync(file.fileno())

        measure("bare_append", append_line)


def coordinate(jobs: int) -> float:
    """Journal the rows of two workers and read them again; return the peak memory of the process in bytes."""
    (task,) = load_tasks("bundled", limit=1)
    config: Any = None
    with (
        tempfile.TemporaryDirectory() as directory,
        open_journal(Path(directory)) as database,
        open_local_executor(_WORKERS) as executor,
    ):
        journal = Journal(database, "run", "takeovers", _NumberedRow)
        arguments = ((task, number) for number in range(jobs))
        queue = (Job(_do_nothing, config, Path(directory), each, each[1:]) for each in arguments)
        for row in executor.run(queue):
            journal.append(cast(_NumberedRow, row))
        assert sum(1 for _ in journal.rows()) == jobs
        journal.export(Path(directory))
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _do_nothing(config: RunConfig, out: Path, task: Task, number: int) -> _NumberedRow:
    return _make_row(number)


if __name__ == "__main__":
    run_command(main)
