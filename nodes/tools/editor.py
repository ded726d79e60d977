"""The node that views a file, or changes it exactly as requested."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.runtime import Runtime

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.handoff.delegation_selection import build_read_cache
from langgraph_takeover.handoff.trace.events import FileRead
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.state_events import clip_text, last_action
from langgraph_takeover.nodes.tools.execution import relative_path, run_action
from langgraph_takeover.sandbox.interface import FileAccessError, Sandbox
from langgraph_takeover.sandbox.shell_state import parse_state

_CONTEXT_LINES = 4
_MAX_MATCHES = 10
"""Matches that a refusal lists; the rest is not counted, which would take long in a text of one letter."""
_BYTE_ORDER_MARK = "\ufeff"


class EditError(TakeoverError, ValueError):
    """The edit cannot be made; the message says what to send instead."""


def replace_text(text: str, old: str, new: str, path: str) -> str:
    """Return the text with the only match of `old` replaced. Only bytes that differ between old and new change.

    A line feed in `old` matches CRLF too. Raises EditError without a match, or with several, which may overlap.
    """
    if not old:
        raise EditError("old is empty; use insert to add lines")
    start, end = _find_only_match(text, old, path)
    place, new = text[start:end], _normalize(new, text)
    shown = _to_line_feeds(place)
    head = _count_common_prefix(shown, new)
    tail = _count_common_prefix(shown[head:][::-1], new[head:][::-1])
    first, last = start + _locate(place, head), start + _locate(place, len(shown) - tail)
    changed = new[head : len(new) - tail]
    if text.startswith(("\n", "\r\n"), last):
        changed = changed.removesuffix("\r")  # would make CRLF of the line feed
    edited = text[:first] + _fit_line_endings(changed, text, first, last) + text[last:]
    if edited == text:
        raise EditError("old and new are the same; change line endings alone with the shell")
    return edited


def insert_text(text: str, line: int, new: str, path: str) -> str:
    """Return the text with new lines after a line, 0 for the top. Raises EditError beyond the last line."""
    lines = split_lines(text)
    if line > len(lines):
        raise EditError(f"{path} has only {len(lines)} lines; cannot insert after line {line}")
    new = end_last_line(_normalize(new, text))
    place = sum(map(len, lines[:line]))
    if line and not lines[line - 1].endswith("\r" if _has_only_returns(text) else "\n"):
        new = ("\r\n" if new.endswith("\r\n") else "\n") + new
    if line == 0 and text.startswith(_BYTE_ORDER_MARK):
        place = 1
    # New lines end as the line before them; those at the top, as the line after them.
    near = place - len(lines[line - 1]) if line else place
    return text[:place] + _fit_line_endings(new, text, near, near) + text[place:]


def end_last_line(text: str) -> str:
    """Return new text that ends as its other lines do."""
    return text if text.endswith("\n") else text.removesuffix("\r") + ("\r\n" if "\r\n" in text else "\n")


def split_lines(text: str) -> list[str]:
    """Return the lines, with their ends, as grep and tracebacks count them: only a line feed ends one."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def describe_line_endings(lines: Sequence[str]) -> str:
    """Return, in brackets, what numbered lines do not show: CRLF and a byte order mark. Empty for most files."""
    notes = ["byte order mark"] if lines and lines[0].startswith(_BYTE_ORDER_MARK) else []
    ends = {
        "CRLF": [number for number, line in enumerate(lines, 1) if line.endswith("\r\n")],
        "LF": [number for number, line in enumerate(lines, 1) if line.endswith("\n") and line[-2:] != "\r\n"],
    }
    if ends["CRLF"] and ends["LF"]:
        fewer = min(ends, key=lambda end: len(ends[end]))
        numbers = ", ".join(map(str, ends[fewer][:_MAX_MATCHES]))
        more = ", …" if len(ends[fewer]) > _MAX_MATCHES else ""
        notes.append(f"mixed line endings: {fewer} in lines {numbers}{more}")
    elif ends["CRLF"]:
        notes.append("CRLF line endings")
    elif _has_only_returns("".join(lines)):
        notes.append("CR line endings, which count as one line")
    return f" ({', '.join(notes)})" if notes else ""


def format_change(before: str, after: str) -> str:
    """Return the changed lines of the new text with context, numbered."""
    old, new = split_lines(before), split_lines(after)
    head = _count_common_prefix(old, new)
    tail = _count_common_prefix(old[head:][::-1], new[head:][::-1])
    start = max(head + 1 - _CONTEXT_LINES, 1)
    return number_lines(new, start, min(len(new) - tail + _CONTEXT_LINES, len(new)))


