"""Calls that a script of Codex makes: as its rows record each of them, or as the script spells them out.

A script is the text of a call of `exec`; `wait` waits for one that still runs. Since Codex 0.171 a row of items records each
command and each patch with its result, whatever the script prints.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from langgraph_takeover.handoff.readers.external.sessions import parse_arguments, parse_exit_code
from langgraph_takeover.handoff.readers.recorded_run import extract_text, to_mapping
from langgraph_takeover.handoff.readers.tool_names import normalize_call
from langgraph_takeover.handoff.trace.action import Action

SCRIPT_TOOL, CELL_TOOL = "exec", "wait"
SCRIPT_HEADER = re.compile(
    r"Script (?:completed|failed|running with cell ID (?P<cell>\w{1,20}))\nWall time [\d.]{1,20} seconds\nOutput:\n\n?"
)
"""The first lines of a script's result."""
_NESTED_CALL = re.compile(r"\btools\.(\w{1,100})\(\s{0,20}")
_REPETITION = re.compile(r"\b(?:for|while|function|if|switch|map|forEach)\b|=>|\?")
"""A script with one of these may make a call several times, or not at all."""
_STRING = r"\"(?:[^\"\\\n]|\\.)*+\"|'(?:[^'\\\n]|\\.)*+'|`(?:[^`\\$]|\\.)*+`"
_QUOTED = re.compile(
    r"\"(?:[^\"\\\n]|\\.)*+(?:\"|$)|'(?:[^'\\\n]|\\.)*+(?:'|$)|`(?:[^`\\]|\\.)*+(?:`|\Z)", re.S | re.M
)
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
_SCRIPT_ERROR = "Script error:\n"
_MAX_SCRIPT_CHARS = 200_000
_MAX_CALLS = 200
_Payload = tuple[str, Mapping[str, Any]]


class NestedCall(NamedTuple):
    """A call that a script makes, with the names of Codex's own tools."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def action(self) -> Action:
        return Action(*normalize_call(self.name, self.arguments))


class ScriptItem(NamedTuple):
    """A call that a script made and that ended, as Codex recorded it."""

    call: NestedCall
    output: str
    exit_code: int | None
    process_id: str = ""


def find_first_call(script: str) -> Action | None:
    """Return the first command or patch of a script; None if it has none, or does not spell it out."""
    first = next(_list_calls(script), None)
    return first.action if first else None


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


def expand_scripts(payloads: Sequence[_Payload], workspace: str) -> list[_Payload]:
    """Return the payloads of a session with direct calls in place of scripts; unknown scripts stay as they are."""
    expanded: list[_Payload] = []
    waiting: dict[str, list[tuple[int, str, str, list[ScriptItem]]]] = {}
    """By id: position of the call, its tool and script, and the recorded calls since."""
    for kind, payload in payloads:
        name, call_id = payload.get("name"), str(payload.get("call_id"))
        if kind == "response_item" and payload.get("type") in ("custom_tool_call", "function_call"):
            script = str(payload.get("input") or payload.get("arguments") or "")
            if name in (SCRIPT_TOOL, CELL_TOOL):
                waiting.setdefault(call_id, []).append((len(expanded), str(name), script, []))
        elif kind == "event_msg" and (item := _find_item(payload, workspace)):
            for *_, items in itertools.islice((each[0] for each in waiting.values() if each), 1):
                items.append(item)
        elif (
            kind == "response_item"
            and str(payload.get("type")).endswith("_call_output")
            and waiting.get(call_id)
        ):
            position, tool, script, items = waiting[call_id].pop(0)
            calls, outputs = _expand(call_id, tool, script, items, payload.get("output"))
            if calls:
                expanded[position] = ("expanded", {"calls": calls})
                expanded += [("response_item", each) for each in outputs]
                continue
        expanded.append((kind, payload))
    return [each for row in expanded for each in _flatten(row)]


def _flatten(row: _Payload) -> list[_Payload]:
    kind, payload = row
    return [("response_item", each) for each in payload["calls"]] if kind == "expanded" else [row]


def _expand(
    call_id: str, tool: str, script: str, items: Sequence[ScriptItem], output: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the direct calls of a script, and their outputs; none if they are not known."""
    text = extract_text(output)
    process, body = find_process(text), SCRIPT_HEADER.sub("", text, count=1)
    done = list(items)
    if tool == CELL_TOOL:
        cell = parse_arguments(script).get("cell_id")
        code = done[0].exit_code if len(done) == 1 else None
        done = [ScriptItem(NestedCall("write_stdin", {"session_id": cell}), body, code)]
    elif not done:
        is_straight = _REPETITION.search(_QUOTED.sub("", script[:_MAX_SCRIPT_CHARS])) is None
        spelled = list(_list_calls(script)) if is_straight else []
        if not spelled or len(spelled) < len(_NESTED_CALL.findall(script[:_MAX_SCRIPT_CHARS])):
            return [], []
        code, shown = _read_printed(body) if len(spelled) == 1 else (None, body)
        done = [ScriptItem(each, "", None) for each in spelled[:-1]]
        done.append(ScriptItem(spelled[-1], shown, code))
    elif len(done) == 1 and done[0].call.name == "exec_command" and done[0].output.strip() not in body:
        done = [done[0]._replace(output=body)]
    calls, outputs = [], []
    for number, item in enumerate(done):
        own = f"{call_id}.{number}"
        is_patch = item.call.name == "apply_patch"
        arguments = (
            {"input": item.call.arguments["input"]} if is_patch else {"arguments": item.call.arguments}
        )
        kind = "custom_tool_call" if is_patch else "function_call"
        calls.append({"type": kind, "name": item.call.name, "call_id": own, **arguments})
        is_running = process is not None and item.exit_code is None and number == len(done) - 1
        outputs.append(
            {
                "type": f"{kind}_output",
                "call_id": own,
                "output": _write_output(item, process if is_running else None),
            }
        )
    return calls, outputs


