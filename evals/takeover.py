"""The main command: run predecessors, freeze them at their handoff points, let successors continue."""

from __future__ import annotations

import datetime
import errno
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from evals import options as opt

if TYPE_CHECKING:
    from rich.console import Console

    from evals.config import RunConfig
    from evals.executors import Executor
    from evals.journal import Journal, Row
    from evals.places import Places
    from evals.tasks import Task
    from graph import Home

DONE, USAGE, INFRASTRUCTURE_FAILURES, NO_SPACE, INTERRUPTED = 0, 2, 3, 4, 130

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog=opt.EPILOG)
def command(
    context: typer.Context,
    view: opt.View = "structured",
    model: opt.Model = "builtin:oracle",
    predecessor: opt.Predecessor = None,
    successor: opt.Successor = None,
    notes_model: opt.NotesModel = None,
    tasks: opt.Tasks = "bundled",
    task_ids: opt.TaskIds = None,
    limit: opt.Limit = None,
    points: opt.Points = "all",
    sandbox: opt.SandboxName = "auto",
    repeats: opt.Repeats = 1,
    workers: opt.Workers = 1,
    base_url: opt.BaseUrl = None,
    protocol: opt.ActionProtocol = "text",
    max_steps: opt.MaxSteps = 500,
    max_tokens: opt.MaxTokens = None,
    max_reply_tokens: opt.MaxReplyTokens = None,
    max_seconds: opt.MaxSeconds = 4 * 3600.0,
    window_tokens: opt.WindowTokens = None,
    command_timeout_s: opt.CommandTimeout = 120.0,
    allow_unisolated: opt.AllowUnisolated = False,
    grading_network: opt.GradingNetwork = False,
    out: opt.Out = None,
    resume: opt.Resume = False,
) -> None:
    """Measure what it costs when one coding agent must continue another's unfinished work."""
    from rich.console import Console

    from evals.executors import TERMINATED, end_on_sigterm
    from evals.setup import LOST_ON_THE_WAY, USAGE_ERRORS, prepared

    end_on_sigterm()
    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if terminal else 160)
    asked = {
        name: value for name, value in context.params.items() if name not in ("out", "resume", "workers")
    }
    given = {name for name in asked if _was_given(context, name)}
    if resume and out is None:
        print("error: --resume: name the run to go on with by --out", file=sys.stderr)
        raise typer.Exit(USAGE)
    where = out or Path("runs") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    begun = False
    try:
        config, chosen = prepared(asked, given, where, resume=resume)
        begun = True
        code = run(console, config, chosen, where, workers=workers)
    except KeyboardInterrupt:
        print(f"\ninterrupted; what is done is safe. {_go_on(where)}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except SystemExit:
        print(f"terminated; what is done is safe. {_go_on(where)}", file=sys.stderr)
        raise typer.Exit(TERMINATED) from None
    except (*USAGE_ERRORS, OSError) as error:
        if _is_full(error):
            print(
                f"error: {where}: no space left; what is done is safe. Free some. {_go_on(where)}",
                file=sys.stderr,
            )
            raise typer.Exit(NO_SPACE) from None
        if not isinstance(error, USAGE_ERRORS):
            raise
        if begun and isinstance(error, LOST_ON_THE_WAY):
            print(f"error: {error}; what is done is safe. {_go_on(where)}", file=sys.stderr)
            raise typer.Exit(INFRASTRUCTURE_FAILURES) from None
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    raise typer.Exit(code)


def run(console: Console, config: RunConfig, tasks: tuple[Task, ...], out: Path, *, workers: int) -> int:
    """One run from its settings to its report, doing only what is not yet done; the exit code."""
    from evals import stages, threads
    from evals.executors import executor
    from evals.journal import open_journals, sole_user
    from evals.places import Places
    from handoff.views import NEED_NOTES

    places = Places(out)
    by_id = {task.id: task for task in tasks}
    _introduce(config, tasks, out)
    with (
        sole_user(out),
        places.home() as home,
        _tidied(config, places, home),
        executor(workers) as machinery,
    ):
        predecessors, labels, notes, takeovers = open_journals(out)
        for task in tasks:
            task.check_out(places.work)

        def forget(row: Row) -> None:
            if row["task_id"] in by_id:
                threads.forget_machines(config, home, by_id[row["task_id"]], row)

        def carry_out(
            stage: Callable[..., Row],
            journal: Journal,
            jobs: Iterable[tuple[Any, ...]],
            then: Callable[[Row], None] = lambda row: None,
        ) -> None:
            _carry_out(console, machinery, stage, journal, [(config, out, *job) for job in jobs], then)

        for row in (*predecessors.rows(), *takeovers.rows()):
            forget(row)

        carry_out(
            stages.run_predecessor,
            predecessors,
            [(task,) for task in tasks if (task.id,) not in predecessors],
            forget,
        )
        points = _points(predecessors, tasks)
        carry_out(stages.label, labels, [point for point in points if (point[1],) not in labels])
        if any(view in NEED_NOTES for view in config.views):
            carry_out(stages.write_note, notes, [point for point in points if (point[1],) not in notes])
        carry_out(
            stages.run_takeover,
            takeovers,
            [
                (task, record, view, repeat)
                for task, record in points
                for view in config.views
                for repeat in range(1, config.repeats + 1)
                if (record, view, config.successor, repeat) not in takeovers
            ],
            forget,
        )
        return _report(console, config, out, predecessors, labels, notes, takeovers)


def _introduce(config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
    import sandbox

    models = {"predecessor": config.predecessor, "successor": config.successor, "notes": config.notes_model}
    print(
        f"{len(tasks)} task{'s' if len(tasks) > 1 else ''}; views: {', '.join(config.views)}; results: {out}"
    )
    print("; ".join(f"{role}: {name}" for role, name in models.items()))
    print(f"sandbox: {config.sandbox}, {sandbox.describe(config.sandbox)}", flush=True)


def _points(predecessors: Journal, tasks: tuple[Task, ...]) -> list[tuple[Task, str]]:
    """Every handoff point that was reached: its task and the id of its record."""
    by_id = {task.id: task for task in tasks}
    return [
        (by_id[row["task_id"]], record)
        for row in predecessors.rows()
        if row["task_id"] in by_id
        for record in row.get("records", ())
    ]


def _carry_out(
    console: Console,
    executor: Executor,
    stage: Callable[..., Row],
    journal: Journal,
    jobs: list[tuple[Any, ...]],
    then: Callable[[Row], None],
) -> None:
    """Run a stage over the jobs that are left, journaling each row as it comes."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if not jobs:
        return
    columns = (TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(journal.name, total=len(jobs))
        for row in executor.run(stage, jobs):
            journal.append(row)
            then(row)
            progress.advance(bar)
            if not console.is_terminal:
                print(f"{journal.name}: {_in_words(row)}", flush=True)


def _in_words(row: Row) -> str:
    names = [
        row.get("record_id") or row["task_id"],
        row.get("view"),
        row.get("handoff_state"),
        row.get("stop_reason"),
    ]
    result = {True: "resolved", False: "unresolved", None: None}[row.get("resolved")]
    if row["outcome"] == "infrastructure_failure":
        result = f"infrastructure failure: {row['detail']}"
    events = f"{row['events']} events" if "events" in row else None
    return ", ".join(str(part) for part in (*names, events, result) if part)


@contextmanager
def _tidied(config: RunConfig, places: Places, home: Home) -> Iterator[None]:
    """Before and after a run, however it ends, no machine of it is left."""
    _tidy(config, places, home)
    try:
        yield
    finally:
        _tidy(config, places, home)


def _tidy(config: RunConfig, places: Places, home: Home) -> None:
    """Remove what a killed run left: its machines, and frozen images that no record and no checkpoint needs."""
    import sandbox
    from handoff.ledger import machines
    from nodes.session import owner_of

    places.records.remove_partial()
    home.remove_unused_machines(alone=True)
    keep = places.records.snapshot_locations()
    if keep is not None:
        keep |= {snapshot.location for snapshot in machines.snapshots(home.ledger)}
    owners = [owner_of(config.run_id, home.ledger, thread) for thread in home.threads()]
    sandbox.remove_leftovers(config.sandbox, config.run_id, *owners, keep=keep)


def _report(console: Console, config: RunConfig, out: Path, *journals: Journal) -> int:
    from evals.report import show, summarise, write_summary

    summary = summarise(config, *(journal.rows() for journal in journals))
    write_summary(out, summary)
    show(console, summary, out)
    return INFRASTRUCTURE_FAILURES if summary["infrastructure_failures"] else DONE


def _go_on(out: Path) -> str:
    return f"Go on with: python -m evals.takeover --resume --out {out}"


def _is_full(error: Exception) -> bool:
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "disk is full" in str(error)


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def main() -> None:
    app(prog_name="python -m evals.takeover")


if __name__ == "__main__":
    main()
