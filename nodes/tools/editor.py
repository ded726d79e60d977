"""The node that views a file, or changes it exactly as requested."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Mapping
from typing import Any

from langgraph.runtime import Runtime

from langgraph_takeover.handoff.trace.events import FileRead
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.events import clip_text, last_action
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.tools.execution import relative_path, run_action
from langgraph_takeover.nodes.tools.read_cache import CachedFile, find_first_read
from langgraph_takeover.sandbox.interface import FileAccessError, Sandbox, TakeoverError

_CONTEXT_LINES = 4


class EditError(TakeoverError, ValueError):
    """The edit cannot be made; the message says what to send instead."""


def editor(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Run the editor command of the last action."""
    context = get_agent_context(runtime)
    arguments = last_action(state).arguments
    previous_edits = state.get("edits", [])
    is_view = arguments["command"] == "view"

    def run_editor(sandbox: Sandbox) -> Observation:
        return execute_editor(
            sandbox,
            arguments,
            previous_edits,
            max_chars=context.observation_chars,
            find_cached=lambda path: find_first_read(state, context, sandbox, path),
        )

    return run_action(state, runtime, run_editor, "nothing" if is_view else "anything")


def execute_editor(
    sandbox: Sandbox,
    arguments: Mapping[str, str],
    previous_edits: list[dict[str, Any]],
    *,
    max_chars: int,
    find_cached: Callable[[str], CachedFile | None] = lambda path: None,
) -> Observation:
    """Run an editor command, and return what the agent sees."""
    try:
        if arguments["command"] == "view":
            cached = find_cached(_file_name(sandbox, arguments["path"]))
            text, reads = _view_file(sandbox, arguments, cached.content if cached else None)
            notice = cached.notice if cached else ""
            return Observation(text=notice + clip_text(text, max_chars), reads=reads)
        edit, report = _apply_edit(sandbox, arguments, previous_edits)
    except (EditError, FileAccessError) as error:
        return Observation(text=f"Not done: {error}", refused=True)
    return Observation(text=clip_text(report, max_chars), changes=sandbox.changes(), edit=edit)


def _view_file(
    sandbox: Sandbox, arguments: Mapping[str, str], cached_content: str | None
) -> tuple[str, tuple[FileRead, ...]]:
    path = arguments["path"]
    names = sandbox.directory_listing(path)
    if names is not None:
        return f"{path} is a directory:\n" + "\n".join(names), ()
    text = _read_text(sandbox, path) if cached_content is None else cached_content
    lines = _split_lines(text)
    start = max(int(arguments.get("start", 1)), 1)
    end = min(int(arguments.get("end", len(lines))), len(lines))
    if lines and (start > len(lines) or end < start):
        raise EditError(f"{path} has {len(lines)} lines; lines {start} to {end} do not exist")
    read = FileRead(path=_file_name(sandbox, path), sha256=_compute_sha256(text))
    if not lines:
        return f"{path} is empty.", (read,)
    return f"{path}, lines {start} to {end} of {len(lines)}:\n{_number_lines(lines, start, end)}", (read,)


def _apply_edit(
    sandbox: Sandbox, arguments: Mapping[str, str], previous_edits: list[dict[str, Any]]
) -> tuple[dict[str, Any], str]:
    """Make an edit; return the data for its undo and the report for the agent."""
    path, command = arguments["path"], arguments["command"]
    if command == "undo":
        return _undo_edit(sandbox, path, previous_edits)
    before = None
    if command == "create":
        _require_absent(sandbox, path)
        after = arguments["content"]
        after += "" if after.endswith("\n") or not after else "\n"
    else:
        before = _read_text(sandbox, path)
        if command == "insert":
            after = _insert_text(before, int(arguments["line"]), arguments["new"], path)
        else:
            after = _replace_text(before, arguments["old"], arguments["new"], path)
    sandbox.write_file(path, after.encode())
    edit = {
        "path": _file_name(sandbox, path),
        "before": before,
        "after": _compute_sha256(after),
        "undo": False,
    }
    if before is None:
        return edit, f"{path} has been created."
    return edit, f"{path} has been edited.\n{_format_change(before, after)}"


