"""Lines of JSON, as agents write them to their session files and to standard output."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from langgraph_takeover.sandbox.storage.untrusted_json import parse_json


def read_json_lines(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects among the lines; other lines, and an incomplete last one, are left out."""
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        try:
            value = parse_json(line.encode())
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def write_json_lines(lines: Iterable[Mapping[str, Any]]) -> str:
    return "".join(f"{json.dumps(line)}\n" for line in lines)
