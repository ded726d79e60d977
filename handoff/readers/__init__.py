"""Readers of recorded runs; the content of a recording determines its format.

To add a format, add a module with a predicate and a reader, a row in `_FORMAT_TABLE`, and its name to
`TraceFormat`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from langgraph_takeover.base.untrusted_input import (
    check_values,
    describe_error,
    parse_json,
    read_untrusted_file,
)
from langgraph_takeover.handoff.agents import (
    claude_code,
    codex,
    codex_rollouts,
    mini_swe_agent,
    opencode,
    qwen_code,
)
from langgraph_takeover.handoff.readers import (
    aider,
    atif,
    copilot_cli,
    gemini_cli,
    kimi_code,
    langchain,
    openhands,
    pi,
    swarm_messages,
    swe_agent,
)
from langgraph_takeover.handoff.recordings import recorded_run
from langgraph_takeover.handoff.recordings.recorded_run import (
    RecordedRun,
    TraceError,
    build_trace,
    describe_known_agent,
    find_known_agent,
    find_known_file,
    to_mappings,
)
from langgraph_takeover.handoff.recordings.workspace import is_scratch
from langgraph_takeover.handoff.trace.events import Trace, describe_unknown_forms
from langgraph_takeover.handoff.trace.file_kinds import is_code, is_outside_repository
from langgraph_takeover.sandbox.untrusted_trees import list_matches

__all__ = [
    "FORMATS",
    "TraceError",
    "describe_left_out",
    "describe_skipped_lines",
    "describe_warnings",
    "parse_trace",
    "read_traces",
]

_MAX_SHOWN_FILES = 10
_MAX_FIRST_LINES = 5
_HEAD_BYTES = 200


class _Format(NamedTuple):
    names: tuple[str, ...]
    is_format: Callable[[Any], bool]
    read: Callable[[Any, str], Trace | RecordedRun]
    has_lines: bool = False
    """Whether a file has one event per line, instead of one run."""


def _read_atif(data: Any, name: str) -> Trace | RecordedRun:
    return atif.read_own_trace(data, name) or atif.read(data, name)


def _refuse(data: Any, _name: str) -> Trace:
    """Raise TraceError with the name of the agent, which is known."""
    raise TraceError(_describe_refusal(find_known_agent(data) or "a recording"))


def _describe_refusal(name: str) -> str:
    return f"{describe_known_agent(name)}; supported are {', '.join(FORMATS)}"


_FORMAT_TABLE = (
    _Format(("atif",), atif.is_atif, _read_atif),
    _Format(("takeover",), recorded_run.is_own, recorded_run.read, has_lines=True),
    _Format(("codex",), codex.is_rollout, codex.read, has_lines=True),
    _Format(("qwen-code",), qwen_code.is_chat, qwen_code.read, has_lines=True),
    _Format(("claude-code",), claude_code.is_session, claude_code.read, has_lines=True),
    _Format(("opencode",), opencode.is_export, opencode.read),
    _Format(("gemini-cli",), gemini_cli.is_session, gemini_cli.read, has_lines=True),
    _Format(("pi",), pi.is_session, pi.read, has_lines=True),
    _Format(("copilot-cli",), copilot_cli.is_session, copilot_cli.read, has_lines=True),
    _Format(("aider",), aider.is_chat, aider.read),
    _Format(("kimi-code",), kimi_code.is_session, kimi_code.read, has_lines=True),
    _Format((), lambda data: find_known_agent(data) is not None, _refuse),
    _Format(("openhands-v1",), openhands.is_events, openhands.read_events, has_lines=True),
    _Format(("openhands-v0",), openhands.is_history, openhands.read_history),
    _Format(("swe-agent-0.x", "swe-agent-1.x"), swe_agent.is_trajectory, swe_agent.read),
    _Format(("mini-swe-agent-v2",), lambda data: mini_swe_agent.is_v2(mini_swe_agent.wrap_messages(data)),
          lambda data, name: mini_swe_agent.read_v2(mini_swe_agent.wrap_messages(data), name)),
    _Format(("mini-swe-agent-v1",), mini_swe_agent.is_v1, mini_swe_agent.read_v1),
    _Format(("langchain",), lambda data: langchain.has_messages(data) or swarm_messages.is_swarm(data), swarm_messages.read),
)  # fmt: skip
FORMATS = tuple(name for entry in _FORMAT_TABLE for name in entry.names)


def read_traces(path: Path, format_name: str = "auto", workspace: str = "") -> Iterator[Trace | TraceError]:
    """Yield the traces of a file, or of a directory of numbered event files.

    `workspace` is the absolute path of the repository in the recorded runs; by default, their evidence decides. Traces of
    this project keep their own.

    Of a file with one event per line, broken lines are left out and counted in `skipped_lines`: a kill or a power cut leaves
    them. A file of several runs yields a `TraceError` for each unreadable run, so that the position of a run is its number.
    An ATIF document with embedded subagents is a file of several runs. Raises TraceError if the file contains no trace at
    all, only lines of an unknown format, or more broken lines than others.
    """
    documents, skipped = _read_documents(path)
    if len(documents) == 1 and codex.is_rollout(documents[0]):
        joined, more = codex_rollouts.join_segments(path, to_mappings(documents[0]))
        documents, skipped = [joined], skipped + more
    rows = [part for row in documents for part in atif.split_document(row)]
    if len(rows) == 1:
        trace = _parse_document(rows[0], path, _trace_name(path), format_name, workspace)
        yield trace.model_copy(update={"skipped_lines": skipped}) if skipped else trace
        return
    if not any(isinstance(row, TraceError) or _find_format(row) for row in rows):
        raise TraceError(_describe_unknown_format(path))
    for number, row in enumerate(rows):
        name = f"{_trace_name(path)}#{number}"
        if isinstance(row, TraceError):
            yield row
            continue
        try:
            yield _parse_document(row, path, name, format_name, workspace)
        except TraceError as error:
            yield error


def describe_warnings(trace: Trace, cure: str = "pass --workspace DIR") -> tuple[str, ...]:
    """Describe the losses of reading: damaged lines, withdrawn and unknown calls, and edits outside the repository."""
    notices = (
        describe_skipped_lines(trace),
        describe_left_out(trace),
        describe_unknown_forms(trace.unknown_forms),
        _describe_lost_edits(trace, cure),
    )
    return tuple(filter(None, notices))


def _describe_lost_edits(trace: Trace, cure: str) -> str:
    """Say which edits of code are outside the repository: all of them, or those of existing files elsewhere."""
    changes = [change for event in trace.events for change in event.changes if is_code(change.path)]
    created = {change.path for change in changes if change.before is None}
    edited = {change.path for change in changes}
    edited = edited - created or edited
    paths = set(filter(is_outside_repository, edited))
    if len(paths) < len(edited):
        paths = {path for path in paths - created if not is_scratch(path)}
    if trace.format == "takeover" or not paths:
        return ""
    edits = f"{len(paths)} edited code file{'' if len(paths) == 1 else 's'}"
    place = f"not in {trace.workspace}" if trace.workspace else "but no directory of the repository found"
    return f"{edits} ({min(paths):.200}), {place}: not counted as edits ({cure})"


def describe_skipped_lines(trace: Trace) -> str:
    """Say how many lines of a recording were left out; empty if none was."""
    count = trace.skipped_lines
    return f"{count} damaged or incomplete line{'' if count == 1 else 's'} skipped" if count else ""


def describe_left_out(trace: Trace) -> str:
    """Say what a trace lacks because the user went back in the conversation; empty if it is complete."""
    parts = []
    if count := trace.withdrawn_actions:
        files, more = trace.withdrawn_files, len(trace.withdrawn_files) - _MAX_SHOWN_FILES
        names = ", ".join(files[:_MAX_SHOWN_FILES]) + (f" and {more} more" if more > 0 else "")
        actions = f"{count} withdrawn action{'' if count == 1 else 's'} left out"
        parts.append(f"{actions}, whose changes may still be in the files{f': {names}' if names else ''}")
    if trace.earlier_session:
        parts.append(
            f"the work before is in another file, of session {trace.earlier_session}, which is not found or incomplete "
            "(put it beside this file)"
        )
    return "; ".join(parts)


def _read_documents(path: Path) -> tuple[list[Any], int]:
    """Return the documents of a file, and how many lines were left out: one document, or one per line if every line is a run."""
    if path.is_dir():
        return _read_event_files(path)
    raw = _read_file(path)
    if raw[:_HEAD_BYTES].lstrip().startswith(aider.CHAT_START.encode()):
        return list(aider.split_chats(raw.decode("utf-8", "replace"))), 0
    if known := find_known_file(raw):
        raise TraceError(f"{path}: {_describe_refusal(known)}")
    if path.suffix != ".jsonl" or raw.lstrip()[:2].rstrip() in (b"{", b"["):
        try:
            return [_decode_json(raw, str(path))], 0
        except TraceError:
            first = [line.strip() for line in raw.splitlines() if line.strip()][:_MAX_FIRST_LINES]
            if not any(line.startswith(b"{") and line.endswith(b"}") for line in first):
                raise
    try:
        check_values(raw)
    except ValueError as error:
        raise TraceError(f"{path}: {error} (split the file)") from error
    lines = [(number, line) for number, line in enumerate(raw.splitlines(), 1) if line.strip()]
    if not lines:
        raise TraceError(f"{path}: empty file")
    rows = [_parse_line(line, f"{path}: line {number}") for number, line in lines]
    readable = [row for row in rows if not isinstance(row, TraceError)]
    if readable and not _is_one_run(readable):
        return rows, 0
    kept = [
        _find_whole_object(line) if isinstance(row, TraceError) else row
        for (_, line), row in zip(lines, rows, strict=True)
    ]
    return [[row for row in kept if row is not None]], _count_broken(path, rows)


def _find_whole_object(line: bytes) -> Any:
    """The object at the end of a broken line, which an agent wrote after its last write was cut; None without one."""
    text = line.decode("utf-8", "replace")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        start = text.rfind('{"', 1, error.pos + 1)
        with contextlib.suppress(ValueError):
            # At the end of the text, an inner object of the cut one would be taken for it.
            return parse_json(text[start:]) if start > 0 and error.pos < len(text.rstrip()) else None
    except (ValueError, RecursionError):  # such as a number of 5,000 digits
        pass
    return None


def _read_event_files(directory: Path) -> tuple[list[Any], int]:
    """Return the events of a directory as one document; a broken file is what a broken line is elsewhere."""
    rows = [_parse_line(_read_file(path), str(path)) for path in list_matches(directory, "event-*.json")]
    return [[row for row in rows if not isinstance(row, TraceError)]], _count_broken(directory, rows)


def _parse_line(raw: bytes, location: str) -> Any:
    """The value of a line, or the error that says why it has none."""
    try:
        if b"\0" in raw:  # which the detection of UTF-16 would take for text
            raise TraceError(f"{location}: not JSON: it has NUL bytes")
        value = _decode_json(raw, location)
    except TraceError as error:
        return error
    return value if isinstance(value, dict | list) else TraceError(f"{location}: not an object")


def _count_broken(path: Path, rows: list[Any]) -> int:
    """The number of lines that cannot be read. Raises TraceError if that is most of them."""
    broken = [row for row in rows if isinstance(row, TraceError)]
    if len(broken) == len(rows) and broken:
        raise broken[0]
    if 2 * len(broken) > len(rows):
        raise TraceError(f"{path}: {len(broken)} of {len(rows)} lines are not JSON (the first: {broken[0]})")
    return len(broken)


def _read_file(path: Path) -> bytes:
    try:
        return read_untrusted_file(path)
    except OSError as error:
        raise TraceError(f"{path}: {describe_error(error)}") from error


def _is_one_run(lines: list[Any]) -> bool:
    """Whether the lines are events of one run, rather than separate runs."""
    if any(entry.is_format(lines) for entry in _FORMAT_TABLE if entry.has_lines):
        return True
    if openhands.is_history(lines) and "history" not in lines[0]:
        return True
    # The rows of an agent that is refused, but not documents of another format that resemble them.
    matching = [_find_format(line) for line in lines[:_MAX_SHOWN_FILES]]
    return find_known_agent(lines) is not None and not any(found and found.names for found in matching)


def _decode_json(raw: bytes, location: str) -> Any:
    try:
        return parse_json(raw)
    except ValueError as error:
        raise TraceError(f"{location}: not JSON: {error}") from error


def parse_trace(data: Any, name: str = "trace", format_name: str = "auto", workspace: str = "") -> Trace:
    """Convert a loaded recording, such as a list of LangChain messages; `workspace` as for `read_traces`. Raises TraceError."""
    return _parse_document(data, Path(name), name, format_name, workspace)


def _parse_document(data: Any, path: Path, name: str, format_name: str, workspace: str) -> Trace:
    if isinstance(data, TraceError):
        raise data
    matching = _find_format(data)
    if matching is None:
        raise TraceError(_describe_unknown_format(path))
    try:
        recording = matching.read(data, name)
        trace = recording if isinstance(recording, Trace) else build_trace(recording, workspace)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    except RecursionError as error:
        raise TraceError(f"{path}: JSON nested too deeply") from error
    if format_name not in ("auto", trace.format, matching.names[0]):
        raise TraceError(f"{path}: format is {trace.format}, not {format_name} (pass {trace.format} instead)")
    return trace


def _find_format(data: Any) -> _Format | None:
    return next((entry for entry in _FORMAT_TABLE if entry.is_format(data)), None)


def _describe_unknown_format(path: Path) -> str:
    """The message for a file or for one line of it; it is the same for all lines, so that callers print it once."""
    return f"{path}: unknown trace format (supported: {', '.join(FORMATS)})"


def _trace_name(path: Path) -> str:
    return path.name.removesuffix(".json").removesuffix(".jsonl").removesuffix(".traj").removesuffix(".atif")
