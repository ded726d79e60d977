"""Concurrent handoffs of many processes on one ledger: losses, duplicates, throughput and latency.

Every handoff is prepared and offered once, with each message sent twice. Two processes try to accept it; the winner
completes it. The reference, in the same run: the same number of processes and bare transactions (one compare-and-set and
one row), the minimum work of any ledger.
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
    goal="The task is done.", next_step="I start the task.", verify_first="The handoff is mine."
)
_STATES = ("prepared", "offered", "accepted", "active", "completed")
_FENCE_EVERY = 20
"""One of this many handoffs has a source that still holds its thread and must be fenced off."""
_EPILOG = """Examples:

python benchmarks/handoffs.py

python benchmarks/handoffs.py --database postgresql://postgres@127.0.0.1:5432/postgres --json
"""


class ProcessResult(NamedTuple):
    """Counts and times of one process."""

    accepted: tuple[str, ...]
    """The handoffs that the process accepted."""
    seconds: tuple[float, ...]
    """Duration of each of its transitions."""
    fenced_count: int
    lost_races: int
    """Number of handoffs that another process accepted first."""


class LoadResult(NamedTuple):
    """Results of all processes."""

    failures: dict[str, int]
    lost_races: int
    seconds: float
    transitions_s: list[float]
    """Duration of each transition, sorted."""


def run_load(url: str, count: int, processes: int) -> LoadResult:
    """Hand over `count` times from this many processes, then check all states and histories."""
    Ledger(url).close()
    started = time.monotonic()
    results = _run_in_processes(_run_handoffs, url, count, processes)
    seconds = time.monotonic() - started
    accepted = Counter(name for result in results for name in result.accepted)
    ledger, names = Ledger(url), [_handoff_name(number) for number in range(count)]
    states = {each.id: each.state for each in handoffs.list_handoffs(ledger)}
    histories = [tuple(step.after for step in handoffs.list_transitions(ledger, name)) for name in names]
    ledger.close()
    fenced_count = sum(result.fenced_count for result in results)
    failures = {
        "lost": sum(states.get(name) != "completed" for name in names),
        "accepted twice": sum(number > 1 for number in accepted.values()),
        "invalid histories": sum(history != _STATES for history in histories),
        "sources without fence": len(range(0, count, _FENCE_EVERY)) - fenced_count,
    }
    transitions_s = sorted(duration for result in results for duration in result.seconds)
    return LoadResult(failures, sum(result.lost_races for result in results), seconds, transitions_s)


def time_bare_transactions(url: str, count: int, processes: int) -> float:
    """Seconds for the same number of transactions as transitions, each with one update and one row."""
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

    own = list(range(worker, count, processes))
    others = list(range((worker + 1) % processes, count, processes))
    leases = {number: acquire(ledger, f"source-{number}") for number in own if number % _FENCE_EVERY == 0}
    for number in own:
        time_call(_prepare, number)
        time_call(_move, number, "offered", "the sender")
        _prepare(ledger, number)
        _move(ledger, number, "offered", "the sender")
    accepted, lost_races = [], 0
    pending = [*own, *others]
    random.Random(worker).shuffle(pending)
    while pending:
        number = pending.pop()
        try:
            time_call(_move, number, "accepted", f"worker {worker}")
        except handoffs.HandoffNotFoundError:
            pending.insert(0, number)  # not prepared yet
            time.sleep(0.001)
            continue
        except (IllegalTransitionError, HandedOverError) as error:
            if isinstance(error, IllegalTransitionError) and error.handoff.state == "prepared":
                pending.insert(0, number)
            else:
                lost_races += 1
            continue
        accepted.append(_handoff_name(number))
        for state in ("active", "completed"):
            time_call(_move, number, state, f"worker {worker}")
            _move(ledger, number, state, f"worker {worker}")
    fenced_count = sum(_is_fenced(ledger, number, lease) for number, lease in leases.items())
    ledger.close()
    return ProcessResult(tuple(accepted), tuple(seconds), fenced_count, lost_races)


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
        source="sender", target="worker", envelope=Envelope(message="Continue."), by="the sender", key=f"p{number}",
    )  # fmt: skip


def _move(ledger: Ledger, number: int, state: Any, by: str) -> None:
    acceptance: dict[str, Any] = (
        {"successor": f"{_handoff_name(number)}.1", "understanding": _UNDERSTANDING}
        if state == "accepted"
        else {}
    )
    handoffs.change_state(
        ledger, _handoff_name(number), state, by=by, key=f"{state} {number} {by}", **acceptance
    )


def _handoff_name(number: int) -> str:
    return f"h{number:05d}"


def _run_in_processes(work: Callable[..., Any], *arguments: Any) -> list[Any]:
    processes = arguments[-1]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return pool.starmap(work, [(*arguments, worker) for worker in range(processes)], chunksize=1)


def main(
    count: Annotated[int, typer.Option("--handoffs", min=8, help="Number of handoffs.")] = 2000,
    processes: Annotated[int, typer.Option(min=2, help="Number of processes.")] = 8,
    database: Annotated[
        list[str] | None,
        typer.Option(help="URL of a database with empty tables, measured in addition to SQLite. Repeatable."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure the ledger under concurrent handoffs."""
    with tempfile.TemporaryDirectory() as directory:
        urls = [f"sqlite:///{directory}/ledger.sqlite", *(database or ())]
        results = {}
        for url in urls:
            name = url.partition(":")[0]
            print_progress(f"{count:,} handoffs from {processes} processes, on {name}")
            results[name] = (run_load(url, count, processes), time_bare_transactions(url, count, processes))
    figures = [figure for name, each in results.items() for figure in _build_figures(name, count, *each)]
    print_figures(f"{count:,} handoffs from {processes} processes", figures, as_json=as_json)
    if any(any(result.failures.values()) for result, _ in results.values()):
        raise typer.Exit(1)


def _build_figures(name: str, count: int, result: LoadResult, bare_s: float) -> Iterator[Figure]:
    for failure, number in result.failures.items():
        yield Figure(f"{name}: {failure}", "", number, goal=Goal(0))
    yield Figure(f"{name}: lost races (refused)", "", result.lost_races)
    title, reference = f"{name}: handoffs per second, from prepared to completed", "bare transactions"
    yield Figure(title, "", count / result.seconds, count / bare_s, reference)
    times = result.transitions_s
    for statistic, seconds in (
        ("median", statistics.median(times)),
        ("p99", times[int(len(times) * 0.99)]),
        ("maximum", times[-1]),
    ):
        yield Figure(f"{name}: transition, {statistic}", "ms", seconds * 1000)


if __name__ == "__main__":
    run_command(main, _EPILOG)
