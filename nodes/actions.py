"""How a model's reply is read as exactly one action, and what it is told when it cannot be."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from langchain_core.messages import AIMessage

from handoff.event import UNREADABLE

Protocol = Literal["text", "native"]

EDITOR_COMMANDS = {
    "view": (),
    "create": ("content",),
    "str_replace": ("old", "new"),
    "insert": ("line", "new"),
    "undo": (),
}
_REQUIRED = {"shell": ("command",), "editor": ("command", "path"), "handoff": (), "finish": ()}
_OPTIONAL = {
    "shell": (),
    "editor": ("content", "old", "new", "line", "start", "end"),
    "handoff": ("message",),
    "finish": ("message",),
}
_ALIASES = {
    "bash": "shell",
    "sh": "shell",
    "execute_bash": "shell",
    "str_replace_editor": "editor",
    "submit": "finish",
}
_FIELDS = {
    "cmd": "command",
    "file_text": "content",
    "old_str": "old",
    "new_str": "new",
    "insert_line": "line",
    "insert_text": "new",
}

_THINKING = re.compile(r"<(think|thinking)>.*?(</\1>|\Z)", re.DOTALL)
_SHELL_FENCE = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w.+-]*)[^\n`]*\n(?P<body>.*?)^[ \t]*(?P=fence)[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
_SHELL_LANGUAGES = {"bash", "sh", "shell", "console", "zsh"}
_TAG = re.compile(
    r"<(?P<tool>editor|handoff|finish)\b(?P<attributes>[^>]*?)(?:/>|>(?P<body>.*?)</(?P=tool)>)", re.DOTALL
)
_ATTRIBUTE = re.compile(r"(\w+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
_PART = re.compile(r"<(old|new|content)>(.*?)</\1>", re.DOTALL)
_CALL_TAG = re.compile(r"<(tool_call|function_call)>\s*(.*?)\s*(?:</\1>|\Z)", re.DOTALL)


class Action(NamedTuple):
    """One readable action: a tool and its arguments, all of them text."""

    tool: str
    arguments: dict[str, str]


class Unreadable(NamedTuple):
    """A reply that is not exactly one action, and the message that says what to send instead."""

    correction: str
    tool: str = UNREADABLE


def read_action(reply: AIMessage, protocol: Protocol, *, offer_handoff: bool) -> Action | Unreadable:
    """The one action in a model's reply."""
    found = _native_calls(reply) if protocol == "native" else _textual_calls(reply.text)
    tools = ("shell", "editor", "finish", *(("handoff",) if offer_handoff else ()))
    if isinstance(found, Unreadable):
        return found
    if not found:
        cut = " Your reply was cut off at its length limit." if was_cut(reply) else ""
        return Unreadable(f"Your reply holds no action.{cut} {_how(protocol)}")
    if len(found) > 1:
        kinds = ", ".join(action.tool for action in found)
        return Unreadable(
            f"Your reply holds {len(found)} actions ({kinds}); nothing was run. Send exactly one and wait for its result."
        )
    return _checked(found[0], tools, protocol)


def was_cut(reply: AIMessage) -> bool:
    return reply.response_metadata.get("finish_reason") == "length"


def native_tools(*, offer_handoff: bool) -> list[dict[str, Any]]:
    """The tools as JSON schemas, for models that are given provider-native tool calls."""
    text = {"type": "string"}
    shell = {"command": {**text, "description": "A bash command. Directory and variables last."}}
    editor = {
        "command": {"type": "string", "enum": list(EDITOR_COMMANDS)},
        "path": {**text, "description": "Relative to the repository, or absolute."},
        "content": {**text, "description": "create: the whole new file."},
        "old": {**text, "description": "str_replace: text that stands exactly once in the file."},
        "new": {**text, "description": "str_replace, insert: the new text."},
        "line": {"type": "integer", "description": "insert: after this line; 0 is the top."},
        "start": {"type": "integer", "description": "view: first line."},
        "end": {"type": "integer", "description": "view: last line."},
    }
    message = {"message": {**text, "description": "What you did, and what is left."}}
    tools = [
        _schema("shell", "Run a command in the repository's shell.", shell, ["command"]),
        _schema("editor", "View or change a file.", editor, ["command", "path"]),
        _schema("finish", "The task is done and verified.", message, []),
    ]
    if offer_handoff:
        tools.append(_schema("handoff", "Let another agent continue from here.", message, []))
    return tools


