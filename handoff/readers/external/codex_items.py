"""Calls that a script of Codex makes: as its rows record each of them, and the first one from the script itself.

A script is the text of a call of `exec`; `wait` waits for one that still runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
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
_NESTED_CALL = re.compile(r"\btools\.(exec_command|apply_patch)\(\s{0,20}")
_STRING = r"\"(?:[^\"\\\n]|\\.)*+\"|'(?:[^'\\\n]|\\.)*+'|`(?:[^`\\$]|\\.)*+`"
_PROPERTY = re.compile(
    rf"[\s{{,]{{0,40}}[\"']?(cmd|workdir|\w{{1,40}})[\"']?\s{{0,9}}:\s{{0,9}}({_STRING}|[\w.]{{1,40}})", re.S
)
_LITERAL = re.compile(_STRING, re.S)
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
    process_id: str


def find_first_call(script: str) -> Action | None:
    """Return the first command or patch of a script; None if it has none, or does not spell it out."""
    start = _NESTED_CALL.search(script[:_MAX_SCRIPT_CHARS])
    if start is None:
        return None
    if start[1] == "apply_patch":
        literal = _LITERAL.match(script, start.end())
        return Action(*normalize_call("apply_patch", {"input": _unquote(literal[0])})) if literal else None
    values: dict[str, str] = {}
    position = start.end()
    while found := _PROPERTY.match(script, position):
        values[found[1]], position = found[2], found.end()
    arguments = {name: _unquote(value) for name, value in values.items() if name in ("cmd", "workdir")}
    is_literal = "cmd" in arguments and all(values[name][0] in "\"'`" for name in arguments)
    return Action(*normalize_call("exec_command", arguments)) if is_literal else None


def _unquote(literal: str) -> str:
    """Return the text of a string of JavaScript."""
    return (
        _ESCAPE.sub(_replace_escape, literal[1:-1])
        .encode("utf-16", "surrogatepass")
        .decode("utf-16", "replace")
    )


def _replace_escape(found: re.Match[str]) -> str:
    code = found[2] or found[3] or found[4]
    if code:
        number = int(code, 16)
        return chr(number) if number < 0x110000 else "\N{REPLACEMENT CHARACTER}"
    return _SIMPLE_ESCAPES.get(found[1], found[1])


def find_process(result: str) -> str | None:
    """Return the id of a command, or of a script, that still runs after its call; None if none does."""
    header = SCRIPT_HEADER.match(result)
    if header and header["cell"]:
        return header["cell"]
    session = _SESSION.search(result)
    return session[1] if session else None


def read_script_items(rows: Iterator[Mapping[str, Any]], workspace: str) -> Iterator[ScriptItem]:
    """Yield the calls that scripts made, of the rows of a session."""
    for row in rows:
        payload = to_mapping(row.get("payload"))
        item = to_mapping(payload.get("item"))
        if payload.get("type") == "item_completed" and str(item.get("id")).startswith(f"{SCRIPT_TOOL}-"):
            found = _read_item(item, workspace)
            if found is not None:
                yield found


def _read_item(item: Mapping[str, Any], workspace: str) -> ScriptItem | None:
    kind, process_id = item.get("type"), str(item.get("process_id") or "")
    if kind == "CommandExecution":
        cwd = unquote(str(item.get("cwd") or "").removeprefix("file://"))
        directory = {} if cwd.rstrip("/") == workspace.rstrip("/") else {"workdir": cwd}
        action = Action(*normalize_call("exec_command", {"cmd": item.get("command"), **directory}))
        code = parse_exit_code(item.get("exit_code"))
        # Codex reports -1 for a command that it ended.
        exit_code = code if code is not None and code >= 0 else None
        return ScriptItem(action, str(item.get("aggregated_output") or ""), exit_code, process_id)
    if kind == "FileChange":
        patch = _write_patch(to_mapping(item.get("changes")), workspace)
        output = f"{item.get('stdout') or ''}{item.get('stderr') or ''}"
        code = 0 if item.get("status") == "completed" else 1
        return ScriptItem(Action(*normalize_call("apply_patch", {"input": patch})), output, code, process_id)
    if kind == "McpToolCall":
        name = f"mcp__{item.get('server')}__{item.get('tool')}"
        result = json.dumps(item.get("result"), ensure_ascii=False)
        return ScriptItem(
            Action(*normalize_call(name, to_mapping(item.get("arguments")))), result, None, process_id
        )
    return None


def _write_patch(changes: Mapping[str, Any], workspace: str) -> str:
    """Return the changes of files as the text of a patch."""
    lines, root = ["*** Begin Patch"], f"{workspace.rstrip('/')}/"
    for path, value in changes.items():
        change, name = to_mapping(value), str(path).removeprefix(root)
        if change.get("type") == "add":
            lines += [
                f"*** Add File: {name}",
                *(f"+{each}" for each in str(change.get("content")).splitlines()),
            ]
        elif change.get("type") == "delete":
            lines.append(f"*** Delete File: {name}")
        else:
            lines.append(f"*** Update File: {name}")
            if isinstance(moved := change.get("move_path"), str):
                lines.append(f"*** Move to: {moved.removeprefix(root)}")
            lines.append(_HUNK.sub("@@", str(change.get("unified_diff") or "")).rstrip("\n"))
    return "\n".join([*lines, "*** End Patch"])
