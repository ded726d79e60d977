"""The node that views a file or changes it exactly as asked, or says why not."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from langgraph.runtime import Runtime

from handoff.event import FileRead
from nodes.acting import acted
from nodes.events import clipped, last_action
from nodes.observation import Observation
from nodes.read_cache import first_read
from nodes.settings import AgentContext, given
from nodes.state import AgentState
from sandbox.machine import FileRefused, Sandbox

_SHOWN_AROUND_EDIT = 4


class EditRefused(Exception):
    """The edit cannot be done as asked; the text says what would be needed."""


def editor(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    context = given(runtime)
    arguments = last_action(state).arguments
    earlier = state.get("edits", [])
    views = arguments["command"] == "view"

    def do(machine: Sandbox) -> Observation:
        try:
            if views:
                cached = first_read(state, context, machine, _name(machine, arguments["path"]))
                text, reads = _view(machine, arguments, cached.content if cached else None)
                said = cached.said if cached else ""
                return Observation(text=said + clipped(text, context.observation_chars), reads=reads)
            edit, told = _edit(machine, arguments, earlier)
        except (EditRefused, FileRefused) as error:
            return Observation(text=f"Not done: {error}", refused=True)
        return Observation(
            text=clipped(told, context.observation_chars), changes=machine.changes(), edit=edit
        )

    return acted(state, runtime, do, "nothing" if views else "anything")


def _view(
    machine: Sandbox, arguments: Mapping[str, str], cached: str | None
) -> tuple[str, tuple[FileRead, ...]]:
    path = arguments["path"]
    names = machine.directory_listing(path)
    if names is not None:
        return f"{path} is a directory:\n" + "\n".join(names), ()
    text = _text(machine, path) if cached is None else cached
    lines = _lines(text)
    start = max(int(arguments.get("start", 1)), 1)
    end = min(int(arguments.get("end", len(lines))), len(lines))
    if lines and (start > len(lines) or end < start):
        raise EditRefused(f"{path} has {len(lines)} lines; {start} to {end} are not among them")
    read = FileRead(path=_name(machine, path), sha256=_sha256(text))
    if not lines:
        return f"{path} is empty.", (read,)
    return f"{path}, lines {start} to {end} of {len(lines)}:\n{_numbered(lines, start, end)}", (read,)


def _edit(
    machine: Sandbox, arguments: Mapping[str, str], earlier: list[dict[str, Any]]
) -> tuple[dict[str, Any], str]:
    """Carry an edit out; how it can be undone, and what the agent is told of it."""
    path, command = arguments["path"], arguments["command"]
    if command == "undo":
        return _undo(machine, path, earlier)
    before = None
    if command == "create":
        _must_be_absent(machine, path)
        after = arguments["content"]
        after += "" if after.endswith("\n") or not after else "\n"
    else:
        before = _text(machine, path)
        if command == "insert":
            after = _inserted(before, int(arguments["line"]), arguments["new"], path)
        else:
            after = _replaced(before, arguments["old"], arguments["new"], path)
    machine.write_file(path, after.encode())
    edit = {"path": _name(machine, path), "before": before, "after": _sha256(after), "undo": False}
    told = (
        f"{path} has been created."
        if before is None
        else f"{path} has been edited.\n{_around(before, after)}"
    )
    return edit, told


def _undo(machine: Sandbox, path: str, earlier: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    name = _name(machine, path)
    stack: list[dict[str, Any]] = []
    for edit in earlier:
        if edit["path"] == name:
            stack.pop() if edit["undo"] else stack.append(edit)
    if not stack:
        raise EditRefused(f"no edit of {path} by the editor is left to undo")
    last = stack[-1]
    if last.get("incomplete"):
        raise EditRefused(
            f"what stood in {path} before held a secret, which is kept nowhere; edit it instead"
        )
    now = _text(machine, path)
    if _sha256(now) != last["after"]:
        raise EditRefused(f"{path} has changed since the edit; look at it and edit it instead")
    before = last["before"]
    if before is None:
        raise EditRefused(f"the last edit created {path}; remove it with the shell")
    machine.write_file(path, before.encode())
    edit = {"path": name, "before": now, "after": _sha256(before), "undo": True}
    return edit, f"The last edit of {path} has been undone.\n{_around(now, before)}"


def _name(machine: Sandbox, path: str) -> str:
    """The path as changes are named: relative inside the repository, absolute outside it."""
    whole = posixpath.normpath(posixpath.join(machine.workspace, path))
    return whole.removeprefix(machine.workspace.rstrip("/") + "/")


def _text(machine: Sandbox, path: str) -> str:
    content = machine.read_file(path)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise EditRefused(f"{path} is not UTF-8 text; use the shell") from error
    if "\0" in text:
        raise EditRefused(f"{path} is not text but binary; use the shell")
    return text


def _must_be_absent(machine: Sandbox, path: str) -> None:
    try:
        machine.read_file(path)
    except FileRefused as error:
        if "no such file" in str(error):
            return
        raise
    raise EditRefused(f"{path} exists already; change it with str_replace or insert")


def _replaced(text: str, old: str, new: str, path: str) -> str:
    if "\r\n" in text and old not in text:
        old, new = _in_crlf(old), _in_crlf(new)
    if old == new:
        raise EditRefused("old and new are the same")
    if not old:
        raise EditRefused("old is empty; use insert to add lines")
    count = text.count(old)
    if count == 0:
        raise EditRefused(
            f"old does not stand in {path}; view the lines and copy them exactly, indentation included"
        )
    if count > 1:
        lines = [text.count("\n", 0, found.start()) + 1 for found in re.finditer(re.escape(old), text)]
        where = ", ".join(str(line) for line in lines[:10])
        raise EditRefused(f"old stands {count} times in {path} (lines {where}); take in more lines around it")
    return text.replace(old, new)


def _inserted(text: str, line: int, new: str, path: str) -> str:
    lines = [f"{each}\n" for each in _lines(text)]
    if line > len(lines):
        raise EditRefused(f"{path} has only {len(lines)} lines; cannot insert after line {line}")
    if "\r\n" in text:
        new = _in_crlf(new)
    line_break = "\r\n" if "\r\n" in text else "\n"
    if lines and not text.endswith("\n"):
        # Only what is put after an unfinished last line finishes it.
        lines[-1] = lines[-1][:-1] + (line_break if line == len(lines) else "")
    return "".join([*lines[:line], new if new.endswith("\n") else new + line_break, *lines[line:]])


def _in_crlf(text: str) -> str:
    return re.sub(r"(?<!\r)\n", "\r\n", text)


def _lines(text: str) -> list[str]:
    """The lines as grep and tracebacks count them: only a line feed ends one."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def _around(before: str, after: str) -> str:
    """The changed lines of the new text with a few around them, numbered."""
    old, new = _lines(before), _lines(after)
    same_head = next(
        (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
    )
    most_tail = min(len(old), len(new)) - same_head
    same_tail = next((i for i in range(most_tail) if old[-1 - i] != new[-1 - i]), most_tail)
    start = max(same_head + 1 - _SHOWN_AROUND_EDIT, 1)
    return _numbered(new, start, min(len(new) - same_tail + _SHOWN_AROUND_EDIT, len(new)))


def _numbered(lines: list[str], start: int, end: int) -> str:
    shown = (line.removesuffix("\r") for line in lines[start - 1 : end])
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(shown, start))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
