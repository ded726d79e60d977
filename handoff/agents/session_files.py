"""Session files and output: lines of JSON, ids that depend only on their content, times, names of directories."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.handoff.agents.adapter import AgentOutput, Launch

TELEMETRY_MARK = '"subtype":"ui_telemetry"'
"""Rows of Qwen Code with this text repeat a call before its result is there."""
_NOT_ALPHANUMERIC = re.compile("[^a-zA-Z0-9]")


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
    return AgentOutput.from_untrusted(session_id, message, is_complete=is_complete, exit_code=exit_code)


def derive_uuid(launch: Launch, *parts: object) -> str:
    """Return a UUID that depends on the launch and the parts alone."""
    seed = "\0".join(map(str, (launch.workspace, launch.started_at.isoformat(), launch.message, *parts)))
    digest = bytearray(hashlib.sha256(seed.encode("utf-8", "surrogatepass")).digest()[:16])
    return str(uuid.UUID(bytes=bytes(digest), version=4))


def has_results(session: str, call_ids: Iterable[str]) -> bool:
    """Return whether a session's file holds the results of these calls.

    The id of a call stands in the line of the call, and in that of its result. Some agents write the latter after the
    next request has arrived.
    """
    lines = [line for line in session.split("\n") if TELEMETRY_MARK not in line]
    return all(sum(json.dumps(each) in line for line in lines) >= 2 for each in call_ids)


def format_time(moment: datetime) -> str:
    """Return a time as JavaScript writes it: UTC, milliseconds, `Z`."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def chain_lines(
    lines: Iterable[Mapping[str, Any]], session_id: str, launch: Launch, version: str
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a session, each with an id of its own and that of the line before.

    Claude Code silently drops lines without `uuid`, `parentUuid` or `timestamp`.
    """
    parent = None
    for number, line in enumerate(lines):
        own = derive_uuid(launch, session_id, number)
        yield {
            "uuid": own,
            "parentUuid": parent,
            "sessionId": session_id,
            "timestamp": format_time(launch.started_at),
            "cwd": launch.workspace,
            "version": version,
            **line,
        }
        parent = own


def name_directory(workspace: str, max_chars: int | None = None) -> str:
    """Return the directory of a workspace's sessions: a dash for everything but ASCII letters and digits.

    Characters are counted in UTF-16, as JavaScript does. A name longer than `max_chars` is cut and gets a hash.
    """
    name = _NOT_ALPHANUMERIC.sub(lambda match: "-" * (len(match[0].encode("utf-16-le")) // 2), workspace)
    if max_chars is None or len(name) <= max_chars:
        return name
    return f"{name[:max_chars]}-{_hash_text(workspace)}"


def _hash_text(text: str) -> str:
    """Return the 32-bit hash of Java's strings in base 36, without its sign."""
    value = 0
    units = text.encode("utf-16-le")
    for index in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[index : index + 2], "little")) & 0xFFFF_FFFF
    rest = abs(value - (1 << 32) if value >= 1 << 31 else value)
    digits = ""
    while rest or not digits:
        rest, digit = divmod(rest, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits
