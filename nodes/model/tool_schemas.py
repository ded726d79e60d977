"""JSON schemas of an agent's tools, for models with native tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from langgraph_takeover.nodes.model.actions import EDITOR_COMMANDS


def build_tool_schemas(
    *, offer_handoff: bool, extra_tools: Sequence[BaseTool] = (), agents: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the schemas of all tools; `agents` are the possible targets of a handoff."""
    text = {"type": "string"}
    shell = {
        "command": {
            **text,
            "description": "A bash command. Directory and variables persist between commands.",
        }
    }
    editor = {
        "command": {"type": "string", "enum": list(EDITOR_COMMANDS)},
        "path": {**text, "description": "Relative to the repository, or absolute."},
        "content": {**text, "description": "create: the content of the new file."},
        "old": {**text, "description": "str_replace: text that occurs exactly once in the file."},
        "new": {**text, "description": "str_replace, insert: the new text."},
        "line": {"type": "integer", "description": "insert: insert after this line; 0 inserts at the top."},
        "start": {"type": "integer", "description": "view: first line."},
        "end": {"type": "integer", "description": "view: last line."},
    }
    message = {"message": {**text, "description": "What you did, and what remains to be done."}}
    tools = [
        _build_tool_schema("shell", "Run a command in a shell in the repository.", shell, ["command"]),
        _build_tool_schema("editor", "View or change a file.", editor, ["command", "path"]),
        _build_tool_schema("finish", "Finish the task, once it is done and verified.", message, []),
    ]
    if offer_handoff:
        to = {"to": {"type": "string", "enum": [*agents], "description": "The agent that continues."}}
        properties = {**message, **to} if agents else message
        tools.append(_build_tool_schema("handoff", "Let another agent continue from here.", properties, []))
    return [*tools, *map(convert_to_openai_tool, extra_tools)]


def _build_tool_schema(
    name: str, description: str, properties: dict[str, Any], required: list[str]
) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }
