"""Actions of a model's reply: parsing, and corrections of unreadable replies."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.handoff.names import ActionProtocol
from langgraph_takeover.handoff.trace.events import UNREADABLE, Action, write_action
from langgraph_takeover.nodes.model.markup import (
    SHELL_LANGUAGES,
    CodeBlock,
    JsonCall,
    MalformedPiece,
    Tag,
    find_pieces,
)
from langgraph_takeover.nodes.model.message_content import (
    CUT_OFF,
    EMPTY_REPLY,
    THOUGHT_ONLY,
    has_thought,
    is_empty,
    is_truncated,
)
from langgraph_takeover.nodes.model.usage import replace_surrogates

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
BUILT_IN_TOOLS = tuple(_REQUIRED_ARGUMENTS)
"""Tools that every agent has or can have."""
RECALL_TOOL = "recall"
"""Tool that comes with a view that points to events."""
DELEGATE_TOOL = "delegate_task"
"""Tool of an agent that may delegate tasks."""
RESERVED_TOOL_NAMES = frozenset({*BUILT_IN_TOOLS, *_TOOL_ALIASES, UNREADABLE, RECALL_TOOL, DELEGATE_TOOL})
"""Names that custom tools cannot have."""


class UnreadableReply(NamedTuple):
    """A reply that is not exactly one action, and the message that tells the model what to send instead."""

    correction: str
    tool: str = UNREADABLE


def parse_call(
    call: Mapping[str, Any], *, offer_handoff: bool, extra_tools: Sequence[str] = ()
) -> Action | UnreadableReply:
    """Return the action of one native call."""
    action = _build_action(call["name"], call["args"], "native")
    if isinstance(action, UnreadableReply):
        return action
    return _validate_action(action, _list_tools(offer_handoff, extra_tools), "native")


def parse_action(
    reply: AIMessage, protocol: ActionProtocol, *, offer_handoff: bool, extra_tools: Sequence[str] = ()
) -> Action | UnreadableReply:
    """Return the one action in a model's reply; `extra_tools` names the tools beside the built-in ones."""
    if protocol == "native":
        actions = _parse_native_calls(reply) or _parse_handoff_tags(reply.text)
    else:
        actions = _parse_text_calls(reply.text)
    cut = f" Your reply was {CUT_OFF}: send a shorter one." if is_truncated(reply) else ""
    if not actions:
        what = "Your reply contains no action."
        if is_empty(reply):
            what, advice = (
                (THOUGHT_ONLY, "think less") if has_thought(reply) else (EMPTY_REPLY, "send a shorter one")
            )
            cut = f" It was {CUT_OFF}: {advice}." if is_truncated(reply) else ""
        return UnreadableReply(f"{what}{cut} {_describe_protocol(protocol)}")
    if len(actions) > 1:
        kinds = ", ".join(action.tool for action in actions[:10])
        return UnreadableReply(
            f"Your reply contains {len(actions)} actions ({kinds}); nothing was run. "
            "Send exactly one and wait for its result."
        )
    action = actions[0]
    if isinstance(action, UnreadableReply):
        return UnreadableReply(action.correction + cut)
    return _validate_action(action, _list_tools(offer_handoff, extra_tools), protocol)


def _list_tools(offer_handoff: bool, extra_tools: Sequence[str]) -> tuple[str, ...]:
    return ("shell", "editor", "finish", *(("handoff",) if offer_handoff else ()), *extra_tools)


def format_reply(reply: AIMessage) -> str:
    """Return the reply as text, including its native tool calls."""
    calls = [
        json.dumps({"name": call["name"], "arguments": call["args"]})
        for call in (*reply.tool_calls, *reply.invalid_tool_calls)
    ]
    return "\n".join(part for part in (reply.text, *calls) if part)


def _parse_native_calls(reply: AIMessage) -> list[Action | UnreadableReply]:
    invalid = [
        UnreadableReply(
            f"The arguments of your call of {call['name']} are not valid JSON; the call was not run. "
            f"Send {_describe_example(call['name'] or '', {}, 'native')}"
        )
        for call in reply.invalid_tool_calls
    ]
    return [*(_build_action(call["name"], call["args"], "native") for call in reply.tool_calls), *invalid]


def _parse_handoff_tags(text: str) -> list[Action | UnreadableReply]:
    """Return the handoff tags in the text of a reply without native calls."""
    tags = [piece for piece in find_pieces(text) if isinstance(piece, Tag) and piece.tool == "handoff"]
    return [_build_action(tag.tool, tag.arguments, "native") for tag in tags]


def _parse_text_calls(text: str) -> list[Action | UnreadableReply]:
    pieces = find_pieces(text)
    actions = [action for action in map(_parse_piece, pieces) if action is not None]
    if actions:
        return actions
    whole_text = _parse_json_call(_decode_json(text))
    if whole_text is not None:
        return [whole_text]
    corrections = [piece.correction for piece in pieces if isinstance(piece, MalformedPiece)]
    if corrections:
        return [UnreadableReply(corrections[0])]
    if any(isinstance(piece, CodeBlock) and not piece.language for piece in pieces):
        return [
            UnreadableReply(
                "Your code block has no language; nothing was run. If it is a command, open the block with ```bash."
            )
        ]
    return []


