"""The main command: run predecessors, freeze them at their handoff points, let successors continue."""

from __future__ import annotations

import datetime
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from evals import options as opt
from evals.conduct import (
    DONE,
    INFRASTRUCTURE_FAILURES,
    USAGE,
    carry_out,
    conducted,
    console,
    tidied,
    was_given,
)

if TYPE_CHECKING:
    from rich.console import Console

    from evals.config import RunConfig
    from evals.executors import Machinery
    from evals.journal import Journal, Row
    from evals.tasks import Task

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
    executor: opt.ExecutorName = "local",
    address: opt.Address = None,
    depot: opt.DepotUrl = None,
    node_dir: opt.NodeDir = None,
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
    from evals.executors import go_on, machinery
    from evals.setup import prepared

    there = {"address": address, "depot": depot, "node_dir": node_dir}
    how = ("out", "resume", "workers", "executor", *there)
    asked = {name: value for name, value in context.params.items() if name not in how}
    given = {name for name in asked if was_given(context, name)}
    if resume and out is None:
        print("error: --resume: name the run to go on with by --out", file=sys.stderr)
        raise typer.Exit(USAGE)
    where = out or Path("runs") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}"

    def prepare() -> tuple[Machinery, RunConfig, tuple[Task, ...]]:
        asked_for = machinery(executor, workers, **there)
        return asked_for, *prepared(asked, given, where, resume=resume, also=asked_for.check)

    code = conducted(
        where,
        f"python -m evals.takeover --resume --out {where}{go_on(executor, **there)}",
        prepare,
        lambda settled: run(console(), *settled, where),
    )
    raise typer.Exit(code)


def run(
    shown_on: Console, machinery: Machinery, config: RunConfig, tasks: tuple[Task, ...], out: Path
) -> int:
    """One run from its settings to its report, doing only what is not yet done; the exit code."""
    from evals import stages, threads
    from evals.executors import Job
    from evals.journal import journals, opened, sole_user
    from evals.places import Places
    from handoff.views import NEED_NOTES

    places = Places(out)
    by_id = {task.id: task for task in tasks}
    _introduce(config, tasks, out)
    with (
        sole_user(out),
        places.home() as home,
        tidied(config, places, home),
        opened(out) as database,
        machinery.opened() as executor,
    ):
        rows = journals(database, config.run_id)
        for journal in rows:
            journal.drop_failures()
        for task in tasks:
            task.check_out(places.work)

        def forget(row: Row) -> None:
            if row["task_id"] in by_id:
                threads.forget_machines(config, home, by_id[row["task_id"]], row)

        for row in (*rows.predecessors.rows(), *rows.takeovers.rows()):
            forget(row)

        begin = [
            Job(stages.run_predecessor, config, out, (task, model), (task.id, model))
            for task in tasks
            for model in config.predecessors
        ]
        carry_out(shown_on, executor, rows.predecessors, begin, forget)
        points = _points(rows.predecessors, by_id)
        label = [Job(stages.label, config, out, (task, record), (record,), record) for task, record in points]
        carry_out(shown_on, executor, rows.labels, label)
        if any(view in NEED_NOTES for view in config.views):
            note = [job._replace(stage=stages.write_note) for job in label]
            carry_out(shown_on, executor, rows.notes, note)
        take_over = [
            Job(stages.run_takeover, config, out, (task, record, *how), (record, *how), record)
            for task, record in points
            for how in itertools.product(config.views, config.successors, range(1, config.repeats + 1))
        ]
        carry_out(shown_on, executor, rows.takeovers, take_over, forget)
        for journal in rows:
            journal.export(out)
        return _report(shown_on, config, out, *rows)


def _introduce(config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
    import sandbox

    models = {
        "predecessor": config.predecessors,
        "successor": config.successors,
        "notes": tuple(dict.fromkeys(map(config.writer, config.predecessors))),
    }
    print(
        f"{len(tasks)} task{'s' if len(tasks) > 1 else ''}; views: {', '.join(config.views)}; results: {out}"
    )
    print("; ".join(f"{role}: {', '.join(names)}" for role, names in models.items()))
    print(f"sandbox: {config.sandbox}, {sandbox.describe(config.sandbox)}", flush=True)


def _points(predecessors: Journal, by_id: dict[str, Task]) -> list[tuple[Task, str]]:
    """Every handoff point that was reached: its task and the id of its record."""
    return [
        (by_id[row["task_id"]], record)
        for row in predecessors.rows()
        if row["task_id"] in by_id
        for record in row.get("records", ())
    ]


def _report(shown_on: Console, config: RunConfig, out: Path, *journals: Journal) -> int:
    from evals.report import show, summarise, write_summary

    summary = summarise(config, *(list(journal.rows()) for journal in journals))
    write_summary(out, summary)
    show(shown_on, summary, out)
    return INFRASTRUCTURE_FAILURES if summary["infrastructure_failures"] else DONE


def main() -> None:
    app(prog_name="python -m evals.takeover")


if __name__ == "__main__":
    main()
