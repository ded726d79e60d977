"""The commands by which people look at handoffs and move them: part of `python -m handoff`."""

from __future__ import annotations

import getpass
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

if TYPE_CHECKING:
    from graph.home import Home
    from handoff.ledger.handoffs import Handoff

DATABASE_FILE = "takeover.sqlite"
HOME_OPTION = Option(
    "--home", envvar="TAKEOVER_RUNS", help="Where runs leave everything.", show_default=".takeover"
)
_LIST_EPILOG = """
Examples:

  python -m handoff list --home work

  python -m handoff list --state blocked --json | jq '.[].id'

Exit codes: 0 done, 2 usage, 3 the database failed.
"""
_MOVE_EPILOG = """
Examples:

  python -m handoff {0} 3f2a9c01b7de --home work

Whoever delivers the handoff goes on with it: `deliver` in a program, `take` for a person.

Exit codes: 0 done, 2 usage, 3 the database failed.
"""
_ROLLBACK_EPILOG = """
Examples:

  python -m handoff rollback 3f2a9c01b7de --home work --reason "it broke the build"

Checkpoint and machine of the source are restored together and compared with the record; resume() goes on from there.

Exit codes: 0 done, 2 usage, 3 record, snapshot or machine failed, 4 disk full.
"""
_TAKE_EPILOG = """
Examples:

  python -m handoff take work/records/ID

  printf 'sed -i s/a/b/ x.py\ngive tester it was a typo\n' | python -m handoff take work/records/ID --as ann

Inside: a line is a command in the frozen machine; edit FILE, give AGENT [message], done, exit, help. Left by exit, the
machine stays as it is, and `take` comes back to it. All you do is recorded as events.

Exit codes: 0 done, 2 usage, 3 record or machine failed, 4 disk full, 130 interrupted.
"""
_GIVE_EPILOG = """
Examples:

  python -m handoff give work/records/ID --to tester --message "the tests still fail"

Exit codes: 0 done, 2 usage, 3 record or machine failed, 4 disk full, 130 interrupted.
"""

