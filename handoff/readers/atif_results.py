"""Contents and results in steps of ATIF documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph_takeover.handoff.readers import tool_names
from langgraph_takeover.handoff.readers.open_calls import OpenCalls
from langgraph_takeover.handoff.readers.recorded_run import extract_text, join_text, to_id

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
    open_calls, last = OpenCalls(), dict[str, int]()
    for number, call in enumerate(calls):
        own_id = str(call.get("tool_call_id"))
        open_calls.add(own_id, number)
        last[own_id] = number
    texts: list[list[str]] = [[] for _ in calls]
    unnamed: list[str] = []
    rest: list[str] = []
    for result in results:
        text, call_id = read_content(result.get("content")), to_id(result.get("source_call_id"))
        if call_id is None:
            unnamed.append(text)
        elif call_id in last:
            # A further result of an answered call continues it.
            found = open_calls.close(call_id)
            texts[last[call_id] if found is None else found].append(text)
        else:
            rest.append(text)
    if shares_terminal and not rest and not any(texts) and len(unnamed) == 1:
        return _share_output(calls, unnamed[0])
    for own in texts:
        if not own and unnamed:
            own.append(unnamed.pop(0))
    if texts:
        texts[-1] += rest + unnamed
    return [join_text(*own) if own else None for own in texts]


def _share_output(calls: Sequence[Mapping[str, Any]], output: str) -> list[str | None]:
    names = [str(call.get("function_name") or "") for call in calls]
    commands = [n for n, name in enumerate(names) if tool_names.normalize_call(name, {})[0] != "finish"]
    last = commands[-1] if commands else len(calls) - 1
    return [output if n == last else "" if n < last else None for n in range(len(calls))]
