"""Reader of Gemini CLI: the files `chats/session-*` in `~/.gemini/tmp`, and the output of `--output-format stream-json`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langgraph_takeover.handoff.recordings.recorded_run import (
    RecordedRun,
    extract_text,
    to_directory,
    to_mapping,
    to_mappings,
)
from langgraph_takeover.handoff.recordings.sessions import (
    SessionBuilder,
    ToolResult,
    number_lines,
    parse_count,
)
from langgraph_takeover.handoff.recordings.tool_calls import may_carry_call
from langgraph_takeover.handoff.trace.events import Usage

_SHELL_TOOL = "run_shell_command"
_NOTES = ("info", "error", "warning")
_STREAM_TYPES = ("init", "message", "tool_use", "tool_result", "result", "error")
_FAILED = ("error", "cancelled")
_CONTEXT = re.compile(r"\s*(?:<session_context>|<hook_context>|This is the Gemini CLI\b)")
_NOT_A_REQUEST = re.compile(
    r"\s*(?:<state_snapshot>|\?|/\w[\w-]{0,40}(?:\s|$)|(?:System: )?Please continue\.\s*$)"
)
_USER_COMMAND = (
    "I ran the following shell command:\n```sh\n",
    "\n```\n\nThis produced the following result:\n```\n",
    "\n```",
)
"""What the program adds to the conversation for a command that the user ran with `!`."""
_REFERENCED_FILES = re.compile(r"\s*--- Content from referenced files ---")
_DIRECTORY = re.compile(
    r"working in the directory: (/[^\n]{1,4096})|(?:Workspace Directories:\*\*|following directories:)\n\s*- (/[^\n]{1,4096})"
)
_UNTRUSTED = ("<untrusted_context>\n", "\n</untrusted_context>")
_BACKGROUND = re.compile(r"Command moved to background \(PID: (\d{1,10})\)")
_CANCELLED = re.compile(r"Command was (?:automatically )?cancelled\b")
_BEFORE_CANCELLED = "output before it was cancelled:\n"
_RAN_IN = re.compile(r"(?:Command: .{0,200000}?\n)?Directory: (/[^\n]{1,4096})\n", re.S)
_OUTPUT = re.compile(
    r"(?:(?:Command: .{0,200000}?\n)?Directory: [^\n]{0,4096}\n)?(?:Output|Stdout): ?(.*)", re.S
)
_FOOTER = re.compile(r"(Error|Exit Code|Signal|Background PIDs|Process Group PGID|Stderr): ?([^\n]{0,2000})")
_FOOTER_LINES = 12
_SHOWN_FROM = re.compile(r"Status: Showing lines (\d{1,9})-\d{1,9} of \d{1,9} total lines")
_SHOWN_CONTENT = "--- FILE CONTENT (truncated) ---\n"
_LINES_CHARS, _NOTICE_CHARS = 2_000_000, 1_000


def is_session(data: Any) -> bool:
    """Whether a document is a session, or rows are those of one or of its stream."""
    if isinstance(data, Mapping):
        return _is_header(data) and isinstance(data.get("messages"), list)
    return isinstance(data, list) and any(_is_header(row) or _is_init(row) for row in data[:200])


def _is_header(row: Any) -> bool:
    return isinstance(row, Mapping) and "sessionId" in row and "projectHash" in row


def _is_init(row: Any) -> bool:
    return isinstance(row, Mapping) and row.get("type") == "init" and {"session_id", "model"} <= row.keys()


def read(data: Any, name: str) -> RecordedRun:
    """Read the messages that the user did not withdraw; a compressed history keeps its earlier messages."""
    session = SessionBuilder(name, "gemini-cli", keeps_directory=False)
    session.agent = "gemini-cli"
    rows = to_mappings([data, *data["messages"]] if isinstance(data, Mapping) else list(data))
    if any(map(_is_init, rows)):
        _read_stream(session, rows)
        return session.build()
    header = next(row for row in rows if _is_header(row))
    session.name = str(header.get("sessionId") or name)
    live, withdrawn = _replay(session, rows)
    _read_messages(session, live)
    if withdrawn:
        _read_messages(session.start_withdrawn(), withdrawn)
    return session.build()


def _replay(
    session: SessionBuilder, rows: Iterable[Mapping[str, Any]]
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The messages after all changes of the log, and those before which the user went back. A repeated id replaces a message."""
    live: dict[str, Mapping[str, Any]] = {}
    withdrawn: list[Mapping[str, Any]] = []
    for number, row in enumerate(rows):
        changes = to_mapping(row.get("$set"))
        if isinstance(row.get("$rewindTo"), str):
            ids = list(live)
            start = ids.index(row["$rewindTo"]) if row["$rewindTo"] in live else 0
            withdrawn += [live.pop(each) for each in ids[start:]]
        elif "type" in row:
            message_id = row.get("id")
            live[message_id if isinstance(message_id, str) else f"#{number}"] = row
        elif "messages" in changes:
            # The history after a compression, or with the agent's own context: it removes nothing that happened.
            for message in to_mappings(changes["messages"]):
                if message.get("type") == "user" or "toolCalls" in message:
                    live.setdefault(str(message.get("id")), message)
        elif not _is_header(row) and may_carry_call(row):
            session.add_unknown(next(iter(row), ""))
    return list(live.values()), withdrawn


