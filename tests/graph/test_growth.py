"""The database grows with the trace and no faster, and the state stays readable as it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from graph import open_home

from .conftest import DONE, Bench, events, scripted

BYTES = 2048
SHOW = f"```bash\nprintf '%0{BYTES}d' 0\n```"
MOST = 6.0
"""Bytes of the database for a byte of the raw trace."""


@pytest.fixture(params=["sqlite", "postgres"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    url = request.getfixturevalue("postgres_database") if request.param == "postgres" else None
    with open_home(tmp_path / "home", url) as home:
        yield Bench(tmp_path, home)


def size(bench: Bench) -> int:
    """Bytes of everything that the database holds of the runs, the log it has not taken in yet included."""
    if bench.home.ledger.on_sqlite:
        return sum(path.stat().st_size for path in bench.home.directory.glob("takeover.sqlite*"))
    engine = create_engine(bench.home.ledger.url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        tables = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname ~ '^(check|take)'"
        found = int(connection.execute(text(tables)).scalar_one())
    engine.dispose()
    return found


def test_the_database_grows_with_the_trace(bench: Bench) -> None:
    grown = []
    for steps in (40, 80, 160):
        before = size(bench)
        state = bench.run(scripted(*[SHOW] * steps, DONE), thread=f"{steps} steps")
        trace = sum(len(event.text.encode()) for event in events(state))
        assert trace > steps * BYTES
        grown.append((size(bench) - before) / trace)
    assert grown[-1] <= MOST
    # What grew with the square of the steps would have doubled with each.
    assert grown[-1] <= 1.3 * grown[0]


def test_every_message_is_there_after_many_steps(bench: Bench) -> None:
    state = bench.run(scripted(*[SHOW] * 50, DONE))
    saved = bench.saved().values
    assert saved["messages"] == state["messages"]
    assert [message.type for message in saved["messages"][:4]] == ["system", "human", "ai", "human"]
    assert len(saved["messages"]) == 2 + 2 * 50 + 1
    assert saved["messages"][-2].text.endswith("0" * 100)