def number_lines(lines: Sequence[str], start: int, end: int) -> str:
    """Return lines with their numbers, without line endings and byte order mark."""
    shown = (_to_line_feeds(line).removesuffix("\n") for line in lines[start - 1 : end])
    return "\n".join(
        f"{number:6}\t{line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line}"
        for number, line in enumerate(shown, start)
    )


def _find_only_match(text: str, old: str, path: str) -> tuple[int, int]:
    # Line endings that are sent must be there; without them, both kinds look alike to the sender.
    matches = _find_matches(text, old) if "\r" in old else []
    is_exact = bool(matches)
    if not is_exact:
        old = _to_line_feeds(old)
        shown = text.replace("\r", "\n") if _has_only_returns(text) else _to_line_feeds(text)
        matches = _find_matches(shown, old, has_crlf=False)
    if not matches:
        raise EditError(
            f"old does not occur in {path}; view the lines and copy them exactly, including indentation"
        )
    if len(matches) > 1:
        searched = text if is_exact else _to_line_feeds(text)
        where = ", ".join(str(searched.count("\n", 0, match) + 1) for match in matches[:_MAX_MATCHES])
        count = f"more than {_MAX_MATCHES}" if len(matches) > _MAX_MATCHES else str(len(matches))
        raise EditError(f"old occurs {count} times in {path} (lines {where}); include more surrounding lines")
    start, end = matches[0], matches[0] + len(old)
    return (start, end) if is_exact else (_locate(text, start), _locate(text, end))


def _find_matches(text: str, old: str, *, has_crlf: bool = True) -> list[int]:
    """Return where `old` begins in the text, overlaps included; at most one place more than are listed.

    With `has_crlf`, a match that begins or ends within a CRLF does not count.
    """
    found: list[int] = []
    place = text.find(old)
    while place >= 0 and len(found) <= _MAX_MATCHES:
        edges = (place, place + len(old)) if has_crlf else ()
        if all(text[edge - 1 : edge + 1] != "\r\n" for edge in edges if edge):
            found.append(place)
        place = text.find(old, place + 1)
    return found


def _locate(text: str, place: int) -> int:
    """Return where a place of the text with line feeds only is in the text; never between CR and LF."""
    before = 0
    for match in re.finditer("\r\n", text):
        if match.start() - before >= place:
            break
        before += 1
    return place + before


def _fit_line_endings(new: str, text: str, start: int, end: int) -> str:
    """Return the new text with the line endings of the text that it replaces, or of the line that it is in."""
    ends = re.findall(r"\r?\n", text[start:end])
    if not ends:
        after = text.find("\n", end)
        place = after if after >= 0 else text.rfind("\n", 0, start)
        if place < 0 and "\r" not in text:
            return new
        ends = ["\r" if place < 0 else "\r\n" if text[max(place - 1, 0) : place + 1] == "\r\n" else "\n"]
    parts = new.split("\n")
    fitted = [part + ends[min(number, len(ends) - 1)] for number, part in enumerate(parts[:-1])]
    return "".join([*fitted, parts[-1]])


def _normalize(new: str, text: str) -> str:
    """Return new text with line feeds only, unless no line of the text has an ending that it could take."""
    return _to_line_feeds(new) if "\n" in text or "\r" in text else new


def _has_only_returns(text: str) -> bool:
    """Whether a lone CR ends the lines, as on old Macs."""
    return "\r" in text and "\n" not in text


def _to_line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n")


