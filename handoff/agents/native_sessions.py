"""Native sessions: the steps of a history, the files of a session, and what agents add when they resume one."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.handoff.agents.adapter import (
    RESUME_MESSAGE,
    AgentOutput,
    ConvertedEvent,
    Launch,
    resolve_path,
)
from langgraph_takeover.handoff.recordings.sessions import strip_reminders
from langgraph_takeover.handoff.recordings.tool_calls import normalize_call
from langgraph_takeover.handoff.text.fence import quote_text
from langgraph_takeover.handoff.text.tool_wrappers import strip_json_result, strip_wrapper
from langgraph_takeover.handoff.trace.conversation import EMPTY_RESULT, RESULT_NOT_RECORDED, History, Step
from langgraph_takeover.handoff.trace.events import UNREADABLE, Action, Event

TELEMETRY_MARK = '"subtype":"ui_telemetry"'
"""Rows of Qwen Code with this text repeat a call before its result is there."""
_NOT_ALPHANUMERIC = re.compile("[^a-zA-Z0-9]")


def read_json_lines(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects among the lines; other lines, and an incomplete last one, are left out."""
    # Not splitlines: it also splits at characters that JSON texts contain unescaped, such as U+2028.
    for line in text.split("\n"):
        if not line.startswith("{"):
            continue
        try:
            value = parse_json(line.encode())
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def write_json_lines(lines: Iterable[Mapping[str, Any]]) -> str:
    """Return one line of JSON for each value."""
    return "".join(f"{dump_json(line)}\n" for line in lines)


