"""Claude Code: how to run Anthropic's coding agent (`claude`), and the session files in `~/.claude/projects`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from langgraph_takeover.handoff.agents.adapter import (
    MESSAGE,
    RESUME_MESSAGE,
    SESSION,
    AgentCommand,
    AgentOutput,
    Api,
    Asker,
    Launch,
    NativeCall,
    NativeSession,
    PackagedProgram,
    ProgramFiles,
    Setup,
    TerminalCommand,
    escape_slash_command,
    is_session_id,
)
from langgraph_takeover.handoff.agents.native_sessions import (
    SessionStep,
    chain_lines,
    derive_uuid,
    format_time,
    list_session_steps,
    name_directory,
    read_result_lines,
    strip_resume_markers,
    write_json_lines,
    write_shell_command,
    write_view_arguments,
)
from langgraph_takeover.handoff.recordings.branches import RowKind, TreeRow, find_live_rows
from langgraph_takeover.handoff.recordings.recorded_run import (
    RecordedRun,
    extract_text,
    is_iflow_row,
    to_directory,
    to_mapping,
    to_mappings,
)
from langgraph_takeover.handoff.recordings.sessions import SessionBuilder, ToolResult, strip_reminders
from langgraph_takeover.handoff.recordings.tool_calls import may_carry_call
from langgraph_takeover.handoff.text.tool_wrappers import (
    CLAUDE_HEADER,
    CLAUDE_NO_OUTPUT,
    CLAUDE_STARTED,
    find_rerun_alias,
    strip_claude_notes,
)
from langgraph_takeover.handoff.trace.conversation import EXIT_CODE_NOT_RECORDED, RESULT_NOT_RECORDED, History
from langgraph_takeover.handoff.trace.events import Action, Usage

_SHELL_TOOLS = ("shell", "bash", "powershell", "monitor")
_MESSAGE_TYPES = ("user", "assistant")
_NOTE_TYPES = ("progress", "attachment", "system")
_OTHER_ROWS = {
    "summary", "custom-title", "ended-by-model", "ai-title", "last-prompt", "tag", "relocated", "agent-name", "agent-color",
    "agent-setting", "pr-link", "frame-link", "bridge-session", "file-history-snapshot", "attribution-snapshot",
    "speculation-accept", "mode", "permission-mode", "isolation-latch", "worktree-state", "queue-operation",
    "marble-origami-commit", "marble-origami-snapshot", "marble-origami-reset", "content-replacement", "fork-context-ref",
}  # fmt: skip
_BLOCKS = {
    "text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document", "server_tool_use",
    "web_search_tool_result", "web_fetch_tool_result", "tool_reference", "fallback",
}  # fmt: skip
_USER_SUBTYPES = ("local_command", "compact_boundary")
"""Rows of `system` that the user causes, also after going back; others may come late."""
_CONTINUATION = "Continue from where you left off."
SYNTHETIC_MODEL = "<synthetic>"
"""The model of what Claude Code itself says, and of replies of other agents that we write into its sessions."""
_IMPORTED_ID = re.compile(r"msg_\d{1,9}")
"""The id of a reply that we write."""
_CAVEAT = re.compile(r"\s*(?:<local-command-caveat>|Caveat: The messages below)")
_NOT_A_REQUEST = re.compile(rf"\s*\[Request interrupted by user|{_CAVEAT.pattern}")
"""The first words of texts without a tag that Claude Code itself stores in the role of the user."""
_COMMAND = re.compile(
    r"\s*(?:<command-message>[^<]*</command-message>\s*)?<command-name>([^<]{1,200})</command-name>"
    r"(?:\s*<command-message>[^<]*</command-message>)?"
    r"(?:\s*<command-args>(.*)</command-args>)?(?:\s*<skill-format>true</skill-format>)?\s*", re.S
)  # fmt: skip
_USER_COMMAND = re.compile(r"\s*<bash-(input|stdout)>(.*)</bash-(?:input|stderr)>\s*", re.S)
_REJECTED = re.compile(
    r"<tool_use_error>|The user doesn't want to |The tool use was rejected|Permission to use |\[Request interrupted"
    r"|Claude requested permissions|User rejected|InputValidationError|.{0,40}has been denied"
)
_TIMEOUT = re.compile(r"Command timed out after |<error>Command was aborted")
_TASK_EXIT_CODE = re.compile(r"<exit_code>(-?\d{1,9})</exit_code>")
_STILL_RUNS = re.compile(r"<status>running</status>")
_TASK_OUTPUT = re.compile(r".*/tasks/\w+\.output")
_ARROW_LINE = re.compile(r"^( *\d+)→", re.M)
_TASK_READ = re.compile(r"cat .*/tasks/\w+\.output")
_LINE_NUMBER = re.compile(r"^ *\d{1,9}[→\t]", re.M)
_INTERRUPTED = "[Request interrupted by user"
_LINES_CHARS = 2_000_000
_NOTICE_CHARS = 400
_STARTED_CHARS = 3_000


def is_session(data: Any) -> bool:
    """Whether the rows are those of a session file."""
    return isinstance(data, list) and any(_is_message(row) for row in data[:200])


def _is_message(row: Any) -> bool:
    return (
        isinstance(row, Mapping)
        and row.get("type") in _MESSAGE_TYPES
        and "sessionId" in row
        and "uuid" in row
        and not is_iflow_row(row)
        and "content" in (message := to_mapping(row.get("message")))
        and message.get("role", row["type"]) == row["type"]
    )


def read(rows: Sequence[Any], name: str) -> RecordedRun:
    """Read the messages of the live branch in order; those of subagents only from a file that has no others."""
    mappings = to_mappings(list(rows))
    main = [row for row in mappings if row.get("isSidechain") is not True]
    if not any(_is_read(row) for row in main):
        main = mappings
    session = SessionBuilder(name, "claude-code", keeps_directory=True)
    _note_unknown(session, main)
    live, withdrawn = _split_branches(main)
    _read_rows(session, live)
    if withdrawn:
        _read_rows(session.start_withdrawn(), withdrawn)
    return session.build()


def _note_unknown(session: SessionBuilder, rows: Sequence[Mapping[str, Any]]) -> None:
    """Count the rows and the parts of messages that are not known and have content."""
    for row in rows:
        kind = str(row.get("type"))
        message = to_mapping(row.get("message"))
        if kind in _MESSAGE_TYPES:
            if "0" in message:
                # A failed stream left the characters of the message as its fields.
                session.add_unknown("damaged message")
            content = to_mappings(message.get("content"))
            parts = [
                (str(part.get("type")), part) for part in content if str(part.get("type")) not in _BLOCKS
            ]
            if "content" in message and not _is_message(row):
                session.add_unknown(f"{message.get('role', kind)}")
        elif kind in _NOTE_TYPES or kind in _OTHER_ROWS:
            continue
        else:
            parts = [(kind, row)]
        for form, part in parts:
            if may_carry_call(part) or "message" in part or "content" in part:
                session.add_unknown(form)


def _is_read(row: Mapping[str, Any]) -> bool:
    return _is_message(row) or bool(_find_queued_prompt(row))


def _split_branches(
    rows: Sequence[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The messages of the live branch, and those that the user withdrew by going back; each row once."""
    linked: dict[str, Mapping[str, Any]] = {}
    leaf, last = "", None
    starts: dict[str, str | None] = {}
    """Row before the first one of each session: a session that continues another one may begin anew there."""
    tree: list[TreeRow] = []
    boundaries = {row.get("parentUuid") for row in rows if _summarizes_later_part(row)}
    for row in rows:
        if row.get("type") == "last-prompt":
            leaf = str(row.get("leafUuid") or "")
        uuid = row.get("uuid")
        # A resumed or forked session repeats rows.
        if isinstance(uuid, str) and uuid not in linked:
            linked[uuid] = row
            made = _read_tree_row(uuid, row, starts.setdefault(str(row.get("sessionId")), last))
            if uuid in boundaries:
                # It names the row before the part that was summarized, which no one withdrew.
                made = made._replace(parent=last)
            # Except after a rewind, which the leaf names, the agent may continue at a row of long ago by mistake.
            tree.append(made._replace(is_automatic=_is_continuation(row) and made.parent != leaf))
            last, leaf = uuid, ""
    live = find_live_rows(tree, leaf)
    messages = [(row, is_live) for row, is_live in zip(linked.values(), live, strict=True) if _is_read(row)]
    return [row for row, is_live in messages if is_live], [row for row, is_live in messages if not is_live]


