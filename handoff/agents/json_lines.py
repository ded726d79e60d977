"""Lines of JSON, as agents write them to their session files and to standard output."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from langgraph_takeover.handoff.agents.adapter import AgentOutput
from langgraph_takeover.sandbox.storage.untrusted_json import parse_json


def read_json_lines(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects among the lines; other lines, and an incomplete last one, are left out."""
    # Not splitlines: it also splits at characters that JSON texts contain unescaped, such as U+2028.
    for line in text.split("\n"):
        if not line.startswith("{"):
            continue
        try:
            value = parse_json(line.encode())
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def write_json_lines(lines: Iterable[Mapping[str, Any]]) -> str:
    """Return one line of JSON for each value."""
    return "".join(f"{dump_json(line)}\n" for line in lines)


def dump_json(value: Mapping[str, Any]) -> str:
    """Return a value as JSON. A lone surrogate becomes `?`: agents drop a line with one, and the history before it."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")


def read_result_lines(stdout: str, exit_code: int | None) -> AgentOutput:
    """Read output in the form `stream-json`, whose last line is a result."""
    session_id, message, is_complete = None, "", False
    for line in read_json_lines(stdout):
        session_id = line.get("session_id") or session_id
        is_result = line.get("type") == "result"
        is_complete = is_result and not line.get("is_error")
        if is_result:
            error = line.get("error")
            text = error.get("message") if isinstance(error, dict) else error
            message = str(line.get("result") or text or line.get("subtype"))
    is_complete = is_complete and exit_code in (0, None)
    return AgentOutput.from_untrusted(session_id, message, is_complete=is_complete)
