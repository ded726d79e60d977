"""Handoffs from many processes at once on one ledger: none lost, none twice, how many a second, and how late the slowest.

Every handoff is prepared and offered once, each message sent twice; two processes try to take it, one may; who took it
works it off. Beside it, in the same run: bare transactions of one compare-and-set and one row, the least that any ledger
must do, by as many processes on the same database.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer
from sqlalchemy import text

from benchmarks.figures import Figure, Goal, print_figures, print_progress, run_command
from langgraph_takeover.handoff.ledger import FencedError, HandedOverError, Ledger, acquire, handoffs
from langgraph_takeover.handoff.ledger.handoffs import IllegalTransitionError
from langgraph_takeover.handoff.records.envelope import Envelope, Understanding

_UNDERSTANDING = Understanding(
    goal="All of it is done.", next_step="I begin with it.", verify_first="That it is mine."
)
_STATES = ("prepared", "offered", "accepted", "active", "completed")
_FENCE_EVERY = 20
"""Of so many handoffs, one has a source that still holds its thread, and must be fenced off."""
_EPILOG = """Examples:

python benchmarks/handoffs.py

python benchmarks/handoffs.py --database postgresql://postgres@127.0.0.1:5432/postgres --json
"""


class ProcessResult(NamedTuple):
    """The counts and times of one process."""

    accepted: tuple[str, ...]
    """The handoffs that it got."""
    seconds: tuple[float, ...]
    """Of each transition that was its own."""
    fenced_count: int
    lost_races: int
    """How often another process had been faster."""


class LoadResult(NamedTuple):
    """The results of all processes together."""

    failures: dict[str, int]
    lost_races: int
    seconds: float
    transitions_s: list[float]
    """Of each transition, sorted."""


def run_load(url: str, count: int, processes: int) -> LoadResult:
    """Hand over `count` times from so many processes, and check every trace of it afterwards."""
    Ledger(url).close()
    started = time.monotonic()
    results = _run_in_processes(_run_handoffs, url, count, processes)
    seconds = time.monotonic() - started
    took = Counter(name for each in results for name in each.took)
    ledger, names = Ledger(url), [_handoff_name(number) for number in range(count)]
    ended = {each.id: each.state for each in handoffs.list_handoffs(ledger)}
    histories = [tuple(step.after for step in handoffs.list_transitions(ledger, name)) for name in names]
    ledger.close()
    fenced = sum(each.fenced for each in results)
    failures = {
        "lost": sum(ended.get(name) != "completed" for name in names),
        "taken twice": sum(number > 1 for number in took.values()),
        "histories that are not lawful": sum(history != _STATES for history in histories),
        "sources that could still write": len(range(0, count, _FENCE_EVERY)) - fenced,
    }
    transitions_s = sorted(each for one in results for each in one.seconds)
    return LoadResult(failures, sum(each.beaten for each in results), seconds, transitions_s)


def time_bare_transactions(url: str, count: int, processes: int) -> float:
    """Seconds for as many transactions as the storm has transitions, each of one update and one row."""
    ledger = Ledger(url)
    with ledger.write_transaction() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS bare (id INTEGER PRIMARY KEY, version INTEGER)"))
        connection.execute(text("CREATE TABLE IF NOT EXISTS bare_steps (id INTEGER, version INTEGER)"))
        connection.execute(text("DELETE FROM bare"))
        for number in range(count):
            connection.execute(text("INSERT INTO bare VALUES (:id, 0)"), {"id": number})
    ledger.close()
    started = time.monotonic()
    _run_in_processes(_run_bare_transactions, url, count, processes)
    return time.monotonic() - started


def _run_bare_transactions(url: str, count: int, processes: int, worker: int) -> None:
    ledger = Ledger(url)
    for number in range(worker, count, processes):
        for version in range(len(_STATES)):
            with ledger.write_transaction() as connection:
                values = {"id": number, "version": version}
                connection.execute(
                    text("UPDATE bare SET version = version + 1 WHERE id = :id AND version = :version"),
                    values,
                )
                connection.execute(text("INSERT INTO bare_steps VALUES (:id, :version)"), values)
    ledger.close()


def _run_handoffs(url: str, count: int, processes: int, worker: int) -> ProcessResult:
    ledger, seconds = Ledger(url), []

    def time_call(call: Callable[..., None], *arguments: Any) -> None:
        started = time.monotonic()
        call(ledger, *arguments)
        seconds.append(time.monotonic() - started)

    mine = list(range(worker, count, processes))
    others = list(range((worker + 1) % processes, count, processes))
    held = {number: acquire(ledger, f"source-{number}") for number in mine if number % _FENCE_EVERY == 0}
    for number in mine:
        time_call(_prepare, number)
        time_call(_move, number, "offered", "the sender")
        _prepare(ledger, number)
        _move(ledger, number, "offered", "the sender")
    took, beaten = [], 0
    wanted = [*mine, *others]
    random.Random(worker).shuffle(wanted)
    while wanted:
        number = wanted.pop()
        try:
            time_call(_move, number, "accepted", f"worker {worker}")
        except handoffs.HandoffNotFoundError:
            wanted.insert(0, number)  # its sender is not there yet
            time.sleep(0.001)
            continue
        except (IllegalTransitionError, HandedOverError) as error:
            if isinstance(error, IllegalTransitionError) and error.handoff.state == "prepared":
                wanted.insert(0, number)
            else:
                beaten += 1
            continue
        took.append(_handoff_name(number))
        for state in ("active", "completed"):
            time_call(_move, number, state, f"worker {worker}")
            _move(ledger, number, state, f"worker {worker}")
    fenced = sum(_is_fenced(ledger, number, lease) for number, lease in held.items())
    ledger.close()
    return ProcessResult(tuple(took), tuple(seconds), fenced, beaten)


def _is_fenced(ledger: Ledger, number: int, lease: Any) -> bool:
    while handoffs.load(ledger, _handoff_name(number)).state in ("prepared", "offered"):
        time.sleep(0.01)
    try:
        with ledger.write_transaction() as connection:
            lease.require(connection)
    except FencedError:
        return True
    return False


def _prepare(ledger: Ledger, number: int) -> None:
    handoffs.prepare(
        ledger, handoff_id=_handoff_name(number), record=f"r{number}", digest="d", task="t", thread=f"source-{number}",
        source="sender", target="worker", envelope=Envelope(message="Go on."), by="the sender", key=f"p{number}",
    )  # fmt: skip


def _move(ledger: Ledger, number: int, state: Any, by: str) -> None:
    more = (
        {"successor": f"{_handoff_name(number)}.1", "understanding": _UNDERSTANDING}
        if state == "accepted"
        else {}
    )
    handoffs.change_state(ledger, _handoff_name(number), state, by=by, key=f"{state} {number} {by}", **more)  # type: ignore[arg-type]


def _handoff_name(number: int) -> str:
    return f"h{number:05d}"


def _run_in_processes(work: Callable[..., Any], *arguments: Any) -> list[Any]:
    processes = arguments[-1]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return pool.starmap(work, [(*arguments, own) for own in range(processes)], chunksize=1)


def main(
    count: Annotated[int, typer.Option("--handoffs", min=8, help="How many.")] = 2000,
    processes: Annotated[int, typer.Option(min=2, help="From how many processes.")] = 8,
    database: Annotated[
        list[str] | None,
        typer.Option(help="A database's URL beside a fresh SQLite file; its tables must be empty."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure the ledger under many processes."""
    with tempfile.TemporaryDirectory() as place:
        urls = [f"sqlite:///{place}/ledger.sqlite", *(database or ())]
        found = {}
        for url in urls:
            name = url.partition(":")[0]
            print_progress(f"{count:,} handoffs from {processes} processes, on {name}")
            found[name] = (run_load(url, count, processes), time_bare_transactions(url, count, processes))
    figures = [figure for name, each in found.items() for figure in _build_figures(name, count, *each)]
    print_figures(f"{count:,} handoffs from {processes} processes", figures, as_json=as_json)
    if any(any(one.failures.values()) for one, _ in found.values()):
        raise typer.Exit(1)


def _build_figures(name: str, count: int, result: LoadResult, bare_s: float) -> Iterator[Figure]:
    for what, number in result.failures.items():
        yield Figure(f"{name}: {what}", "", number, goal=Goal(0))
    yield Figure(f"{name}: takers who came second, and were refused", "", result.lost_races)
    what, peer = f"{name}: handoffs a second, from prepared to completed", "as many bare transactions"
    yield Figure(what, "", count / result.seconds, count / bare_s, peer)
    times = result.transitions_s
    for what, seconds in (
        ("median", statistics.median(times)),
        ("p99", times[int(len(times) * 0.99)]),
        ("longest", times[-1]),
    ):
        yield Figure(f"{name}: a transition, {what}", "ms", seconds * 1000)


if __name__ == "__main__":
    run_command(main, _EPILOG)
