"""The main command: run predecessors, freeze them at their handoff points, let successors continue."""

from __future__ import annotations

import datetime
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from evals.config import RunConfig
    from evals.executors import Executor
    from evals.journal import Journal, Row
    from evals.tasks import Task

DONE, USAGE, INFRASTRUCTURE_FAILURES, INTERRUPTED = 0, 2, 3, 130

EPILOG = """
Examples:

  python -m evals.takeover --view structured

  python -m evals.takeover --view all --model openai:gpt-5 --sandbox docker --tasks SWE-bench/SWE-bench_Verified --limit 5

  python -m evals.takeover --view trace --tasks verified.parquet --task-ids sympy__sympy-23534
  --predecessor replay:sympy__sympy-23534.traj.json --successor openai:qwen --base-url http://127.0.0.1:8091/v1 --sandbox docker

  python -m evals.takeover --resume --out runs/20260518-120000

Exit codes: 0 done, 2 usage, 3 finished with infrastructure failures, 130 interrupted (go on with --resume).
"""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog=EPILOG.replace("\n", "\n\n") if False else EPILOG)
def command(
    context: typer.Context,
    view: Annotated[str, typer.Option(help="Views to compare, separated by commas, or 'all': repository, trace, summary, structured. The repository baseline always runs too.")] = "structured",
    model: Annotated[str, typer.Option(help="Model of predecessor and successor: openai:NAME, replay:FILE or builtin:oracle.")] = "builtin:oracle",
    predecessor: Annotated[str | None, typer.Option(help="Model that begins the tasks. [default: --model]", show_default=False)] = None,
    successor: Annotated[str | None, typer.Option(help="Model that takes over; a replay of the predecessor's own file goes on where the point lies, replay:FILE@N at action N. [default: --model]", show_default=False)] = None,
    notes_model: Annotated[str | None, typer.Option(help="Model that writes the notes. [default: the predecessor's if it is an LLM, else the successor's]", show_default=False)] = None,
    tasks: Annotated[str, typer.Option(help="'bundled', a task repo's directory, a .parquet, .jsonl or .json file, or a dataset's name on the hub.")] = "bundled",
    task_ids: Annotated[str | None, typer.Option(help="Only these tasks, separated by commas, or @FILE with one a line.", show_default=False)] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many tasks.", show_default=False)] = None,
    points: Annotated[str, typer.Option(help="Handoff points, separated by commas: first_source_edit, first_validation, first_post_failure_edit.")] = "all",
    sandbox: Annotated[str, typer.Option(help="docker, host (bubblewrap), process (no isolation), or auto: host where it works, else process; docker for tasks that are images.")] = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="Takeovers of each point under each view.")] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Processes that work side by side.")] = 1,
    base_url: Annotated[str | None, typer.Option(envvar="OPENAI_BASE_URL", help="An OpenAI-compatible server for the openai: models.", show_default=False)] = None,
    protocol: Annotated[str, typer.Option(help="How models act: text, or native tool calls.")] = "text",
    max_steps: Annotated[int, typer.Option(min=1, help="Actions an agent may take.")] = 500,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Prompt and completion tokens an agent may spend.", show_default=False)] = None,
    max_seconds: Annotated[float, typer.Option(min=1, help="Time an agent may take.")] = 4 * 3600.0,
    command_timeout_s: Annotated[float, typer.Option(min=0.1, help="Time one command may take.")] = 120.0,
    allow_unisolated: Annotated[bool, typer.Option("--allow-unisolated", help="Let any model run commands in the process sandbox: as you, with your files and your network.")] = False,
    grading_network: Annotated[bool, typer.Option("--grading-network", help="Let the official tests in Docker reach the network, as swebench's own harness does.")] = False,
    out: Annotated[Path | None, typer.Option(help="Directory for the results. [default: runs/DATE-TIME]", show_default=False)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out; what is done stays, what failed for its infrastructure is tried again.")] = False,
) -> None:
    """Measure what it costs when one coding agent must continue another's unfinished work."""
    from rich.console import Console

    from evals.config import BadUsage
    from evals.journal import OutInUse
    from evals.models import BadModel
    from evals.tasks import BadTasks
    from sandbox.machine import SandboxUnavailable

    console = Console(soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 160)
    options = {name: value for name, value in context.params.items() if name not in ("out", "resume", "workers")}
    given = {name for name in options if _was_given(context, name)}
    where = out or Path("runs") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    try:
        code = run(console, options, given, where, workers=workers, resume=resume)
    except (BadUsage, BadModel, BadTasks, OutInUse, SandboxUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    except KeyboardInterrupt:
        print(f"\ninterrupted; what is done is safe. Go on with: python -m evals.takeover --resume --out {where}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(code)


def run(console: Console, options: dict[str, Any], given: set[str], out: Path, *, workers: int, resume: bool) -> int:
    """One run from its settings to its report; the exit code."""
    from evals import stages
    from evals.executors import Inline, Processes
    from evals.journal import Journal, sole_user
    from evals.setup import prepared
    from handoff.views import NEED_NOTES

    config, tasks = prepared(options, given, out, resume=resume)
    executor: Executor = Inline() if workers == 1 else Processes(workers)
    places = stages.Places(out)
    with sole_user(out):
        _tidy(config, places)
        predecessors = Journal(out / "predecessors.jsonl", "task_id")
        labels = Journal(out / "labels.jsonl", "record_id")
        notes = Journal(out / "notes.jsonl", "record_id")
        takeovers = Journal(out / "takeovers.jsonl", "record_id", "view", "successor", "repeat")
        for journal in (predecessors, labels, notes, takeovers):
            journal.drop([row for row in journal.rows() if row["outcome"] == "infrastructure_failure"])

        def carry_out(title: str, stage: Callable[..., Row], journal: Journal, jobs: Iterable[tuple[Any, ...]]) -> None:
            _carry_out(console, executor, title, stage, journal, list(jobs))

        for task in tasks:
            task.check_out(places.work)

        carry_out(
            "predecessors", stages.run_predecessor, predecessors,
            ((config, task, out) for task in tasks if (task.id,) not in predecessors),
        )  # fmt: skip
        handed_over = _records(predecessors, tasks)
        carry_out(
            "handoff states", stages.label, labels,
            ((config, task, out, record) for task, record in handed_over if (record,) not in labels),
        )  # fmt: skip
        if any(view in NEED_NOTES for view in config.views):
            carry_out(
                "notes", stages.note, notes,
                ((config, task, out, record) for task, record in handed_over if (record,) not in notes),
            )  # fmt: skip
        carry_out(
            "takeovers", stages.run_takeover, takeovers,
            (
                (config, task, out, record, view, repeat)
                for task, record in handed_over
                for view in config.views
                for repeat in range(1, config.repeats + 1)
                if (record, view, config.successor, repeat) not in takeovers
            ),
        )  # fmt: skip
        _tidy(config, places)
        return _report(console, config, out, predecessors, labels, notes, takeovers)


def _records(predecessors: Journal, tasks: tuple[Task, ...]) -> list[tuple[Task, str]]:
    by_id = {task.id: task for task in tasks}
    return [(by_id[row["task_id"]], record) for row in predecessors.rows() for record in row.get("records", ())]


def _carry_out(console: Console, executor: Executor, title: str, stage: Callable[..., Row], journal: Journal, jobs: list[tuple[Any, ...]]) -> None:
    """Run a stage over the jobs that are left, journaling each row as it comes."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if not jobs:
        return
    columns = (TextColumn("{task.description:15}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(title, total=len(jobs))
        for row in executor.run(stage, jobs):
            journal.append(row)
            progress.advance(bar)
            if not console.is_terminal:
                console.print(f"{title}: {_in_words(row)}", markup=False, highlight=False)


def _in_words(row: Row) -> str:
    names = [row.get("record_id") or row["task_id"], row.get("view"), row.get("handoff_state"), row.get("stop_reason")]
    result = {True: "resolved", False: "unresolved", None: None}[row.get("resolved")]
    if row["outcome"] == "infrastructure_failure":
        result = f"infrastructure failure: {row['detail']}"
    events = f"{row['events']} events" if "events" in row else None
    return ", ".join(str(part) for part in (*names, events, result) if part)


def _tidy(config: RunConfig, places: Any) -> None:
    """Remove the machines and frozen images that no record of this run holds any more."""
    import sandbox

    kept = [places.records.load(name).snapshot.location for name in places.records.ids()]
    sandbox.remove_leftovers(config.sandbox, config.run_id, keep=kept)
    for partial in places.records.root.glob(".partial-*"):
        shutil.rmtree(partial, ignore_errors=True)


def _report(console: Console, config: RunConfig, out: Path, *journals: Journal) -> int:
    from evals.report import show, summarise, write_summary

    summary = summarise(config, *(journal.rows() for journal in journals))
    write_summary(out, summary)
    show(console, summary, out)
    return INFRASTRUCTURE_FAILURES if summary["infrastructure_failures"] else DONE


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")


def main() -> None:
    app(prog_name="python -m evals.takeover")


if __name__ == "__main__":
    main()
