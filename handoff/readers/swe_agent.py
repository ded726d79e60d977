"""Reader of SWE-agent: 0.x with a windowed editor, 1.x with `str_replace_editor` or tool calls."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.handoff.recordings.recorded_run import (
    RecordedCall,
    RecordedResult,
    RecordedRun,
    extract_text,
    parse_usage,
    to_mapping,
    to_mappings,
)
from langgraph_takeover.handoff.trace.events import UNREADABLE, count_forms

_REFUSAL = re.compile(
    r"Your proposed edit has introduced new syntax error|No replacement was performed|^Usage: |^ERROR: "
    r"|^Your edit was not applied|^(?>.*?Text \S).* not found|^No file open|^Error: |Invalid `\w+` parameter"
    r"|^File .* not found|already exists at: |^The path .* does not exist|usage: str_replace_editor"
    r"|did not appear verbatim|Multiple occurrences of (?:old_str|the search)|^Missing "
    r"|is not supported (?:by|in) this environment|^Error: .*(?:line|argument)s?\b",
    re.MULTILINE,
)
_EDITED = re.compile(
    r"has been edited|File updated\.|Text (?:replaced|inserted)\.|^\[File: |^(?>.*?Last edit to ).* undone|successfully"
    r"|^Old (?:environment )?output\b|lines omitted\)",
    re.MULTILINE,
)
"""What an editing command prints on success, also shortened; a syntax error of the shell prints none of it."""
_NOT_RUN = re.compile(
    r"\s*(?:Operation|Interactive operation) '.*' is not supported|.*\bcontained syntax errors and was NOT executed"
    r"|(?:.*\n)?\s*(?:COMMAND FAILED TO EXECUTE|BROKEN PIPE ERROR)\b"
)
_TIMEOUT_NOTICE = re.compile(
    r"EXECUTION TIMED OUT|was cancelled because it took more than|COMMAND EXECUTION TIMEOUT|command timed out",
    re.I,
)
_TIMEOUT_STEMS = ("ed out", "eout", "cancelled")
"""A text without any of these stems, in lower case, has no such notice; searching stems is much faster."""
_OPEN_FILE = re.compile(r"^\[File: (.+) \(\d+ lines total", re.MULTILINE)
_LINE_RANGE = re.compile(r"\s*(\d+)[: ](\d+)\s*$")
_LAST_LINE = 1_000_000


def is_trajectory(data: Any) -> bool:
    if not isinstance(data, Mapping):
        return False
    steps = data.get("trajectory")
    if isinstance(steps, list):
        return all(isinstance(s, Mapping) and "action" in s and "observation" in s for s in steps[:3])
    history = data.get("history")
    return (
        "trajectory" not in data
        and isinstance(history, list)
        and any(isinstance(h, Mapping) and h.get("message_type") for h in history)
    )


def read(data: Mapping[str, Any], name: str) -> RecordedRun:
    """Read a `.traj` file; a file without `trajectory` is read from its message history."""
    steps = data.get("trajectory")
    if not isinstance(steps, list):
        steps = _read_steps(to_mappings(data.get("history")))
    steps = [step for step in steps if isinstance(step, Mapping)]
    calls = []
    editor = _EditorWindow()
    first = _read_state(steps[0]) if steps else {}
    for number, step in enumerate(steps):
        action = str(step.get("action") or "")
        output = step.get("observation")
        is_last = number == len(steps) - 1
        if not action.strip():
            # A reply without an action, or a submission by the runtime.
            refused = RecordedResult(extract_text(output), refused=True)
            calls.append(
                RecordedCall(
                    extract_text(step.get("response")),
                    UNREADABLE,
                    {},
                    refused,
                    parse_usage(step.get("usage")),
                )
            )
            continue
        tool, arguments = editor.read_call(action, output if isinstance(output, str) else "")
        text = extract_text(step.get("response") or step.get("thought"))
        result = None
        if isinstance(output, str) and (output or not is_last or tool != "finish"):
            result = _read_result(tool, action, output)
        calls.append(RecordedCall(text or action, tool, arguments, result, parse_usage(step.get("usage"))))
    is_v1 = "replay_config" in data or any("execution_time" in step for step in steps)
    info = data.get("info") if isinstance(data.get("info"), Mapping) else {}
    return RecordedRun(
        id=str(data.get("instance_id") or (info or {}).get("instance_id") or name),
        format="swe-agent-1.x" if is_v1 else "swe-agent-0.x",
        calls=calls,
        task=_read_task(data),
        model=_read_model(data),
        workspace=str(first.get("working_dir") or "") or None,
        unknown_items=count_forms(_list_unknown(steps)),
    )


def _list_unknown(steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the names of calls in steps that have them only as structures, not as an action in text."""
    for step in steps:
        if not str(step.get("action") or "").strip():
            for call in to_mappings(step.get("tool_calls")):
                yield str(to_mapping(call.get("function")).get("name") or call.get("name") or "tool_calls")


def _read_result(tool: str, action: str, output: str) -> RecordedResult:
    text = output.replace("\r\n", "\n")
    is_edit = tool == "editor" and not re.match(
        r"\s*(?:open|goto|scroll|view|str_replace_editor\s+view)", action
    )
    is_refused = is_edit and (_EDITED.search(text) is None or _REFUSAL.search(text) is not None)
    is_blocked = is_refused or (tool in ("editor", "shell") and _NOT_RUN.match(text) is not None)
    return RecordedResult(
        output,
        refused=is_blocked,
        timed_out=_has_timed_out(text),
        output=text,
    )