def _count_common_prefix(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many items two sequences have in common at the start."""
    shorter = min(len(one), len(other))
    return next((place for place in range(shorter) if one[place] != other[place]), shorter)


_CAT_COMMAND = re.compile(r"cat\s+([\w./+-]+)")


class CachedFile(NamedTuple):
    """A file in the cache: a notice for the model, and the content if it is known and unchanged."""

    notice: str
    content: str | None


def find_first_read(
    state: AgentState, context: AgentContext, sandbox: Sandbox, path: str
) -> CachedFile | None:
    """Return the cached file at its first read; None without a payload, without an entry, or at later reads.

    `path` is named as in reads. The entry is stale if the file's digest has changed since the predecessor read it.
    """
    if state.get("view") != "payload" or "record" not in state:
        return None
    if any(read["path"] == path for event in state.get("events", []) for read in event.get("reads", ())):
        return None
    entry = build_read_cache(context.session.records.load(state["record"])).get(path)
    if entry is None:
        return None
    access = "handed it over" if entry.event is None else f"read it at e{entry.event}"
    if sandbox.sha256(posixpath.join(sandbox.workspace, path)) != entry.sha256:
        return CachedFile(f"[stale: {path} has changed since the earlier agent {access}]\n", None)
    return CachedFile(f"[unchanged since the earlier agent {access}: {path}]\n", entry.content)


def is_whole_file_read(command: str) -> bool:
    """Whether a command only prints one file unchanged."""
    return _CAT_COMMAND.fullmatch(command.strip()) is not None


_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_COMMAND = re.compile(r"\$[({]|`")


def require_literal_path(sandbox: Sandbox, path: str, *, is_new: bool) -> None:
    """Require a path that a shell would not expand, or that exists as it is written. Raises EditError with the cure.

    A new file's name may contain `$id` unless the agent's shell has a variable `id`; its directory must exist then. `./~/a` is
    a path in a directory `~`.
    """
    if "\0" in path or not (path.startswith("~") or "$" in path or "`" in path):
        return
    if _exists(sandbox, path):
        return
    directory, name = posixpath.split(path)
    is_literal_directory = not directory or sandbox.directory_listing(directory) is not None
    state = parse_state(sandbox.shell_state())
    values = {found: variable.value for found, variable in state.variables.items()}
    values |= {"PWD": state.directory, "OLDPWD": state.previous_directory}
    variables = {found: value for found, value in values.items() if value is not None}
    checked = name if is_new and directory and not path.startswith("~/") else path
    if is_literal_directory and not _is_expandable(checked, variables):
        return
    expanded = _expand(path, variables)
    cure = (
        f"send {expanded}" if expanded else "send the whole path, or make its directory with the shell first"
    )
    raise EditError(f"{path}: the editor does not expand ~ and variables; {cure}")


def _exists(sandbox: Sandbox, path: str) -> bool:
    if sandbox.directory_listing(path) is not None:
        return True
    try:
        sandbox.read_file(path)
    except FileAccessError as error:
        return "no such file" not in str(error)
    return True


def _is_expandable(path: str, variables: dict[str, str]) -> bool:
    """Whether a shell would expand a path to another one; `~user` and unknown variables do not count."""
    names = (match[1] or match[2] for match in _VARIABLE.finditer(path))
    is_home = path == "~" or path.startswith("~/")
    return is_home or any(each in variables for each in names) or bool(_COMMAND.search(path))


def _expand(path: str, variables: dict[str, str]) -> str | None:
    """Return the path as a shell would expand it; None if it needs more than known variables and the own home."""
    if path == "~" or path.startswith("~/"):
        path = f"$HOME{path[1:]}"
    if path.startswith("~") or _COMMAND.search(_VARIABLE.sub("", path)):
        return None
    if any((match[1] or match[2]) not in variables for match in _VARIABLE.finditer(path)):
        return None
    return _VARIABLE.sub(lambda match: variables[match[1] or match[2]], path)


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
        require_literal_path(sandbox, arguments["path"], is_new=arguments["command"] == "create")
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
    lines = split_lines(text)
    start = max(int(arguments.get("start", 1)), 1)
    end = min(int(arguments.get("end", len(lines))), len(lines))
    if lines and (start > len(lines) or end < start):
        raise EditError(f"{path} has {len(lines)} lines; lines {start} to {end} do not exist")
    read = FileRead(path=_file_name(sandbox, path), sha256=_compute_sha256(text))
    if not lines:
        return f"{path} is empty.", (read,)
    head = f"{path}, lines {start} to {end} of {len(lines)}{describe_line_endings(lines)}:"
    return f"{head}\n{number_lines(lines, start, end)}", (read,)


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
        after = end_last_line(after) if after else after
    else:
        before = _read_text(sandbox, path)
        if command == "insert":
            after = insert_text(before, int(arguments["line"]), arguments["new"], path)
        else:
            after = replace_text(before, arguments["old"], arguments["new"], path)
    sandbox.write_file(path, _encode(after))
    edit = {
        "path": _file_name(sandbox, path),
        "before": before,
        "after": _compute_sha256(after),
        "undo": False,
    }
    if before is None:
        return edit, f"{path} has been created."
    return edit, f"{path} has been edited.\n{format_change(before, after)}"


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
    return edit, f"The last edit of {path} has been undone.\n{format_change(now, before)}"


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


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        character = f"U+{ord(text[error.start]):04X}"
        raise EditError(
            f"the new text contains {character}, which UTF-8 cannot store; leave it out"
        ) from error


def _require_absent(sandbox: Sandbox, path: str) -> None:
    try:
        sandbox.read_file(path)
    except FileAccessError as error:
        if "no such file" in str(error):
            return
        raise
    raise EditError(f"{path} already exists; change it with str_replace or insert")


def _compute_sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
