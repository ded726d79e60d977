"""The database grows linearly with the trace, and the state stays readable."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
from sqlalchemy import create_engine, text

from langgraph_takeover.graph.home import DATABASE_FILE

from .conftest import BOTH_DATABASES, DONE, RunHarness, parse_events, scripted_model

pytestmark = BOTH_DATABASES
BYTES = 2048
LOOK = f"```bash\nprintf '%0{BYTES}d' 0\n```"
LENGTHS = (80, 160, 320)
MOST, SPREAD = 6.0, 1.15
"""The maximum database bytes per trace byte, and the maximum ratio between runs of these lengths."""


def size(bench: RunHarness) -> int:
    """Bytes of the run's data in the database, including its log."""
    if bench.home.ledger.is_sqlite:
        file = bench.home.directory / DATABASE_FILE
        with contextlib.closing(sqlite3.connect(file)) as connection:
            assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        return file.stat().st_size
    url = bench.home.ledger.url.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        # Otherwise the size depends on whether the automatic vacuum has run.
        connection.execute(text("VACUUM FULL"))
        tables = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname ~ '^(check|take)'"
        found = int(connection.execute(text(tables)).scalar_one())
    engine.dispose()
    return found


def growth(bench: RunHarness, steps: int) -> float:
    """Bytes of database growth per byte of trace, for a run of that many steps."""
    before = size(bench)
    state = bench.run(scripted_model(*[LOOK] * steps, DONE), thread=f"{steps} steps", max_steps=steps + 1)
    trace = sum(len(event.text.encode()) for event in parse_events(state))
    assert trace > steps * BYTES
    return (size(bench) - before) / trace


@pytest.mark.slow
def test_the_database_grows_with_the_trace(bench: RunHarness) -> None:
    growth(bench, 2)  # creates the tables and other one-time data
    grown = [growth(bench, steps) for steps in LENGTHS]
    assert max(grown) <= MOST
    # Even five bytes per step for each earlier step would be too many.
    assert max(grown) <= SPREAD * min(grown), grown


def test_every_message_is_kept_after_many_steps(bench: RunHarness) -> None:
    state = bench.run(scripted_model(*[LOOK] * 50, DONE))
    saved = bench.load_state().values
    assert saved["messages"] == state["messages"]
    assert [message.type for message in saved["messages"][:4]] == ["system", "human", "ai", "human"]
    assert len(saved["messages"]) == 2 + 2 * 50 + 1
    assert saved["messages"][-2].text.endswith("0" * 100)
