"""The command `handoff mcp`: an MCP server, with which any MCP client takes part in handoffs."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from langgraph_takeover.graph.cli.options import (
    DatabaseOption,
    DirectoryOption,
    HomeOption,
    SandboxOption,
    UnisolatedOption,
    UsageError,
    choose_sandbox_spec,
    open_existing_home,
)

if TYPE_CHECKING:
    from types import ModuleType

    from langgraph_takeover.graph.home import Home
    from langgraph_takeover.sandbox.interface import SandboxSpec

TOKEN_VARIABLE = "TAKEOVER_MCP_TOKEN"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_EPILOG = """
Examples:
  handoff mcp --home /path/to/work --as codex    # a client starts this (stdio)
  handoff mcp --home work --as codex --http --port 8765    # with a token
  handoff mcp --home work --as codex --agent tester --agent reviewer

The client lists and reads records, offers them, accepts handoffs to the name of
--as, and completes them with a patch. Clients and tools: docs/mcp.md. Logs go
to standard error. Needs the extra mcp of the package.

Exit codes: 0 done, 2 usage, 3 the database failed, 130 interrupted.
"""


def serve_mcp(
    name: Annotated[str, Option("--as", help="Name of the client in handoffs.", show_default=False)],
    home: HomeOption = None,
    database: DatabaseOption = None,
    http: Annotated[bool, Option("--http", help="Serve HTTP on 127.0.0.1 instead of stdio.")] = False,
    port: Annotated[int, Option(min=0, max=65535, help="Port of --http; 0 for any.")] = 8765,
    agent: Annotated[
        list[str] | None,
        Option(help="Valid receiver of an offer (repeatable).", show_default="any"),
    ] = None,
    directory: DirectoryOption = None,
    sandbox: SandboxOption = None,
    allow_unisolated: UnisolatedOption = False,
) -> None:
    """Serve MCP: any MCP client takes part in handoffs."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--as: not an agent's name: {name!r:.40} (use up to 64 letters, digits, '_', '-' and '.')"
        )
    token = _read_token() if http else ""
    transports = _import_transports()
    from langgraph_takeover.graph.errors import ServerAddressError
    from langgraph_takeover.graph.mcp.server import build_server
    from langgraph_takeover.graph.mcp.tools import Participant

    with open_existing_home(home, database) as found:
        choose = partial(_choose_sandbox, found, directory, sandbox, allow_unisolated)
        server = build_server(Participant(found, name, tuple(agent) if agent else None, choose))
        if not http:
            transports.serve_stdio(server)
            return
        try:
            transports.serve_http(server, port, token, partial(_announce, token))
        except ServerAddressError as error:
            raise UsageError(str(error)) from error


def _choose_sandbox(
    home: Home, directory: Path | None, backend: str | None, allow_unisolated: bool, record_id: str
) -> SandboxSpec:
    spec: SandboxSpec = choose_sandbox_spec(home, record_id, directory, backend, allow_unisolated)
    return spec


def _read_token() -> str:
    token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(32)
    if not _TOKEN.fullmatch(token):
        raise UsageError(
            f"{TOKEN_VARIABLE}: a token needs at least 32 letters, digits, - or _ (unset it, and one is generated)"
        )
    return token


def _announce(token: str, url: str) -> None:
    shown = f"${TOKEN_VARIABLE}" if os.environ.get(TOKEN_VARIABLE) else token
    print(f"MCP server: {url}\nHeader: Authorization: Bearer {shown}", file=sys.stderr, flush=True)


def _import_transports() -> ModuleType:
    try:
        from langgraph_takeover.graph.mcp import transports
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("mcp", "mcp_types", "uvicorn", "starlette", "anyio"):
            raise
        raise UsageError(f"{error.name} is not installed (pip install 'langgraph-takeover[mcp]')") from None
    return transports


COMMANDS: dict[str, tuple[Callable[..., None], str]] = {"mcp": (serve_mcp, _EPILOG)}
