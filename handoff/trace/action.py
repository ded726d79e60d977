"""Actions as values and as the text that a model sends for them."""

from __future__ import annotations

import json
import re
from typing import Literal, NamedTuple

ActionProtocol = Literal["text", "native"]
"""The action format of a model: text in a fixed form, or native tool calls of its provider."""


class Action(NamedTuple):
    """One readable action: a tool and its arguments, all of them text.

    A tool that is not built in has a single argument, `arguments`, which contains JSON.
    """

    tool: str
    arguments: dict[str, str]


def write_action(action: Action) -> str:
    """Write the text that `parse_action` parses as this action."""
    tool, arguments = action
    if tool == "shell":
        body = arguments.get("command", "")
        fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`{3,}", body)), 3)
        return f"{fence}bash\n{body}\n{fence}"
    if tool == "editor":
        attributes = "".join(
            f" {name}={_quote(value)}"
            for name, value in arguments.items()
            if name not in ("old", "new", "content")
        )
        parts = "".join(
            f"<{name}>\n{arguments[name]}\n</{name}>\n"
            for name in ("old", "new", "content")
            if name in arguments
        )
        return f"<editor{attributes}>\n{parts}</editor>" if parts else f"<editor{attributes}/>"
    if "arguments" in arguments:
        return f'```json\n{{"name": {json.dumps(tool)}, "arguments": {arguments["arguments"]}}}\n```'
    to = f" to={_quote(arguments['to'])}" if tool == "handoff" and "to" in arguments else ""
    message = next((value for name, value in arguments.items() if not to or name != "to"), "")
    return f"<{tool}{to}>{message}</{tool}>"


def _quote(value: str) -> str:
    return f"'{value}'" if '"' in value else f'"{value}"'
