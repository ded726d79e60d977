"""Shared parts of the commands for external agents: the home, the record, errors in one line."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from typer import Option

from langgraph_takeover.graph.cli.options import USER_HOME, UsageError, escape_text, print_safely

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from langgraph_takeover.graph.continuation.capture import CaptureProgress
    from langgraph_takeover.graph.continuation.undo import Removal

ModelBuilder: TypeAlias = "Callable[[str, str], tuple[BaseChatModel, str]]"
"""Builds the model of a name for an external agent; also returns the model name that the agent sends."""
_MAX_LARGE = 20
_LARGE_BYTES = 100 * 1000**2
_STATUS_S, _LOG_S = 0.2, 5.0
MAX_SHOWN = 5
AgentHomeOption = Annotated[
    Path | None,
    Option(
        "--home",
        envvar="TAKEOVER_RUNS",
        help="Home: directory of the records.",
        show_default=".takeover, and ~/.takeover",
    ),
]


def list_some(names: tuple[str, ...]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return f"{', '.join(names[:MAX_SHOWN])}{more}"


def print_removal(done: Removal) -> None:
    """Print the removed and the remaining files. Raises Exit with code 3 if any remain."""
    for path in done.removed:
        print_safely(f"removed   {path}")
    for path in done.left:
        print_safely(f"left      {path}")
    for path in done.kept:
        print_safely(f"stays     {path}")
    if not done.removed and not done.left:
        print_safely("nothing to remove: everything is gone already")
    if done.left:
        raise typer.Exit(3)


def suggest_command(home: Path, *words: str) -> str:
    """Return a command of Takeover as a person types it."""
    from langgraph_takeover.sandbox.cli.program import program_name

    is_default = home.expanduser().absolute() == USER_HOME.expanduser()
    place = () if is_default else ("--home", str(home))
    return f"{program_name('handoff', 'handoff')} {shlex.join((*words, *place))}"


@contextmanager
def show_status(action: str) -> Iterator[None]:
    """Show a spinner with an action on standard error."""
    from rich.console import Console

    with Console(file=sys.stderr, highlight=False).status(action):
        yield


@contextmanager
def show_progress(action: str) -> Iterator[Callable[[CaptureProgress], None]]:
    """Show on standard error how far a capture is: a spinner, or in a log a line every few seconds.

    Large files are named before they are read.
    """
    from rich.console import Console
    from rich.filesize import decimal

    console = Console(file=sys.stderr, highlight=False, markup=False, soft_wrap=True)
    last = time.monotonic()
    with console.status(action) as status:

        def show(progress: CaptureProgress) -> None:
            nonlocal last
            is_first = not progress.done_bytes
            for path, size, stored in progress.large[:_MAX_LARGE] if is_first else ():
                holes = f", {decimal(stored)} without its holes" if stored < size else ""
                console.print(
                    f"large file: {escape_text(path)} ({decimal(size)}{holes}); to leave it out: --exclude"
                )
            now = time.monotonic()
            if not is_first and now - last < (_STATUS_S if console.is_terminal else _LOG_S):
                return
            text = progress.stage
            if progress.total_bytes:
                text += f": {decimal(progress.done_bytes)} of {decimal(progress.total_bytes)}, {progress.files:,} files"
            if console.is_terminal:
                status.update(text)
                last = now
            elif now - last >= _LOG_S or (is_first and progress.total_bytes >= _LARGE_BYTES):
                console.print(text)
                last = now

        yield show


@contextmanager
def report_continuation_errors() -> Iterator[None]:
    """Report errors that the user can correct in one line."""
    from langgraph_takeover.graph.errors import CaptureError, ContinuationError
    from langgraph_takeover.handoff.agents.adapter import UnknownAgentProgramError
    from langgraph_takeover.handoff.readers import TraceError
    from langgraph_takeover.handoff.readers.external.session_files import SessionError
    from langgraph_takeover.handoff.views import UnknownViewError
    from langgraph_takeover.nodes.context.agent_program import AgentProgramError, ExternalAgentError
    from langgraph_takeover.nodes.model.errors import ModelError

    try:
        yield
    except (
        CaptureError,
        ContinuationError,
        UnknownAgentProgramError,
        AgentProgramError,
        SessionError,
    ) as error:
        raise UsageError(str(error)) from error
    except UnknownViewError as error:
        raise UsageError(f"--view: {error}") from error
    except (TraceError, ExternalAgentError, ModelError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(3) from None
