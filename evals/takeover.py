"""The main command: run predecessors, snapshot them at their handoff points, let successors continue."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from langgraph_takeover.evals.cli import command_options as opt
from langgraph_takeover.evals.cli.runner import (
    DONE,
    USAGE,
    SingleUseCommand,
    is_explicit,
    make_console,
    require_experiment,
    run_command,
    run_jobs,
)
from langgraph_takeover.sandbox.cli.program import PlainApp, degrade_output, program_name, run_app

if TYPE_CHECKING:
    from rich.console import Console

    from langgraph_takeover.evals.run.execution.executors import ExecutorChoice
    from langgraph_takeover.evals.run.execution.jobs import RunJobs
    from langgraph_takeover.evals.run.rows import Row
    from langgraph_takeover.evals.run.settings.config import RunConfig, TakeoverOptions
    from langgraph_takeover.evals.tasks import Task

app = PlainApp()


@app.command(epilog=opt.EPILOG, cls=SingleUseCommand)
@opt.add_options
def command(context: typer.Context, **values: Any) -> None:
    """Measure what it costs when one coding agent must continue another's unfinished work."""
    require_experiment()
    from langgraph_takeover.evals.run import preparation
    from langgraph_takeover.evals.run.settings.config import RunUsageError

    explicit = {name for name in values if is_explicit(context, name)}
    try:
        options = preparation.parse_options(values)
        if options.resume and options.out is None:
            raise RunUsageError("--resume: pass the run's directory as --out")
    except RunUsageError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    out = options.out or Path("runs") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    code = run_command(
        out,
        _format_resume_command(options, out),
        lambda: _prepare(options, explicit, out),
        lambda prepared: _begin(options, prepared, out),
    )
    raise typer.Exit(code)


class PreparedRun(NamedTuple):
    """A run whose options are valid."""

    config: RunConfig
    tasks: tuple[Task, ...]
    steps: tuple[str, ...]
    """The stages to run."""
    choice: ExecutorChoice