def dump_json(value: Mapping[str, Any]) -> str:
    """Return a value as JSON. A lone surrogate becomes `?`: agents drop a line with one, and the history before it."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")


def read_result_lines(stdout: str, exit_code: int | None) -> AgentOutput:
    """Read output in the form `stream-json`, whose last line is a result."""
    session_id, message, is_complete = None, "", False
    for line in read_json_lines(stdout):
        session_id = line.get("session_id") or session_id
        is_result = line.get("type") == "result"
        is_complete = is_result and not line.get("is_error")
        if is_result:
            error = line.get("error")
            text = error.get("message") if isinstance(error, dict) else error
            message = str(line.get("result") or text or line.get("subtype"))
    return AgentOutput.from_untrusted(session_id, message, is_complete=is_complete, exit_code=exit_code)


def derive_uuid(launch: Launch, *parts: object) -> str:
    """Return a UUID that depends on the launch and the parts alone."""
    seed = "\0".join(map(str, (launch.workspace, launch.started_at.isoformat(), launch.message, *parts)))
    digest = bytearray(hashlib.sha256(seed.encode("utf-8", "surrogatepass")).digest()[:16])
    return str(uuid.UUID(bytes=bytes(digest), version=4))


def has_results(session: str, call_ids: Iterable[str]) -> bool:
    """Return whether a session's file holds the results of these calls.

    The id of a call stands in the line of the call, and in that of its result. Some agents write the latter after the
    next request has arrived.
    """
    lines = [line for line in session.split("\n") if TELEMETRY_MARK not in line]
    return all(sum(json.dumps(each) in line for line in lines) >= 2 for each in call_ids)


def format_time(moment: datetime) -> str:
    """Return a time as JavaScript writes it: UTC, milliseconds, `Z`."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def chain_lines(
    lines: Iterable[Mapping[str, Any]], session_id: str, launch: Launch, version: str
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a session, each with an id of its own and that of the line before.

    Claude Code silently drops lines without `uuid`, `parentUuid` or `timestamp`.
    """
    parent = None
    for number, line in enumerate(lines):
        own = derive_uuid(launch, session_id, number)
        yield {
            "uuid": own,
            "parentUuid": parent,
            "sessionId": session_id,
            "timestamp": format_time(launch.started_at),
            "cwd": launch.workspace,
            "version": version,
            **line,
        }
        parent = own


def name_directory(workspace: str, max_chars: int | None = None) -> str:
    """Return the directory of a workspace's sessions: a dash for everything but ASCII letters and digits.

    Characters are counted in UTF-16, as JavaScript does. A name longer than `max_chars` is cut and gets a hash.
    """
    name = _NOT_ALPHANUMERIC.sub(lambda match: "-" * (len(match[0].encode("utf-16-le")) // 2), workspace)
    if max_chars is None or len(name) <= max_chars:
        return name
    return f"{name[:max_chars]}-{_hash_text(workspace)}"


def _hash_text(text: str) -> str:
    """Return the 32-bit hash of Java's strings in base 36, without its sign."""
    value = 0
    units = text.encode("utf-16-le")
    for index in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[index : index + 2], "little")) & 0xFFFF_FFFF
    rest = abs(value - (1 << 32) if value >= 1 << 31 else value)
    digits = ""
    while rest or not digits:
        rest, digit = divmod(rest, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


HISTORY_CALL_PREFIX = "call_e"
"""Start of the ids of calls in a written session; the rest is the number of the event."""
MAX_TEXT_CHARS = 60_000
"""Longer results, arguments and thoughts are shortened in a native session."""
_WITHOUT_CALL = ("finish", UNREADABLE)
_CALL_START = re.compile(
    r'```|^\{"name"|<(?:editor|shell|bash|finish|handoff|recall|function|tool)', re.MULTILINE
)


class SessionStep(NamedTuple):
    """One step of a session: the agent's words, its call, and the result. Without a call, the result is a message, or empty."""

    thought: str
    action: Action | None
    call_id: str
    result: str
    """With an exit code, the output of the command, without what the recorded agent added to it."""
    exit_code: int | None = None
    refused: bool = False

    @property
    def hides_exit_code(self) -> bool:
        """Whether the result is that of a command, or of a call that becomes a comment, whose exit code is unknown."""
        action = self.action
        if action is None or self.exit_code is not None or self.refused:
            return False
        return action.tool == "shell" or not has_shell_command(action)


def list_session_steps(history: History) -> tuple[list[SessionStep], list[ConvertedEvent]]:
    """Return the steps of a history, and what becomes of each of its events."""
    steps: list[SessionStep] = []
    account: list[ConvertedEvent] = []
    for step in history.steps:
        converted = _convert_step(step)
        has_thought = history.has_thoughts or converted.action is None
        steps.append(converted if has_thought else converted._replace(thought=""))
        account += _account_for(step)
    account += [
        ConvertedEvent(event=index, outcome="dropped", reason="left out by the view")
        for index in history.dropped
    ]
    return steps, account


def _convert_step(step: Step) -> SessionStep:
    event, observation = step.action, step.observation
    text = observation.text if observation else None
    exit_code = observation.exit_code if observation and event.tool == "shell" else None
    if text is not None and exit_code is not None:
        text = strip_json_result(strip_wrapper(text))
    result = RESULT_NOT_RECORDED if text is None else quote_text(_shorten(text)) or EMPTY_RESULT
    if observation is None and event.tool in _WITHOUT_CALL:
        result = ""
    if event.tool == UNREADABLE:
        return SessionStep(quote_text(_shorten(event.text)) or "…", None, "", result)
    thought = quote_text(_shorten(_read_thought(event)))
    if event.tool == "finish":
        message = quote_text(_shorten(event.arguments.get("message", "")))
        return SessionStep(thought or message or "…", None, "", result)
    arguments = {name: quote_text(_shorten(value)) for name, value in event.arguments.items()}
    return SessionStep(
        thought,
        Action(event.tool, arguments),
        f"{HISTORY_CALL_PREFIX}{event.index}",
        result,
        exit_code,
        refused=observation is not None and observation.refused,
    )


def _read_thought(event: Event) -> str:
    return _CALL_START.split(event.text, maxsplit=1)[0].strip()


def _account_for(step: Step) -> Iterator[ConvertedEvent]:
    event = step.action
    texts = (event.text if event.tool == UNREADABLE else _read_thought(event), *event.arguments.values())
    action = Action(event.tool, dict(event.arguments))
    if event.tool not in _WITHOUT_CALL and not has_shell_command(action):
        reason = f"the tool {event.tool:.60} is a comment in a shell command"
        yield ConvertedEvent(event=event.index, outcome="shortened", reason=reason)
    else:
        yield _account_for_texts(event, texts)
    if step.observation is not None:
        yield _account_for_texts(step.observation, (step.observation.text,))


def _account_for_texts(event: Event, texts: Iterable[str]) -> ConvertedEvent:
    if all(len(text) <= MAX_TEXT_CHARS for text in texts):
        return ConvertedEvent(event=event.index, outcome="converted")
    reason = f"a text is longer than {MAX_TEXT_CHARS:,} characters"
    return ConvertedEvent(event=event.index, outcome="shortened", reason=reason)


def _shorten(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"


_LAST = "$"
_EDITOR_COMMANDS = ("view", "str_replace", "insert", "create", "write", "undo")
_EDIT_SCRIPT = """\
python3 - <<'{mark}'
import pathlib, sys
path = pathlib.Path({path!r})
text = path.read_text() if path.exists() else ""
{body}
path.write_text(text)
print(f"{{path}} has been edited.")
{mark}"""
_REPLACE = """\
old, new = {old}, {new}
if text.count(old) != 1:
    sys.exit(f"Not done: the text occurs {{text.count(old)}} times in {{path}}.")
text = text.replace(old, new)"""
_INSERT = """\
lines = text.splitlines(keepends=True)
lines[{line}:{line}] = [{new}]
text = "".join(lines)"""
_CREATE = """\
path.parent.mkdir(parents=True, exist_ok=True)
text = {content}"""


def write_shell_command(action: Action) -> str:
    """Return a shell command with the effect of an action of the shell or the editor; of others, a comment."""
    arguments = action.arguments
    if action.tool == "shell":
        return arguments.get("command", "")
    if not has_shell_command(action):
        return f"# {action.tool}: {' '.join(' '.join(arguments.values()).split())}"[:2000]
    if view := _read_view_range(action):
        return _write_view(*view)
    path, command = arguments.get("path", ""), arguments.get("command", "view")
    if command == "undo":
        return f"git checkout -- {shlex.quote(path)}"
    new = arguments.get("new", "")
    if command == "str_replace":
        body = _REPLACE.format(old=_quote(arguments.get("old", "")), new=_quote(new))
    elif command == "insert":
        line = _read_line(arguments.get("line", "")) if arguments.get("line") != "0" else 0
        body = _INSERT.format(line=line or 0, new=_quote(_end_with_newline(new)))
    elif command == "edit":
        pairs = _read_replacements(arguments.get("edits", ""))
        body = "\n".join(_REPLACE.format(old=_quote(old), new=_quote(to)) for old, to in pairs)
    else:
        body = _CREATE.format(content=_quote(_end_with_newline(arguments.get("content", new))))
    mark = "END_OF_EDIT"
    while mark in body:
        mark += "_"
    return _EDIT_SCRIPT.format(path=path, body=body, mark=mark)


def has_shell_command(action: Action) -> bool:
    """Return whether a shell command can have the effect of an action, rather than only name it in a comment."""
    if action.tool != "editor":
        return action.tool == "shell"
    command = action.arguments.get("command", "view")
    return command in _EDITOR_COMMANDS or (
        command == "edit" and bool(_read_replacements(action.arguments.get("edits", "")))
    )


def _read_replacements(edits: str) -> list[tuple[str, str]]:
    """Return old and new text of each edit of a list in JSON; an empty list if one of them is invalid."""
    try:
        values = parse_json(edits)
    except ValueError:
        return []
    pairs: list[tuple[str, str]] = []
    for value in values if isinstance(values, list) else [None]:
        _, texts = normalize_call("str_replace", {"path": "", **value} if isinstance(value, dict) else {})
        if "old" not in texts or "new" not in texts:
            return []
        pairs.append((texts["old"], texts["new"]))
    return pairs


def write_view_arguments(
    action: Action, workspace: str, *, path_name: str = "file_path", first_line: int = 1
) -> dict[str, str | int] | None:
    """Return a view as the arguments of a tool that reads a file; None for other actions.

    Args:
        path_name: the tool's name of the path; those of the range are `offset` and `limit`.
        first_line: the offset of the file's first line.
    """
    view = _read_view_range(action)
    if view is None:
        return None
    path, start, end = view
    arguments: dict[str, str | int] = {path_name: resolve_path(workspace, path)}
    if start is not None:
        arguments["offset"] = start - 1 + first_line
    if start is not None and end is not None:
        arguments["limit"] = end - start + 1
    return arguments


def _read_view_range(action: Action) -> tuple[str, int | None, int | None] | None:
    """Return path, first and last line of a view (None: from the start, to the end); None for other actions."""
    arguments = action.arguments
    if action.tool != "editor" or arguments.get("command", "view") != "view":
        return None
    start, end = (_read_line(arguments.get(name, "")) for name in ("start", "end"))
    if start is None or (end is not None and end < start):
        return arguments.get("path", ""), None, None
    return arguments.get("path", ""), start, end


def _read_line(text: str) -> int | None:
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _write_view(path: str, start: int | None, end: int | None) -> str:
    if start is None:
        return f"cat -n {shlex.quote(path)}"
    return f"cat -n {shlex.quote(path)} | sed -n {shlex.quote(f'{start},{end or _LAST}p')}"


def _quote(text: str) -> str:
    """Return a Python literal that shows the text's lines as they are, if it can."""
    if (
        "\\" in text
        or "'''" in text
        or "\r" in text
        or not text.replace("\n", "").replace("\t", "").isprintable()
    ):
        return repr(text)
    return f"'''\n{text}\n'''[1:-1]"


def _end_with_newline(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def strip_resume_markers(messages: Sequence[BaseMessage], reply: str = "") -> list[BaseMessage]:
    """Return a conversation without `RESUME_MESSAGE`, as a message or as the end of one.

    Args:
        reply: text of a reply that the agent writes itself after an interrupted turn.
    """
    kept: list[BaseMessage] = []
    for message in messages:
        if isinstance(message, AIMessage) and not message.tool_calls and reply == message.text.strip() != "":
            continue
        text = message.text.rstrip() if isinstance(message, HumanMessage) else ""
        if text != RESUME_MESSAGE and not text.endswith(f"\n{RESUME_MESSAGE}"):
            kept.append(message)
        # Qwen Code puts a reminder with the date before it.
        elif strip_reminders(rest := text.removesuffix(RESUME_MESSAGE).removesuffix("\n")):
            kept.append(HumanMessage(rest))
    return kept


def has_same_steps(pending: Sequence[BaseMessage], resumed: Sequence[BaseMessage]) -> bool:
    """Return whether two stripped conversations agree from the first reply with a call on.

    What precedes it is the agent's own context, such as the date and a list of files, which may change; there, the
    resumed conversation must contain the last message of the pending one.
    """
    before, after = _skip_context(pending), _skip_context(resumed)
    if [_describe(each) for each in before] != [_describe(each) for each in after]:
        return False
    task = [strip_reminders(each.text) for each in pending[: len(pending) - len(before)]][-1:]
    return all(any(text in each.text for each in resumed) for text in task)


def _skip_context(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage) and message.tool_calls:
            return list(messages[index:])
    return []


def _describe(message: BaseMessage) -> tuple[object, ...]:
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return message.type, message.text.strip(), [(each["name"], each["args"], each["id"]) for each in calls]