def _has_timed_out(text: str) -> bool:
    lowered = text.lower()
    return any(stem in lowered for stem in _TIMEOUT_STEMS) and _TIMEOUT_NOTICE.search(text) is not None


class _EditorWindow:
    """Tracks the open file and the selected lines of the editor, because the recorded state is unreliable."""

    def __init__(self) -> None:
        self.open_path = ""
        self.selected_lines: tuple[str, str] | None = None

    def read_call(self, action: str, output: str) -> tuple[str, dict[str, str]]:
        opened = _OPEN_FILE.search(output)
        if opened:
            self.open_path = opened[1]
        tool, arguments = self._parse_action(action)
        if opened and arguments.get("command") in ("lines", "str_replace", "insert", "edit"):
            arguments["path"] = arguments["path"] or self.open_path
        return tool, arguments

    def _parse_action(self, action: str) -> tuple[str, dict[str, str]]:
        head, _, body = action.strip("\n").partition("\n")
        words = _split_words(head)
        verb = words[0] if words else ""
        if verb == "str_replace_editor":
            return "editor", _parse_str_replace(action)
        if verb == "edit":
            return "editor", self._parse_edit(head, body, action)
        if verb == "set_cursors" and len(words) == 3:
            self.selected_lines = (words[1], words[2])
            return "editor", {"command": "view", "path": self.open_path}
        if verb == "insert":
            all_words = _split_words(action)
            line = all_words[2] if len(all_words) > 2 and all_words[2].isdigit() else str(_LAST_LINE)
            new = all_words[1] if len(all_words) > 1 else ""
            return "editor", {"command": "insert", "path": self.open_path, "line": line, "new": new}
        if verb == "create" and len(words) == 2:
            self.open_path = words[1]
            return "editor", {"command": "create", "path": words[1], "content": ""}
        if verb == "open" and len(words) > 1:
            self.open_path = words[1]
            first = {"start": words[2]} if len(words) > 2 and words[2].isdigit() else {}
            return "editor", {"command": "view", "path": words[1], **first}
        if verb in ("goto", "scroll_up", "scroll_down"):
            return "editor", {"command": "view", "path": self.open_path}
        if verb == "undo_edit":
            return "editor", {"command": "undo", "path": self.open_path}
        if verb == "submit" or verb.startswith("exit_"):
            return "finish", {"command": action}
        return "shell", {"command": action.strip("\n")}

    def _parse_edit(self, head: str, body: str, action: str) -> dict[str, str]:
        base = {"command": "lines", "path": self.open_path}
        lines = _LINE_RANGE.match(head[len("edit") :])
        words = _split_words(head)
        if lines is None and len(words) == 3 and ":" in words[1]:
            lines = _LINE_RANGE.match(words[1])
        new = re.sub(r"\n?end_of_edit\s*$", "", body)
        if lines:
            return {**base, "start": lines[1], "end": lines[2], "new": new}
        if body and head.strip() == "edit" and self.selected_lines:
            return {**base, "start": self.selected_lines[0], "end": self.selected_lines[1], "new": new}
        if head.strip() == "edit":
            return {**base, "start": "1", "end": "1", "new": new}
        words = _split_words(action)
        if len(words) >= 3:
            return {"command": "str_replace", "path": self.open_path, "old": words[1], "new": words[2]}
        return {"command": "edit", "path": self.open_path, "new": action}


def _parse_str_replace(action: str) -> dict[str, str]:
    words = _split_words(action)[1:]
    command = words[0] if words else "view"
    arguments = {
        "command": {"undo_edit": "undo"}.get(command, command),
        "path": words[1] if len(words) > 1 else "",
    }
    names = {"--old_str": "old", "--new_str": "new", "--file_text": "content", "--insert_line": "line"}
    position = 2
    while position < len(words):
        name, joined, value = words[position].partition("=")
        if name in names:
            if not joined:
                position += 1
                value = words[position] if position < len(words) else ""
            arguments[names[name]] = value
        elif name == "--view_range" and position + 2 < len(words):
            arguments["start"], arguments["end"] = words[position + 1], words[position + 2]
            position += 2
        position += 1
    return arguments


def _split_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _read_state(step: Mapping[str, Any]) -> Mapping[str, Any]:
    state = step.get("state")
    if isinstance(state, str):
        try:
            state = parse_json(state)
        except ValueError:
            return {}
    return state if isinstance(state, Mapping) else {}


def _read_steps(history: list[Any]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for message in history:
        if not isinstance(message, Mapping) or message.get("is_demo"):
            continue
        if message.get("role") == "assistant" and message.get("action"):
            steps.append({"action": message["action"], "thought": extract_text(message.get("thought"))})
        elif steps and "observation" not in steps[-1] and message.get("role") in ("user", "tool"):
            steps[-1]["observation"] = extract_text(message.get("content"))
    return steps


def _read_task(data: Mapping[str, Any]) -> str:
    for message in to_mappings(data.get("history")):
        if message.get("role") == "user" and not message.get("is_demo"):
            return extract_text(message.get("content"))
    return ""


def _read_model(data: Mapping[str, Any]) -> str:
    config = data.get("replay_config")
    try:
        config = parse_json(config) if isinstance(config, str) else config
    except ValueError:
        return ""
    agent = config.get("agent") if isinstance(config, Mapping) else None
    model = agent.get("model") if isinstance(agent, Mapping) else None
    return str(model.get("name") or "") if isinstance(model, Mapping) else ""
