"""How a model's reply is read as exactly one action, and what it is told when it cannot be."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from langgraph_takeover.handoff.trace.action import Action, ActionProtocol, write_action
from langgraph_takeover.handoff.trace.events import UNREADABLE
from langgraph_takeover.nodes.model.encoding import replace_surrogates
from langgraph_takeover.nodes.model.markup import (
    SHELL_LANGUAGES,
    CodeBlock,
    JsonCall,
    MalformedPiece,
    Tag,
    find_pieces,
)

EDITOR_COMMANDS = {
    "view": (),
    "create": ("content",),
    "str_replace": ("old", "new"),
    "insert": ("line", "new"),
    "undo": (),
}
_REQUIRED_ARGUMENTS = {"shell": ("command",), "editor": ("command", "path"), "handoff": (), "finish": ()}
_OPTIONAL_ARGUMENTS = {
    "shell": (),
    "editor": ("content", "old", "new", "line", "start", "end"),
    "handoff": ("message", "to"),
    "finish": ("message",),
}
_TOOL_ALIASES = {
    "bash": "shell",
    "sh": "shell",
    "execute_bash": "shell",
    "str_replace_editor": "editor",
    "submit": "finish",
}
_ARGUMENT_ALIASES = {
    "cmd": "command",
    "file_text": "content",
    "old_str": "old",
    "new_str": "new",
    "insert_line": "line",
    "insert_text": "new",
}
_JSON_DECODER = json.JSONDecoder(strict=False)


BUILT_IN_TOOLS = tuple(_REQUIRED_ARGUMENTS)
"""The tools that every agent has, or can have."""
RECALL_TOOL = "recall"
"""The tool that a view with pointers comes with."""
DELEGATE_TOOL = "delegate_task"
"""The tool of an agent that may hand tasks to others."""
RESERVED_TOOL_NAMES = frozenset({*BUILT_IN_TOOLS, *_TOOL_ALIASES, UNREADABLE, RECALL_TOOL, DELEGATE_TOOL})
"""The names that a further tool cannot have."""


class UnreadableReply(NamedTuple):
    """A reply that is not exactly one action, and the message that says what to send instead."""

    correction: str
    tool: str = UNREADABLE


def parse_action(
    reply: AIMessage, protocol: ActionProtocol, *, offer_handoff: bool, extra_tools: Sequence[str] = ()
) -> Action | UnreadableReply:
    """The one action in a model's reply; `others` are the names of tools beside the built-in ones."""
    native = protocol == "native"
    found = (
        (_parse_native_calls(reply) or _parse_handoff_tags(reply.text))
        if native
        else _parse_text_calls(reply.text)
    )
    tools = ("shell", "editor", "finish", *(("handoff",) if offer_handoff else ()), *extra_tools)
    cut = " Your reply was cut off at its length limit: send a shorter one." if is_truncated(reply) else ""
    if not found:
        return UnreadableReply(f"Your reply holds no action.{cut} {_describe_protocol(protocol)}")
    if len(found) > 1:
        kinds = ", ".join(action.tool for action in found[:10])
        return UnreadableReply(
            f"Your reply holds {len(found)} actions ({kinds}); nothing was run. Send exactly one and wait for its result."
        )
    action = found[0]
    if isinstance(action, UnreadableReply):
        return UnreadableReply(action.correction + cut)
    return _validate_action(action, tools, protocol)


def is_truncated(reply: AIMessage) -> bool:
    return reply.response_metadata.get("finish_reason") == "length"


def build_tool_schemas(
    *, offer_handoff: bool, extra_tools: Sequence[BaseTool] = (), agents: Sequence[str] = ()
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
        _build_tool_schema("shell", "Run a command in the repository's shell.", shell, ["command"]),
        _build_tool_schema("editor", "View or change a file.", editor, ["command", "path"]),
        _build_tool_schema("finish", "The task is done and verified.", message, []),
    ]
    if offer_handoff:
        to = {"to": {"type": "string", "enum": [*agents], "description": "Who is to continue."}}
        named = {**message, **to} if agents else message
        tools.append(_build_tool_schema("handoff", "Let another agent continue from here.", named, []))
    return [*tools, *map(convert_to_openai_tool, extra_tools)]


def _build_tool_schema(
    name: str, description: str, properties: dict[str, Any], required: list[str]
) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def _parse_native_calls(reply: AIMessage) -> list[Action | UnreadableReply]:
    broken = [
        UnreadableReply(
            f"The arguments of your call of {call['name']} are not valid JSON, so nothing was done. "
            f"Send {_describe_example(call['name'] or '', {}, 'native')}"
        )
        for call in reply.invalid_tool_calls
    ]
    return [*(_build_action(call["name"], call["args"], "native") for call in reply.tool_calls), *broken]


def _parse_handoff_tags(text: str) -> list[Action | UnreadableReply]:
    """The handoffs that a reply without calls asks for in its text."""
    tags = [part for part in find_pieces(text) if isinstance(part, Tag) and part.tool == "handoff"]
    return [_build_action(tag.tool, tag.arguments, "native") for tag in tags]


def _parse_text_calls(text: str) -> list[Action | UnreadableReply]:
    parts = find_pieces(text)
    found = [action for action in map(_parse_piece, parts) if action is not None]
    if found:
        return found
    whole = _parse_json_call(_decode_json(text))
    if whole is not None:
        return [whole]
    broken = [part.correction for part in parts if isinstance(part, MalformedPiece)]
    if broken:
        return [UnreadableReply(broken[0])]
    if any(isinstance(part, CodeBlock) and not part.language for part in parts):
        return [
            UnreadableReply(
                "Your code block has no language, so nothing was run. If it is a command, open it with ```bash."
            )
        ]
    return []