def _write_output(item: ScriptItem, process: str | None) -> str:
    """Return a result as Codex shows that of a direct call."""
    if process is not None:
        return f"Wall time: 0 seconds\nProcess running with session ID {process}\nOutput:\n{item.output}"
    _, found, error = item.output.partition(_SCRIPT_ERROR)
    shown = error if found else item.output
    return shown if item.exit_code is None else f"Exit code: {item.exit_code}\nOutput:\n{shown}"


def _read_printed(body: str) -> tuple[int | None, str]:
    """Return exit code and output of a command whose result the script prints as JSON; the text as it is otherwise."""
    for line in body.splitlines():
        if line.startswith("{") and '"output"' in line:
            result = parse_arguments(line)
            if isinstance(result.get("output"), str):
                return parse_exit_code(result.get("exit_code")), result["output"]
    return None, body


def _list_calls(script: str) -> Iterator[NestedCall]:
    """Yield the calls of a script up to the first that it does not spell out."""
    for start in itertools.islice(_NESTED_CALL.finditer(script[:_MAX_SCRIPT_CHARS]), _MAX_CALLS):
        arguments = _read_arguments(script, start)
        if arguments is None:
            return
        yield NestedCall(start[1], arguments)


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
        call = NestedCall("exec_command", {"cmd": words[-1] if len(words) == 3 else words, **directory})
        code = parse_exit_code(item.get("exit_code"))
        # Codex reports -1 for a command that it ended.
        exit_code = code if code is not None and code >= 0 else None
        return ScriptItem(call, str(item.get("aggregated_output") or ""), exit_code, process_id)
    if kind == "FileChange":
        patch = _write_patch(to_mapping(item.get("changes")), workspace)
        output = f"{item.get('stdout') or ''}{item.get('stderr') or ''}"
        code = 0 if item.get("status") == "completed" else 1
        return ScriptItem(NestedCall("apply_patch", {"input": patch}), output, code)
    if kind == "McpToolCall":
        name = f"mcp__{item.get('server')}__{item.get('tool')}"
        result = json.dumps(item.get("result"), ensure_ascii=False)
        return ScriptItem(NestedCall(name, to_mapping(item.get("arguments"))), result, None)
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
