"""Progress, errors and exit codes of the commands that run takeovers, and the packages that they need."""

from __future__ import annotations

import errno
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from langgraph_takeover.base.failures import ObserverErrors
from langgraph_takeover.base.untrusted_input import describe_error
from langgraph_takeover.sandbox.cli.program import PlainCommand, drop_unwritable_output

if TYPE_CHECKING:
    import typer
    from rich.console import Console

    from langgraph_takeover.evals.run.execution.executors import Executor, Job
    from langgraph_takeover.evals.run.journal import Journal
    from langgraph_takeover.evals.run.rows import Row

MODULES = ("jinja2", "markupsafe", "matplotlib", "numpy", "pyarrow", "scipy", "swebench")
"""The modules that the packages of the extra provide."""


def require_experiment() -> None:
    """Exit with one line unless the packages of the experiment are installed."""
    if any(find_spec(name) is None for name in MODULES):
        print(
            "error: the experiment is not installed (pip install 'langgraph-takeover[evals]')",
            file=sys.stderr,
        )
        raise SystemExit(USAGE)


DONE, USAGE, INFRASTRUCTURE_FAILURES, DISK_FULL, INTERRUPTED = 0, 2, 3, 4, 130
EXIT_CODES = (
    "Exit codes: 0 done, 2 usage, 3 infrastructure failures, 4 disk full,\n130 interrupted, 143 terminated."
)
SIGN_OF_LIFE_S = 60.0
_PreparedT = TypeVar("_PreparedT")


class SingleUseCommand(PlainCommand):
    """Refuses an option that is passed twice, unless it is repeatable: only the last value would count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, unexpected, order = self.make_parser(ctx).parse_args(args=list(args))
        if unexpected and all(each.param_type_name == "option" for each in self.params):
            before = args[args.index(unexpected[0]) - 1] if unexpected[0] in args[1:] else ""
            cure = (
                "--resume takes no value: pass the run's directory as --out DIR"
                if before == "--resume"
                else ""
            )
            cure = cure or f"a value follows its option; see: {ctx.command_path} --help"
            print(f"error: unexpected argument {unexpected[0]!r:.80} ({cure})", file=sys.stderr)
            raise SystemExit(USAGE)
        for option, number in Counter(order).items():
            if number > 1 and not getattr(option, "is_flag", False) and not option.multiple:
                print(f"error: {option.opts[0]}: passed {number} times (pass it once)", file=sys.stderr)
                raise SystemExit(USAGE)
        return super().parse_args(ctx, args)


def run_command(
    out: Path, resume_command: str, prepare: Callable[[], _PreparedT], run: Callable[[_PreparedT], int]
) -> int:
    """The exit code of a run. User-correctable errors and interruptions print one line."""
    from langgraph_takeover.graph.runs.stop_requests import handle_signals

    with handle_signals(), drop_unwritable_output():
        return _run_command(out, resume_command, prepare, run)


def _run_command(
    out: Path, resume_command: str, prepare: Callable[[], _PreparedT], run: Callable[[_PreparedT], int]
) -> int:
    from langgraph_takeover.evals.run.preparation import host_errors, usage_errors
    from langgraph_takeover.graph.runs.stop_requests import TERMINATED

    begun = False
    try:
        prepared = prepare()
        begun = True
        return run(prepared)
    except KeyboardInterrupt:
        return _print_error(f"\ninterrupted; {_describe_rest(out, resume_command)}", INTERRUPTED)
    except SystemExit:
        return _print_error(f"terminated; {_describe_rest(out, resume_command)}", TERMINATED)
    except usage_errors(OSError) as error:
        if is_disk_full(error):
            return _print_error(
                f"error: {out}: no space left (free some); {_describe_rest(out, resume_command)}", DISK_FULL
            )
        if not isinstance(error, usage_errors()):
            if begun or not isinstance(error, OSError) or error.filename is None:
                raise
            return _print_error(f"error: {str(error.filename)[:200]}: {describe_error(error)}", USAGE)
        if begun and isinstance(error, host_errors()):
            return _print_error(
                f"error: {error}; {_describe_rest(out, resume_command)}", INFRASTRUCTURE_FAILURES
            )
        return _print_error(f"error: {error}", USAGE)


def _describe_rest(out: Path, resume_command: str) -> str:
    from langgraph_takeover.evals.run.settings.config import CONFIG_FILE

    if (out / CONFIG_FILE).exists():
        return f"completed jobs are saved. Resume with: {resume_command}"
    return "the run had not started. Enter the same command again."


def make_console() -> Console:
    """The console of a command: as wide as the terminal, or a fixed width for files."""
    from rich.console import Console

    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160)


def is_explicit(context: typer.Context, name: str) -> bool:
    """Whether the user set the option on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def run_jobs(
    console: Console,
    executor: Executor,
    journal: Journal[Any],
    jobs: Iterable[Job],
    on_row: Callable[[Any], None] = lambda row: None,
) -> None:
    """Run the jobs that have no row yet; save each row when it arrives."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    done = journal.keys()
    left = [job for job in jobs if job.key not in done]
    if not left:
        return
    if not console.is_terminal:
        with ObserverErrors("the progress on standard output"):
            print(f"{journal.name}: {len(left)} to do", flush=True)
    columns = (TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    finished: set[tuple[Any, ...]] = set()
    with (
        _print_signs_of_life(journal.name, left, finished, is_silent=console.is_terminal),
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
    ):
        bar = progress.add_task(journal.name, total=len(left))
        for row in executor.run(left):
            journal.append(row)
            finished.add(row.key)
            on_row(row)
            with ObserverErrors("the progress on standard output"):
                progress.advance(bar)
                if not console.is_terminal:
                    print(f"{journal.name}: {_describe_row(row)}", flush=True)


@contextmanager
def _print_signs_of_life(
    stage: str, jobs: Sequence[Job], finished: set[tuple[Any, ...]], *, is_silent: bool
) -> Iterator[None]:
    """Print each minute without a terminal how far a stage is, and the first jobs that are not finished."""
    ended, started = threading.Event(), time.monotonic()

    def print_lines() -> None:
        while not ended.wait(SIGN_OF_LIFE_S):
            left = [" ".join(map(str, job.key)) for job in jobs if job.key not in finished]
            names = ", ".join(left[:2]) + (", …" if len(left) > 2 else "")
            minutes = (time.monotonic() - started) / 60
            print(
                f"{stage}: {len(finished)} of {len(jobs)} done after {minutes:.0f} min; next: {names}",
                flush=True,
            )

    thread = threading.Thread(target=print_lines, daemon=True)
    if not is_silent:
        thread.start()
    try:
        yield
    finally:
        ended.set()


def _describe_row(row: Row) -> str:
    record, task, *names = row.read("record_id", "task_id", "view", "handoff_state", "stop_reason")
    number, resolved, is_followed = row.read("events", "resolved", "followed")
    result = {True: "resolved", False: "unresolved", None: None}[resolved]
    if row.is_failure:
        result = f"infrastructure failure: {row.detail}"
    events = None if number is None else f"{number} events"
    parts = (record or task, *names, events, result, "followed" if is_followed else None)
    return ", ".join(str(part) for part in parts if part)


def _print_error(line: str, code: int) -> int:
    print(line, file=sys.stderr)
    return code


def is_disk_full(error: Exception) -> bool:
    """Whether the disk is full."""
    return (
        getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        or getattr(error, "exit_code", 0) == DISK_FULL
    )