HomeOption = Annotated[Path, HOME_OPTION]
DatabaseOption = Annotated[
    str | None,
    Option("--database", help="The ledger's URL, where it is no file in the home.", show_default=False),
]
HandoffId = Annotated[str, Argument(help="A handoff's id, as `list` shows it.", metavar="HANDOFF")]
Reason = Annotated[str, Option("--reason", help="What the history is to say.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
Record = Annotated[Path, Argument(help="A record's directory, in the records of a home.", metavar="RECORD")]
As = Annotated[str | None, Option("--as", help="Your name.", show_default="the user that runs this")]
Directory = Annotated[
    Path | None,
    Option(help="The repository that the run began with, if this host does not have it.", show_default=False),
]
_HOME = Path(".takeover")


def add_to(app: typer.Typer, told: Callable[[], Any]) -> None:
    """Add the commands to a program that tells failures by `told`."""
    commands: dict[str, tuple[Callable[..., None], str]] = {
        "list": (listed, _LIST_EPILOG),
        "history": (
            history,
            _LIST_EPILOG.replace("list", "history 3f2a9c01b7de").replace("--state blocked ", ""),
        ),
        "retry": (retry, _MOVE_EPILOG.format("retry")),
        "unblock": (unblock, _MOVE_EPILOG.format("unblock")),
        "rollback": (rollback, _ROLLBACK_EPILOG),
        "repair": (repair, _LIST_EPILOG.replace("list", "repair").replace("--state blocked ", "")),
        "take": (take, _TAKE_EPILOG),
        "give": (give, _GIVE_EPILOG),
    }
    for name, (command, epilog) in commands.items():
        app.command(name, epilog=epilog)(_telling(command, told))


def _telling(command: Callable[..., None], told: Callable[[], Any]) -> Callable[..., None]:
    import functools

    @functools.wraps(command)
    def inside(*given: Any, **named: Any) -> None:
        with told(), _telling_usage():
            command(*given, **named)

    return inside


def listed(
    home: HomeOption = _HOME,
    database: DatabaseOption = None,
    state: Annotated[list[str] | None, Option(help="Only those in this state; may be given again.")] = None,
    as_json: AsJson = False,
) -> None:
    """All handoffs of a home, oldest first."""
    from typing import get_args

    from handoff.ledger import handoffs

    wrong = [each for each in state or () if each not in get_args(handoffs.State)]
    if wrong:
        raise Usage(f"--state: there is no {wrong[0]!r:.40}; there are {', '.join(get_args(handoffs.State))}")
    with _opened(home, database) as found:
        every = handoffs.every(found.ledger, state or ())  # type: ignore[arg-type]
    if as_json:
        print(json.dumps([each.model_dump(mode="json") for each in every], indent=1))
        return
    _table(
        ("handoff", "state", "from", "to", "record", "since", "why"),
        [
            (each.id, each.state, each.source, each.target, each.record, _ago(each.changed_at), each.reason)
            for each in every
        ],
        empty=f"no handoffs in {home}",
    )


def history(
    handoff: HandoffId, home: HomeOption = _HOME, database: DatabaseOption = None, as_json: AsJson = False
) -> None:
    """Every transition of one handoff, and what its receiver understood."""
    from handoff.ledger import handoffs

    with _opened(home, database) as found:
        one, steps = handoffs.load(found.ledger, handoff), handoffs.history(found.ledger, handoff)
    if as_json:
        told = one.model_dump(mode="json") | {"history": [each._asdict() for each in steps]}
        print(json.dumps(told, indent=1))
        return
    begun = steps[0].at
    rows = [(f"+{each.at - begun:,.1f} s", each.after, each.by, each.reason) for each in steps]
    _table((time.strftime("%F %T", time.localtime(begun)), "state", "by", "why"), rows)
    _print(f"\nrecord {one.record} of task {one.task}, from {one.source} to {one.target}")
    for name, said in (one.understanding.model_dump() if one.understanding else {}).items():
        _print(f"{name.replace('_', ' ')}: {said}")


def retry(
    handoff: HandoffId,
    home: HomeOption = _HOME,
    database: DatabaseOption = None,
    reason: Reason = "retried by a person",
    force: Annotated[bool, Option("--force", help="Although its successor seems to be at work.")] = False,
) -> None:
    """Offer a handoff again that was refused, ran out of time, or whose successor is gone."""
    from handoff.ledger import handoffs, leases

    with _opened(home, database) as found:
        one = handoffs.load(found.ledger, handoff)
        if one.state == "blocked":
            raise Usage(f"handoff {one.id} is blocked; python -m handoff unblock {one.id}")
        if one.state in ("accepted", "active"):
            if leases.is_held(found.ledger, one.successor) and not force:
                raise Usage(f"handoff {one.id}: {one.target} works on it; --force takes it away nevertheless")
            one = handoffs.move(
                found.ledger, one.id, "timed_out", by=_person(), version=one.version, reason=reason
            )
        _again(found, one, reason)


def unblock(
    handoff: HandoffId,
    home: HomeOption = _HOME,
    database: DatabaseOption = None,
    reason: Reason = "unblocked by a person",
) -> None:
    """Offer a blocked handoff again."""
    from handoff.ledger import handoffs

    with _opened(home, database) as found:
        one = handoffs.load(found.ledger, handoff)
        if one.state != "blocked":
            raise Usage(
                f"handoff {one.id} is {one.state}, not blocked; see python -m handoff history {one.id}"
            )
        _again(found, one, reason)


def rollback(
    handoff: HandoffId,
    home: HomeOption = _HOME,
    database: DatabaseOption = None,
    reason: Reason = "rolled back by a person",
    directory: Directory = None,
) -> None:
    """Take a handoff back: the source's thread and machine stand again where the record was made."""
    from graph.rollback import roll_back
    from handoff.ledger import handoffs

    with _opened(home, database) as found:
        one = handoffs.load(found.ledger, handoff)
        spec = _spec(found, one.record, directory)
        done = roll_back(found, handoff, by=_person(), reason=reason, sandbox=spec)
    _print(
        f"handoff {handoff} is rolled back: thread {done.thread} stands at checkpoint {done.checkpoint}, "
        f"after {done.events} events, with its machine as it was; resume it to go on"
    )


def repair(home: HomeOption = _HOME, database: DatabaseOption = None, as_json: AsJson = False) -> None:
    """Look for what crashes have left, mend what is safe to mend, and tell the rest."""
    from graph.repair import repair as repaired

    with _opened(home, database) as found:
        findings = repaired(found)
    if as_json:
        print(json.dumps([each._asdict() for each in findings], indent=1))
        return
    _table(("what", "found", "done, or to be done"), findings, empty="nothing to repair")


def take(
    record: Record,
    name: As = None,
    database: DatabaseOption = None,
    directory: Directory = None,
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
        done = taken(
            found, known, name or _person(), read=read, show=show, sandbox=_spec(found, record_id, directory)
        )
        _say(found, record_id, done)


def give(
    record: Record,
    to: Annotated[str, Option("--to", help="The agent, or the person, that is to go on.")],
    message: Annotated[str, Option(help="What you say to it.")] = "",
    name: As = None,
    database: DatabaseOption = None,
    directory: Directory = None,
) -> None:
    """Freeze what you left of a record that you had taken, and hand it on."""
    from graph.people import give as given

    if not to.strip() or " " in to.strip():
        raise Usage(f"--to: {to!r:.40} is no agent's name")
    with _home_of(record, database) as (found, record_id):
        known = found.records.load(record_id)
        spec = _spec(found, record_id, directory)
        done = given(found, known, name or _person(), to.strip(), message, sandbox=spec)
        _say(found, record_id, done)


class Usage(Exception):
    """Something was asked for that cannot be; one line."""


@contextmanager
def _telling_usage() -> Iterator[None]:
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
        print(f"error: {_plain(str(error))}", file=sys.stderr)
        raise typer.Exit(2) from None
    except (LedgerUnusable, RollbackRefused, MachineNotKept) as error:
        print(f"error: {_plain(str(error))}", file=sys.stderr)
        raise typer.Exit(3) from None


@contextmanager
def _opened(home: Path, database: str | None) -> Iterator[Home]:
    from graph.home import open_home

    if not home.is_dir():
        raise Usage(f"--home: {home}: there is no such directory; name the one that the runs were given")
    if database is None and not (home / DATABASE_FILE).is_file():
        raise Usage(f"--home: {home}: holds no {DATABASE_FILE}; name the home, or its --database")
    with open_home(home, database) as found:
        yield found


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


def _spec(found: Home, record_id: str, directory: Path | None) -> Any:
    from graph.rollback import spec_of

    spec = spec_of(found.records.load(record_id)) if directory is None else None
    if spec is not None or directory is None:
        return spec
    from sandbox.machine import SandboxSpec

    return SandboxSpec(backend=found.records.load(record_id).machine.backend, directory=directory)


def _again(found: Home, one: Handoff, reason: str) -> None:
    from handoff.ledger import handoffs
    from nodes.delivering import Patience

    done = handoffs.move(
        found.ledger, one.id, "offered", by=_person(), version=one.version, reason=reason,
        deadline_s=Patience().confirm_s,
    )  # fmt: skip
    _print(f"handoff {done.id} is offered to {done.target} again; deliver it: deliver(home, {done.id!r}, …)")


def _say(found: Home, record_id: str, done: Any) -> None:
    place = found.records.directory(record_id)
    if done.given is not None:
        _print(f"{done.given.record} is offered to {done.given.target}: handoff {done.given.id}")
    elif done.outcome is None:
        _print(f"left as it is; come back by: python -m handoff take {place}")
    else:
        _print(
            f"{done.outcome.stop_reason}: {done.outcome.events} events; the patch has {len(done.outcome.patch)} characters"
        )


def _table(titles: tuple[str, ...], rows: Any, *, empty: str = "") -> None:
    from rich.console import Console
    from rich.table import Table

    from sandbox.listing import plain

    if not rows and empty:
        _print(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(plain(str(cell)) for cell in row))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160, highlight=False).print(table)


def _ago(at: float) -> str:
    seconds = max(time.time() - at, 0.0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _person() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def _print(text: str) -> None:
    print(_plain(text), flush=True)


def _plain(text: str) -> str:
    from handoff.listing import harmless

    return harmless(text)
