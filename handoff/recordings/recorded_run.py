"""Recorded runs as tool calls with results, the common output of all readers; and agents without a reader."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pydantic import ValidationError

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.texts import escape_surrogates
from langgraph_takeover.handoff.recordings.inferred_actions import infer_changes
from langgraph_takeover.handoff.recordings.inferred_files import InferredFiles
from langgraph_takeover.handoff.recordings.tool_calls import find_unknown_form
from langgraph_takeover.handoff.recordings.workspace import Workspace, WorkspaceEvidence
from langgraph_takeover.handoff.shell.syntax import normalize_path
from langgraph_takeover.handoff.shell.syntax_reader import parse_command
from langgraph_takeover.handoff.text.media import describe_media
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event, Trace, TraceFormat, Usage, count_forms
from langgraph_takeover.handoff.trace.file_kinds import (
    is_code,
    is_generated,
    is_outside_repository,
    mark_new_project,
)
from langgraph_takeover.sandbox.interface import FileChange

_NO_SUCH_TOOL = re.compile(
    r"no such tool|unsupported (?:custom tool )?call|not found in registry|unknown tool|tool \S{1,80} (?:not found|does not exist)",
    re.I,
)
_NOTICE_CHARS = 300
_BINARY_FORMATS = ("ELF", "Mach-O", "PE32")
_COMPILED = re.compile(rf"^(\S{{1,200}}): +(?:{'|'.join(_BINARY_FORMATS)})", re.M)
_PROGRAM_READERS = {"decompile", "disassemble", "gdb", "lldb", "ltrace", "objdump", "otool", "r2", "readelf"}
LATER_REQUEST_PREFIX = "The user said later:"


class TraceError(TakeoverError, ValueError):
    """Unreadable trace; the message names the file, the problem and the fix."""

    exit_code = 3


class RecordedResult(NamedTuple):
    """The result of a tool call, as shown to the agent."""

    text: str
    exit_code: int | None = None
    refused: bool = False
    timed_out: bool = False
    cwd: str | None = None
    """Directory of the shell before the command, if recorded."""
    changes: tuple[FileChange, ...] | None = None
    """Files that the call changed, if recorded; None if they must be inferred."""
    output: str | None = None
    """Complete output of the program without the wrapping of the agent, if known."""


class RecordedCall(NamedTuple):
    """One tool call of an agent, with the tool and argument names of this project."""

    text: str
    """The reply of the agent: its thought and the call."""
    tool: str
    arguments: Mapping[str, str]
    result: RecordedResult | None
    """None if the run ended before the result."""
    usage: Usage | None = None


class RecordedRun(NamedTuple):
    """A run as its recording describes it."""

    id: str
    format: TraceFormat
    calls: Sequence[RecordedCall]
    task: str = ""
    model: str = ""
    agent: str = ""
    """Name of the agent, if recorded."""
    agent_version: str = ""
    workspace: str | None = None
    """Working directory of the agent, if recorded: usually the repository, sometimes a directory above it."""
    keeps_directory: bool = True
    """One shell ran all commands, so `cd` affects later commands."""
    running: tuple[str, ...] = ()
    """Commands that still ran in the background at the end."""
    pending: tuple[str, ...] = ()
    """What was open at the end: calls without a result, an unanswered question or request."""
    earlier_session: str = ""
    """Id of the session whose file has the work before."""
    withdrawn: Sequence[RecordedCall] = ()
    """Calls on a branch that the user left by going back in the conversation."""
    unknown_items: Mapping[str, int] = {}
    """Other items than calls that the reader does not know, by name, as `count_forms` counts them."""


class EventBuilder:
    """Converts the calls of a run to numbered events, one call at a time; infers file changes that are not recorded."""

    def __init__(self, workspace: str, *, start: str = "", keeps_directory: bool = True) -> None:
        self.files = InferredFiles(workspace, start=start, keeps_directory=keeps_directory)
        self._count = 0

    def add(self, call: RecordedCall) -> tuple[Event, ...]:
        """Return the events of the next call: the action, and the observation if the call has a result."""
        call = _escape_call(call)
        action = Event(
            index=self._count,
            kind="action",
            tool=call.tool,
            text=call.text,
            arguments=call.arguments,
            usage=call.usage,
        )
        if call.result is None:
            self._count += 1
            return (action,)
        self._count += 2
        return (action, _build_observation(action.index + 1, call, call.result, self.files))


def build_trace(run: RecordedRun, workspace: str = "") -> Trace:
    """Convert the calls to numbered events; file changes that are not recorded are inferred.

    `workspace` is the absolute path of the repository; by default, the evidence of the run decides.
    """
    evidence = WorkspaceEvidence(run.workspace or "", run.task, keeps_directory=run.keeps_directory)
    for call in run.calls:
        add_evidence(evidence, call)
    selected = evidence.select(workspace)
    builder, events = _build_events(run, selected)
    if not workspace:
        for path, is_new in list_edits(events, selected.path):
            evidence.add_edit(path, is_new=is_new)
        better = evidence.select()
        if better.path != selected.path:
            builder, events = _build_events(run, better)
        selected = better
    return Trace(
        id=run.id,
        format=run.format,
        events=events,
        workspace=builder.files.workspace,
        workspace_why=selected.why,
        base_directories=_list_base_directories(run, builder.files, events),
        task=escape_surrogates(run.task),
        model=run.model,
        agent=escape_surrogates(run.agent),
        agent_version=escape_surrogates(run.agent_version),
        keeps_shell=run.keeps_directory,
        running=tuple(map(escape_surrogates, run.running)),
        pending=tuple(map(escape_surrogates, run.pending)),
        earlier_session=escape_surrogates(run.earlier_session),
        withdrawn_actions=len(run.withdrawn),
        withdrawn_files=_list_changed_files(run, builder.files.workspace),
        unknown_forms=count_forms(list_unknown_tools(_list_possible_calls(run)), run.unknown_items),
    )


def _list_possible_calls(run: RecordedRun) -> Iterator[RecordedCall]:
    """Yield the calls but those that the agent refused because it has no such tool: they had no effect."""
    for call in (*run.calls, *run.withdrawn):
        result = call.result
        if result is None or not result.refused or not _NO_SUCH_TOOL.search(result.text[:_NOTICE_CHARS]):
            yield call


def _list_base_directories(
    run: RecordedRun, files: InferredFiles, events: Iterable[Event]
) -> tuple[str, ...]:
    """The top-level directories of the base; with a mark if nothing in the run shows or names an older program."""
    directories = files.list_base_directories()
    if not files.touched_contents or any(map(_may_be_program, _list_examined_programs(events, files))):
        return directories
    commands = (
        call.arguments.get("command", "")
        for call in run.calls
        if call.tool == "shell" and call.result is not None and call.result.exit_code in (0, None)
    )
    return mark_new_project(directories, files.list_old_paths((run.task, *commands)))


def _list_examined_programs(events: Iterable[Event], files: InferredFiles) -> Iterator[str]:
    """Yield the compiled programs that the agent examined before it created code."""
    for event in events:
        if any(change.before is None and is_code(change.path) for change in event.changes):
            return
        if event.kind == "observation":
            if any(name in event.text for name in _BINARY_FORMATS):
                yield from (files.resolve_path(found[1], "") for found in _COMPILED.finditer(event.text))
        elif event.tool == "shell":
            for command in parse_command(event.arguments.get("command", "")):
                if command.name in _PROGRAM_READERS and not command.argv[-1].startswith("-"):
                    yield files.resolve_path(command.argv[-1], "")


def _may_be_program(path: str) -> bool:
    return bool(path) and not is_generated(path) and not is_outside_repository(path)


class _Call(Protocol):
    @property
    def tool(self) -> str: ...

    @property
    def arguments(self) -> Mapping[str, str]: ...


def list_unknown_tools(calls: Iterable[_Call]) -> Iterator[str]:
    """Yield the names of the calls whose effects this version does not know."""
    for call in calls:
        form = find_unknown_form(call.tool, call.arguments)
        if form is not None:
            yield form


def _list_changed_files(run: RecordedRun, workspace: str) -> tuple[str, ...]:
    """The files that withdrawn calls changed, in order."""
    builder = EventBuilder(workspace, keeps_directory=run.keeps_directory)
    events = (event for call in run.withdrawn for event in builder.add(call))
    return tuple(
        dict.fromkeys(escape_surrogates(change.path) for event in events for change in event.changes)
    )


def add_evidence(evidence: WorkspaceEvidence, call: RecordedCall) -> None:
    """Add a call to the evidence for the directory of the repository."""
    result = call.result
    if result is None:
        evidence.add_call(call.tool, call.arguments)
    elif not result.refused:
        output = result.text if result.output is None else result.output
        evidence.add_call(call.tool, call.arguments, output, result.cwd)


def list_edits(events: Iterable[Event], workspace: str) -> Iterator[tuple[str, bool]]:
    """Yield the absolute path of each changed file, and whether the change created it; unknown directories are left out."""
    for event in events:
        for change in event.changes:
            path = posixpath.join(workspace, change.path)
            if path.startswith("/"):
                yield path, change.before is None


def _build_events(run: RecordedRun, workspace: Workspace) -> tuple[EventBuilder, tuple[Event, ...]]:
    builder = EventBuilder(workspace.path, start=workspace.start, keeps_directory=run.keeps_directory)
    return builder, tuple(event for call in run.calls for event in builder.add(call))


def _build_observation(index: int, call: RecordedCall, result: RecordedResult, files: InferredFiles) -> Event:
    """The observation of a call; updates the inferred files."""
    if result.cwd is not None:
        files.enter_directory(result.cwd)
    cwd = files.cwd if files.cwd is not None else files.start or None
    changes = result.changes
    if call.tool == UNREADABLE or result.refused:
        changes = ()
    elif changes is None:
        output = result.text if result.output is None else result.output
        changes = infer_changes(files, call.tool, call.arguments, output, result.exit_code, result.timed_out)
    else:
        changes = files.apply_reported_changes(changes)
    files.add_shown_text(result.text)
    return Event(
        index=index,
        kind="observation",
        tool=call.tool,
        text=result.text,
        exit_code=result.exit_code,
        cwd=cwd if call.tool == "shell" else None,
        refused=result.refused or call.tool == UNREADABLE,
        timed_out=result.timed_out,
        changes=changes,
    )


def _escape_call(call: RecordedCall) -> RecordedCall:
    """Escape the characters of a call that UTF-8 cannot encode."""
    result = call.result
    texts = [
        call.text,
        *call.arguments.values(),
        *([] if result is None else [result.text, result.output or ""]),
    ]
    if all(map(str.isascii, texts)):
        return call
    if result is not None:
        output = None if result.output is None else escape_surrogates(result.output)
        result = result._replace(text=escape_surrogates(result.text), output=output)
    arguments = {name: escape_surrogates(value) for name, value in call.arguments.items()}
    return call._replace(text=escape_surrogates(call.text), arguments=arguments, result=result)


def to_directory(value: Any) -> str | None:
    """The absolute directory that a recording names, in its shortest form; None for other values."""
    path = normalize_path(value) if isinstance(value, str) else ""
    return path if path.startswith("/") else None


def to_mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def to_mappings(value: Any) -> list[Mapping[str, Any]]:
    """The mappings in a list; empty if the value is not a list."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def drop_copies(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The events without exact copies, which a resumed run may begin with; an event without id or time is never one."""
    seen, kept = set[bytes](), []
    for event in events:
        if event.get("id") is None or "timestamp" not in event:
            kept.append(event)
            continue
        digest = hashlib.sha256(json.dumps(event, sort_keys=True, default=str).encode()).digest()
        if digest not in seen:
            seen.add(digest)
            kept.append(event)
    return kept


