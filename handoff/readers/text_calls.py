"""Calls that an agent writes as text of its reply, where an ATIF step has no `tool_calls`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from langgraph_takeover.handoff.readers import mini_swe_agent
from langgraph_takeover.sandbox.storage.untrusted_json import parse_document

_ATTRIBUTES_CHARS = 100
"""Maximum length of the name or the attributes in an opening tag."""
_COMPLETE = re.compile(r"<task_complete>\s{0,9}true\s{0,9}</task_complete>|<task_complete\s{0,9}/>")


class TextCall(NamedTuple):
    """A call with the agent's own tool and argument names."""

    name: str
    arguments: Mapping[str, Any]


def parse_text_calls(agent: str, message: str) -> list[TextCall] | None:
    """The calls in a reply of an agent with a text protocol; None if the reply is not readable in it."""
    if agent.startswith("mini-swe-agent"):
        blocks = mini_swe_agent.find_bash_blocks(message)
        return [TextCall("bash", {"command": blocks[0]})] if len(blocks) == 1 else None
    if agent.startswith("openhands"):
        return _parse_function(message)
    if agent.startswith("terminus"):
        return _parse_json_commands(message) or _parse_tagged_commands(message)
    return None


def _parse_function(message: str) -> list[TextCall] | None:
    """The call `<function=NAME>` with one `<parameter=NAME>` per argument; None unless it is the only one."""
    functions = list(_iterate_elements(message, "<function=", "</function>"))
    if len(functions) != 1:
        return None
    name, body = functions[0]
    parameters = _iterate_elements(body, "<parameter=", "</parameter>")
    return [TextCall(name, {key: _strip_line_breaks(value) for key, value in parameters})]


def _strip_line_breaks(value: str) -> str:
    """The value without the line breaks that separate a long value from its tags."""
    return value.removeprefix("\n").removesuffix("\n")


def _parse_json_commands(message: str) -> list[TextCall] | None:
    try:
        reply = parse_document(message.encode("utf-8", "backslashreplace"))
    except ValueError:
        return None
    commands = reply.get("commands") if isinstance(reply, Mapping) else None
    if not isinstance(commands, list):
        return None
    calls = [
        TextCall("bash_command", {"keystrokes": command["keystrokes"]})
        for command in commands
        if isinstance(command, Mapping) and isinstance(command.get("keystrokes"), str)
    ]
    return calls + _list_completion(reply.get("task_complete") in (True, "true"))


def _parse_tagged_commands(message: str) -> list[TextCall] | None:
    commands = _iterate_elements(message, "<keystrokes", "</keystrokes>")
    calls = [TextCall("bash_command", {"keystrokes": keystrokes}) for _, keystrokes in commands]
    calls += _list_completion(_COMPLETE.search(message) is not None)
    return calls or None


def _list_completion(is_complete: bool) -> list[TextCall]:
    return [TextCall("mark_task_complete", {})] if is_complete else []


def _iterate_elements(text: str, opening: str, closing: str) -> Iterator[tuple[str, str]]:
    """Yield what follows `opening` in its tag, and the text up to `closing`; one pass over any text."""
    position = 0
    while (start := text.find(opening, position)) >= 0:
        start += len(opening)
        tag_end = text.find(">", start, start + _ATTRIBUTES_CHARS)
        if tag_end < 0:
            position = start
            continue
        end = text.find(closing, tag_end)
        if end < 0:
            return
        yield text[start:tag_end], text[tag_end + 1 : end]
        position = end + len(closing)
