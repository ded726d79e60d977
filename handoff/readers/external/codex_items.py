"""Calls that a script of Codex makes in a sandbox: as its rows record each of them, and the first as the script spells it out.

A script is the text of a call of `exec`; `wait` waits for one that still runs. Since Codex 0.171 a row of items records each
command and each patch with its result, whatever the script prints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from langgraph_takeover.handoff.readers.external.sessions import parse_exit_code
from langgraph_takeover.handoff.readers.recorded_run import to_mapping
from langgraph_takeover.handoff.readers.tool_names import normalize_call
from langgraph_takeover.handoff.trace.action import Action

SCRIPT_TOOL, CELL_TOOL = "exec", "wait"
SCRIPT_HEADER = re.compile(
    r"Script (?:completed|failed|running with cell ID (?P<cell>\w{1,20}))\nWall time [\d.]{1,20} seconds\nOutput:\n\n?"
)
"""The first lines of a script's result."""
_NESTED_CALL = re.compile(r"\btools\.(\w{1,100})\(\s{0,20}")
_STRING = r"\"(?:[^\"\\\n]|\\.)*+\"|'(?:[^'\\\n]|\\.)*+'|`(?:[^`\\$]|\\.)*+`"
_LITERAL = re.compile(_STRING, re.S)
_PROPERTY = re.compile(
    rf"[\s{{,]{{0,40}}[\"']?(\w{{1,40}})[\"']?\s{{0,9}}:\s{{0,9}}({_STRING}|[\w.]{{1,40}})", re.S
)
_ESCAPE = re.compile(r"\\(u\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|\r?\n|.)", re.S)
_SIMPLE_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "0": "\0",
    "\n": "",
    "\r\n": "",
}
_HUNK = re.compile(r"^@@ .*@@", re.M)
_SESSION = re.compile(r"\"session_id\":\s?(\d{1,12})\b")
_MAX_SCRIPT_CHARS = 200_000


class ScriptItem(NamedTuple):
    """A call that a script made and that ended, as Codex recorded it."""

    action: Action
    output: str
    exit_code: int | None
    process_id: str = ""


def find_first_call(script: str) -> Action | None:
    """Return the first command or patch of a script; None if it has none, or does not spell it out."""
    start = _NESTED_CALL.search(script[:_MAX_SCRIPT_CHARS])
    arguments = _read_arguments(script, start) if start else None
    return Action(*normalize_call(start[1], arguments)) if start and arguments is not None else None


def find_process(result: str) -> str | None:
    """Return the id of a command, or of a script, that still runs after its call; None if none does."""
    header = SCRIPT_HEADER.match(result)
    if header and header["cell"]:
        return header["cell"]
    session = _SESSION.search(result)
    return session[1] if session else None


def read_script_items(rows: Iterable[Mapping[str, Any]], workspace: str) -> Iterator[ScriptItem]:
    """Yield the calls that scripts made, of the rows of a session."""
    for row in rows:
        item = _find_item(to_mapping(row.get("payload")), workspace)
        if item is not None:
            yield item


def _read_arguments(script: str, start: re.Match[str]) -> dict[str, Any] | None:
    if start[1] == "apply_patch":
        literal = _LITERAL.match(script, start.end())
        return {"input": _unquote(literal[0])} if literal else None
    names = {"exec_command": ("cmd", "workdir"), "write_stdin": ("session_id", "chars")}.get(start[1])
    if names is None:
        return None
    values: dict[str, str] = {}
    position = start.end()
    while found := _PROPERTY.match(script, position):
        values[found[1]], position = found[2], found.end()
    own = {name: values[name] for name in names if name in values}
    is_literal = all(value[0] in "\"'`" or value.isdigit() for value in own.values())
    if names[0] not in own or not is_literal:
        return None
    return {name: value if value.isdigit() else _unquote(value) for name, value in own.items()}


def _unquote(literal: str) -> str:
    """Return the text of a string of JavaScript."""
    text = _ESCAPE.sub(_replace_escape, literal[1:-1])
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _replace_escape(found: re.Match[str]) -> str:
    code = found[2] or found[3] or found[4]
    if code:
        number = int(code, 16)
        return chr(number) if number < 0x110000 else "\N{REPLACEMENT CHARACTER}"
    return _SIMPLE_ESCAPES.get(found[1], found[1])


def _find_item(payload: Mapping[str, Any], workspace: str) -> ScriptItem | None:
    item = to_mapping(payload.get("item"))
    if payload.get("type") != "item_completed" or not str(item.get("id")).startswith(f"{SCRIPT_TOOL}-"):
        return None
    kind, process_id = item.get("type"), str(item.get("process_id") or "")
    if kind == "CommandExecution":
        cwd = unquote(str(item.get("cwd") or "").removeprefix("file://"))
        directory = {} if cwd.rstrip("/") == workspace.rstrip("/") else {"workdir": cwd}
        command = item.get("command")
        words = [str(each) for each in command] if isinstance(command, list) else [str(command)]
        cmd = words[-1] if len(words) == 3 else words
        action = Action(*normalize_call("exec_command", {"cmd": cmd, **directory}))
        code = parse_exit_code(item.get("exit_code"))
        # Codex reports -1 for a command that it ended.
        exit_code = code if code is not None and code >= 0 else None
        return ScriptItem(action, str(item.get("aggregated_output") or ""), exit_code, process_id)
    if kind == "FileChange":
        patch = _write_patch(to_mapping(item.get("changes")), workspace)
        output = f"{item.get('stdout') or ''}{item.get('stderr') or ''}"
        code = 0 if item.get("status") == "completed" else 1
        return ScriptItem(Action(*normalize_call("apply_patch", {"input": patch})), output, code)
    if kind == "McpToolCall":
        name = f"mcp__{item.get('server')}__{item.get('tool')}"
        result = json.dumps(item.get("result"), ensure_ascii=False)
        action = Action(*normalize_call(name, to_mapping(item.get("arguments"))))
        return ScriptItem(action, result, None)
    return None


def _write_patch(changes: Mapping[str, Any], workspace: str) -> str:
    """Return the changes of files as the text of a patch."""
    lines, root = ["*** Begin Patch"], f"{workspace.rstrip('/')}/"
    for path, value in changes.items():
        change, name = to_mapping(value), str(path).removeprefix(root)
        if change.get("type") == "add":
            content = str(change.get("content") or "")
            lines += [f"*** Add File: {name}", *(f"+{each}" for each in content.splitlines())]
        elif change.get("type") == "delete":
            lines.append(f"*** Delete File: {name}")
        else:
            lines.append(f"*** Update File: {name}")
            if isinstance(moved := change.get("move_path"), str):
                lines.append(f"*** Move to: {moved.removeprefix(root)}")
            lines.append(_HUNK.sub("@@", str(change.get("unified_diff") or "")).rstrip("\n"))
    return "\n".join([*lines, "*** End Patch"])
