"""The commands that show and move handoffs, with their statistics: part of `handoff`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from langgraph_takeover.graph.cli import external_commands, participant_commands
from langgraph_takeover.graph.cli.handoff_options import (
    DatabaseOption,
    DirectoryOption,
    HomeOption,
    SandboxOption,
    UnisolatedOption,
    UsageError,
    choose_sandbox_spec,
    current_user,
    has_records,
    list_homes,
    open_existing_home,
    print_safely,
    print_table,
)
from langgraph_takeover.graph.cli.record_ids import (
    AgentHomeOption,
    ListedRecord,
    describe_records,
    load_handoff,
    open_ledger,
    select_id,
)
from langgraph_takeover.sandbox.cli.program import report_errors

if TYPE_CHECKING:
    from langgraph_takeover.graph.home import Home
    from langgraph_takeover.handoff.ledger.handoffs import Handoff
    from langgraph_takeover.handoff.ledger.statistics import GroupStatistics, HandoffStatistics

STATISTICS_EPILOG = """
Examples:
  handoff stats --home work
  handoff stats --json | jq '.by_target.tester.success_rate'

Rows: all handoffs, by agent, by view. Success: share of ended handoffs
(completed, blocked, rolled back) that completed. Accept: seconds from the first
offer to the first acceptance. Retries: offers after the first. Refusals: number
by kind. Read-only.

Exit codes: 0 done, 2 usage, 3 the database failed.
"""
_TITLES = (
    "by",
    "name",
    "handoffs",
    "open",
    "completed",
    "success",
    "accept median s",
    "accept P90 s",
    "accept max s",
    "retries",
    "refusals",
)


def show_statistics(
    home: HomeOption = None,
    database: DatabaseOption = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show success rate, time to acceptance, retries and refusals."""
    from langgraph_takeover.handoff.ledger.statistics import compute_statistics

    with open_existing_home(home, database, empty_without_ledger=as_json) as found:
        computed = compute_statistics(found.ledger)
    if as_json:
        print(computed.model_dump_json(indent=1))
    elif not computed.handoffs:
        print_safely(f"no handoffs in {home}")
    else:
        print_table(_TITLES, list(_list_rows(computed)))


def _list_rows(computed: HandoffStatistics) -> Iterator[tuple[object, ...]]:
    yield ("all", "", *_format_group(computed))
    groups = {"source": computed.by_source, "target": computed.by_target, "view": computed.by_view}
    for label, group in groups.items():
        for name, each in group.items():
            yield (label, name, *_format_group(each))


def _format_group(group: GroupStatistics) -> tuple[object, ...]:
    spread = group.time_to_acceptance
    seconds = (
        [f"{each:,.1f}" for each in (spread.median_s, spread.p90_s, spread.max_s)] if spread else ["–"] * 3
    )
    return (
        group.handoffs,
        group.open,
        group.completed,
        "–" if group.success_rate is None else f"{group.success_rate:.0%}",
        *seconds,
        group.retries,
        ", ".join(f"{kind} {number}" for kind, number in group.refusals.items()) or "–",
    )


