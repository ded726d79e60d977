"""The main command: run predecessors, freeze them at their handoff points, let successors continue."""

from __future__ import annotations

import datetime
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from evals import options as opt
from evals.conduct import (
    DONE,
    USAGE,
    carry_out,
    conducted,
    console,
    was_given,
)

if TYPE_CHECKING:
    from rich.console import Console

    from evals.executor import ExecutorChoice
    from evals.run.config import RunConfig
    from evals.run.journal import Row
    from evals.tasks import Task

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog=opt.EPILOG)
@opt.with_options
def command(
    context: typer.Context,
    *,
    stages: str,
    workers: int,
    executor: str,
    address: str | None,
    depot: str | None,
    node_dir: str | None,
    out: Path | None,
    resume: bool,
    report: bool,
    dry_run: bool,
    list_tasks: bool,
    **asked: Any,
) -> None:
    """Measure what it costs when one coding agent must continue another's unfinished work."""
    from evals.executor import choose_executor, resume_options
    from evals.run import setup
    from evals.run.config import read_stages

    given = {name for name in asked if was_given(context, name)}
    if resume and out is None:
        print("error: --resume: name the run to go on with by --out", file=sys.stderr)
        raise typer.Exit(USAGE)
    where = out or Path("runs") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}"

    url = asked["journal"]
    there = {"address": address, "depot": depot, "node_dir": node_dir}

    def prepare() -> tuple[RunConfig, tuple[Task, ...], tuple[str, ...], ExecutorChoice]:
        steps, choice = read_stages(stages), choose_executor(executor, workers, **there)
        if dry_run or list_tasks:
            return *setup.settled_run(asked, given, where, resume=resume), steps, choice
        return *setup.prepared(asked, given, where, resume=resume, also=choice.check), steps, choice

    def begin(prepared: tuple[RunConfig, tuple[Task, ...], tuple[str, ...], ExecutorChoice]) -> int:
        config, chosen, steps, choice = prepared
        if list_tasks:
            print("\n".join(task.id for task in chosen))
            return DONE
        if dry_run:
            return tell(console(), config, chosen, where, url=url, workers=workers)
        return run(console(), config, chosen, where, steps=steps, url=url, choice=choice, report=report)

    again = f"python -m evals.takeover --resume --out {where}{resume_options(executor, **there)}"
    code = conducted(where, again, prepare, begin)
    raise typer.Exit(code)


def run(
    shown_on: Console,
    config: RunConfig,
    tasks: tuple[Task, ...],
    out: Path,
    *,
    steps: tuple[str, ...],
    url: str | None,
    choice: ExecutorChoice,
    report: bool = True,
) -> int:
    """One run from its settings to its report, doing only what is not yet done; the exit code."""
    from evals.run.journal import journals, opened, sole_user
    from evals.run.places import Places
    from evals.run.tidying import tidied

    places = Places(out)
    by_id = {task.id: task for task in tasks}
    _introduce(config, tasks, out)
    with (
        sole_user(out),
        places.home() as home,
        tidied(config, places, home),
        opened(out, url, config.run_id) as database,
        choice.opened() as executor,
    ):
        # These take as long as the workers take to begin.
        from evals.report import make_report
        from evals.run import reuse, threads
        from evals.run.results import load
        from evals.run.work import Work

        rows = journals(database, config.run_id)
        for journal in rows:
            journal.drop_failures()
        taken = reuse.take_up(config, by_id, places, rows)
        if taken:
            print(f"predecessors taken from {config.records_of}: {taken}", flush=True)
        for task in tasks:
            task.check_out(places.work)

        def forget(row: Row) -> None:
            if row.get("task_id") in by_id:
                threads.forget_machines(config, home, by_id[row["task_id"]], row)

        for row in itertools.chain(rows.predecessors.rows(), rows.takeovers.rows()):
            forget(row)
        work = Work(config, out, by_id, rows)
        for journal in rows:
            if journal.name in steps:
                carry_out(shown_on, executor, journal, work.of(journal.name), forget)
        return make_report(shown_on, load([out], url), out, url, with_page=report)


def tell(
    shown_on: Console,
    config: RunConfig,
    tasks: tuple[Task, ...],
    out: Path,
    *,
    url: str | None,
    workers: int,
) -> int:
    """Print what a run would do, and what keeps it from beginning."""
    import tempfile

    from evals.run import plan, setup
    from evals.run.config import CONFIG_FILE
    from evals.run.journal import journals, opened
    from evals.run.work import Work

    with (
        tempfile.TemporaryDirectory() as nowhere,
        # A run that has not begun has no rows.
        (
            opened(out, url, config.run_id) if (out / CONFIG_FILE).exists() else opened(Path(nowhere))
        ) as database,
    ):
        work = Work(config, out, {task.id: task for task in tasks}, journals(database, config.run_id))
        plan.show(shown_on, config, tasks, plan.planned(work), out, workers)
    try:
        setup.check(config, tasks, out)
    except setup.usage_errors() as error:
        print(f"It cannot begin yet: {error}")
    return DONE


def _introduce(config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
    import sandbox
    from evals.models import not_told_apart

    models = {
        "predecessor": config.predecessors,
        "successor": config.successors,
        "notes": tuple(dict.fromkeys(map(config.writer, config.predecessors))),
    }
    print(
        f"{len(tasks)} task{'s' if len(tasks) > 1 else ''}; views: {', '.join(config.views)}; results: {out}"
    )
    print("; ".join(f"{role}: {', '.join(names)}" for role, names in models.items()))
    warning = not_told_apart((*config.predecessors, *config.successors), config.base_url)
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"sandbox: {config.sandbox}, {sandbox.describe(config.sandbox)}", flush=True)


def main() -> None:
    app(prog_name="python -m evals.takeover")


if __name__ == "__main__":
    main()
