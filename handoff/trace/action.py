"""An action as a value, and as the text that a model would have sent for it."""

from __future__ import annotations

import json
import re
from typing import Literal, NamedTuple

ActionProtocol = Literal["text", "native"]
"""How a model acts: by text of a fixed form, or by its provider's own tool calls."""


class Action(NamedTuple):
    """One readable action: a tool and its arguments, all of them text.

    A tool beside the built-in ones has one argument, `arguments`: JSON.
    """

    tool: str
    arguments: dict[str, str]


def write_action(action: Action) -> str:
    """The text that `read_action` reads as this action."""
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
    said = next((value for name, value in arguments.items() if not to or name != "to"), "")
    return f"<{tool}{to}>{said}</{tool}>"


def _quote(value: str) -> str:
    return f"'{value}'" if '"' in value else f'"{value}"'
