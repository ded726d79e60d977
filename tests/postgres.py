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


@contextlib.contextmanager
def run_server() -> Iterator[str]:
    """The URL of a server on loopback, without fsync; the server and its files are removed at the end."""
    with tempfile.TemporaryDirectory(prefix="takeover-postgres-", dir="/var/tmp") as directory:
        identity: dict[str, Any] = {}
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(directory, "nobody")
            identity = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}

        def run_pg_ctl(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [str(_find_pg_ctl()), "-D", f"{directory}/data", *arguments]
            return subprocess.run(
                command, cwd=directory, capture_output=True, text=True, check=False, **identity
            )

        log = Path(directory, "log")
        done = run_pg_ctl(
            "init", "-o", "--username=postgres --auth=trust --encoding=UTF8 --locale=C --no-sync"
        )
        if done.returncode != 0:
            raise RuntimeError(f"cannot create a PostgreSQL cluster: {done.stderr}")
        try:
            for _ in range(_MAX_STARTS):  # another process may take the port first
                port = _find_free_port()
                options = (
                    f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
                )
                if run_pg_ctl("start", "--wait", "--log", str(log), "-o", options).returncode == 0:
                    break
            else:
                raise RuntimeError(f"PostgreSQL does not start: {log.read_text()}")
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            run_pg_ctl("stop", "--wait", "--mode=fast")


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