def _prepare(options: TakeoverOptions, explicit: set[str], out: Path) -> PreparedRun:
    """Validate everything. Raises what `evals.run.preparation` raises."""
    from langgraph_takeover.evals.run import preparation
    from langgraph_takeover.evals.run.settings.config import read_stages

    steps, choice = read_stages(options.stages), _choose_executor(options)
    if options.dry_run or options.list_tasks:
        config, tasks = preparation.resolve_run(options, explicit, out, resume=options.resume)
        return PreparedRun(config, tasks, steps, choice)

    def check(config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
        from langgraph_takeover.evals.run.execution import task_checks

        choice.check(config, tasks, out)
        task_checks.check_tasks(config, tasks, options.workers, requested=options.check_tasks)

    config, tasks = preparation.prepare_run(options, explicit, out, resume=options.resume, extra_check=check)
    return PreparedRun(config, tasks, steps, choice)


def _begin(options: TakeoverOptions, prepared: PreparedRun, out: Path) -> int:
    """Run, or print what would run. Return the exit code."""
    config, tasks, steps, choice = prepared
    if options.list_tasks:
        print("\n".join(task.id for task in tasks))
        return DONE
    console, url = make_console(), options.journal
    if options.dry_run:
        return print_plan(console, config, tasks, out, url=url, workers=options.workers)
    return run(console, config, tasks, out, steps=steps, url=url, choice=choice, report=options.report)


def run(
    console: Console,
    config: RunConfig,
    tasks: tuple[Task, ...],
    out: Path,
    *,
    steps: tuple[str, ...],
    url: str | None,
    choice: ExecutorChoice,
    report: bool = True,
) -> int:
    """Run the missing jobs and report. Return the exit code."""
    from langgraph_takeover.evals.run.execution.jobs import open_run_directory
    from langgraph_takeover.evals.run.journal import get_journals

    by_id = {task.id: task for task in tasks}
    _print_run_header(config, tasks, out)
    with (
        open_run_directory(config, out, url) as (paths, home, database),
        choice.open_executor() as executor,
    ):
        # These take as long as the workers take to start.
        from langgraph_takeover.evals.report import make_report
        from langgraph_takeover.evals.run import reuse
        from langgraph_takeover.evals.run.execution import threads
        from langgraph_takeover.evals.run.execution.jobs import RunJobs
        from langgraph_takeover.evals.run.results import load_results
        from langgraph_takeover.evals.run.rows import AgentRow

        rows = get_journals(database, config.run_id)
        for journal in rows:
            journal.drop_failures()
        reuse.check_notes(paths, rows.notes.rows(), "--resume")
        reused = reuse.copy_source_run(config, by_id, paths, rows)
        if reused:
            print(f"predecessors reused from {config.records_of}: {reused}", flush=True)
        for task in tasks:
            task.check_out(paths.repositories)

        def release(row: Row) -> None:
            if isinstance(row, AgentRow) and row.task_id in by_id:
                threads.release_snapshots(config, home, by_id[row.task_id], row)

        for row in itertools.chain(rows.predecessors.rows(), rows.takeovers.rows()):
            release(row)
        work = RunJobs(config, out, by_id, rows)
        for journal in rows:
            if journal.name in steps:
                run_jobs(console, executor, journal, work.list_jobs(journal.name), release)
        _print_selection(console, work)
        return make_report(console, load_results([out], url), out, url, with_page=report)


def _print_selection(console: Console, work: RunJobs) -> None:
    """Print why handoff points are not selected, or which quotas they do not fill."""
    if missing := work.describe_missing_results():
        console.print(
            f"Handoff points not selected: the results of {missing} are missing (continue with --resume; if some tasks "
            "cannot run, start a new run and omit them from --task-ids).",
            style="yellow",
        )
    elif shortages := work.describe_shortages():
        console.print(f"Too few handoff points: {shortages}.", style="yellow", markup=False)


def print_plan(
    console: Console,
    config: RunConfig,
    tasks: tuple[Task, ...],
    out: Path,
    *,
    url: str | None,
    workers: int,
) -> int:
    """Print the plan of a run, and the first error that would prevent it."""
    import tempfile

    from langgraph_takeover.evals.run import checks, plan, preparation
    from langgraph_takeover.evals.run.execution.jobs import RunJobs
    from langgraph_takeover.evals.run.journal import get_journals, open_journal
    from langgraph_takeover.evals.run.settings.config import CONFIG_FILE

    with (
        tempfile.TemporaryDirectory() as nowhere,
        # A run that has not started has no rows.
        (
            open_journal(out, url, config.run_id)
            if (out / CONFIG_FILE).exists()
            else open_journal(Path(nowhere))
        ) as database,
    ):
        work = RunJobs(config, out, {task.id: task for task in tasks}, get_journals(database, config.run_id))
        plan.print_plan(console, config, tasks, plan.make_plan(work), out, workers)
    if (out / CONFIG_FILE).exists():
        _print_stale_resources(config, out)
    try:
        checks.check_run(config, tasks, out)
    except preparation.usage_errors() as error:
        print(f"The run cannot start yet: {error}")
    return DONE


def _print_stale_resources(config: RunConfig, out: Path) -> None:
    """Print what a killed run left behind, which `--resume` removes."""
    from langgraph_takeover.evals.run.execution.jobs import list_stale_resources
    from langgraph_takeover.evals.run.settings.config import RunPaths
    from langgraph_takeover.sandbox.interface import SandboxUnavailableError

    with RunPaths(out).home() as home, contextlib.suppress(SandboxUnavailableError):
        for name in list_stale_resources(config, home):
            print(f"--resume removes: {name}")


def _choose_executor(options: TakeoverOptions) -> ExecutorChoice:
    """Choose an executor by name. Raises RunUsageError."""
    from langgraph_takeover.evals.run.execution.executors import LocalExecutor
    from langgraph_takeover.evals.run.settings.config import RunUsageError

    name = options.executor
    if name == "ray":
        if options.workers != 1:
            raise RunUsageError(
                "--workers: not for --executor ray, whose nodes set their number of slots (see `sandbox` in docs/cluster.md)"
            )
        from langgraph_takeover.evals.cluster.ray_executor import RayExecutor

        return RayExecutor(options.address or "auto", options.artifact_store, options.node_dir)
    if name != "local":
        raise RunUsageError(f"--executor: unknown executor {name!r} (use local or ray)")
    for option, value in (("--artifact-store", options.artifact_store), ("--node-dir", options.node_dir)):
        if value is not None:
            raise RunUsageError(f"{option}: requires --executor ray")
    return LocalExecutor(options.workers)


def _format_resume_command(options: TakeoverOptions, out: Path) -> str:
    """The command that resumes the run with the same executor."""
    words = [program_name("takeover", "evals.takeover"), "--resume", "--out", str(out)]
    words += ["--allow-unisolated"] if options.allow_unisolated else []
    words += ["--no-check-tasks"] if options.check_tasks is False else []
    if options.executor != "local":
        words += ["--executor", options.executor]
        for name in ("address", "artifact_store", "node_dir"):
            value = getattr(options, name)
            words += [f"--{name.replace('_', '-')}", shlex.quote(value)] if value else []
    return " ".join(words)


def _print_run_header(config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
    from langgraph_takeover import sandbox
    from langgraph_takeover.evals.models import describe_ambiguous_models
    from langgraph_takeover.evals.models.replay import describe_recording
    from langgraph_takeover.evals.tasks.grading import describe_network

    models = {
        "predecessor": config.predecessors,
        "successor": config.successors,
        "notes": tuple(dict.fromkeys(map(config.choose_writer, config.predecessors))),
    }
    print(
        f"{len(tasks)} task{'s' if len(tasks) > 1 else ''}; views: {', '.join(config.views)}; results: {out}"
    )
    print("; ".join(f"{role}: {', '.join(names)}" for role, names in models.items()))
    for name, entry in config.models.items():
        where = entry.base_url or config.base_url or "the API of OpenAI"
        key = f", key in {entry.api_key_env}" if entry.api_key_env else ""
        print(f"{name}: {entry.model} at {where}{key}")
    warning = describe_ambiguous_models(
        (*config.predecessors, *config.successors), config.base_url, config.models
    )
    recordings = dict.fromkeys(each for found in config.recordings.values() for each in found.values())
    warnings = [*filter(None, [warning]), *(line for each in recordings for line in describe_recording(each))]
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"sandbox: {config.sandbox}, {sandbox.describe_backend(config.sandbox)}", flush=True)
    if config.grading_network:
        print(f"network of the official tests: {describe_network(config.sandbox)}", flush=True)


def main() -> None:
    degrade_output()
    run_app(app, "takeover")


if __name__ == "__main__":
    main()