def _undo_edit(
    sandbox: Sandbox, path: str, previous_edits: list[dict[str, Any]]
) -> tuple[dict[str, Any], str]:
    name = _file_name(sandbox, path)
    stack: list[dict[str, Any]] = []
    for edit in previous_edits:
        if edit["path"] == name:
            stack.pop() if edit["undo"] else stack.append(edit)
    if not stack:
        raise EditError(f"no edit of {path} by the editor is left to undo")
    last = stack[-1]
    if last.get("incomplete"):
        raise EditError(
            f"the previous text of {path} contained a secret, which is not stored; edit the file instead"
        )
    now = _read_text(sandbox, path)
    if _compute_sha256(now) != last["after"]:
        raise EditError(f"{path} has changed since the edit; view it and edit it instead")
    before = last["before"]
    if before is None:
        raise EditError(f"the last edit created {path}; remove it with the shell")
    sandbox.write_file(path, before.encode())
    edit = {"path": name, "before": now, "after": _compute_sha256(before), "undo": True}
    return edit, f"The last edit of {path} has been undone.\n{_format_change(now, before)}"


def _file_name(sandbox: Sandbox, path: str) -> str:
    return relative_path(sandbox, posixpath.normpath(posixpath.join(sandbox.workspace, path)))


def _read_text(sandbox: Sandbox, path: str) -> str:
    content = sandbox.read_file(path)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise EditError(f"{path} is not UTF-8 text; use the shell") from error
    if "\0" in text:
        raise EditError(f"{path} is a binary file; use the shell")
    return text


def _require_absent(sandbox: Sandbox, path: str) -> None:
    try:
        sandbox.read_file(path)
    except FileAccessError as error:
        if "no such file" in str(error):
            return
        raise
    raise EditError(f"{path} already exists; change it with str_replace or insert")


def _replace_text(text: str, old: str, new: str, path: str) -> str:
    if "\r\n" in text and old not in text:
        old, new = _convert_to_crlf(old), _convert_to_crlf(new)
    if old == new:
        raise EditError("old and new are the same")
    if not old:
        raise EditError("old is empty; use insert to add lines")
    count = text.count(old)
    if count == 0:
        raise EditError(
            f"old does not occur in {path}; view the lines and copy them exactly, including indentation"
        )
    if count > 1:
        lines = [text.count("\n", 0, match.start()) + 1 for match in re.finditer(re.escape(old), text)]
        where = ", ".join(str(line) for line in lines[:10])
        raise EditError(f"old occurs {count} times in {path} (lines {where}); include more surrounding lines")
    return text.replace(old, new)


def _insert_text(text: str, line: int, new: str, path: str) -> str:
    lines = [f"{each}\n" for each in _split_lines(text)]
    if line > len(lines):
        raise EditError(f"{path} has only {len(lines)} lines; cannot insert after line {line}")
    if "\r\n" in text:
        new = _convert_to_crlf(new)
    line_break = "\r\n" if "\r\n" in text else "\n"
    if lines and not text.endswith("\n"):
        # An unfinished last line gets its line break only if the new text follows it.
        lines[-1] = lines[-1][:-1] + (line_break if line == len(lines) else "")
    return "".join([*lines[:line], new if new.endswith("\n") else new + line_break, *lines[line:]])


def _convert_to_crlf(text: str) -> str:
    return re.sub(r"(?<!\r)\n", "\r\n", text)


def _split_lines(text: str) -> list[str]:
    """Return the lines as grep and tracebacks count them: only a line feed ends one."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def _format_change(before: str, after: str) -> str:
    """Return the changed lines of the new text with context, numbered."""
    old, new = _split_lines(before), _split_lines(after)
    head = next(
        (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
    )
    max_tail = min(len(old), len(new)) - head
    tail = next((i for i in range(max_tail) if old[-1 - i] != new[-1 - i]), max_tail)
    start = max(head + 1 - _CONTEXT_LINES, 1)
    return _number_lines(new, start, min(len(new) - tail + _CONTEXT_LINES, len(new)))


def _number_lines(lines: list[str], start: int, end: int) -> str:
    shown = (line.removesuffix("\r") for line in lines[start - 1 : end])
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(shown, start))


def _compute_sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