def _read_messages(session: SessionBuilder, messages: Iterable[Mapping[str, Any]]) -> None:
    for message in messages:
        kind = message.get("type")
        if kind == "user":
            _read_request(session, message.get("content"))
        elif kind in ("gemini", "model"):
            session.model = session.model or str(message.get("model") or "")
            session.start_reply()
            for thought in to_mappings(message.get("thoughts")):
                session.add_thought(
                    ": ".join(
                        filter(None, map(extract_text, (thought.get("subject"), thought.get("description"))))
                    )
                )
            session.add_message(extract_text(message.get("content")))
            calls = to_mappings(message.get("toolCalls"))
            for call in calls:
                _read_call(session, call)
            for call in calls:
                _read_result(session, call)
            session.add_usage(_parse_usage(message.get("tokens")))
        elif kind not in _NOTES and may_carry_call(message):
            session.add_unknown(str(kind))


def _read_request(session: SessionBuilder, content: Any) -> None:
    """Add a request without the agent's context, the contents of files that it names, and commands of the program."""
    parts = to_mappings(content) if isinstance(content, list) else [{"text": content}]
    texts: list[str] = []
    for part in parts:
        text = extract_text(part.get("text")) if "text" in part else ""
        if _REFERENCED_FILES.match(text):
            break
        if _CONTEXT.match(text):
            found = _DIRECTORY.search(text[:_LINES_CHARS])
            session.workspace = session.workspace or (found[1] or found[2] if found else "")
        else:
            texts.append(text)
    request = "\n".join(filter(None, texts))
    begin, middle, end = _USER_COMMAND
    if request.startswith(begin) and middle in request:
        command, _, output = request[len(begin) :].removesuffix(end).partition(middle)
        session.separate_calls()
        session.add_thought("The user ran this command.")
        session.add_call("user", _SHELL_TOOL, {"command": _unescape(command)})
        session.add_result("user", _unescape(output), ToolResult(_unescape(output)))
        return
    if not _NOT_A_REQUEST.match(request):
        session.add_prompt(request)


def _unescape(text: str) -> str:
    return text.replace("\\`", "`").replace("\\\\", "\\")


def _read_call(session: SessionBuilder, call: Mapping[str, Any]) -> None:
    arguments = to_mapping(call.get("args"))
    path = arguments.get("file_path")
    if isinstance(path, str) and (shown := _find_path(call, path)):
        arguments = {**arguments, "file_path": shown}
        if not session.workspace and shown.endswith(f"/{path}"):
            session.workspace = shown.removesuffix(f"/{path}")
    ran_in = _RAN_IN.match(_extract_result(call)) if call.get("name") == _SHELL_TOOL else None
    session.add_call(
        str(call.get("id")), str(call.get("name") or ""), arguments, cwd=ran_in[1] if ran_in else None
    )


def _find_path(call: Mapping[str, Any], path: str) -> str | None:
    """The absolute path of a changed file, which the program shows to the user, or names in the result."""
    shown = to_directory(to_mapping(call.get("resultDisplay")).get("filePath"))
    text = _extract_result(call)[:_NOTICE_CHARS]
    start = text.find(" file: /")
    end = text.find(f"/{path}", start) if start >= 0 and path else -1
    return shown or (text[start + len(" file: ") : end + 1 + len(path)] if end >= 0 else None)


def _read_result(session: SessionBuilder, call: Mapping[str, Any]) -> None:
    """Add the result of a call, unless it waits or runs."""
    text, status = _extract_result(call), call.get("status")
    if status in _FAILED or status == "success" or call.get("result") is not None:
        result = parse_result(str(call.get("name") or ""), text, is_error=status in _FAILED)
        session.add_result(str(call.get("id")), text if result.refused else result.output, result)


def _extract_result(call: Mapping[str, Any]) -> str:
    responses = [
        to_mapping(part.get("functionResponse")).get("response") for part in to_mappings(call.get("result"))
    ]
    texts = [
        to_mapping(each).get("output", to_mapping(each).get("error"))
        for each in responses
        if each is not None
    ]
    text = "\n".join(map(extract_text, texts)) if texts else extract_text(call.get("resultDisplay"))
    begin, end = _UNTRUSTED
    is_marked = text.startswith(begin) and text.endswith(end)
    return text[len(begin) :].removesuffix(end) if is_marked else text


def parse_result(name: str, text: str, *, is_error: bool) -> ToolResult:
    """Parse what the model saw of a call. Since 0.20, the exit code is shown only if it is not 0."""
    if name == "read_file":
        shown = _SHOWN_FROM.search(text[:_NOTICE_CHARS])
        body = text.partition(_SHOWN_CONTENT)[2] if shown else text
        return ToolResult(number_lines(body[:_LINES_CHARS], int(shown[1]) if shown else 1), refused=is_error)
    if name != _SHELL_TOOL:
        return ToolResult(text, refused=is_error)
    if background := _BACKGROUND.match(text):
        return ToolResult(text, process_id=background[1])
    if _CANCELLED.match(text):
        return ToolResult(text.partition(_BEFORE_CANCELLED)[2], timed_out=True)
    found = _OUTPUT.match(text)
    if found is None:
        return ToolResult(text, refused=is_error)
    lines, notes = found[1].split("\n"), dict[str, str]()
    for _ in range(min(_FOOTER_LINES, len(lines) - 1)):
        note = _FOOTER.fullmatch(lines[-1])
        if note is None:
            break
        notes.setdefault(note[1], note[2].strip())
        lines.pop()
    output = "\n".join(lines)
    has_ended = not {"Signal", "Error"} & {
        key for key, value in notes.items() if value not in ("(none)", "0")
    }
    code = notes.get("Exit Code", "0" if has_ended else "")
    return ToolResult(
        "" if output == "(empty)" else output, int(code) if code.lstrip("-").isdecimal() else None
    )


def _parse_usage(counts: Any) -> Usage | None:
    raw = to_mapping(counts)
    prompt, completion = parse_count(raw.get("input")), parse_count(raw.get("output"))
    if prompt is None and completion is None:
        return None
    return Usage(
        prompt_tokens=prompt, cached_tokens=parse_count(raw.get("cached")), completion_tokens=completion
    )


def _read_stream(session: SessionBuilder, rows: Sequence[Mapping[str, Any]]) -> None:
    """Read the output of a run. It shows no exit code, and nothing of a file that was read."""
    text, before = "", ""
    for row in [*rows, {}]:
        kind = row.get("type")
        if not (kind == "message" and row.get("role") == "assistant"):
            session.add_message(text)
            text = ""
        if kind == "init":
            session.name, session.model = str(row["session_id"]), session.model or str(row["model"])
        elif kind == "message" and row.get("role") == "user":
            _read_request(session, row.get("content"))
        elif kind == "message":
            text += extract_text(row.get("content"))
        elif kind == "tool_use":
            if before != "tool_use":
                session.start_reply()
            session.add_call(
                str(row.get("tool_id")), str(row.get("tool_name") or ""), to_mapping(row.get("parameters"))
            )
        elif kind == "tool_result":
            shown = extract_text(row.get("output") or to_mapping(row.get("error")).get("message"))
            moved = _BACKGROUND.match(shown)
            result = ToolResult(
                shown, refused=row.get("status") == "error", process_id=moved[1] if moved else None
            )
            session.add_result(str(row.get("tool_id")), shown, result)
        elif kind not in _STREAM_TYPES and may_carry_call(row):
            session.add_unknown(str(kind))
        before = str(kind)
