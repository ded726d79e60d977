"""The commands by which a person takes an agent's seat, and gives it on: part of `python -m handoff`."""

from __future__ import annotations

import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from graph.asking import (
    DatabaseOption,
    Directory,
    SandboxOption,
    Unisolated,
    Usage,
    person,
    say,
    spec_of,
)

if TYPE_CHECKING:
    from graph.home import Home

_TAKE_EPILOG = """
Examples:

  python -m handoff take work/records/ID

  python -m handoff take work/records/ID --as ann <commands.txt

Inside: a line is a command in the frozen machine; edit FILE, give AGENT and a message, done, exit, help. Left by exit, the
machine stays as it is, and `take` comes back to it. All you do is recorded as events.

Exit codes: 0 done, 2 usage, 3 record or machine failed, 4 disk full, 130 interrupted.
"""
_GIVE_EPILOG = """
Examples:

  python -m handoff give work/records/ID --to tester --message "the tests still fail"

Exit codes: 0 done, 2 usage, 3 record or machine failed, 4 disk full, 130 interrupted.
"""


Record = Annotated[Path, Argument(help="A record's directory, in the records of a home.", metavar="RECORD")]
As = Annotated[str | None, Option("--as", help="Your name.", show_default="the user that runs this")]


def take(
    record: Record,
    name: As = None,
    database: DatabaseOption = None,
    directory: Directory = None,
    sandbox: SandboxOption = None,
    allow_unisolated: Unisolated = False,
) -> None:
    """Take a record's work in hand: its machine as it was frozen, in a shell, with the note printed."""
    from graph.people import take as taken
    from handoff.listing import harmless
    from handoff.notes.note import structured_note
    from nodes.person import HELP

    def show(text: str) -> None:
        print(harmless(text), flush=True)

    def read(prompt: str) -> str:
        if sys.stdin.isatty():
            return input(harmless(prompt))
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        print(harmless(f"{prompt}{line.rstrip()}"), flush=True)
        return line.rstrip("\n")

    with _home_of(record, database) as (found, record_id):
        known = found.records.load(record_id)
        show(f"{structured_note(known)}\n\n{HELP}")
        spec = spec_of(found, record_id, directory, sandbox, allow_unisolated)
        with _terminal_as_it_was():
            done = taken(found, known, name or person(), read=read, show=show, sandbox=spec)
        _told(found, record_id, done)


def give(
    record: Record,
    to: Annotated[str, Option("--to", help="The agent, or the person, that is to go on.")],
    message: Annotated[str, Option(help="What you say to it.")] = "",
    name: As = None,
    database: DatabaseOption = None,
    directory: Directory = None,
    sandbox: SandboxOption = None,
    allow_unisolated: Unisolated = False,
) -> None:
    """Freeze what you left of a record that you had taken, and hand it on."""
    from graph.people import give as given

    if not to.strip() or " " in to.strip():
        raise Usage(f"--to: {to!r:.40} is no agent's name")
    with _home_of(record, database) as (found, record_id):
        known = found.records.load(record_id)
        spec = spec_of(found, record_id, directory, sandbox, allow_unisolated)
        done = given(found, known, name or person(), to.strip(), message, sandbox=spec)
        _told(found, record_id, done)


@contextmanager
def _terminal_as_it_was() -> Iterator[None]:
    """Who is interrupted while they type would be left with a terminal that shows nothing."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    except KeyboardInterrupt:
        print()  # what is told of it begins a line
        raise
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


@contextmanager
def _home_of(record: Path, database: str | None) -> Iterator[tuple[Home, str]]:
    place = (record.parent if record.name == "record.json" else record).absolute()
    if not (place / "record.json").is_file():
        raise Usage(f"RECORD: {record}: no record lies there; name its directory")
    if place.parent.name != "records":
        raise Usage(
            f"RECORD: {record}: lies in no home; python -m handoff export, then import into HOME/records"
        )
    from graph.home import open_home

    with open_home(place.parent.parent, database) as found:
        yield found, place.name


def _told(found: Home, record_id: str, done: Any) -> None:
    place = found.records.directory(record_id)
    if done.given is not None:
        say(f"{done.given.record} is offered to {done.given.target}: handoff {done.given.id}")
    elif done.outcome is None:
        say(f"left as it is; come back by: python -m handoff take {place}")
    else:
        say(
            f"{done.outcome.stop_reason}: {done.outcome.events} events; the patch has {len(done.outcome.patch)} characters"
        )


SEAT: dict[str, tuple[Callable[..., None], str]] = {
    "take": (take, _TAKE_EPILOG),
    "give": (give, _GIVE_EPILOG),
}
