"""The node that views a file, or changes it exactly as requested; paths and repeated reads."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from langgraph.runtime import Runtime

from langgraph_takeover.handoff.delegation.selection import build_read_cache
from langgraph_takeover.handoff.trace.events import FileRead
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.events import clip_text, last_action
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.tools.edited_text import (
    EditError,
    describe_line_endings,
    end_last_line,
    format_change,
    insert_text,
    number_lines,
    replace_text,
    split_lines,
)
from langgraph_takeover.nodes.tools.execution import relative_path, run_action
from langgraph_takeover.sandbox.interface import FileAccessError, Sandbox
from langgraph_takeover.sandbox.shell_state import parse_state

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