_QUERY_EPILOG = """
Examples:
  handoff {0} --home work
  handoff {1} --json | jq '{2}'

Exit codes: 0 done, 2 usage, 3 the database failed.
"""
_UPDATE_EPILOG = """
Examples:
  handoff {0} 3f2a9c01b7de --home work

Then deliver it: `deliver` in a program, `handoff take` for a person.

Exit codes: 0 done, 2 usage, 3 the database failed.
"""
_ROLLBACK_EPILOG = """
Examples:
  handoff rollback 3f2a9c01b7de --home work --reason "it broke the build"

Restores checkpoint and sandbox of the source together and compares them with
the record; resume() continues from there.

Exit codes: 0 done, 2 usage, 3 record, snapshot or sandbox failed, 4 disk full.
"""
_STOP_EPILOG = """
Examples:
  handoff stop fix-1 --home work          # after its current step
  handoff stop fix-1 --home work --now    # kill the running command

Nothing is lost: `resume` continues from the last step, and repeats a killed
command.

Exit codes: 0 done, 2 usage, 3 the database failed.
"""
_THIN_EPILOG = """
Examples:
  handoff thin --home work                             # all threads
  handoff thin fix-1 --home work --keep-every-step-s 86400

Kept: younger snapshots, those of records, of forks and merges, and the last of
each branch. Checkpoints and records stay. A thread that a run holds is left out
(its own option: open_run(keep_every_step_s=…)).

Exit codes: 0 done, 2 usage, 3 the database failed.
"""
HandoffArgument = Annotated[
    str, Argument(help="Id of a handoff, or its unique beginning.", metavar="HANDOFF")
]
ReasonOption = Annotated[str, Option("--reason", help="Reason for the history.")]
JsonOption = Annotated[bool, Option("--json", help="Print JSON.")]


def add_commands(app: typer.Typer) -> None:
    """Add the commands to an app."""
    commands: dict[str, tuple[Callable[..., None], str]] = {
        "list": (list_handoffs, _QUERY_EPILOG.format("list", "list --state blocked", ".[].id")),
        "history": (
            show_history,
            _QUERY_EPILOG.format("history 3f2a9c01b7de", "history 3f2a9c01b7de", ".history[].after"),
        ),
        "stats": (show_statistics, STATISTICS_EPILOG),
        "retry": (retry, _UPDATE_EPILOG.format("retry")),
        "unblock": (unblock, _UPDATE_EPILOG.format("unblock")),
        "rollback": (roll_back_handoff, _ROLLBACK_EPILOG),
        "status": (show_status, _QUERY_EPILOG.format("status", "status", "to_entries[]")),
        "stop": (stop, _STOP_EPILOG),
        "thin": (thin, _THIN_EPILOG),
        "repair": (repair_home, _QUERY_EPILOG.format("repair", "repair", ".[].done")),
        **participant_commands.COMMANDS,
        **external_commands.COMMANDS,
    }
    for name, (command, epilog) in commands.items():
        app.command(name, epilog=epilog)(_with_error_reports(command))


def _with_error_reports(command: Callable[..., None]) -> Callable[..., None]:
    import functools

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        with report_errors():
            command(*args, **kwargs)

    return wrapper


