"""The commands by which people look at handoffs and move them: part of `python -m handoff`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from graph.asking import (
    DatabaseOption,
    Directory,
    HomeOption,
    SandboxOption,
    Unisolated,
    Usage,
    opened,
    person,
    say,
    spec_of,
    telling_usage,
)
from graph.seat import SEAT

if TYPE_CHECKING:
    from graph.home import Home
    from handoff.ledger.handoffs import Handoff

_LOOK_EPILOG = """
Examples:

  python -m handoff {0} --home work

  python -m handoff {1} --json | jq '{2}'

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
HandoffId = Annotated[str, Argument(help="A handoff's id, as `list` shows it.", metavar="HANDOFF")]
Reason = Annotated[str, Option("--reason", help="What the history is to say.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
_HOME = Path(".takeover")


def add_to(app: typer.Typer, told: Callable[[], Any]) -> None:
    """Add the commands to a program that tells failures by `told`."""
    commands: dict[str, tuple[Callable[..., None], str]] = {
        "list": (listed, _LOOK_EPILOG.format("list", "list --state blocked", ".[].id")),
        "history": (
            history,
            _LOOK_EPILOG.format("history 3f2a9c01b7de", "history 3f2a9c01b7de", ".history[].after"),
        ),
        "retry": (retry, _MOVE_EPILOG.format("retry")),
        "unblock": (unblock, _MOVE_EPILOG.format("unblock")),
        "rollback": (rollback, _ROLLBACK_EPILOG),
        "repair": (repair, _LOOK_EPILOG.format("repair", "repair", ".[].done")),
        **SEAT,
    }
    for name, (command, epilog) in commands.items():
        app.command(name, epilog=epilog)(_telling(command, told))


def _telling(command: Callable[..., None], told: Callable[[], Any]) -> Callable[..., None]:
    import functools

    @functools.wraps(command)
    def inside(*given: Any, **named: Any) -> None:
        with told(), telling_usage():
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
    with opened(home, database) as found:
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

    with opened(home, database) as found:
        one, steps = handoffs.load(found.ledger, handoff), handoffs.history(found.ledger, handoff)
    if as_json:
        told = one.model_dump(mode="json") | {"history": [each._asdict() for each in steps]}
        print(json.dumps(told, indent=1))
        return
    begun = steps[0].at
    rows = [(f"+{each.at - begun:,.1f} s", each.after, each.by, each.reason) for each in steps]
    _table((time.strftime("%F %T", time.localtime(begun)), "state", "by", "why"), rows)
    say(f"\nrecord {one.record} of task {one.task}, from {one.source} to {one.target}")
    for name, said in (one.understanding.model_dump() if one.understanding else {}).items():
        say(f"{name.replace('_', ' ')}: {said}")


def retry(
    handoff: HandoffId,
    home: HomeOption = _HOME,
    database: DatabaseOption = None,
    reason: Reason = "retried by a person",
    force: Annotated[bool, Option("--force", help="Although its successor seems to be at work.")] = False,
) -> None:
    """Offer a handoff again that was refused, ran out of time, or whose successor is gone."""
    from handoff.ledger import handoffs, leases

    with opened(home, database) as found:
        one = handoffs.load(found.ledger, handoff)
        if one.state == "blocked":
            raise Usage(f"handoff {one.id} is blocked; python -m handoff unblock {one.id}")
        if one.state in ("accepted", "active"):
            if leases.is_held(found.ledger, one.successor) and not force:
                raise Usage(f"handoff {one.id}: {one.target} works on it; --force takes it away nevertheless")
            one = handoffs.move(
                found.ledger, one.id, "timed_out", by=person(), version=one.version, reason=reason
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

    with opened(home, database) as found:
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
    sandbox: SandboxOption = None,
    allow_unisolated: Unisolated = False,
) -> None:
    """Take a handoff back: the source's thread and machine stand again where the record was made."""
    from graph.rollback import roll_back
    from handoff.ledger import handoffs

    with opened(home, database) as found:
        one = handoffs.load(found.ledger, handoff)
        spec = spec_of(found, one.record, directory, sandbox, allow_unisolated)
        done = roll_back(found, handoff, by=person(), reason=reason, sandbox=spec)
    say(
        f"handoff {handoff} is rolled back: thread {done.thread} stands at checkpoint {done.checkpoint}, "
        f"after {done.events} events, with its machine as it was; resume it to go on"
    )


def repair(home: HomeOption = _HOME, database: DatabaseOption = None, as_json: AsJson = False) -> None:
    """Look for what crashes have left, mend what is safe to mend, and tell the rest."""
    from graph.repair import repair as repaired

    with opened(home, database) as found:
        findings = repaired(found)
    if as_json:
        print(json.dumps([each._asdict() for each in findings], indent=1))
        return
    _table(("what", "found", "done, or to be done"), findings, empty="nothing to repair")


def _again(found: Home, one: Handoff, reason: str) -> None:
    from handoff.ledger import handoffs
    from nodes.delivering import Patience

    done = handoffs.move(
        found.ledger, one.id, "offered", by=person(), version=one.version, reason=reason,
        deadline_s=Patience().confirm_s,
    )  # fmt: skip
    say(f"handoff {done.id} is offered to {done.target} again; deliver it: deliver(home, {done.id!r}, …)")


def _table(titles: tuple[str, ...], rows: Any, *, empty: str = "") -> None:
    from rich.console import Console
    from rich.table import Table

    from sandbox.listing import plain

    if not rows and empty:
        say(empty)
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