def _schema(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def _native_calls(reply: AIMessage) -> list[Action] | Unreadable:
    if reply.invalid_tool_calls:
        call = reply.invalid_tool_calls[0]
        return Unreadable(f"The arguments of your call of {call['name']} are not valid JSON: {call['error']}")
    return [_action(call["name"], call["args"]) for call in reply.tool_calls]


def _textual_calls(text: str) -> list[Action] | Unreadable:
    text = _THINKING.sub("", text)
    found: list[Action] = []
    rest = []
    end = 0
    for match in _TAG.finditer(text):
        if _inside_fence(text, match.start()):
            continue
        arguments = {
            name: double or single for name, double, single in _ATTRIBUTE.findall(match["attributes"])
        }
        body = match["body"] or ""
        if match["tool"] == "editor":
            arguments |= {name: _unpadded(part) for name, part in _PART.findall(body)}
        elif body.strip():
            arguments["message"] = body.strip()
        found.append(_action(match["tool"], arguments))
        rest.append(text[end : match.start()])
        end = match.end()
    outside = "".join([*rest, text[end:]])
    for match in _SHELL_FENCE.finditer(outside):
        body = match["body"].rstrip("\n")
        language = match["language"].lower()
        if language in _SHELL_LANGUAGES:
            found.append(Action("shell", {"command": body}))
        elif language in ("json", "tool_call", "") and (call := _json_call(body)) is not None:
            found.append(call)
    for match in _CALL_TAG.finditer(_SHELL_FENCE.sub("", outside)):
        call = _json_call(match[2])
        if call is None:
            return Unreadable(
                f"What stands between your <{match[1]}> tags is not a JSON object with name and arguments."
            )
        found.append(call)
    if found:
        return found
    unfinished = re.search(r"^[ \t]*(`{3,}|~{3,})[ \t]*(bash|sh|shell)[ \t]*\n", outside, re.MULTILINE)
    if unfinished:
        return Unreadable(
            f"Your {unfinished[2]} block is never closed, so nothing was run. End it with a line {unfinished[1]}"
        )
    if re.search(r"<(editor|handoff|finish)\b", outside):
        return Unreadable("Your action's tag is never closed, so nothing was run. " + _how("text"))
    return found


def _inside_fence(text: str, position: int) -> bool:
    return any(
        match.start() < position < match.end() and match["language"].lower() in _SHELL_LANGUAGES
        for match in _SHELL_FENCE.finditer(text)
    )


def _unpadded(part: str) -> str:
    """Text between tags without the line breaks that only set the tags apart."""
    part = part.removeprefix("\r").removeprefix("\n")
    return part[:-1] if part.endswith("\n") else part


def _json_call(text: str) -> Action | None:
    try:
        call = json.loads(text)
    except ValueError:
        return None
    if not isinstance(call, dict):
        return None
    name = call.get("name") or call.get("tool") or call.get("function")
    arguments: object = next(
        (call[key] for key in ("arguments", "args", "parameters", "input") if key in call), {}
    )
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return _action(name, arguments)


def _action(name: str, arguments: Mapping[str, Any]) -> Action:
    texts = {
        _FIELDS.get(key, key): value if isinstance(value, str) else json.dumps(value)
        for key, value in arguments.items()
        if value is not None
    }
    return Action(_ALIASES.get(name, name), texts)


def _checked(action: Action, tools: tuple[str, ...], protocol: Protocol) -> Action | Unreadable:
    tool, arguments = action
    if tool not in tools:
        return Unreadable(f"There is no tool {tool!r}; there are {', '.join(tools)}. {_how(protocol)}")
    required = list(_REQUIRED[tool])
    if tool == "editor" and arguments.get("command") in EDITOR_COMMANDS:
        required += EDITOR_COMMANDS[arguments["command"]]
    missing = [name for name in required if name not in arguments]
    if missing:
        return Unreadable(f"Your {tool} action lacks {' and '.join(missing)}; nothing was done.")
    unknown = [name for name in arguments if name not in (*_REQUIRED[tool], *_OPTIONAL[tool])]
    if unknown:
        return Unreadable(f"The {tool} takes no {' or '.join(unknown)}; nothing was done.")
    if tool == "editor" and arguments["command"] not in EDITOR_COMMANDS:
        return Unreadable(
            f"The editor has no command {arguments['command']!r}; it has {', '.join(EDITOR_COMMANDS)}."
        )
    for name in ("line", "start", "end"):
        if name in arguments and not re.fullmatch(r"\d+", arguments[name]):
            return Unreadable(
                f"The editor's {name} must be a line number, not {arguments[name]!r}; nothing was done."
            )
    if tool == "shell" and not arguments["command"].strip():
        return Unreadable("Your command is empty; nothing was run.")
    return action


def _how(protocol: Protocol) -> str:
    if protocol == "native":
        return "Answer with exactly one tool call."
    return "Send exactly one: a ```bash block, an <editor …> tag, or <finish>…</finish>."


def write_action(action: Action) -> str:
    """The text that `read_action` reads as this action."""
    tool, arguments = action
    if tool == "shell":
        body = arguments["command"]
        fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`{3,}", body)), 3)
        return f"{fence}bash\n{body}\n{fence}"
    if tool == "editor":
        attributes = "".join(
            f' {name}="{value}"' for name, value in arguments.items() if name not in ("old", "new", "content")
        )
        parts = "".join(
            f"<{name}>\n{arguments[name]}\n</{name}>\n"
            for name in ("old", "new", "content")
            if name in arguments
        )
        return f"<editor{attributes}>\n{parts}</editor>" if parts else f"<editor{attributes}/>"
    return f"<{tool}>{arguments.get('message', '')}</{tool}>"
