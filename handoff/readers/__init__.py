"""Recorded runs of any agent, read as traces; the format is told by the content.

A new format is one module with a predicate and a reader, and one row of `_FORMS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from handoff.outside import describe_error, read_outside
from handoff.readers import atif, langchain, mini, openhands_v0, openhands_v1, own, swarm, swe_agent
from handoff.readers.calls import BadTrace, Told, trace_of
from handoff.trace import Trace
from sandbox.documents import check_values, parse_json

__all__ = ["FORMATS", "BadTrace", "of", "read"]


class _Form(NamedTuple):
    names: tuple[str, ...]
    recognises: Callable[[Any], bool]
    read: Callable[[Any, str], Trace | Told]


def _read_atif(data: Any, name: str) -> Trace | Told:
    return atif.own_trace(data, name) or atif.read(data, name)


_FORMS = (
    _Form(("atif",), atif.is_atif, _read_atif),
    _Form(("takeover",), own.is_own, own.read),
    _Form(("openhands-v1",), openhands_v1.is_events, openhands_v1.read),
    _Form(("openhands-v0",), openhands_v0.is_history, openhands_v0.read),
    _Form(("swe-agent-0.x", "swe-agent-1.x"), swe_agent.is_trajectory, swe_agent.read),
    _Form(("mini-swe-agent-v2",), lambda data: mini.is_v2(mini.messages_only(data)),
          lambda data, name: mini.read_v2(mini.messages_only(data), name)),
    _Form(("mini-swe-agent-v1",), mini.is_v1, mini.read_v1),
    _Form(("langchain",), lambda data: langchain.is_messages(data) or swarm.is_swarm(data), swarm.read),
)  # fmt: skip
FORMATS = tuple(name for form in _FORMS for name in form.names)


def read(path: Path, form: str = "auto") -> Iterator[Trace | BadTrace]:
    """The traces of a file, or of a directory of numbered event files, one after another.

    A file of several runs yields a `BadTrace` in place of each that cannot be read; a file that is no
    trace at all raises it.
    """
    rows = list(_documents(path))
    if len(rows) == 1:
        yield _trace(rows[0], path, _name(path), form)
        return
    for number, row in enumerate(rows):
        name = f"{_name(path)}#{number}"
        if isinstance(row, BadTrace):
            yield row
            continue
        try:
            yield _trace(row, path, name, form)
        except BadTrace as error:
            yield error


def _documents(path: Path) -> Iterator[Any]:
    """What a file holds: one document, or one a line where the lines are runs and not events."""
    if path.is_dir():
        parts = sorted(path.glob("event-*.json"))
        yield [_json(_read(part), str(part)) for part in parts]
        return
    raw = _read(path)
    if path.suffix != ".jsonl":
        try:
            yield _json(raw, str(path))
            return
        except BadTrace:
            first = raw.lstrip().partition(b"\n")[0].strip()
            if not (first.startswith(b"{") and first.endswith(b"}")):
                raise
    try:
        check_values(raw)
    except ValueError as error:
        raise BadTrace(f"{path}: {error}; split it") from error
    lines = [(number, line) for number, line in enumerate(raw.splitlines(), 1) if line.strip()]
    if not lines:
        raise BadTrace(f"{path}: empty")
    rows: list[Any] = []
    for number, line in lines:
        try:
            rows.append(_json(line, f"{path}: line {number}"))
        except BadTrace as error:
            rows.append(error)
    whole = [row for row in rows if not isinstance(row, BadTrace)]
    if not whole:
        raise rows[0]
    if not _is_one_run(whole):
        yield from rows
        return
    # A run that was killed while it wrote its last line is one all the same.
    broken = next((row for row in rows[:-1] if isinstance(row, BadTrace)), None)
    if broken is not None:
        raise broken
    yield whole


def _read(path: Path) -> bytes:
    try:
        return read_outside(path)
    except OSError as error:
        raise BadTrace(f"{path}: {describe_error(error)}") from error


def _is_one_run(lines: list[Any]) -> bool:
    """Whether the lines are the events of one run, rather than runs of their own."""
    if openhands_v1.is_events(lines) or own.is_own(lines):
        return True
    return openhands_v0.is_history(lines) and "history" not in lines[0]


def _json(raw: bytes, where: str) -> Any:
    try:
        return parse_json(raw)
    except ValueError as error:
        raise BadTrace(f"{where}: not JSON: {error}") from error


def of(data: Any, name: str = "trace", form: str = "auto") -> Trace:
    """A recording that is already loaded, such as a list of LangChain messages. Raises BadTrace."""
    return _trace(data, Path(name), name, form)


def _trace(data: Any, path: Path, name: str, form: str) -> Trace:
    if isinstance(data, BadTrace):
        raise data
    chosen = next((one for one in _FORMS if one.recognises(data)), None)
    if chosen is None:
        raise BadTrace(f"{path}: no trace in a known format")
    try:
        told = chosen.read(data, name)
        trace = told if isinstance(told, Trace) else trace_of(told)
    except BadTrace as error:
        raise BadTrace(f"{path}: {error}") from error
    except RecursionError as error:
        raise BadTrace(f"{path}: nested too deeply to be a trace") from error
    if form not in ("auto", trace.format, chosen.names[0]):
        raise BadTrace(f"{path}: not in the format {form} but in {trace.format}")
    return trace


def _name(path: Path) -> str:
    return path.name.removesuffix(".json").removesuffix(".jsonl").removesuffix(".traj").removesuffix(".atif")
