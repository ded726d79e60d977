"""Events of agents in the ledger: parts that name the one before, branches, copies, and damage."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from langgraph_takeover.handoff.ledger import Ledger, LedgerUnavailableError, traces
from langgraph_takeover.handoff.ledger.traces import TracePart

from .test_statistics import ledger as ledger  # the fixture


def part(*words: str) -> TracePart:
    return TracePart([{"text": word} for word in words], [{"path": word} for word in words if word == "edit"])


def list_words(ledger: Ledger, part_id: str, thread: str = "a") -> list[str]:
    return [each["text"] for each in traces.load(ledger, thread, part_id).events]


def test_branches_share_what_came_before(ledger: Ledger) -> None:
    first = traces.append(ledger, "a", part("one", "edit"), after="")
    left = traces.append(ledger, "a", part("left \ud800 \0"), after=first)
    right = traces.append(ledger, "a", part("right"), after=first)
    assert traces.append(ledger, "a", part("right"), after=first) == right
    assert list_words(ledger, left) == ["one", "edit", "left \ud800 \0"]
    assert list_words(ledger, right) == ["one", "edit", "right"]
    assert traces.load(ledger, "a", right).edits == [{"path": "edit"}]


def test_a_thread_reads_its_own_events_only(ledger: Ledger) -> None:
    first = traces.append(ledger, "a", part("one"), after="")
    last = traces.append(ledger, "a", part("two"), after=first)
    with pytest.raises(LedgerUnavailableError, match=r"events of thread 'b' are missing \(copy threads with"):
        traces.load(ledger, "b", last)
    for _ in range(2):
        traces.copy(ledger, "a", "b")
    assert list_words(ledger, last, "b") == ["one", "two"]


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM takeover_traces WHERE parent = ''", "are missing"),
        ("UPDATE takeover_traces SET body = 'x'", "is damaged"),
    ],
)
def test_damage_is_an_error(ledger: Ledger, statement: str, problem: str) -> None:
    last = ""
    for word in ("one", "two", "three"):
        last = traces.append(ledger, "a", part(word), after=last)
    with ledger.write_transaction() as connection:
        connection.execute(text(statement))
    with pytest.raises(LedgerUnavailableError, match=problem):
        traces.load(ledger, "a", last)
