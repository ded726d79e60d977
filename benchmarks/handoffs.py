"""Concurrent handoffs of many processes on one ledger: losses, duplicates, throughput and latency.

Every handoff is prepared and offered once, with each message sent twice. Two processes try to accept it; the winner
completes it. The reference, in the same run: the same number of processes and bare transactions (one compare-and-set and
one row), the minimum work of any ledger.
"""

from __future__ import annotations

import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, NamedTuple

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer
from sqlalchemy import text

from benchmarks.figures import Figure, Goal, print_figures, print_progress, run_command
from benchmarks.turns import AsJson, Comparison, Samples
from langgraph_takeover.handoff.ledger import FencedError, HandedOverError, Ledger, acquire, handoffs
from langgraph_takeover.handoff.ledger.handoffs import IllegalTransitionError
from langgraph_takeover.handoff.records.envelope import Envelope, Understanding

_UNDERSTANDING = Understanding(
    goal="The task is done.", next_step="I start the task.", verify_first="The handoff is mine."
)
_STATES = ("prepared", "offered", "accepted", "active", "completed")
_FENCE_EVERY = 20
"""One of this many handoffs has a source that still holds its thread and must be fenced off."""


class ProcessResult(NamedTuple):
    """Counts and times of one process."""

    accepted: tuple[str, ...]
    """The handoffs that the process accepted."""
    seconds: tuple[float, ...]
    """Duration of each of its transitions."""
    fenced_count: int
    lost_races: int
    """Number of handoffs that another process accepted first."""


def main(
    count: Annotated[int, typer.Option("--handoffs", min=8, help="Number of handoffs.")] = 2000,
    processes: Annotated[int, typer.Option(min=2, help="Number of processes.")] = 8,
    database: Annotated[
        list[str] | None,
        typer.Option(help="URL of a database with empty tables, measured in addition to SQLite. Repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the ledger under concurrent handoffs."""
    title, figures = f"{count:,} handoffs from {processes} processes", list[Figure]()
    with tempfile.TemporaryDirectory() as directory:
        for url in (f"sqlite:///{directory}/ledger.sqlite", *(database or ())):
            name = url.partition(":")[0]
            print_progress(f"{title}, on {name}")
            figures += measure_ledger(name, url, count, processes)
    print_figures(title, figures, as_json=as_json)
    if any(figure.is_met is False for figure in figures):
        raise typer.Exit(1)


def measure_ledger(name: str, url: str, count: int, processes: int) -> list[Figure]:
    """Hand over `count` times from this many processes, check all states and histories, and time bare transactions."""
    samples, numbers = Samples(), range(count)
    Ledger(url).close()
    with samples.measure_time("handoffs"):
        results = _run_in_processes(_run_handoffs, url, count, processes)
    with closing(Ledger(url)) as ledger:
        states = {each.id: each.state for each in handoffs.list_handoffs(ledger)}
        steps = [handoffs.list_transitions(ledger, _handoff_name(number)) for number in numbers]
        _create_bare_rows(ledger, count)
    with samples.measure_time("bare"):
        _run_in_processes(_run_bare_transactions, url, count, processes)
    accepted = Counter(each for result in results for each in result.accepted)
    failures = {
        "lost": sum(states.get(_handoff_name(number)) != "completed" for number in numbers),
        "accepted twice": sum(number > 1 for number in accepted.values()),
        "invalid histories": sum(tuple(step.after for step in each) != _STATES for each in steps),
        "sources without fence": len(numbers[::_FENCE_EVERY]) - sum(each.fenced_count for each in results),
    }
    lost_races = sum(result.lost_races for result in results)
    for failure, number in (*failures.items(), ("lost races", lost_races)):
        samples.add(failure, number)
    for rate in ("handoffs", "bare"):
        samples.add(f"{rate}_rate", count / samples.values[rate][0])
    transitions_s = sorted(duration for result in results for duration in result.seconds)
    samples.values["transition"] = transitions_s
    samples.add("p99", transitions_s[int(len(transitions_s) * 0.99)])
    samples.add("maximum", transitions_s[-1])
    rate = f"{name}: handoffs per second, from prepared to completed"
    comparisons = (
        *(Comparison(f"{name}: {each}", each, goal=Goal(0), unit="") for each in failures),
        Comparison(f"{name}: lost races (refused)", "lost races", unit=""),
        Comparison(rate, "handoffs_rate", "bare_rate", "bare transactions", unit=""),
        Comparison(f"{name}: transition, median", "transition"),
        Comparison(f"{name}: transition, p99", "p99"),
        Comparison(f"{name}: transition, maximum", "maximum"),
    )
    return list(samples.compare(*comparisons))


def _create_bare_rows(ledger: Ledger, count: int) -> None:
    with ledger.write_transaction() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS bare (id INTEGER PRIMARY KEY, version INTEGER)"))
        connection.execute(text("CREATE TABLE IF NOT EXISTS bare_steps (id INTEGER, version INTEGER)"))
        connection.execute(text("DELETE FROM bare"))
        connection.execute(text("INSERT INTO bare VALUES (:id, 0)"), [{"id": each} for each in range(count)])


def _run_bare_transactions(url: str, count: int, processes: int, worker: int) -> None:
    """Run as many transactions as a handoff has states, each with one update and one row."""
    update = text("UPDATE bare SET version = version + 1 WHERE id = :id AND version = :version")
    with closing(Ledger(url)) as ledger:
        for number in range(worker, count, processes):
            for version in range(len(_STATES)):
                values = {"id": number, "version": version}
                with ledger.write_transaction() as connection:
                    connection.execute(update, values)
                    connection.execute(text("INSERT INTO bare_steps VALUES (:id, :version)"), values)


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
    name, acceptance = _handoff_name(number), dict[str, Any]()
    if state == "accepted":
        acceptance = {"successor": f"{name}.1", "understanding": _UNDERSTANDING}
    handoffs.change_state(ledger, name, state, by=by, key=f"{state} {number} {by}", **acceptance)


def _handoff_name(number: int) -> str:
    return f"h{number:05d}"


def _run_in_processes(work: Callable[..., Any], url: str, count: int, processes: int) -> list[Any]:
    arguments = [(url, count, processes, worker) for worker in range(processes)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return pool.starmap(work, arguments, chunksize=1)


if __name__ == "__main__":
    run_command(main)