def _read_tree_row(uuid: str, row: Mapping[str, Any], start: str | None) -> TreeRow:
    """The row in the tree; `start` is the row that its session continues, if any."""
    parent = row.get("parentUuid")
    continues = row.get("subtype") == "compact_boundary" or row.get("isCompactSummary") is True
    is_root = "parentUuid" in row and parent is None and not continues and row.get("isSidechain") is not True
    # A compaction continues what it kept word for word, or else the row before what it summarized.
    kept = to_mapping(to_mapping(row.get("compactMetadata")).get("preservedSegment")).get("tailUuid")
    parent = start if is_root else parent if isinstance(parent, str) else kept or row.get("logicalParentUuid")
    message = to_mapping(row.get("message"))
    parts = to_mappings(message.get("content"))
    ids = (part.get("tool_use_id" if part.get("type") == "tool_result" else "id") for part in parts)
    return TreeRow(
        uuid,
        parent if isinstance(parent, str) else None,
        _find_kind(row, parts),
        is_root=is_root and start is None,
        reply=str(message.get("id") or ""),
        calls=frozenset(str(each) for each in ids if each is not None),
    )


def _summarizes_later_part(row: Mapping[str, Any]) -> bool:
    """Whether a summary replaces the part of the conversation after a request that the user picked."""
    return (
        row.get("isCompactSummary") is True
        and to_mapping(row.get("summarizeMetadata")).get("direction") == "from"
    )


