"""A person as the target of a handoff, and as its source: they take a frozen machine in hand, and give it on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from graph.delivery import hand_over
from graph.hold import Run
from graph.home import Home
from graph.outcome import Outcome
from graph.rollback import spec_of
from graph.running import open_run
from handoff.envelope import Envelope
from handoff.ledger import handoffs
from handoff.ledger.handoffs import Handoff
from handoff.record import HandoffRecord
from nodes.person import Left, Person
from sandbox.machine import Sandbox, SandboxSpec

_WHOLE_DAYS_S = 30 * 24 * 3600.0
_STEPS = 100_000
_COMMAND_S = 3600.0


class NotTaken(LookupError):
    """There is nothing of that person to give: they have not taken the record."""

    def __str__(self) -> str:
        return str(self.args[0])


class Taken(NamedTuple):
    """What came of a person's work on a record."""

    outcome: Outcome | None
    """None where they left without handing over."""
    given: Handoff | None


def thread_of(record: HandoffRecord, person: str) -> str:
    """The thread on which a person works on a record."""
    return f"{record.id}.by.{person}"[:255]


def take(
    home: Home,
    record: HandoffRecord,
    person: str,
    *,
    read: Callable[[str], str],
    show: Callable[[str], None],
    sandbox: SandboxSpec | None = None,
) -> Taken:
    """Let a person work in a record's machine, line by line, until they give it on or leave.

    Where the record was offered to them in a handoff, they confirm that first. If the person leaves, the
    same call resumes. `sandbox` defaults to an isolated one.

    Raises RecordRefused, RollbackRefused, SandboxUnavailable or ThreadHeld.
    """
    given_to: list[tuple[str, str]] = []
    with _opened(home, record, person, read, show, given_to, sandbox) as held, contextlib.suppress(Left):
        begun = home.saver.get_tuple(held.config)
        offered = _offered(home, record, person)
        if begun:
            outcome = held.resume(go_back=True)
        elif offered is not None:
            outcome = held.receive(offered.id)
        else:
            outcome = held.take_over(record.id, "structured")
        if not given_to or not outcome.records:
            return Taken(outcome, None)
        return Taken(outcome, _given(home, outcome, person, *given_to[-1]))
    return Taken(None, None)


def give(
    home: Home,
    record: HandoffRecord,
    person: str,
    agent: str,
    message: str = "",
    *,
    sandbox: SandboxSpec | None = None,
) -> Taken:
    """Freeze what a person left of a record that they had taken, and hand it to an agent.

    Raises NotTaken beside what `take` raises.
    """
    thread = thread_of(record, person)
    if home.saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}}) is None:
        raise NotTaken(
            f"{person} has not taken {record.id}; take it first: python -m handoff take {record.id}"
        )
    line = f"give {agent} {message}".strip()
    return take(home, record, person, read=lambda _: line, show=lambda _: None, sandbox=sandbox)


@contextlib.contextmanager
def _opened(
    home: Home,
    record: HandoffRecord,
    person: str,
    read: Callable[[str], str],
    show: Callable[[str], None],
    given_to: list[tuple[str, str]],
    sandbox: SandboxSpec | None,
) -> Iterator[Run]:
    entered: list[Run] = []

    def machine() -> Sandbox:
        (held,) = entered
        found = home.saver.get_tuple(held.config)
        assert found is not None
        return held.session.enter(found.checkpoint["channel_values"]["machine"])

    model = Person(read=read, show=show, machine=machine, give=lambda to, said: given_to.append((to, said)))
    settings: dict[str, Any] = {
        "protocol": "native", "offer_handoff": True, "points": (), "policy": "record", "max_steps": _STEPS,
        "max_seconds": _WHOLE_DAYS_S, "model_timeout_s": _WHOLE_DAYS_S, "command_timeout_s": _COMMAND_S,
    }  # fmt: skip
    with open_run(
        home,
        thread_of(record, person),
        model=model,
        model_name=f"person:{person}",
        agent=person,
        sandbox=sandbox or spec_of(record),
        **settings,
    ) as held:
        entered.append(held)
        yield held


def _offered(home: Home, record: HandoffRecord, person: str) -> Handoff | None:
    there = handoffs.every(home.ledger, ["offered"])
    return next((each for each in there if each.record == record.id and each.target == person), None)


def _given(home: Home, outcome: Outcome, person: str, agent: str, message: str) -> Handoff:
    record = outcome.records[-1]
    return hand_over(
        home, record, agent, source=person, envelope=Envelope(message=message), key=f"given {record}"
    )
