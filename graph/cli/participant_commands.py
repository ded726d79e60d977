"""The commands by which a person or an MCP client takes part in handoffs: part of `handoff`."""

from __future__ import annotations

import os
import re
import secrets
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from langgraph_takeover.graph.cli.handoff_options import (
    DatabaseOption,
    DirectoryOption,
    HomeOption,
    SandboxOption,
    UnisolatedOption,
    UsageError,
    choose_sandbox_spec,
    current_user,
    open_existing_home,
    print_left_out,
    print_safely,
)
from langgraph_takeover.graph.cli.record_ids import RecordArgument, find_record

if TYPE_CHECKING:
    from types import ModuleType

    from langgraph_takeover.graph.delivery.participants import HumanHandoff
    from langgraph_takeover.graph.home import Home
    from langgraph_takeover.sandbox.interface import SandboxSpec

_TAKE_EPILOG = """
Examples:
  handoff take work/records/ID
  handoff take work/records/ID --as ann <commands.txt

Each line is a command in the restored sandbox; also: edit FILE, give AGENT
MESSAGE, done, exit, help. After exit the sandbox is saved, and `take` returns
to it. Everything that you do is recorded as events.

Exit codes: 0 done, 2 usage, 3 record or sandbox failed, 4 disk full, 130
interrupted.
"""
_GIVE_EPILOG = """
Examples:
  handoff give work/records/ID --to tester --message "the tests still fail"
  handoff give work/records/ID --to "$NAME" --agent tester --agent reviewer

Exit codes: 0 done, 2 usage, 3 record or sandbox failed, 4 disk full, 130
interrupted.
"""


NameOption = Annotated[str | None, Option("--as", help="Your name.", show_default="the current user")]


def take(
    record: RecordArgument,
    name: NameOption = None,
    home: HomeOption = None,
    database: DatabaseOption = None,
    directory: DirectoryOption = None,
    sandbox: SandboxOption = None,
    allow_unisolated: UnisolatedOption = False,
) -> None:
    """Take over a record as a person, in a shell of its sandbox."""
    from langgraph_takeover.graph.delivery.participants import load_record_to_take, take_record
    from langgraph_takeover.handoff.notes.structured_note import render_structured_note
    from langgraph_takeover.handoff.views.display import escape_control_chars
    from langgraph_takeover.nodes.model.human import HELP_TEXT

    def show(text: str) -> None:
        print(escape_control_chars(text), flush=True)

    def read(prompt: str) -> str:
        if sys.stdin.isatty():
            return input(escape_control_chars(prompt))
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        print(escape_control_chars(f"{prompt}{line.rstrip()}"), flush=True)
        return line.rstrip("\n")

    with _open_home_of_record(record, home, database) as (found, record_id):
        person = name or current_user()
        known = load_record_to_take(found, record_id, person)
        show(f"{render_structured_note(known)}\n\n{HELP_TEXT}")
        spec = choose_sandbox_spec(found, record_id, directory, sandbox, allow_unisolated)
        with _restore_terminal():
            done = take_record(found, known, person, read=read, show=show, sandbox=spec)
        _print_result(found, record_id, done)


def give(
    record: RecordArgument,
    to: Annotated[str, Option("--to", help="Agent or person that receives the work.")],
    message: Annotated[str, Option(help="Message to the receiver.")] = "",
    agent: Annotated[
        list[str] | None,
        Option(help="Valid receiver of --to (repeatable).", show_default="any"),
    ] = None,
    name: NameOption = None,
    home: HomeOption = None,
    database: DatabaseOption = None,
    directory: DirectoryOption = None,
    sandbox: SandboxOption = None,
    allow_unisolated: UnisolatedOption = False,
) -> None:
    """Take a snapshot of your work on a record, and hand it over."""
    from langgraph_takeover.graph.delivery.participants import give_record

    if not to.strip() or " " in to.strip():
        raise UsageError(f"--to: not an agent's name: {to!r:.40} (use letters, digits, '_' and '-')")
    with _open_home_of_record(record, home, database) as (found, record_id):
        known = found.records.load(record_id)
        spec = choose_sandbox_spec(found, record_id, directory, sandbox, allow_unisolated)
        done = give_record(
            found, known, name or current_user(), to.strip(), message, agents=agent or None, sandbox=spec
        )
        _print_result(found, record_id, done)


@contextmanager
def _restore_terminal() -> Iterator[None]:
    """Restore the terminal, which an interrupted prompt would leave without echo."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    except KeyboardInterrupt:
        print()  # so that a message starts on its own line
        raise
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


@contextmanager
def _open_home_of_record(record: str, home: Path | None, database: str | None) -> Iterator[tuple[Home, str]]:
    from langgraph_takeover.graph.home import open_home

    found = find_record(record, home, database=database)
    with open_home(found.home, database) as opened:
        yield opened, found.id


def _print_result(home: Home, record_id: str, result: HumanHandoff) -> None:
    directory = home.records.directory(record_id)
    if result.handoff is not None:
        print_safely(
            f"{result.handoff.record} is offered to {result.handoff.target}: handoff {result.handoff.id}"
        )
    elif result.outcome is None:
        print_safely(f"saved as it is (return to it: handoff take {directory})")
    else:
        print_safely(
            f"{result.outcome.stop_reason}: {len(result.outcome.events)} events; "
            f"the patch has {len(result.outcome.diff_from_base)} characters"
        )
        print_left_out(result.outcome)


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
    from langgraph_takeover.graph.mcp.mcp_tools import Participant
    from langgraph_takeover.graph.mcp.server import build_server
    from langgraph_takeover.graph.usage_errors import ServerAddressError

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


COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "take": (take, _TAKE_EPILOG),
    "give": (give, _GIVE_EPILOG),
    "mcp": (serve_mcp, _EPILOG),
}
