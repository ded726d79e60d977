"""A handoff's states stay legal and none is lost, also with concurrent, duplicate or late changes, on both databases."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from sqlalchemy import update

from langgraph_takeover.handoff.ledger import FencedError, HandedOverError, Ledger, acquire, handoffs
from langgraph_takeover.handoff.ledger.handoffs import (
    ALLOWED_TRANSITIONS,
    KEY_LIFETIME_S,
    TRANSFERRED_STATES,
    Handoff,
    HandoffNotFoundError,
    HandoffState,
    IllegalTransitionError,
    KeyReusedError,
    LateConfirmationError,
    change_state,
    list_handoffs,
    list_transitions,
    load,
    prepare,
)
from langgraph_takeover.handoff.ledger.leases import ThreadNameError
from langgraph_takeover.handoff.ledger.store import idempotency_keys
from langgraph_takeover.handoff.records.envelope import Envelope, Understanding

from ...random_examples import SEED

UNDERSTOOD = Understanding(goal="Mend wrap().", next_step="Run the tests.", verify_first="That they fail.")
PATHS: dict[HandoffState, tuple[HandoffState, ...]] = {
    "prepared": (),
    "offered": ("offered",),
    "rejected": ("offered", "rejected"),
    "timed_out": ("offered", "timed_out"),
    "accepted": ("offered", "accepted"),
    "active": ("offered", "accepted", "active"),
    "completed": ("offered", "accepted", "active", "completed"),
    "blocked": ("offered", "timed_out", "blocked"),
    "rolled_back": ("rolled_back",),
}
"""The transitions to each state."""


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Ledger]:
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    if request.param == "postgres":
        url = str(request.getfixturevalue("postgres_database"))
    found = Ledger(url)
    yield found
    found.close()


def prepare_handoff(ledger: Ledger, name: str = "h1", **changes: Any) -> Handoff:
    fields: dict[str, Any] = {
        "handoff_id": name,
        "record": "t.first_validation",
        "digest": "d",
        "task": "t",
        "thread": "thread-1",
        "source": "writer",
        "target": "tester",
        "envelope": Envelope(message="Go on."),
        "by": "writer",
    }
    return prepare(ledger, **fields | changes)


def advance_handoff(ledger: Ledger, state: HandoffState, name: str = "h1") -> Handoff:
    found = prepare_handoff(ledger, name)
    for step in PATHS[state]:
        found = change_state(ledger, name, step, by="test")
    return found


@pytest.mark.cases(16)
@pytest.mark.parametrize("to", list(ALLOWED_TRANSITIONS))
@pytest.mark.parametrize("state", list(ALLOWED_TRANSITIONS))
def test_only_legal_transitions_can_be_written(ledger: Ledger, state: HandoffState, to: HandoffState) -> None:
    before = advance_handoff(ledger, state)
    if to in ALLOWED_TRANSITIONS[state]:
        after = change_state(ledger, "h1", to, by="me", reason="because")
        assert (after.state, after.version, after.reason) == (to, before.version + 1, "because")
        last = list_transitions(ledger, "h1")[-1]
        assert (last.version, last.before, last.after, last.by) == (after.version, state, to, "me")
    else:
        with pytest.raises(
            IllegalTransitionError, match=f"h1 is {state}, which cannot become {to}; it can become"
        ):
            change_state(ledger, "h1", to, by="me")
        assert load(ledger, "h1") == before
        assert len(list_transitions(ledger, "h1")) == before.version


def test_one_of_many_at_once_wins(ledger: Ledger) -> None:
    advance_handoff(ledger, "offered")
    won: list[str] = []
    lost: list[str] = []
    barrier = threading.Barrier(8)

    def take(name: str) -> None:
        barrier.wait()
        try:
            won.append(change_state(ledger, "h1", "accepted", by=name, understanding=UNDERSTOOD).id and name)
        except IllegalTransitionError:
            lost.append(name)

    takers = [threading.Thread(target=take, args=(f"taker {n}",)) for n in range(8)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert (len(won), len(lost)) == (1, 7)
    assert list_transitions(ledger, "h1")[-1].by == won[0]


def test_a_key_is_applied_once(ledger: Ledger) -> None:
    first = prepare_handoff(ledger, key="k0")
    assert prepare_handoff(ledger, key="k0") == first
    offered = change_state(ledger, "h1", "offered", by="a", key="k1")
    change_state(ledger, "h1", "accepted", by="b", understanding=UNDERSTOOD, key="k2")
    assert change_state(ledger, "h1", "offered", by="a", key="k1") == offered, (
        "a late duplicate changes nothing"
    )
    assert load(ledger, "h1").state == "accepted"
    with pytest.raises(KeyReusedError, match="k1"):
        change_state(ledger, "h1", "active", by="a", key="k1")
    with pytest.raises(KeyReusedError, match="h1 already exists"):
        prepare_handoff(ledger, target="another")
    with ledger.write_transaction() as connection:
        connection.execute(
            update(idempotency_keys).values(expires_at=idempotency_keys.c.expires_at - KEY_LIFETIME_S - 1)
        )
    assert change_state(ledger, "h1", "active", by="a", key="k1").state == "active", (
        "an expired key is a new one"
    )


def test_parallel_requests_with_one_key_are_applied_once(ledger: Ledger) -> None:
    barrier, found = threading.Barrier(8), list[Handoff]()

    def send() -> None:
        barrier.wait()
        found.append(prepare_handoff(ledger, handoff_id=None, key="k"))

    senders = [threading.Thread(target=send) for _ in range(8)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert found == [found[0]] * 8
    assert list_handoffs(ledger) == (found[0],)


def test_the_source_is_fenced_off_from_acceptance_to_roll_back(ledger: Ledger) -> None:
    lease = acquire(ledger, "thread-1")
    advance_handoff(ledger, "offered")
    with ledger.read_transaction() as connection:
        lease.require(connection)
    change_state(ledger, "h1", "accepted", by="tester", understanding=UNDERSTOOD)
    with ledger.read_transaction() as connection, pytest.raises(FencedError, match="handoff h1"):
        lease.require(connection)
    with pytest.raises(HandedOverError, match="rollback h1"):
        acquire(ledger, "thread-1")
    acquire(ledger, "thread-2").release()
    change_state(ledger, "h1", "rolled_back", by="a person")
    acquire(ledger, "thread-1").release()


def test_invalid_arguments(ledger: Ledger) -> None:
    with pytest.raises(HandoffNotFoundError, match="no handoff yet"):
        load(ledger, "h1")
    prepare_handoff(ledger)
    with pytest.raises(HandoffNotFoundError, match="known handoffs: h1"):
        change_state(ledger, "h2", "offered", by="a")
    with pytest.raises(IllegalTransitionError):
        change_state(ledger, "h1", "offered", by="a", version=7)
    with pytest.raises(ThreadNameError):
        prepare_handoff(ledger, "h\x1b[2J")
    with pytest.raises(ThreadNameError):
        prepare_handoff(ledger, "h3", target="t" * 1000)
    with pytest.raises(ValueError, match="unknown state"):
        change_state(ledger, "h1", "lost", by="a")  # type: ignore[arg-type]


def test_two_handoffs_of_one_thread_cannot_both_be_taken(ledger: Ledger) -> None:
    advance_handoff(ledger, "offered")
    change_state(ledger, prepare_handoff(ledger, "h2", target="other").id, "offered", by="writer")
    change_state(ledger, "h1", "accepted", by="tester", successor="s1")
    with pytest.raises(HandedOverError, match="to tester by handoff h1"):
        change_state(ledger, "h2", "accepted", by="other", successor="s2")
    assert load(ledger, "h2").state == "offered"
    change_state(ledger, "h1", "timed_out", by="a watcher")
    assert change_state(ledger, "h2", "accepted", by="other", successor="s2").state == "accepted"
    with pytest.raises(HandedOverError, match="to other by handoff h2"):
        change_state(
            ledger,
            change_state(ledger, "h1", "offered", by="a watcher").id,
            "accepted",
            by="tester",
            successor="s3",
        )


def test_a_later_handoff_is_rolled_back_first(ledger: Ledger) -> None:
    advance_handoff(ledger, "offered")
    change_state(ledger, "h1", "accepted", by="tester", successor="s1")
    prepare_handoff(ledger, "h2", thread="s1", source="tester", target="writer")
    for state in ("offered", "accepted"):
        change_state(ledger, "h2", state, by="writer", successor="s2")  # type: ignore[arg-type]
    with pytest.raises(IllegalTransitionError, match="was handed on by handoff h2; roll that back first"):
        change_state(ledger, "h1", "rolled_back", by="a person")
    assert load(ledger, "h1").state == "accepted"
    for name in ("h2", "h1"):
        change_state(ledger, name, "rolled_back", by="a person")
    acquire(ledger, "thread-1").release()


def test_a_confirmation_counts_until_the_deadline(ledger: Ledger) -> None:
    prepare_handoff(ledger)
    offered = change_state(ledger, "h1", "offered", by="writer", deadline_s=3600.0)
    assert 3590 < handoffs.compute_remaining_s(ledger, offered) <= 3600
    handoffs.set_deadline(ledger, offered, -1.0)
    with pytest.raises(LateConfirmationError, match="handoff h1 was confirmed after its deadline"):
        change_state(ledger, "h1", "accepted", by="tester", key="k")
    assert load(ledger, "h1").state == "offered"
    acquire(ledger, "thread-1").release()
    handoffs.set_deadline(ledger, offered, 3600.0)
    accepted = change_state(ledger, "h1", "accepted", by="tester", key="k")
    assert handoffs.compute_remaining_s(ledger, accepted) == math.inf
    with pytest.raises(IllegalTransitionError, match="changed by another process"):
        handoffs.set_deadline(ledger, offered, 3600.0)


@pytest.mark.slow
def test_many_processes_lose_and_repeat_nothing(request: pytest.FixtureRequest) -> None:
    """The benchmark runs 2,000 handoffs, and exits with 1 if one is lost, taken twice, illegal or unfenced."""
    url = str(request.getfixturevalue("postgres_database"))
    done = subprocess.run(
        [sys.executable, "benchmarks/handoffs.py", "--handoffs", "80", "--processes", "4", "--database", url, "--json"],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    beaten = [each["value"] for each in report["figures"] if "lost races" in each["name"]]
    assert (report["title"], beaten) == ("80 handoffs from 4 processes", [80, 80])


@pytest.mark.parametrize("at", ["before", "after"])
def test_an_interrupted_transition_is_complete_or_absent(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    advance_handoff(ledger, "offered")

    def fails(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(handoffs, "_update_thread_access" if at == "after" else "_record_transition", fails)
    with pytest.raises(KeyboardInterrupt):
        change_state(ledger, "h1", "accepted", by="b", understanding=UNDERSTOOD, key="k")
    monkeypatch.undo()
    assert load(ledger, "h1").state == "offered"
    assert [each.after for each in list_transitions(ledger, "h1")] == ["prepared", "offered"]
    assert (
        change_state(ledger, "h1", "accepted", by="b", understanding=UNDERSTOOD, key="k").state == "accepted"
    )


DEADLINE_S = 5e5
"""Jumps of the clock pass it, and come back."""


class Handoffs(RuleBasedStateMachine):
    """Messages in any order, duplicate or stale, with clock jumps and dying processes, compared with a model."""

    names = Bundle("names")
    sent = Bundle("sent")

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.url = f"sqlite:///{self.directory.name}/ledger.sqlite"
        self.states: dict[str, HandoffState] = {}
        self.versions: dict[str, int] = {}
        self.successors: dict[str, list[str]] = {}
        """Every accepted successor of each handoff; only the last may still be at work."""
        self.deadlines: dict[str, float] = {}
        """The deadline of the newest offer of each handoff."""
        self.jump = 0.0
        self._open()

    def _open(self) -> None:
        self.ledger = Ledger(self.url)
        clock = self.ledger.now
        self.ledger.now = lambda connection: clock(connection) + self.jump  # type: ignore[method-assign]

    def teardown(self) -> None:
        self.ledger.close()
        self.directory.cleanup()

    @initialize(target=names)
    def first(self) -> str:
        return self._new()

    @rule(target=names)
    def another(self) -> str:
        return self._new()

    def _new(self) -> str:
        name = f"h{len(self.states)}"
        prepare_handoff(self.ledger, name, thread=f"thread-{name}")
        self.states[name], self.versions[name], self.successors[name] = "prepared", 1, []
        return name

    @rule(target=sent, name=names, to=st.sampled_from(list(ALLOWED_TRANSITIONS)))
    def write_a_message(self, name: str, to: HandoffState) -> tuple[str, HandoffState, int, str]:
        """A change planned from the current state; it may arrive late, or twice."""
        return name, to, self.versions[name], f"{name}-{to}-{self.versions[name]}"

    @rule(target=sent, name=names, choice=st.integers(0, 3))
    def write_what_can_be(self, name: str, choice: int) -> tuple[str, HandoffState, int, str]:
        may = ALLOWED_TRANSITIONS[self.states[name]] or ("offered",)
        return self.write_a_message(name, may[choice % len(may)])

    @rule(message=sent)
    def it_arrives(self, message: tuple[str, HandoffState, int, str]) -> None:
        name, to, version, key = message
        legal = version == self.versions[name] and to in ALLOWED_TRANSITIONS[self.states[name]]
        legal &= to != "accepted" or self._now() <= self.deadlines.get(name, math.inf)
        successor = f"next-{name}-{version}"
        try:
            found = change_state(
                self.ledger, name, to, by="someone", version=version, key=key,
                deadline_s=DEADLINE_S if to == "offered" else None,
                **({"understanding": UNDERSTOOD, "successor": successor} if to == "accepted" else {}),
            )  # fmt: skip
        except IllegalTransitionError:
            assert not legal
            return
        if legal:
            self.states[name], self.versions[name] = to, version + 1
            if to == "offered":
                self.deadlines[name] = self._now() + DEADLINE_S
            if to == "accepted":
                self.successors[name].append(successor)
        assert (found.state, found.version) == (to, version + 1), "a duplicate gets what it came to"

    def _now(self) -> float:
        return time.time() + self.jump

    @rule(message=consumes(sent))
    def it_is_lost(self, message: tuple[str, HandoffState, int, str]) -> None:
        pass

    @rule(name=names, to=st.sampled_from(list(ALLOWED_TRANSITIONS)))
    def a_process_dies_in_the_middle(self, name: str, to: HandoffState) -> None:
        noting = handoffs._record_transition

        def dies(*args: Any) -> None:
            noting(*args)
            raise KeyboardInterrupt

        handoffs._record_transition = dies  # type: ignore[assignment]
        try:
            change_state(self.ledger, name, to, by="the dying")
        except (KeyboardInterrupt, IllegalTransitionError):
            pass
        finally:
            handoffs._record_transition = noting

    @rule(by_s=st.floats(-1e6, 1e6))
    def the_clock_jumps(self, by_s: float) -> None:
        self.jump = by_s

    @rule()
    def another_process_opens_it(self) -> None:
        self.ledger.close()
        self._open()

    @invariant()
    def the_ledger_is_what_it_should_be(self) -> None:
        found = {each.id: (each.state, each.version) for each in list_handoffs(self.ledger)}
        assert found == {name: (state, self.versions[name]) for name, state in self.states.items()}

    @invariant()
    def every_history_is_whole_and_legal(self) -> None:
        for name, state in self.states.items():
            transitions = list_transitions(self.ledger, name)
            assert [each.version for each in transitions] == list(range(1, self.versions[name] + 1))
            assert transitions[0].after == "prepared"
            assert transitions[-1].after == state
            for before, after in itertools.pairwise(transitions):
                assert after.before == before.after
                assert after.after in ALLOWED_TRANSITIONS[before.after]

    @invariant()
    def one_at_most_can_write(self) -> None:
        """The source before acceptance, then the last successor; no other thread ever again."""
        for name, state in self.states.items():
            threads = [f"thread-{name}", *self.successors[name]]
            may = threads[-1] if state in TRANSFERRED_STATES else threads[0]
            assert [thread for thread in threads if self._can_write(thread)] == [may]

    def _can_write(self, thread: str) -> bool:
        try:
            acquire(self.ledger, thread).release()
        except HandedOverError:
            return False
        return True


STEPS = int(os.environ.get("TAKEOVER_STEPS", "300" if SEED else "100"))
"""The number of steps in CI; the number in the docs comes from longer runs."""
TestHandoffs = Handoffs.TestCase
TestHandoffs.settings = settings(max_examples=STEPS // 50, stateful_step_count=50)
