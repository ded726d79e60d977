"""Trace files selected by command-line arguments."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.untrusted_input import describe_error

if TYPE_CHECKING:
    from langgraph_takeover.handoff.trace.events import Trace

_RECORD_SIDECARS = ("notes.json", "review.json")
_SUFFIXES = (".json", ".jsonl", ".traj")
DISK_FULL = 4
SessionOption = Annotated[
    str | None,
    typer.Option(
        help="Your session of an agent: id, its beginning, or 'latest'.",
        show_default=False,
    ),
]
SessionAgentOption = Annotated[
    str | None,
    typer.Option(
        help="Agent of --session.",
        show_default="all",
    ),
]
WorkspaceOption = Annotated[
    str,
    typer.Option(
        help="Absolute path of the repository in the recorded runs.",
        metavar="DIR",
        show_default="by evidence",
    ),
]


class UnknownTraceError(TakeoverError, ValueError):
    """An argument that matches no file, or an unknown format."""


def find_trace_files(patterns: Sequence[str]) -> list[Path]:
    """List the files that the arguments select. Raises UnknownTraceError.

    A directory selects every `.json`, `.jsonl` and `.traj` below it, except notes and reviews of records, hidden directories
    and links to directories. Unreadable directories print one line on stderr.
    """
    found: list[Path] = []
    for text in patterns:
        path = Path("/dev/stdin" if text == "-" else text)
        if os.path.lexists(path):
            found += _list_traces_in(path) if path.is_dir() else [path]
            continue
        matched = [Path(name) for name in sorted(glob(text, recursive=True))]  # noqa: PTH207
        if not matched:
            raise UnknownTraceError(f"{make_printable(text)}: no such file or directory")
        found += [inner for each in matched for inner in (_list_traces_in(each) if each.is_dir() else [each])]
    if not found:
        raise UnknownTraceError(
            f"no {', '.join(_SUFFIXES)} file in {', '.join(map(make_printable, patterns))}"
        )
    return list(dict.fromkeys(found))


@contextmanager
def select_trace_files(
    patterns: Sequence[str], session: str | None = None, agent: str | None = None
) -> Iterator[list[Path]]:
    """Provide the files that the arguments and `--session` select. Raises UnknownTraceError."""
    from langgraph_takeover.handoff.agents import session_files

    if session is None:
        if agent is not None:
            raise UnknownTraceError("--agent: it limits the search of --session (pass --session ID)")
        yield find_trace_files(patterns)
        return
    if agent is not None and agent not in session_files.AGENTS:
        raise UnknownTraceError(
            f"--agent: unknown agent {agent!r:.80} (use {', '.join(session_files.AGENTS)})"
        )
    files = find_trace_files(patterns) if patterns else []
    agents = session_files.AGENTS if agent is None else (agent,)
    try:
        with session_files.open_session(session, Path.home(), agents) as path:
            yield [*files, path]
    except session_files.SessionError as error:
        raise UnknownTraceError(f"--session: {make_printable(str(error))}") from error


def read_traces(files: Sequence[Path], trace_format: str, workspace: str = "") -> Iterator[tuple[str, Trace]]:
    """Read every readable trace with its name; others print one line on stderr. Raises UnknownTraceError."""
    from langgraph_takeover.handoff.readers import FORMATS, TraceError, describe_warnings, read_traces

    if trace_format != "auto" and trace_format not in FORMATS:
        raise UnknownTraceError(f"--format: unknown format {trace_format!r} (use auto, {', '.join(FORMATS)})")
    if workspace and not workspace.startswith("/"):
        raise UnknownTraceError(
            f"--workspace: not an absolute path: {make_printable(workspace):.200} "
            "(pass the directory of the repository in the recorded run)"
        )
    for path in files:
        printed: set[str] = set()
        try:
            mode = path.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISFIFO(mode)):
                raise TraceError(f"{path}: neither a file nor a directory")
            for number, trace in enumerate(read_traces(path, trace_format, workspace)):
                if isinstance(trace, TraceError):
                    if str(trace) not in printed:
                        _print_error(str(trace))
                    printed.add(str(trace))
                else:
                    several = number > 0 or path.suffix == ".jsonl"
                    name = f"{path}#{number}" if several else str(path)
                    for warning in describe_warnings(trace):
                        print(
                            f"warning: {make_printable(f'{name if number else path}: {warning}')}",
                            file=sys.stderr,
                        )
                    yield name, trace
        except TraceError as error:
            _print_error(str(error))
        except OSError as error:
            _print_error(f"{path}: {describe_error(error)}")


def make_printable(text: str) -> str:
    """Escape control characters, which could steer the terminal."""
    return "".join(c if c.isprintable() else "·" for c in text)


def _print_error(message: str) -> None:
    print(f"error: {make_printable(message)}", file=sys.stderr)


def _list_traces_in(directory: Path) -> list[Path]:
    from langgraph_takeover.handoff.agents import codex_rollouts

    found: list[Path] = []
    waiting = [directory]
    while waiting:
        path = waiting.pop()
        try:
            if path != directory and not path.is_dir():
                if path.suffix.lower() in _SUFFIXES and path.is_file():
                    found.append(path)
                continue
            if path != directory and (path.is_symlink() or path.name.startswith(".")):
                continue
            inside = sorted(path.iterdir())
        except OSError as error:
            _print_error(f"{path!s:.200}: {describe_error(error)}")
            continue
        if any(each.name.startswith("event-") and each.suffix == ".json" for each in inside):
            found.append(path)
            continue
        if "record.json" in {each.name for each in inside}:
            inside = [each for each in inside if each.name not in _RECORD_SIDECARS]
        waiting += reversed(inside)
    # The last file of a thread of Codex is read with those that it continues.
    kept = set(codex_rollouts.drop_continued(found))
    return [each for each in found if each in kept]