def list_handoffs(
    home: AgentHomeOption = None,
    database: DatabaseOption = None,
    state: Annotated[list[str] | None, Option(help="Only handoffs in this state; repeatable.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List handoffs and records, oldest first."""
    from typing import get_args

    from langgraph_takeover.handoff.ledger import handoffs

    wrong = [each for each in state or () if each not in get_args(handoffs.HandoffState)]
    if wrong:
        raise UsageError(
            f"--state: unknown state {wrong[0]!r:.40} (use {', '.join(get_args(handoffs.HandoffState))})"
        )
    homes = list_homes(home)
    if home is not None and not home.expanduser().is_dir():
        raise UsageError(f"--home: directory not found: {home} (pass the home of the runs)")
    every: list[Handoff] = []
    for each in homes:
        with open_ledger(each, database) as ledger:
            every += handoffs.list_handoffs(ledger, state or ()) if ledger is not None else ()  # type: ignore[arg-type]
        if database is not None:
            break
    records = [] if state else [each for place in homes for each in describe_records(place)]
    if as_json:
        rows = [{"kind": "handoff", **each.model_dump(mode="json")} for each in every]
        print(json.dumps([*rows, *(each.to_json() for each in records)], indent=1))
        return
    what = "handoffs" if state or records else "handoffs and no records"
    if every or state or not records:
        _print_handoffs(every, empty=f"no {what} in {', '.join(map(str, homes))}")
    if every and records:
        print()
    _print_records(records, homes)


def _print_handoffs(every: list[Handoff], *, empty: str) -> None:
    print_table(
        ("handoff", "state", "from", "to", "record", "since", "why"),
        [
            (
                each.id,
                each.state,
                each.source,
                each.target,
                each.record,
                _format_age(each.changed_at),
                each.reason,
            )
            for each in every
        ],
        empty=empty,
    )


def _print_records(records: list[ListedRecord], homes: list[Path]) -> None:
    if not records:
        return
    titles = ("record", "from", "point", "made", "task", "home")
    rows = [
        (
            each.id,
            each.source,
            each.point,
            _format_age(each.made_at) if each.made_at else "",
            each.task[:60],
            each.home,
        )
        for each in records
    ]
    shown = len(titles) if len(homes) > 1 else len(titles) - 1
    print_table(titles[:shown], [row[:shown] for row in rows])


def show_history(
    handoff: HandoffArgument,
    home: HomeOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the transitions of a handoff, and its confirmation."""
    from langgraph_takeover.handoff.ledger import handoffs

    with open_existing_home(home, database) as found:
        one = load_handoff(found.ledger, handoff)
        steps = handoffs.list_transitions(found.ledger, one.id)
    if as_json:
        document = one.model_dump(mode="json") | {"history": [each._asdict() for each in steps]}
        print(json.dumps(document, indent=1))
        return
    begun = steps[0].at
    rows = [(f"+{each.at - begun:,.1f} s", each.after, each.by, each.reason) for each in steps]
    print_table((time.strftime("%F %T", time.localtime(begun)), "state", "by", "why"), rows)
    print_safely(f"\nrecord {one.record} of task {one.task}, from {one.source} to {one.target}")
    for name, statements in (one.understanding.model_dump() if one.understanding else {}).items():
        print_safely(f"{name.replace('_', ' ')}: {statements}")


def retry(
    handoff: HandoffArgument,
    home: HomeOption = None,
    database: DatabaseOption = None,
    reason: ReasonOption = "retried by a person",
    force: Annotated[bool, Option("--force", help="Even if its successor seems to be working.")] = False,
) -> None:
    """Offer a rejected, expired or abandoned handoff again."""
    from langgraph_takeover.handoff.ledger import handoffs, leases

    with open_existing_home(home, database) as found:
        one = load_handoff(found.ledger, handoff)
        if one.state == "blocked":
            raise UsageError(f"handoff {one.id} is blocked (use: handoff unblock {one.id})")
        if one.state in ("accepted", "active"):
            if leases.is_held(found.ledger, one.successor) and not force:
                raise UsageError(f"handoff {one.id}: {one.target} is working on it (--force takes it away)")
            one = handoffs.change_state(
                found.ledger, one.id, "timed_out", by=current_user(), version=one.version, reason=reason
            )
        _offer_again(found, one, reason)


def unblock(
    handoff: HandoffArgument,
    home: HomeOption = None,
    database: DatabaseOption = None,
    reason: ReasonOption = "unblocked by a person",
) -> None:
    """Offer a blocked handoff again."""

    with open_existing_home(home, database) as found:
        one = load_handoff(found.ledger, handoff)
        if one.state != "blocked":
            raise UsageError(f"handoff {one.id} is {one.state}, not blocked (see: handoff history {one.id})")
        _offer_again(found, one, reason)


def roll_back_handoff(
    handoff: HandoffArgument,
    home: HomeOption = None,
    database: DatabaseOption = None,
    reason: ReasonOption = "rolled back by a person",
    directory: DirectoryOption = None,
    sandbox: SandboxOption = None,
    allow_unisolated: UnisolatedOption = False,
) -> None:
    """Take a handoff back: restore the source at the record."""
    from langgraph_takeover.graph.delivery.recovery import roll_back

    with open_existing_home(home, database) as found:
        one = load_handoff(found.ledger, handoff)
        spec = choose_sandbox_spec(found, one.record, directory, sandbox, allow_unisolated)
        done = roll_back(found, one.id, by=current_user(), reason=reason, sandbox=spec)
    print_safely(
        f"handoff {one.id} is rolled back: thread {done.thread} is at checkpoint {done.checkpoint}, "
        f"after {done.events} events, with its sandbox restored; resume it to continue"
    )


def show_status(
    home: HomeOption = None, database: DatabaseOption = None, as_json: JsonOption = False
) -> None:
    """List the threads of a home with their status."""
    with open_existing_home(home, database, empty_without_ledger=as_json or has_records(home)) as found:
        statuses = {thread: found.status(thread) for thread in found.threads()}
    if as_json:
        print(json.dumps(statuses, indent=1))
        return
    print_table(("thread", "status"), statuses.items(), empty=f"no threads in {list_homes(home)[0]}")


def stop(
    thread: Annotated[str, Argument(help="Name of a thread, or its unique beginning.", metavar="THREAD")],
    home: HomeOption = None,
    database: DatabaseOption = None,
    now: Annotated[bool, Option("--now", help="Kill the running command or model call.")] = False,
) -> None:
    """Stop the run on a thread, in any process."""
    with open_existing_home(home, database) as found:
        thread = select_id("THREAD:", thread, found.threads()) or thread
        is_running = found.stop(thread, now=now)
        print_safely(
            f"thread {thread!r} stops {'now' if now else 'after its current step'}"
            if is_running
            else f"thread {thread!r} is not running: {found.status(thread)}"
        )


def thin(
    threads: Annotated[
        list[str] | None,
        Argument(help="Threads, or their unique beginnings.", metavar="THREAD", show_default="all"),
    ] = None,
    home: HomeOption = None,
    database: DatabaseOption = None,
    keep_every_step_s: Annotated[
        float, Option(min=0, help="Seconds for which the snapshot of every step is kept.")
    ] = 3600.0,
    as_json: JsonOption = False,
) -> None:
    """Delete the snapshots of old steps; keep those of handoff points, forks and ends."""
    from langgraph_takeover.handoff.ledger.leases import ThreadHeldError

    done: dict[str, str | int] = {}
    with open_existing_home(home, database, empty_without_ledger=as_json or has_records(home)) as found:
        known = found.threads()
        for thread in [select_id("THREAD:", each, known) or each for each in threads or known]:
            try:
                done[thread] = found.thin_snapshots(thread, keep_every_step_s=keep_every_step_s)
            except ThreadHeldError as error:
                done[thread] = f"not thinned: {error}"
    if as_json:
        print(json.dumps(done, indent=1))
        return
    print_table(("thread", "deleted snapshots"), done.items(), empty=f"no threads in {list_homes(home)[0]}")


def repair_home(
    home: HomeOption = None, database: DatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Repair the leftovers of crashes where that is safe; report the rest."""
    from langgraph_takeover.graph.delivery.recovery import repair as repaired

    with open_existing_home(home, database, empty_without_ledger=as_json or has_records(home)) as found:
        findings = repaired(found)
    if as_json:
        print(json.dumps([each._asdict() for each in findings], indent=1))
        return
    print_table(("what", "found", "action"), findings, empty="nothing to repair")


def _offer_again(home: Home, handoff: Handoff, reason: str) -> None:
    from langgraph_takeover.handoff.ledger import handoffs
    from langgraph_takeover.nodes.deliver import DeliveryPolicy

    done = handoffs.change_state(
        home.ledger, handoff.id, "offered", by=current_user(), version=handoff.version, reason=reason,
        deadline_s=DeliveryPolicy().confirm_timeout_s,
    )  # fmt: skip
    print_safely(
        f"handoff {done.id} is offered to {done.target} again (deliver it: deliver(home, {done.id!r}, …))"
    )


def _format_age(at: float) -> str:
    seconds = max(time.time() - at, 0.0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
