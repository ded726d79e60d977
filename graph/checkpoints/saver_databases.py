"""The databases of users' savers: their URLs, and one ledger for each database that this process uses."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL

from langgraph_takeover.graph.errors import UnsupportedSaverError
from langgraph_takeover.handoff.ledger import Ledger

SELECT_FILE = "SELECT file FROM pragma_database_list WHERE name = 'main'"
_lock = threading.Lock()
_ledgers: dict[str, tuple[Ledger, int]] = {}
"""Open ledgers by URL, with their number of users: many threads of one server share connections."""


def build_sqlite_url(row: Sequence[Any] | None) -> str:
    """Return the URL of an SQLite database from the row of `SELECT_FILE`. Raises UnsupportedSaverError."""
    if row is None or not row[0]:
        raise UnsupportedSaverError(
            "the saver's database is in memory, where no other process can see a lease (use a file)"
        )
    return URL.create("sqlite", database=row[0]).render_as_string(hide_password=False)


def build_postgres_url(info: Any) -> str:
    """Return the URL of the database that a psycopg connection is connected to."""
    options = {
        name: value
        for name, value in info.get_parameters().items()
        if name not in ("user", "password", "host", "hostaddr", "port", "dbname")
    }
    host = info.host or info.hostaddr
    is_socket = host.startswith("/")
    url = URL.create(
        "postgresql+psycopg",
        username=info.user,
        password=info.password or None,
        host=None if is_socket else host,
        port=info.port,
        database=info.dbname,
        query=options | ({"host": host} if is_socket else {}),
    )
    return url.render_as_string(hide_password=False)


@contextmanager
def share_ledger(url: str) -> Iterator[Ledger]:
    """Open the ledger of a database, or use the one that is open in this process. Raises LedgerUnavailableError."""
    with _lock:
        ledger, users = _ledgers.get(url) or (Ledger(url), 0)
        _ledgers[url] = ledger, users + 1
    try:
        yield ledger
    finally:
        with _lock:
            _, users = _ledgers[url]
            if users > 1:
                _ledgers[url] = ledger, users - 1
            else:
                del _ledgers[url]
                ledger.close()