def _parse_piece(piece: CodeBlock | Tag | JsonCall | MalformedPiece) -> Action | UnreadableReply | None:
    """The action that a piece of a reply stands for; None for an illustration."""
    if isinstance(piece, CodeBlock):
        if piece.language in SHELL_LANGUAGES:
            prompted = piece.language == "console"
            command = re.sub(r"^\$ ", "", piece.body, flags=re.MULTILINE) if prompted else piece.body
            return Action("shell", {"command": command})
        may_call = piece.language in ("json", "tool_call", "") and piece.body.lstrip().startswith("{")
        return _parse_json_call(_decode_json(piece.body)) if may_call else None
    if isinstance(piece, Tag):
        return _build_action(piece.tool, piece.arguments, "text")
    if isinstance(piece, JsonCall):
        return _parse_json_call(piece.value) or UnreadableReply(
            "Your tool call is not a JSON object with a name and arguments, so nothing was done. "
            'Send {"name": "shell", "arguments": {"command": "…"}}.'
        )
    return None


def _decode_json(text: str) -> Any:
    try:
        # What was an escape in the text may be half a pair only now.
        return replace_surrogates(_JSON_DECODER.decode(text))
    except (ValueError, RecursionError):
        return None


def _parse_json_call(call: Any) -> Action | UnreadableReply | None:
    if not isinstance(call, dict):
        return None
    if isinstance(call.get("function"), dict):
        call = call["function"]
    name = call.get("name") or call.get("tool") or call.get("function")
    given = next((call[key] for key in ("arguments", "args", "parameters", "input") if key in call), None)
    arguments = _decode_json(given) if isinstance(given, str) else given
    if not isinstance(name, str) or not isinstance(arguments, dict | None):
        return None
    if arguments is None and _TOOL_ALIASES.get(name, name) not in _REQUIRED_ARGUMENTS:
        return None  # any JSON object may have a name
    return _build_action(name, arguments or {}, "text")


def _build_action(
    name: str, arguments: Mapping[str, Any], protocol: ActionProtocol
) -> Action | UnreadableReply:
    tool = _TOOL_ALIASES.get(name, name)
    if tool not in BUILT_IN_TOOLS:
        return Action(tool, {"arguments": json.dumps(arguments)})
    texts = {}
    for key, value in arguments.items():
        if isinstance(value, list | dict):
            return UnreadableReply(
                f"The {tool}'s {key} must be text, not a {type(value).__name__}; nothing was done. "
                f"Send {_describe_example(tool, {}, protocol)}"
            )
        if value is not None:
            texts[_ARGUMENT_ALIASES.get(key, key)] = value if isinstance(value, str) else json.dumps(value)
    return Action(tool, texts)


def _validate_action(
    action: Action, tools: tuple[str, ...], protocol: ActionProtocol
) -> Action | UnreadableReply:
    tool, arguments = action
    if tool == "handoff" and tool not in tools:
        return UnreadableReply(
            f"There is no tool 'handoff' here, so nobody takes over; go on yourself. There are {', '.join(tools)}."
        )
    if tool not in tools:
        return UnreadableReply(
            f"There is no tool {tool[:100]!r}; there are {', '.join(tools)}. {_describe_protocol(protocol)}"
        )
    if tool not in BUILT_IN_TOOLS:
        return action
    command = arguments.get("command", "")
    instead = f"Send {_describe_example(tool, arguments, protocol)}"
    if tool == "editor" and "command" in arguments and command not in EDITOR_COMMANDS:
        return UnreadableReply(
            f"The editor has no command {command[:100]!r}; it has {', '.join(EDITOR_COMMANDS)}. {instead}"
        )
    missing = [name for name in _list_required_arguments(tool, arguments) if name not in arguments]
    if missing:
        return UnreadableReply(
            f"Your {tool} action lacks {' and '.join(missing)}; nothing was done. {instead}"
        )
    unknown = [
        name[:100]
        for name in arguments
        if name not in (*_REQUIRED_ARGUMENTS[tool], *_OPTIONAL_ARGUMENTS[tool])
    ]
    if unknown:
        return UnreadableReply(f"The {tool} takes no {' or '.join(unknown)}; nothing was done. {instead}")
    for name in ("line", "start", "end"):
        if name in arguments and not re.fullmatch(r"[0-9]{1,9}", arguments[name]):
            return UnreadableReply(
                f"The editor's {name} must be a line number such as 12, not {arguments[name][:100]!r}; nothing was done."
            )
    if tool == "shell" and not command.strip():
        return UnreadableReply(f"Your command is empty; nothing was run. {instead}")
    return action


def _list_required_arguments(tool: str, arguments: Mapping[str, str]) -> tuple[str, ...]:
    by_command = EDITOR_COMMANDS.get(arguments.get("command", ""), ()) if tool == "editor" else ()
    return (*_REQUIRED_ARGUMENTS.get(tool, ()), *by_command)


def _describe_example(tool: str, arguments: Mapping[str, str], protocol: ActionProtocol) -> str:
    """What an action of that sort looks like."""
    shown = {name: "12" if name == "line" else "…" for name in _list_required_arguments(tool, arguments)}
    if tool == "editor":
        command = arguments.get("command")
        shown["command"] = command if command in EDITOR_COMMANDS else "view"
    if protocol == "native":
        return f"one call of {tool} with the arguments {json.dumps(shown, ensure_ascii=False)}."
    return write_action(Action(tool, shown)) if tool in _REQUIRED_ARGUMENTS else _describe_protocol(protocol)


def _describe_protocol(protocol: ActionProtocol) -> str:
    if protocol == "native":
        return "Answer with exactly one tool call."
    return "Send exactly one: a ```bash block, an <editor …> tag, or <finish>…</finish>."