def _is_continuation(row: Mapping[str, Any]) -> bool:
    """Whether Claude Code wrote a request itself, to continue after an interruption."""
    text = extract_text(to_mapping(row.get("message")).get("content"))
    return row.get("isMeta") is True and text.strip() == _CONTINUATION


def _find_kind(row: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> RowKind:
    if row.get("type") == "assistant":
        return "reply"
    if (queued := _find_queued_prompt(row)) and not _NOT_A_REQUEST.match(queued):
        return "request"
    if row.get("type") in _NOTE_TYPES and row.get("subtype") not in _USER_SUBTYPES:
        return "note"
    if any(part.get("type") == "tool_result" for part in parts):
        return "result"
    is_own = row.get("isMeta") is True or row.get("isCompactSummary") is True
    return "request" if row.get("type") == "user" and not is_own else "other"


def _read_rows(session: SessionBuilder, rows: Sequence[Mapping[str, Any]]) -> None:
    for row, after in zip(rows, [*rows[1:], {}], strict=False):
        session.workspace = session.workspace or str(row.get("cwd") or "")
        if not session.agent:
            session.agent, session.agent_version = "claude-code", str(row.get("version") or "")
            session.name = str(row.get("sessionId") or session.name)
        queued = _find_queued_prompt(row)
        if queued:
            _read_prompt(session, queued)
        elif row["type"] == "assistant":
            _read_reply(session, row)
        else:
            _read_user_row(session, row)
            _read_command(session, row, after)


def _read_reply(session: SessionBuilder, row: Mapping[str, Any]) -> None:
    message = to_mapping(row.get("message"))
    model = str(message.get("model") or "")
    is_synthetic = model == SYNTHETIC_MODEL
    is_imported = _IMPORTED_ID.fullmatch(str(message.get("id"))) is not None
    if (is_synthetic and not is_imported) or row.get("isApiErrorMessage") is True:
        return
    session.model = session.model or ("" if is_synthetic else model)
    session.start_reply(str(message.get("id") or ""))
    content = message.get("content")
    blocks = to_mappings(content) if isinstance(content, list) else [{"type": "text", "text": content}]
    for block in blocks:
        kind = block.get("type")
        if kind == "thinking":
            session.add_thought(extract_text(block.get("thinking")))
        elif kind == "text":
            session.add_message(extract_text(block.get("text")))
        elif kind == "tool_use":
            tool, arguments = str(block.get("name") or ""), to_mapping(block.get("input"))
            path = str(arguments.get("file_path") or "")
            if tool == "Read" and _TASK_OUTPUT.fullmatch(path):
                # The file receives the output of a command in the background.
                tool, arguments = "Bash", {"command": f"cat {shlex.quote(path)}"}
            elif tool == "Bash" and "command" not in arguments:
                command = session.aliases.get(str(arguments.get("rerun")))
                arguments = arguments if command is None else {**arguments, "command": command}
            session.add_call(str(block.get("id")), tool, arguments, cwd=to_directory(row.get("cwd")))
    session.add_usage(_parse_usage(message.get("usage")))


def _find_queued_prompt(row: Mapping[str, Any]) -> str:
    """A text that came while the agent worked, from the user or about a task; empty if the row has none."""
    attachment = to_mapping(row.get("attachment"))
    return extract_text(attachment.get("prompt")) if attachment.get("type") == "queued_command" else ""


def _read_user_row(session: SessionBuilder, row: Mapping[str, Any]) -> None:
    content = to_mapping(row.get("message")).get("content")
    parts = to_mappings(content) if isinstance(content, list) else []
    results = [part for part in parts if part.get("type") == "tool_result"]
    for part in results:
        _read_tool_result(session, part, row.get("toolUseResult") if len(results) == 1 else None)
    if results or row.get("isMeta") is True or row.get("isCompactSummary") is True:
        return
    if user_command := _USER_COMMAND.fullmatch(extract_text(content)):
        _read_user_command(session, *user_command.groups())
    else:
        _read_prompt(session, *(map(extract_text, parts) if parts else [extract_text(content)]))


def _read_user_command(session: SessionBuilder, part: str, text: str) -> None:
    """Read a command that the user ran in the session, or its output: both are part of the conversation."""
    if part == "input":
        session.separate_calls()
        session.add_thought("The user ran this command.")
        session.add_call("user", "Bash", {"command": text})
    else:
        stdout, _, stderr = text.partition("</bash-stdout><bash-stderr>")
        session.add_result("user", stdout + stderr, ToolResult(stdout + stderr))
        session.end_turn()


def _read_command(session: SessionBuilder, row: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Read a command of the user that the agent expands to a request; it answers other commands itself."""
    message = to_mapping(after.get("message"))
    is_reply = after.get("type") == "assistant" and message.get("model") != SYNTHETIC_MODEL
    is_expansion = after.get("isMeta") is True and not _CAVEAT.match(extract_text(message.get("content")))
    command = _COMMAND.fullmatch(extract_text(to_mapping(row.get("message")).get("content")))
    if command and row.get("isMeta") is not True and (is_reply or is_expansion):
        session.add_prompt(" ".join(filter(None, command.groups())))


def _read_prompt(session: SessionBuilder, *texts: str) -> None:
    session.background.add_notification("\n".join(texts))
    if any(text.lstrip().startswith(_INTERRUPTED) for text in texts):
        session.end_turn()
    session.add_prompt(*(text for text in texts if not _NOT_A_REQUEST.match(text)))


def _read_tool_result(session: SessionBuilder, part: Mapping[str, Any], details: Any) -> None:
    call_id, content = str(part.get("tool_use_id")), part.get("content")
    call = session.find_call(call_id)
    if call is None:
        session.add_early_result(call_id, lambda: _read_tool_result(session, part, details))
        return
    result = parse_result(
        call.tool, call.arguments, content, {"is_error": part.get("is_error"), "result": details}
    )
    text = extract_text(content)
    command = call.arguments.get("command", "")
    if alias := find_rerun_alias(text):
        session.aliases[alias] = command
    if _TASK_READ.fullmatch(command) and _LINE_NUMBER.match(text):
        # The tool that reads files shows the output with line numbers.
        text = _LINE_NUMBER.sub("", strip_reminders(text[:_LINES_CHARS]))
        result = result._replace(output=text)
    session.add_result(call_id, text, result)


def parse_result(name: str, arguments: Mapping[str, Any], content: Any, details: Any = None) -> ToolResult:
    """Parse what the model saw of a call.

    `details` holds `is_error` of the block and, if known, `result`: the field `toolUseResult` of the session's row.
    """
    text = strip_claude_notes(extract_text(content))
    is_error = to_mapping(details).get("is_error") is True
    result = to_mapping(to_mapping(details).get("result"))
    if arguments.get("is_input") == "true":
        code = _TASK_EXIT_CODE.search(text[:_NOTICE_CHARS])
        process_id = "task" if _STILL_RUNS.search(text[:_NOTICE_CHARS]) else None
        return ToolResult(
            text, None if code is None else int(code[1]), refused=is_error, process_id=process_id
        )
    if name.lower() not in _SHELL_TOOLS:
        return ToolResult(_number_lines(text), refused=is_error or text.startswith("<tool_use_error>"))
    background = CLAUDE_STARTED.search(
        text, 0 if text.startswith("{") else max(len(text) - _STARTED_CHARS, 0)
    )
    if background and result.get("backgroundTaskId", background) is not None:
        return ToolResult(text[: background.start()], process_id=background["id"] or background["task"])
    if _TIMEOUT.search(text[:_NOTICE_CHARS]) or result.get("interrupted") is True:
        return ToolResult(text, timed_out=True)
    header = CLAUDE_HEADER.match(text)
    if header:
        return ToolResult(text[header.end() :], int(header["code"]))
    if is_error or _REJECTED.match(text):
        return ToolResult(text, refused=True)
    if text.endswith((EXIT_CODE_NOT_RECORDED, RESULT_NOT_RECORDED)):
        # A written session; without this line a result says that the command succeeded.
        return ToolResult(text.removesuffix(EXIT_CODE_NOT_RECORDED).removesuffix("\n"))
    output = "" if text == CLAUDE_NO_OUTPUT else text
    if isinstance(result.get("stdout"), str) and not result.get("stderr"):
        # Unlike the text, it is complete for a long output.
        output = result["stdout"]
    return ToolResult(output, 1 if result.get("returnCodeInterpretation") else 0)


def _number_lines(text: str) -> str:
    """The text of a read file with tabs after the line numbers, without reminders."""
    text = strip_reminders(text[:_LINES_CHARS]) if "<system-reminder>" in text else text
    return _ARROW_LINE.sub("\\1\t", text) if "→" in text else text


def _parse_usage(counts: Any) -> Usage | None:
    """Parse token counts; the prompt is the sum of new, cached and newly cached tokens."""
    raw = to_mapping(counts)
    numbers = {
        key: value
        for key, value in raw.items()
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0
    }
    if "input_tokens" not in numbers and "output_tokens" not in numbers:
        return None
    cached = numbers.get("cache_read_input_tokens")
    prompt = numbers.get("input_tokens", 0) + (cached or 0) + numbers.get("cache_creation_input_tokens", 0)
    return Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=numbers.get("output_tokens"))


_ENVIRONMENT = {
    "ANTHROPIC_API_KEY": "none",
    "API_FORCE_IDLE_TIMEOUT": "0",
    "API_TIMEOUT_MS": "86400000",
    # With `--add-dir`, it reads the repository's CLAUDE.md, but not its settings.
    "CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD": "1",
    "CLAUDE_CODE_DISABLE_ATTACHMENTS": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "100000000",
    "CLAUDE_CODE_MAX_RETRIES": "0",
    "CLAUDE_CODE_RESUME_PROMPT": RESUME_MESSAGE,
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_COMPACT": "1",
    "IS_SANDBOX": "1",
}
_OPTIONS = (
    "-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions", "--disable-slash-commands",
    "--tools", "Bash,Edit,Read,Write", "--setting-sources", "", "--strict-mcp-config",
)  # fmt: skip
_INTERRUPTED_REPLY = "No response requested."
"""Claude Code writes this reply itself where a resumed history ends with a user's message or a result."""
_MAX_DIRECTORY_CHARS = 200
_USAGE = {"input_tokens": 0, "output_tokens": 0}


class ClaudeCode:
    """Implements `AgentAdapter`. Its session file lags behind a request by up to 0.1 s.

    Its Edit and Write tools demand that the session has read the file before, so edits are written as shell commands.
    """

    name = "claude-code"
    api: Api = "messages"
    program = ProgramFiles(
        executable="claude",
        packaged=(PackagedProgram(directory="@anthropic-ai/claude-code-linux-*", file="claude"),),
        install="npm install -g @anthropic-ai/claude-code",
        terminal=TerminalCommand(resume=("--resume", SESSION, MESSAGE), reopen=("--resume", SESSION)),
        oldest="2.1.0",
        newest="2.1.332",
    )

    def setup(self, launch: Launch) -> Setup:
        environment = {**_ENVIRONMENT, "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{launch.port}"}
        # Otherwise it writes this file about ten seconds after its start.
        return Setup(files={".claude/.last-cleanup": format_time(launch.started_at)}, environment=environment)

    def command(self, launch: Launch) -> AgentCommand:
        session = ("--session-id", derive_uuid(launch))
        if launch.session_id is not None:
            session = ("--resume", launch.session_id)
        argv = (*launch.program, *_OPTIONS, "--add-dir", launch.workspace, "--model", launch.model, *session)
        return AgentCommand(argv=argv, stdin=escape_slash_command(launch.message))

    def classify(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Asker:
        if not body.get("tools"):
            return "aside"
        return "child" if "x-claude-code-agent-id" in headers else "main"

    def strip_markers(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        return strip_resume_markers(messages, _INTERRUPTED_REPLY)

    def session_glob(self, session_id: str, workspace: str) -> str:
        return f".claude/projects/*/{session_id}.jsonl" if is_session_id(session_id) else ""

    def write_call(self, action: Action, workspace: str) -> NativeCall | None:
        if action.tool == "finish":
            return None
        if view := write_view_arguments(action, workspace):
            return NativeCall(name="Read", arguments=view)
        return NativeCall(name="Bash", arguments={"command": write_shell_command(action)})

    def write_session(self, history: History, launch: Launch) -> NativeSession:
        session_id = derive_uuid(launch, history.opening)
        steps, account = list_session_steps(history)
        messages: list[dict[str, Any]] = [_user(history.opening)] if history.opening else []
        # Without a model 2.1.197 never asks; a foreign one "could not be restored".
        model = launch.model if launch.model.startswith("claude-") else SYNTHETIC_MODEL
        for number, step in enumerate(steps):
            # A message id of its own keeps neighbouring replies apart.
            head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": model}
            text = [{"type": "text", "text": step.thought}] if step.thought else []
            call = self.write_call(step.action, launch.workspace) if step.action else None
            if call is None:
                messages.append({**head, "content": text, "stop_reason": "end_turn", "usage": _USAGE})
                messages += [_user(step.result)] if step.result else []
                continue
            use = {"type": "tool_use", "id": step.call_id, "name": call.name, "input": dict(call.arguments)}
            result = {"type": "tool_result", "tool_use_id": step.call_id, **_write_result(step)}
            blocks = [*text, use]
            messages += [
                {**head, "content": [block], "stop_reason": "tool_use", "usage": _USAGE} for block in blocks
            ]
            messages.append(_user([result]))
        path = f".claude/projects/{name_directory(launch.workspace, _MAX_DIRECTORY_CHARS)}/{session_id}.jsonl"
        lines = write_json_lines(chain_lines(map(_line, messages), session_id, launch, self.program.newest))
        return NativeSession(session_id=session_id, files={path: lines}, account=tuple(account))

    def read_result(
        self, name: str, arguments: Mapping[str, Any], text: str, *, is_error: bool
    ) -> ToolResult:
        return parse_result(name, arguments, text, {"is_error": is_error})

    def read_output(self, stdout: str, exit_code: int | None) -> AgentOutput:
        return read_result_lines(stdout, exit_code)


def _write_result(step: SessionStep) -> dict[str, Any]:
    """Return a result; without a line about the exit code it says that the command succeeded."""
    code = step.exit_code
    if code is not None and 0 < code < 1000:
        return {"content": f"Exit code {code}\n{step.result}", "is_error": True}
    if step.hides_exit_code or code not in (None, 0):
        return {"content": f"{step.result}\n{EXIT_CODE_NOT_RECORDED}"}
    return {"content": step.result, "is_error": True} if step.refused else {"content": step.result}


def _user(content: str | list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _line(message: dict[str, Any]) -> dict[str, Any]:
    return {"type": message["role"], "message": message, "isSidechain": False, "userType": "external"}