def _parse_piece(piece: CodeBlock | Tag | JsonCall | MalformedPiece) -> Action | UnreadableReply | None:
    """Return the action of a piece; None for an illustration."""
    if isinstance(piece, CodeBlock):
        if piece.language in SHELL_LANGUAGES:
            has_prompts = piece.language == "console"
            command = re.sub(r"^\$ ", "", piece.body, flags=re.MULTILINE) if has_prompts else piece.body
            return Action("shell", {"command": command})
        may_call = piece.language in ("json", "tool_call", "") and piece.body.lstrip().startswith("{")
        return _parse_json_call(_decode_json(piece.body)) if may_call else None
    if isinstance(piece, Tag):
        return _build_action(piece.tool, piece.arguments, "text")
    if isinstance(piece, JsonCall):
        return _parse_json_call(piece.value) or UnreadableReply(
            "Your tool call is not a JSON object with a name and arguments; it was not run. "
            'Send {"name": "shell", "arguments": {"command": "…"}}.'
        )
    return None


def _decode_json(text: str) -> Any:
    try:
        # An escape in the text may have become a lone surrogate.
        return replace_surrogates(parse_json(text, strict=False))
    except ValueError:
        return None


def _parse_json_call(call: Any) -> Action | UnreadableReply | None:
    if not isinstance(call, dict):
        return None
    if isinstance(call.get("function"), dict):
        call = call["function"]
    name = call.get("name") or call.get("tool") or call.get("function")
    value = next((call[key] for key in ("arguments", "args", "parameters", "input") if key in call), None)
    arguments = _decode_json(value) if isinstance(value, str) else value
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
                f"The {tool}'s {key} must be text, not a {type(value).__name__}; the action was not run. "
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
            "You have no tool 'handoff', so no other agent takes over; continue yourself. "
            f"Your tools: {', '.join(tools)}."
        )
    if tool not in tools:
        return UnreadableReply(
            f"You have no tool {tool[:100]!r}. Your tools: {', '.join(tools)}. {_describe_protocol(protocol)}"
        )
    if tool not in BUILT_IN_TOOLS:
        return action
    command = arguments.get("command", "")
    advice = f"Send {_describe_example(tool, arguments, protocol)}"
    if tool == "editor" and "command" in arguments and command not in EDITOR_COMMANDS:
        return UnreadableReply(
            f"The editor has no command {command[:100]!r}. Its commands: {', '.join(EDITOR_COMMANDS)}. {advice}"
        )
    missing = [name for name in _list_required_arguments(tool, arguments) if name not in arguments]
    if missing:
        return UnreadableReply(f"Your {tool} action lacks {' and '.join(missing)}; it was not run. {advice}")
    unknown = [
        name[:100]
        for name in arguments
        if name not in (*_REQUIRED_ARGUMENTS[tool], *_OPTIONAL_ARGUMENTS[tool])
    ]
    if unknown:
        return UnreadableReply(
            f"The tool {tool} takes no {' or '.join(unknown)}; the action was not run. {advice}"
        )
    for name in ("line", "start", "end"):
        if name in arguments and not re.fullmatch(r"[0-9]{1,9}", arguments[name]):
            return UnreadableReply(
                f"The editor's {name} must be a line number such as 12, not {arguments[name][:100]!r}; "
                "the action was not run."
            )
    if tool == "shell" and not command.strip():
        return UnreadableReply(f"Your command is empty; nothing was run. {advice}")
    return action


def _list_required_arguments(tool: str, arguments: Mapping[str, str]) -> tuple[str, ...]:
    by_command = EDITOR_COMMANDS.get(arguments.get("command", ""), ()) if tool == "editor" else ()
    return (*_REQUIRED_ARGUMENTS.get(tool, ()), *by_command)


def _describe_example(tool: str, arguments: Mapping[str, str], protocol: ActionProtocol) -> str:
    """Return an example of a correct action."""
    example = {name: "12" if name == "line" else "…" for name in _list_required_arguments(tool, arguments)}
    if tool == "editor":
        command = arguments.get("command")
        example["command"] = command if command in EDITOR_COMMANDS else "view"
    if protocol == "native":
        return f"one call of {tool} with the arguments {json.dumps(example, ensure_ascii=False)}."
    return (
        write_action(Action(tool, example)) if tool in _REQUIRED_ARGUMENTS else _describe_protocol(protocol)
    )


def _describe_protocol(protocol: ActionProtocol) -> str:
    if protocol == "native":
        return "Answer with exactly one tool call."
    return "Send exactly one: a ```bash block, an <editor …> tag, or <finish>…</finish>."
