"""Shared parts of the commands: options, the acting person, one-line errors."""

from __future__ import annotations

import getpass
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.handoff.names import HOME_VARIABLE, PROJECT_HOME, USER_HOME

if TYPE_CHECKING:
    from langgraph_takeover import Outcome
    from langgraph_takeover.graph.home import Home

DATABASE_FILE = "takeover.sqlite"
HOME_OPTION = Option(
    "--home",
    envvar=HOME_VARIABLE,
    help="Directory of the home.",
    show_default=f"{PROJECT_HOME}, else {USER_HOME}",
)
HomeOption = Annotated[Path | None, HOME_OPTION]
DatabaseOption = Annotated[
    str | None,
    Option("--database", help="URL of the ledger, if it is not the file in the home.", show_default=False),
]
DirectoryOption = Annotated[
    Path | None,
    Option(help="Repository of the run, if this host does not have it.", show_default=False),
]
SandboxOption = Annotated[
    str | None,
    Option("--sandbox", help="Back end of the sandbox: host, docker or process.", show_default="host"),
]
UnisolatedOption = Annotated[
    bool,
    Option(
        "--allow-unisolated",
        help="Let --sandbox process run the record's content as you.",
    ),
]


class UsageError(TakeoverError):
    """A usage error on the command line; one line."""


def list_homes(home: Path | None) -> list[Path]:
    """List the homes that a command looks in: the named one, else `.takeover` here and in the user's home, as far as they exist."""
    if home is not None:
        return [home.expanduser()]
    user_home = USER_HOME.expanduser()
    is_same = PROJECT_HOME.resolve() == user_home.resolve()  # in the user's home directory
    return [each for each in (PROJECT_HOME, user_home) if each.is_dir()][is_same:] or [user_home]


def has_records(home: Path | None) -> bool:
    """Whether a command's home has records, with or without a ledger."""
    return (list_homes(home)[0] / "records").is_dir()


@contextmanager
def open_existing_home(
    home: Path | None, database: str | None, *, empty_without_ledger: bool = False
) -> Iterator[Home]:
    """Open a home; one that has no ledger yet counts as empty, and stays as it is, if the caller only lists what it has."""
    from langgraph_takeover.graph.home import open_home

    home = list_homes(home)[0]
    if not home.is_dir():
        raise UsageError(f"--home: directory not found: {home} (pass the home of the runs)")
    if database is None and not (home / DATABASE_FILE).is_file():
        if empty_without_ledger:
            with (
                tempfile.TemporaryDirectory(prefix="takeover-empty-") as empty,
                open_home(Path(empty)) as found,
            ):
                yield found
            return
        raise UsageError(f"--home: {home}: no {DATABASE_FILE} in it (pass the home, or its --database)")
    with open_home(home, database) as found:
        yield found


def choose_sandbox_spec(
    home: Home, record_id: str, directory: Path | None, backend: str | None, allow_unisolated: bool
) -> Any:
    """Build the spec to restore a record's snapshot: the chosen back end, else an isolated one.

    Raises UsageError, RecordError and SandboxUnavailableError.
    """
    from typing import get_args

    from langgraph_takeover.graph.delivery import recovery
    from langgraph_takeover.sandbox.backends.base import require_isolated_backend
    from langgraph_takeover.sandbox.interface import BackendName, SandboxSpec

    if backend is not None and backend not in get_args(BackendName):
        raise UsageError(
            f"--sandbox: unknown back end {backend!r:.40} (use {', '.join(get_args(BackendName))})"
        )
    if backend == "process" and not allow_unisolated:
        raise UsageError(
            "--sandbox process would run the record's content as you, with your files and your network (use host or "
            "docker, or pass --allow-unisolated)"
        )
    if backend == "docker" and directory is not None:
        raise UsageError("--directory: docker starts from an image (use --sandbox host, or omit --directory)")
    record = home.records.load(record_id)
    if directory is None:
        return recovery.sandbox_spec_for(record, backend)  # type: ignore[arg-type]
    return SandboxSpec(backend=backend or require_isolated_backend(), directory=directory)


def current_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def print_safely(text: str) -> None:
    from langgraph_takeover.handoff.views.display import escape_control_chars

    print(escape_control_chars(text), flush=True)


def print_left_out(outcome: Outcome) -> None:
    """Print what the patches of an outcome lack, and why there is none."""
    from langgraph_takeover.handoff.records.record_facts import format_left_out

    for line in format_left_out(outcome.left_out, outcome.left_out_count):
        print_safely(line)
    if outcome.patch_error:
        print_safely(outcome.patch_error)


def print_table(titles: tuple[str, ...], rows: Any, *, empty: str = "") -> None:
    """Print rows under titles, or `empty` if there are none."""
    from rich.console import Console
    from rich.table import Table

    from langgraph_takeover.sandbox.cli import terminal

    if not rows and empty:
        print_safely(empty)
        return
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160, highlight=False)
    cells = [[terminal.to_plain_text(str(cell)) for cell in row] for row in rows]
    # An id that is folded cannot be copied.
    fits = max((len(row[0]) for row in cells), default=0) <= console.width
    table = Table(box=None, pad_edge=False, header_style="dim")
    for index, title in enumerate(titles):
        table.add_column(title, overflow="fold", no_wrap=index == 0 and fits)
    for row in cells:
        table.add_row(*row)
    console.print(table)
