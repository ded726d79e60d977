"""Reader of Kimi Code: `agents/main/wire.jsonl` in `~/.kimi-code/sessions`, and the files of the older kimi-cli."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
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
    parse_arguments,
    parse_count,
    parse_usage_parts,
)
from langgraph_takeover.handoff.recordings.tool_calls import may_carry_call

_NAMES = {
    "Shell": "bash", "CMD": "bash", "ReadFile": "read", "WriteFile": "write", "StrReplaceFile": "edit", "Think": "think",
}  # fmt: skip
"""Tools of kimi-cli."""
_REQUESTS = ("user", "skill_activation")
_CONTEXT_ROLES = ("_system_prompt", "_checkpoint", "_usage")
_LOOP_EVENTS = (
    "step.begin",
    "step.end",
    "content.part",
    "tool.call",
    "tool.result",
    "tool.progress",
    "tool.update",
)
_OTHER_ROWS = re.compile(
    r"(?:agent|btw|compaction|config|context|cron|file_history|full_compaction|goal|hook|interaction|llm|mcp|metadata"
    r"|micro_compaction|permission|plan|plugin|profile|prompt|runtime|session|skill|step|subagent|swarm|task|todo|token_counting"
    r"|tools?|turn|undo|usage)(?:\.|\Z)"
)
_OTHER_MESSAGES = re.compile(
    r"(?:Turn|Step|Compaction|Hook|MCP|Status|Notification|Plan|Btw|Subagent|Approval|Question|Steer)\w{0,30}"
)
_SYSTEM_NOTE = re.compile(r"\s*<(?:system|system-reminder|notification)[ >]")
_ERROR_NOTE = re.compile(r"<system>(ERROR: )?([^\n]{0,400}?)</system>\n?")
_EXIT_CODE = re.compile(r"Command failed with exit code: (-?\d{1,9})")
_TIMEOUT = re.compile(
    r"Command (?:killed by timeout|timed out|interrupted|killed|was (?:killed|aborted|interrupted))|Interrupted by user"
)
_TASK = re.compile(r"task_id: ([\w-]{1,60})\n")
_IS_RUNNING = re.compile(r"^status: running$", re.M)
_END_CHARS = 300


def is_session(data: Any) -> bool:
    """Whether the rows are those of a wire file or of a context file."""
    if not isinstance(data, list):
        return False
    rows = to_mappings(data[:200])
    return any(row.get("role") in _CONTEXT_ROLES for row in rows) or any(
        row.get("type") == "metadata" and "protocol_version" in row for row in rows
    )


class _WireReader:
    """Reads rows into a session; a tool call of the older wire file may come in parts."""

    def __init__(self, session: SessionBuilder) -> None:
        self.session = session
        self._call: tuple[str, str] | None = None
        """Id and name of the call whose arguments still come."""
        self._parts: list[str] = []

    def read_row(self, row: Mapping[str, Any]) -> None:
        kind = str(row.get("type"))
        message = to_mapping(row.get("message"))
        if kind == "context.append_message":
            if _is_request(message):
                self._add_prompt(message.get("content"))
        elif kind == "context.append_loop_event":
            self._read_loop_event(to_mapping(row.get("event")))
        elif kind == "task.terminated":
            self.session.background.end(str(to_mapping(row.get("info")).get("taskId")))
        elif kind in ("llm.request", "usage.record"):
            self.session.model = self.session.model or str(row.get("model") or "")
        elif "role" in row:
            self._read_context_row(row)
        elif "type" in message and "payload" in message:
            self._read_message(str(message["type"]), to_mapping(message["payload"]))
        elif not _OTHER_ROWS.match(kind) and may_carry_call(row):
            self.session.add_unknown(kind)

    def finish_call(self) -> None:
        """Add the call whose arguments came in parts."""
        if self._call is not None:
            (call_id, name), arguments = self._call, parse_arguments("".join(self._parts))
            self._call, self._parts = None, []
            self._add_call(call_id, name, arguments)

    def _add_prompt(self, content: Any) -> None:
        parts = content if isinstance(content, list) else [content]
        texts = [text for text in map(extract_text, parts) if text and not _SYSTEM_NOTE.match(text)]
        self.session.add_prompt("\n".join(texts))

    def _add_call(
        self, call_id: str, name: str, arguments: Mapping[str, Any], display: Mapping[str, Any] = {}
    ) -> None:
        """Add a call; `display` has the absolute path or directory that the program shows to the user."""
        name = _NAMES.get(name, name)
        cwd = to_directory(display.get("cwd"))
        if name == "bash" and arguments.get("cwd") == self.session.workspace:
            arguments = {key: value for key, value in arguments.items() if key != "cwd"}
        path = to_directory(display.get("path"))
        if path and display.get("kind") == "file_io" and isinstance(arguments.get("path"), str):
            arguments = {**arguments, "path": path}
        if "edit" in arguments:
            edits = arguments["edit"] if isinstance(arguments["edit"], list) else [arguments["edit"]]
            arguments = {**{key: arguments[key] for key in arguments if key != "edit"}, "edits": edits}
        elif name.lower() == "write" and arguments.get("mode") == "append":
            name, arguments = (
                "multiedit",
                {"path": arguments.get("path"), "edits": [{"append": arguments.get("content")}]},
            )
        self.session.add_call(call_id, name, arguments, cwd=cwd)

    def _add_result(self, call_id: str, output: str, note: str, *, is_error: bool) -> None:
        call = self.session.find_call(call_id)
        if call is None:
            add = functools.partial(self._add_result, call_id, output, note, is_error=is_error)
            self.session.add_early_result(call_id, add)
            return
        result = parse_result(call.tool, output, note, is_error=is_error)
        text = result.output if result.exit_code is not None else "\n".join(filter(None, (output, note)))
        self.session.add_result(call_id, text, result)

    def _read_part(self, part: Mapping[str, Any]) -> None:
        if part.get("type") == "think":
            self.session.add_thought(extract_text(part.get("think")))
        elif part.get("type") == "text":
            self.session.add_message(extract_text(part.get("text")))
        else:
            self.session.add_unknown(str(part.get("type")))

    def _read_loop_event(self, event: Mapping[str, Any]) -> None:
        kind, call_id = event.get("type"), str(event.get("toolCallId"))
        if kind == "step.begin":
            self.session.start_reply()
        elif kind == "content.part":
            self._read_part(to_mapping(event.get("part")))
        elif kind == "tool.call":
            display = to_mapping(event.get("display"))
            self._add_call(call_id, str(event.get("name") or ""), parse_arguments(event.get("args")), display)
        elif kind == "tool.result":
            result = to_mapping(event.get("result"))
            self._add_result(
                call_id, extract_text(result.get("output")), "", is_error=result.get("isError") is True
            )
        elif kind == "step.end":
            self._add_usage(
                event.get("usage"), "inputOther", "inputCacheRead", "inputCacheCreation", "output"
            )
        elif kind not in _LOOP_EVENTS and may_carry_call(event):
            self.session.add_unknown(str(kind))

    def _add_usage(self, counts: Any, *names: str) -> None:
        self.session.add_usage(parse_usage_parts(*(to_mapping(counts).get(name) for name in names)))

    def _read_message(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Read a message of kimi-cli's wire file."""
        if kind == "ToolCallPart":
            self._parts.append(str(payload.get("arguments_part") or ""))
            return
        self.finish_call()
        if kind in ("TurnBegin", "SteerInput"):
            self._add_prompt(payload.get("user_input"))
        elif kind == "StepBegin":
            self.session.start_reply()
        elif kind == "ContentPart":
            self._read_part(payload)
        elif kind == "ToolCall":
            function = to_mapping(payload.get("function"))
            self._call = str(payload.get("id")), str(function.get("name") or "")
            self._parts = [str(function.get("arguments") or "")]
        elif kind == "ToolResult":
            value = to_mapping(payload.get("return_value", payload.get("result")))
            texts = map(extract_text, (value.get("output"), value.get("message")))
            self._add_result(str(payload.get("tool_call_id")), *texts, is_error=value.get("is_error") is True)
        elif kind == "StatusUpdate":
            self._add_usage(
                payload.get("token_usage"),
                "input_other",
                "input_cache_read",
                "input_cache_creation",
                "output",
            )
        elif not _OTHER_MESSAGES.fullmatch(kind) and may_carry_call({"message": payload}):
            self.session.add_unknown(kind)

    def _read_context_row(self, row: Mapping[str, Any]) -> None:
        """Read a row of kimi-cli's context file, which shows notes of the program within the results."""
        role, content = row["role"], row.get("content")
        if role == "user":
            self._add_prompt(content)
        elif role == "assistant":
            self.session.start_reply()
            for part in (
                to_mappings(content) if isinstance(content, list) else [{"type": "text", "text": content}]
            ):
                self._read_part(part)
            for call in to_mappings(row.get("tool_calls")):
                function = to_mapping(call.get("function"))
                self._add_call(
                    str(call.get("id")),
                    str(function.get("name") or ""),
                    parse_arguments(function.get("arguments")),
                )
        elif role == "tool":
            text = extract_text(content)
            note = _ERROR_NOTE.match(text)
            body = text[note.end() :] if note else text
            self._add_result(
                str(row.get("tool_call_id")), body, note[2] if note else "", is_error=bool(note and note[1])
            )
        elif role not in _CONTEXT_ROLES and may_carry_call(row):
            self.session.add_unknown(str(role))