def to_id(value: Any) -> str | None:
    """An id of any type as text; None stays None."""
    return None if value is None else str(value)


def join_text(*parts: str) -> str:
    """Join the nonempty parts of a reply, such as its thought and its call."""
    return "\n\n".join(part for part in parts if part)


def join_requests(requests: Iterable[str]) -> str:
    """Join the requests of a user to a task: the first is unchanged, the later ones get a prefix."""
    first, *later = [request for request in requests if request.strip()] or [""]
    return "\n\n".join([first, *(f"{LATER_REQUEST_PREFIX}\n\n{request}" for request in later)])


def extract_text(content: Any) -> str:
    """The text of the content of a message, which is a string or a list of parts; images and files are named."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(extract_text(part) for part in content if part is not None)
    if isinstance(content, dict):
        if "text" in content:
            return extract_text(content["text"])
        if (media := describe_media(content)) is not None:
            return media
        if "content" in content:
            return extract_text(content["content"])
        return "" if content.get("type") == "tool_use" else json.dumps(content)
    return str(content)


def parse_usage(raw: Any) -> Usage | None:
    """Parse token counts with the names of OpenAI, Anthropic, LangChain or ATIF; None without counts."""
    if not isinstance(raw, Mapping):
        return None
    prompt = _read_count(raw, "prompt_tokens", "input_tokens")
    completion = _read_count(raw, "completion_tokens", "output_tokens")
    cached = _read_count(raw, "cached_tokens", "cache_read_tokens", "cache_read_input_tokens")
    if cached is None:
        details = raw.get("prompt_tokens_details")
        details = details if isinstance(details, Mapping) else to_mapping(raw.get("input_token_details"))
        cached = _read_count(details, "cached_tokens", "cache_read")
    if prompt is None and completion is None:
        return None
    return Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion)


def _read_count(raw: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = raw.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def is_own(data: Any) -> bool:
    if isinstance(data, Mapping):
        rows = data.get("trace", data.get("events"))
        return isinstance(rows, list) and _is_event(rows[0] if rows else {"index": 0, "kind": "", "tool": ""})
    return isinstance(data, list) and bool(data) and _is_event(data[0])


def _is_event(row: Any) -> bool:
    return isinstance(row, Mapping) and {"index", "kind", "tool"} <= set(row)


def read(data: Any, name: str) -> Trace:
    """Read a trace, a handoff record or a list of events. Raises TraceError."""
    document: Mapping[str, Any] = data if isinstance(data, Mapping) else {"events": data}
    if "trace" in document:
        document = _convert_record(document)
    elif "format" not in document:
        document = {"id": name, "format": "takeover", "events": document.get("events")}
    try:
        return Trace.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(str(part) for part in first["loc"])
        raise TraceError(f"{name}: {location}: {first['msg']}") from error


def _convert_record(record: Mapping[str, Any]) -> dict[str, Any]:
    task = record.get("task") if isinstance(record.get("task"), Mapping) else {}
    assert isinstance(task, Mapping)
    return {
        "id": record.get("id"),
        "format": "takeover",
        "events": record.get("trace"),
        "workspace": task.get("workspace", ""),
        "base_directories": task.get("base_directories", ()),
        "task": task.get("prompt", ""),
        "model": record.get("predecessor", ""),
        "unknown_forms": to_mapping(to_mapping(record.get("external")).get("unknown_forms")),
    }


_ROWS = 20
_HEAD_BYTES = 1 << 16
_CLINE = "a session of Cline, Roo Code or Kilo Code"


def is_iflow_row(row: Mapping[str, Any]) -> bool:
    """Whether a row, which looks like one of Claude Code, is of iFlow CLI: its results have another form."""
    return str(row.get("sessionId")).startswith("session-") and {"parentUuid", "message"} <= row.keys()


_MARKS: tuple[tuple[str, Callable[[Mapping[str, Any]], bool]], ...] = (
    ("a Cursor session", lambda row: "role" in row and "content" in to_mapping(row.get("message")) and "type" not in row),
    ("a Cursor session", lambda row: row.get("type") == "tool_call" and {"call_id", "tool_call"} <= row.keys()),
    ("a Cursor session", lambda row: "composerId" in row),
    (_CLINE, lambda row: "ts" in row and row.get("type") in ("say", "ask") and row["type"] in row),
    (_CLINE, lambda row: row.get("role") == "user" and "<environment_details>" in extract_text(row.get("content"))),
    ("a Continue session", lambda row: {"history", "sessionId", "workspaceDirectory"} <= row.keys()),
    ("a Goose session", lambda row: "working_dir" in row and not row.keys().isdisjoint(("message_count", "conversation"))),
    ("an Amp thread", lambda row: str(row.get("id")).startswith("T-") and {"v", "messages"} <= row.keys()),
    ("a Factory Droid session", lambda row: row.get("type") == "session_start" and "id" in row),
    ("an iFlow CLI session", is_iflow_row),
    ("an Antigravity session", lambda row: {"step_index", "source", "type"} <= row.keys() and "status" in row),
    ("a Windsurf session", lambda row: "cascadeId" in row),
    ("a Copilot Chat session of VS Code", lambda row: {"requests", "responderUsername"} <= row.keys()),
    ("a session of Amazon Q or Kiro CLI", lambda row: {"conversation_id", "history", "valid_history_range"} <= row.keys()),
    ("a Zed thread", lambda row: "detailed_summary_state" in row),
    ("a list of Gemini CLI prompts", lambda row: {"sessionId", "messageId", "message"} <= row.keys()),
    ("output of codex exec --json", lambda row: row.get("type") == "thread.started" and "thread_id" in row),
    ("output of opencode run", lambda row: row.get("type") == "step_start" and "sessionID" in row),
    ("output of claude --output-format stream-json",
     lambda row: row.get("type") == "system" and row.get("subtype") == "init" and {"session_id", "tools"} <= row.keys()),
)  # fmt: skip
_SESSION_FILES = {
    "a list of Gemini CLI prompts": "pass the file in chats/",
    "output of codex exec --json": "pass the session's file in ~/.codex/sessions",
    "output of opencode run": "pass the output of opencode export ID",
    "output of claude --output-format stream-json": "pass the session's file in ~/.claude/projects",
    "an exported Gemini CLI chat": "pass its file in ~/.gemini/tmp/*/chats",
    "an exported Copilot CLI session": "pass its events.jsonl",
    "an opencode database": "pass the output of opencode export ID",
}
_BYTE_MARKS = (
    ("a Cursor session", (b"SQLite format 3\0", b"cursorDiskKV")),
    ("a Crush session", (b"SQLite format 3\0", b"goose_db_version")),
    ("a Goose session", (b"SQLite format 3\0", b"working_dir", b"schema_version")),
    ("an opencode database", (b"SQLite format 3\0", b"CREATE TABLE `part`")),
    ("a Cursor session", (b"_Exported on ", b" from Cursor (")),
    ("a SpecStory history", (b"<!-- Generated by SpecStory",)),
    ("an exported Gemini CLI chat", ("🧑‍💻".encode(), b"## ", b"**Tool ")),
    ("an exported Copilot CLI session", (b"Copilot CLI Session\n", b"**Session ID:**")),
)


def find_known_agent(data: Any) -> str | None:
    """What a document, or a list of rows, of a known agent without a reader is; None for other data."""
    rows = [data] if isinstance(data, Mapping) else to_mappings(data)[:_ROWS]
    return next((name for name, has_mark in _MARKS for row in rows if has_mark(row)), None)


def find_known_file(raw: bytes) -> str | None:
    """The same for the content of a file that is not JSON."""
    head = raw[:_HEAD_BYTES]
    return next((name for name, marks in _BYTE_MARKS if all(mark in head for mark in marks)), None)


def describe_known_agent(name: str) -> str:
    """The reason why such a recording is not read; empty advice if no other file of the agent is."""
    advice = f" ({_SESSION_FILES[name]})" if name in _SESSION_FILES else ""
    return f"{name}: not supported{advice}"
