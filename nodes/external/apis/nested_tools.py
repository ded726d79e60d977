"""Codex's tools behind `exec`, which runs scripts that call them, as tools of their own.

Codex also executes a direct call of such a tool, and then shows its exit code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

SCRIPT_TOOL = "exec"
_CELL_TOOL = "wait"
"""It waits for a script."""
_NAMESPACE = "functions"
"""The namespace whose tools are called by their names alone."""
_DECLARATION = re.compile(r"^### `(\w{1,100})`\s*$", re.M)
_PATCH_FORMAT = """\
Edit files with a patch in this form, without a code fence:
*** Begin Patch
*** Update File: src/a.py
@@ def total(prices):
 an unchanged line
-a removed line
+an added line
*** Add File: src/b.py
+a line of the new file
*** Delete File: src/c.py
*** End Patch
Paths are relative. Show three unchanged lines around each change; `@@` names the function or class that holds it."""
_INTEGER, _STRING = {"type": "integer"}, {"type": "string"}
_LIMITS: dict[str, dict[str, Any]] = {
    "yield_time_ms": {**_INTEGER, "description": "Wait so long for output, at most 30000."},
    "max_output_tokens": {**_INTEGER, "description": "Tokens of output to return; 10000 by default."},
}
_FUNCTIONS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "exec_command": (
        "Run a shell command. Returns its output with its exit code, or with a session ID if it still runs.",
        {
            "cmd": {**_STRING, "description": "Shell command."},
            "workdir": {**_STRING, "description": "Directory; the repository by default."},
            **_LIMITS,
        },
        ["cmd"],
    ),
    "write_stdin": (
        "Write to a running command, or read its new output, and return it.",
        {
            "session_id": {**_INTEGER, "description": "Session ID of the running command."},
            "chars": {**_STRING, "description": "Text to write; empty to read only."},
            **_LIMITS,
        },
        ["session_id"],
    ),
}


def list_tools(tools: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the tools of a request, those of the main namespace, and those behind `exec` instead of it.

    `exec` remains where none of the tools behind it is known.
    """
    flat = [each for tool in tools for each in _open_namespace(tool)]
    nested = [each for tool in flat for each in _list_nested(tool)]
    for tool in flat:
        if not nested or tool.get("name") not in (SCRIPT_TOOL, _CELL_TOOL):
            yield tool
    yield from nested


def _open_namespace(tool: dict[str, Any]) -> list[dict[str, Any]]:
    if tool.get("type") != "namespace" or tool.get("name") != _NAMESPACE:
        return [tool]
    inner = tool.get("tools")
    return [each for each in inner if isinstance(each, dict)] if isinstance(inner, list) else []


def _list_nested(tool: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    description = tool.get("description")
    if tool.get("type") != "custom" or tool.get("name") != SCRIPT_TOOL or not isinstance(description, str):
        return
    for name in dict.fromkeys(_DECLARATION.findall(description)):
        if name == "apply_patch":
            yield {"type": "custom", "name": name, "description": _PATCH_FORMAT}
        elif name in _FUNCTIONS:
            text, properties, required = _FUNCTIONS[name]
            parameters = {"type": "object", "properties": properties, "required": required}
            yield {"type": "function", "name": name, "description": text, "parameters": parameters}