def read(rows: Sequence[Any], name: str) -> RecordedRun:
    """Read the rows that the user did not undo, in order; a compacted history keeps its earlier rows."""
    session = SessionBuilder(name, "kimi-code", keeps_directory=False)
    session.agent = "kimi-code"
    live, withdrawn = _split_undone(to_mappings(list(rows)))
    _read_rows(session, live)
    if withdrawn:
        _read_rows(session.start_withdrawn(), withdrawn)
    return session.build()


def _split_undone(
    rows: Sequence[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The rows without the undone requests with what followed them, and these."""
    live: list[Mapping[str, Any]] = []
    withdrawn: list[Mapping[str, Any]] = []
    starts: list[int] = []
    for row in rows:
        if row.get("type") == "context.undo":
            count = parse_count(row.get("count")) or 1
            if undone := starts[-count:]:
                withdrawn += live[undone[0] :]
                del live[undone[0] :], starts[-count:]
            continue
        if row.get("type") == "context.append_message" and _is_request(to_mapping(row.get("message"))):
            starts.append(len(live))
        live.append(row)
    return live, withdrawn


def _is_request(message: Mapping[str, Any]) -> bool:
    """Whether a message comes from the user; other messages in this role come from the agent."""
    return (
        message.get("role") == "user" and to_mapping(message.get("origin")).get("kind", "user") in _REQUESTS
    )


def _read_rows(session: SessionBuilder, rows: Sequence[Mapping[str, Any]]) -> None:
    reader = _WireReader(session)
    for row in rows:
        reader.read_row(row)
    reader.finish_call()


def parse_result(tool: str, output: str, note: str, *, is_error: bool) -> ToolResult:
    """Parse what the model saw of a call of our `tool`; `note` is what the program said about it."""
    if tool != "shell":
        return ToolResult(output, refused=is_error)
    task = _TASK.match(output)
    if task is not None:
        process_id = task[1] if _IS_RUNNING.search(output[:2_000]) else None
        return ToolResult(output, process_id=process_id, refused=is_error)
    start = max(len(output) - _END_CHARS, 0)
    for text, begin in ((note, 0), (output, start)):
        if _TIMEOUT.search(text, begin):
            return ToolResult(output, timed_out=True)
        if found := _EXIT_CODE.search(text, begin):
            kept = output[: found.start()].removesuffix("\n") if text is output else output
            return ToolResult(kept, int(found[1]))
    return ToolResult(output, None if is_error else 0, refused=is_error)
