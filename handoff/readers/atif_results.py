"""Contents and results in steps of ATIF documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph_takeover.handoff.readers import tool_names
from langgraph_takeover.handoff.readers.recorded_run import extract_text, join_text

_PATH_CHARS = 200
"""Maximum length of the shown path of an image; it may be a URL that contains the image itself."""


def read_content(content: Any) -> str:
    """The text of a message or result; images and audio become `[image: PATH]`."""
    if not isinstance(content, list):
        return extract_text(content)
    return "\n".join(_read_part(part) for part in content if part is not None)


def _read_part(part: Any) -> str:
    if isinstance(part, Mapping) and part.get("type") in ("image", "audio"):
        source = part.get("source")
        path = source.get("path") if isinstance(source, Mapping) else None
        return f"[{part['type']}: {str(path or '')[:_PATH_CHARS]}]"
    return extract_text(part)


def match_results(
    calls: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]], *, shares_terminal: bool
) -> list[str | None]:
    """The output of each call; None without a result. Results without a call id are matched by their order.

    With `shares_terminal`, one result shows the terminal after all commands: the last command has its text, those before
    it an empty one.
    """
    named: dict[str, list[str]] = {}
    unnamed: list[str] = []
    for result in results:
        text, call_id = read_content(result.get("content")), result.get("source_call_id")
        if call_id is None:
            unnamed.append(text)
        else:
            named.setdefault(str(call_id), []).append(text)
    if shares_terminal and not named and len(unnamed) == 1:
        return _share_output(calls, unnamed[0])
    outputs: list[str | None] = []
    for call in calls:
        own = named.pop(str(call.get("tool_call_id")), None)
        if own is None and unnamed:
            own = [unnamed.pop(0)]
        outputs.append(None if own is None else join_text(*own))
    rest = [text for texts in named.values() for text in texts] + unnamed
    if outputs and rest:
        outputs[-1] = join_text(outputs[-1] or "", *rest)
    return outputs


def _share_output(calls: Sequence[Mapping[str, Any]], output: str) -> list[str | None]:
    names = [str(call.get("function_name") or "") for call in calls]
    commands = [n for n, name in enumerate(names) if tool_names.normalize_call(name, {})[0] != "finish"]
    last = commands[-1] if commands else len(calls) - 1
    return [output if n == last else "" if n < last else None for n in range(len(calls))]
