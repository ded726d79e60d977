"""How a model's reply is read as exactly one action, and what it is told when it cannot be."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from handoff.action import Action, Protocol, write_action
from handoff.event import UNREADABLE
from nodes.encodable import encodable
from nodes.markup import SHELL_LANGUAGES, Broken, Call, Fence, Tag, pieces

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
    "handoff": ("message", "to"),
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
_JSON = json.JSONDecoder(strict=False)


BUILT_IN = tuple(_REQUIRED)
"""The tools that every agent has, or can have."""
RECALL = "recall"
"""The tool that a view with pointers comes with."""
DELEGATE = "delegate_task"
"""The tool of an agent that may hand tasks to others."""
RESERVED = frozenset({*BUILT_IN, *_ALIASES, UNREADABLE, RECALL, DELEGATE})
"""The names that a further tool cannot have."""


class Unreadable(NamedTuple):
    """A reply that is not exactly one action, and the message that says what to send instead."""

    correction: str
    tool: str = UNREADABLE


def read_action(
    reply: AIMessage, protocol: Protocol, *, offer_handoff: bool, others: Sequence[str] = ()
) -> Action | Unreadable:
    """The one action in a model's reply; `others` are the names of tools beside the built-in ones."""
    native = protocol == "native"
    found = (_native_calls(reply) or _marked(reply.text)) if native else _textual_calls(reply.text)
    tools = ("shell", "editor", "finish", *(("handoff",) if offer_handoff else ()), *others)
    cut = " Your reply was cut off at its length limit: send a shorter one." if was_cut(reply) else ""
    if not found:
        return Unreadable(f"Your reply holds no action.{cut} {_how(protocol)}")
    if len(found) > 1:
        kinds = ", ".join(action.tool for action in found[:10])
        return Unreadable(
            f"Your reply holds {len(found)} actions ({kinds}); nothing was run. Send exactly one and wait for its result."
        )
    action = found[0]
    if isinstance(action, Unreadable):
        return Unreadable(action.correction + cut)
    return _checked(action, tools, protocol)


def was_cut(reply: AIMessage) -> bool:
    return reply.response_metadata.get("finish_reason") == "length"


