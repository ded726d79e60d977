"""What the commands for people share: their options, in whose name they act, and refusals in one line."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

if TYPE_CHECKING:
    from graph.home import Home

_DATABASE_FILE = "takeover.sqlite"
HOME_OPTION = Option(
    "--home", envvar="TAKEOVER_RUNS", help="Where runs leave everything.", show_default=".takeover"
)
HomeOption = Annotated[Path, HOME_OPTION]
DatabaseOption = Annotated[
    str | None,
    Option("--database", help="The ledger's URL, where it is no file in the home.", show_default=False),
]
Directory = Annotated[
    Path | None,
    Option(help="The repository that the run began with, if this host does not have it.", show_default=False),
]
SandboxOption = Annotated[
    str | None, Option("--sandbox", help="Where it runs: host, docker or process.", show_default="host")
]
Unisolated = Annotated[
    bool,
    Option(
        "--allow-unisolated",
        help="Let --sandbox process run what the record holds: as you, with your files and your network.",
    ),
]


class Usage(Exception):
    """Something was asked for that cannot be; one line."""


@contextmanager
def telling_usage() -> Iterator[None]:
    from graph.delivery import BadHandoff
    from graph.people import NotTaken
    from graph.rollback import RollbackRefused
    from handoff.ledger import BadThread, HandedOver, LedgerUnusable, ThreadHeld, handoffs
    from nodes.session import MachineNotKept

    try:
        yield
    except (
        Usage, NotTaken, BadHandoff, BadThread, HandedOver, ThreadHeld,
        handoffs.NoSuchHandoff, handoffs.IllegalTransition, handoffs.KeyReused,
    ) as error:  # fmt: skip
        print(f"error: {plainly(str(error))}", file=sys.stderr)
        raise typer.Exit(2) from None
    except (LedgerUnusable, RollbackRefused, MachineNotKept) as error:
        print(f"error: {plainly(str(error))}", file=sys.stderr)
        raise typer.Exit(3) from None


@contextmanager
def opened(home: Path, database: str | None) -> Iterator[Home]:
    from graph.home import open_home

    if not home.is_dir():
        raise Usage(f"--home: {home}: there is no such directory; name the one that the runs were given")
    if database is None and not (home / _DATABASE_FILE).is_file():
        raise Usage(f"--home: {home}: holds no {_DATABASE_FILE}; name the home, or its --database")
    with open_home(home, database) as found:
        yield found


def spec_of(
    found: Home, record_id: str, directory: Path | None, kind: str | None, allow_unisolated: bool
) -> Any:
    """The spec in which to restore a record's snapshot: the back end passed as `kind`, else an isolated one.

    Raises Usage, RecordRefused or SandboxUnavailable.
    """
    from typing import get_args

    from graph import rollback
    from sandbox.bases import isolated_backend
    from sandbox.machine import BackendName, SandboxSpec

    if kind is not None and kind not in get_args(BackendName):
        raise Usage(f"--sandbox: there is no {kind!r:.40}; there are {', '.join(get_args(BackendName))}")
    if kind == "process" and not allow_unisolated:
        raise Usage(
            "--sandbox process would run what the record holds as you, with your files and your network; choose host or "
            "docker, or say --allow-unisolated"
        )
    if kind == "docker" and directory is not None:
        raise Usage(
            "--directory: docker starts from an image; choose --sandbox host, or leave the directory out"
        )
    record = found.records.load(record_id)
    if directory is None:
        return rollback.spec_of(record, kind)  # type: ignore[arg-type]
    return SandboxSpec(backend=kind or isolated_backend(), directory=directory)


def person() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def say(text: str) -> None:
    print(plainly(text), flush=True)


def plainly(text: str) -> str:
    from handoff.listing import harmless

    return harmless(text)
