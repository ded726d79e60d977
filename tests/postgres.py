"""A PostgreSQL server for tests, and empty databases on it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MAX_STARTS = 5
_DISCONNECT_OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


def unavailability_reason() -> str:
    """Why no server is available; empty if one is."""
    if _find_pg_ctl() is None:
        return "PostgreSQL server not found (install Debian's package `postgresql`)"
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg not found (install this project with its extra `postgres`)"
    return ""


class Server:
    """A server on loopback, without fsync; it can be stopped and started again on its port."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._log = Path(directory, "log")
        self._identity: dict[str, Any] = {}
        self._options = ""
        self.url = ""
        self.is_running = False
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(directory, "nobody")
            self._identity = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}
        done = self._run_pg_ctl(
            "init", "-o", "--username=postgres --auth=trust --encoding=UTF8 --locale=C --no-sync"
        )
        if done.returncode != 0:
            raise RuntimeError(f"cannot create a PostgreSQL cluster: {done.stderr}")

    def _run_pg_ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(_find_pg_ctl()), "-D", f"{self._directory}/data", *arguments]
        return subprocess.run(
            command, cwd=self._directory, capture_output=True, text=True, check=False, **self._identity
        )

    def start(self) -> None:
        for _ in range(_MAX_STARTS):  # another process may take the port first
            if not self._options:
                port = _find_free_port()
                self.url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
                self._options = (
                    f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
                )
            start = ("start", "--wait", "--log", str(self._log), "-o", self._options)
            if self._run_pg_ctl(*start).returncode == 0:
                self.is_running = True
                return
            self._options = ""
        raise RuntimeError(f"PostgreSQL does not start: {self._log.read_text()}")

    def stop(self) -> None:
        self.is_running = False
        self._run_pg_ctl("stop", "--wait", "--mode=fast")

    def disconnect_all(self) -> None:
        """End all connections to the server."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(_DISCONNECT_OTHERS)


@contextlib.contextmanager
def open_server() -> Iterator[Server]:
    """A running server; it and its files are removed at the end."""
    with tempfile.TemporaryDirectory(prefix="takeover-postgres-", dir="/var/tmp") as directory:
        server = Server(directory)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def run_server() -> Iterator[str]:
    """The URL of a server that runs meanwhile."""
    with open_server() as server:
        yield server.url


@contextlib.contextmanager
def create_database(url: str) -> Iterator[str]:
    """The URL of an empty schema; at the end, it is dropped and its connections are closed."""
    import psycopg
    from psycopg import sql

    name = f"takeover_{secrets.token_hex(6)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    try:
        yield f"{url}?options=-csearch_path%3D{name}"
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_DISCONNECT_OTHERS)
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))


def _find_pg_ctl() -> str | None:
    """Debian keeps the server's programs off the PATH."""
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which("pg_ctl", path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, packaged)]))


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