def native_tools(
    *, offer_handoff: bool, others: Sequence[BaseTool] = (), agents: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The tools as JSON schemas, for models that are given provider-native tool calls.

    `agents` are those whom a handoff can name.
    """
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
        to = {"to": {"type": "string", "enum": [*agents], "description": "Who is to continue."}}
        named = {**message, **to} if agents else message
        tools.append(_schema("handoff", "Let another agent continue from here.", named, []))
    return [*tools, *map(convert_to_openai_tool, others)]


def _schema(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def _native_calls(reply: AIMessage) -> list[Action | Unreadable]:
    broken = [
        Unreadable(
            f"The arguments of your call of {call['name']} are not valid JSON, so nothing was done. "
            f"Send {_example(call['name'] or '', {}, 'native')}"
        )
        for call in reply.invalid_tool_calls
    ]
    return [*(_action(call["name"], call["args"], "native") for call in reply.tool_calls), *broken]


def _marked(text: str) -> list[Action | Unreadable]:
    """The handoffs that a reply without calls asks for in its text."""
    tags = [part for part in pieces(text) if isinstance(part, Tag) and part.tool == "handoff"]
    return [_action(tag.tool, tag.arguments, "native") for tag in tags]


def _textual_calls(text: str) -> list[Action | Unreadable]:
    parts = pieces(text)
    found = [action for action in map(_meant, parts) if action is not None]
    if found:
        return found
    whole = _json_call(_json(text))
    if whole is not None:
        return [whole]
    broken = [part.correction for part in parts if isinstance(part, Broken)]
    if broken:
        return [Unreadable(broken[0])]
    if any(isinstance(part, Fence) and not part.language for part in parts):
        return [
            Unreadable(
                "Your code block has no language, so nothing was run. If it is a command, open it with ```bash."
            )
        ]
    return []


def _meant(part: Fence | Tag | Call | Broken) -> Action | Unreadable | None:
    """The action that a piece of a reply stands for; None for an illustration."""
    if isinstance(part, Fence):
        if part.language in SHELL_LANGUAGES:
            prompted = part.language == "console"
            command = re.sub(r"^\$ ", "", part.body, flags=re.MULTILINE) if prompted else part.body
            return Action("shell", {"command": command})
        may_call = part.language in ("json", "tool_call", "") and part.body.lstrip().startswith("{")
        return _json_call(_json(part.body)) if may_call else None
    if isinstance(part, Tag):
        return _action(part.tool, part.arguments, "text")
    if isinstance(part, Call):
        return _json_call(part.value) or Unreadable(
            "Your tool call is not a JSON object with a name and arguments, so nothing was done. "
            'Send {"name": "shell", "arguments": {"command": "…"}}.'
        )
    return None


def _json(text: str) -> Any:
    try:
        # What was an escape in the text may be half a pair only now.
        return encodable(_JSON.decode(text))
    except (ValueError, RecursionError):
        return None


def _json_call(call: Any) -> Action | Unreadable | None:
    if not isinstance(call, dict):
        return None
    if isinstance(call.get("function"), dict):
        call = call["function"]
    name = call.get("name") or call.get("tool") or call.get("function")
    given = next((call[key] for key in ("arguments", "args", "parameters", "input") if key in call), None)
    arguments = _json(given) if isinstance(given, str) else given
    if not isinstance(name, str) or not isinstance(arguments, dict | None):
        return None
    if arguments is None and _ALIASES.get(name, name) not in _REQUIRED:
        return None  # any JSON object may have a name
    return _action(name, arguments or {}, "text")


def _action(name: str, arguments: Mapping[str, Any], protocol: Protocol) -> Action | Unreadable:
    tool = _ALIASES.get(name, name)
    if tool not in BUILT_IN:
        return Action(tool, {"arguments": json.dumps(arguments)})
    texts = {}
    for key, value in arguments.items():
        if isinstance(value, list | dict):
            return Unreadable(
                f"The {tool}'s {key} must be text, not a {type(value).__name__}; nothing was done. "
                f"Send {_example(tool, {}, protocol)}"
            )
        if value is not None:
            texts[_FIELDS.get(key, key)] = value if isinstance(value, str) else json.dumps(value)
    return Action(tool, texts)


def _checked(action: Action, tools: tuple[str, ...], protocol: Protocol) -> Action | Unreadable:
    tool, arguments = action
    if tool == "handoff" and tool not in tools:
        return Unreadable(
            f"There is no tool 'handoff' here, so nobody takes over; go on yourself. There are {', '.join(tools)}."
        )
    if tool not in tools:
        return Unreadable(f"There is no tool {tool[:100]!r}; there are {', '.join(tools)}. {_how(protocol)}")
    if tool not in BUILT_IN:
        return action
    command = arguments.get("command", "")
    instead = f"Send {_example(tool, arguments, protocol)}"
    if tool == "editor" and "command" in arguments and command not in EDITOR_COMMANDS:
        return Unreadable(
            f"The editor has no command {command[:100]!r}; it has {', '.join(EDITOR_COMMANDS)}. {instead}"
        )
    missing = [name for name in _needed(tool, arguments) if name not in arguments]
    if missing:
        return Unreadable(f"Your {tool} action lacks {' and '.join(missing)}; nothing was done. {instead}")
    unknown = [name[:100] for name in arguments if name not in (*_REQUIRED[tool], *_OPTIONAL[tool])]
    if unknown:
        return Unreadable(f"The {tool} takes no {' or '.join(unknown)}; nothing was done. {instead}")
    for name in ("line", "start", "end"):
        if name in arguments and not re.fullmatch(r"[0-9]{1,9}", arguments[name]):
            return Unreadable(
                f"The editor's {name} must be a line number such as 12, not {arguments[name][:100]!r}; nothing was done."
            )
    if tool == "shell" and not command.strip():
        return Unreadable(f"Your command is empty; nothing was run. {instead}")
    return action


def _needed(tool: str, arguments: Mapping[str, str]) -> tuple[str, ...]:
    by_command = EDITOR_COMMANDS.get(arguments.get("command", ""), ()) if tool == "editor" else ()
    return (*_REQUIRED.get(tool, ()), *by_command)


def _example(tool: str, arguments: Mapping[str, str], protocol: Protocol) -> str:
    """What an action of that sort looks like."""
    shown = {name: "12" if name == "line" else "…" for name in _needed(tool, arguments)}
    if tool == "editor":
        command = arguments.get("command")
        shown["command"] = command if command in EDITOR_COMMANDS else "view"
    if protocol == "native":
        return f"one call of {tool} with the arguments {json.dumps(shown, ensure_ascii=False)}."
    return write_action(Action(tool, shown)) if tool in _REQUIRED else _how(protocol)


def _how(protocol: Protocol) -> str:
    if protocol == "native":
        return "Answer with exactly one tool call."
    return "Send exactly one: a ```bash block, an <editor …> tag, or <finish>…</finish>."
