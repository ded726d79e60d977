"""Actions as shell commands, for agents whose only tool is a shell."""

from __future__ import annotations

import shlex

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.handoff.agents.adapter import resolve_path
from langgraph_takeover.handoff.readers.tool_names import normalize_call
from langgraph_takeover.handoff.trace.action import Action

_LAST = "$"
_EDITOR_COMMANDS = ("view", "str_replace", "insert", "create", "write", "undo")
_EDIT_SCRIPT = """\
python3 - <<'{mark}'
import pathlib, sys
path = pathlib.Path({path!r})
text = path.read_text() if path.exists() else ""
{body}
path.write_text(text)
print(f"{{path}} has been edited.")
{mark}"""
_REPLACE = """\
old, new = {old}, {new}
if text.count(old) != 1:
    sys.exit(f"Not done: the text occurs {{text.count(old)}} times in {{path}}.")
text = text.replace(old, new)"""
_INSERT = """\
lines = text.splitlines(keepends=True)
lines[{line}:{line}] = [{new}]
text = "".join(lines)"""
_CREATE = """\
path.parent.mkdir(parents=True, exist_ok=True)
text = {content}"""


def write_shell_command(action: Action) -> str:
    """Return a shell command with the effect of an action of the shell or the editor; of others, a comment."""
    arguments = action.arguments
    if action.tool == "shell":
        return arguments.get("command", "")
    if not has_shell_command(action):
        return f"# {action.tool}: {' '.join(' '.join(arguments.values()).split())}"[:2000]
    if view := _read_view_range(action):
        return _write_view(*view)
    path, command = arguments.get("path", ""), arguments.get("command", "view")
    if command == "undo":
        return f"git checkout -- {shlex.quote(path)}"
    new = arguments.get("new", "")
    if command == "str_replace":
        body = _REPLACE.format(old=_quote(arguments.get("old", "")), new=_quote(new))
    elif command == "insert":
        line = _read_line(arguments.get("line", "")) if arguments.get("line") != "0" else 0
        body = _INSERT.format(line=line or 0, new=_quote(_end_with_newline(new)))
    elif command == "edit":
        pairs = _read_replacements(arguments.get("edits", ""))
        body = "\n".join(_REPLACE.format(old=_quote(old), new=_quote(to)) for old, to in pairs)
    else:
        body = _CREATE.format(content=_quote(_end_with_newline(arguments.get("content", new))))
    mark = "END_OF_EDIT"
    while mark in body:
        mark += "_"
    return _EDIT_SCRIPT.format(path=path, body=body, mark=mark)


def has_shell_command(action: Action) -> bool:
    """Return whether a shell command can have the effect of an action, rather than only name it in a comment."""
    if action.tool != "editor":
        return action.tool == "shell"
    command = action.arguments.get("command", "view")
    return command in _EDITOR_COMMANDS or (
        command == "edit" and bool(_read_replacements(action.arguments.get("edits", "")))
    )


def _read_replacements(edits: str) -> list[tuple[str, str]]:
    """Return old and new text of each edit of a list in JSON; an empty list if one of them is invalid."""
    try:
        values = parse_json(edits)
    except ValueError:
        return []
    pairs: list[tuple[str, str]] = []
    for value in values if isinstance(values, list) else [None]:
        _, texts = normalize_call("str_replace", {"path": "", **value} if isinstance(value, dict) else {})
        if "old" not in texts or "new" not in texts:
            return []
        pairs.append((texts["old"], texts["new"]))
    return pairs


def write_view_arguments(
    action: Action, workspace: str, *, path_name: str = "file_path", first_line: int = 1
) -> dict[str, str | int] | None:
    """Return a view as the arguments of a tool that reads a file; None for other actions.

    Args:
        path_name: the tool's name of the path; those of the range are `offset` and `limit`.
        first_line: the offset of the file's first line.
    """
    view = _read_view_range(action)
    if view is None:
        return None
    path, start, end = view
    arguments: dict[str, str | int] = {path_name: resolve_path(workspace, path)}
    if start is not None:
        arguments["offset"] = start - 1 + first_line
    if start is not None and end is not None:
        arguments["limit"] = end - start + 1
    return arguments


def _read_view_range(action: Action) -> tuple[str, int | None, int | None] | None:
    """Return path, first and last line of a view (None: from the start, to the end); None for other actions."""
    arguments = action.arguments
    if action.tool != "editor" or arguments.get("command", "view") != "view":
        return None
    start, end = (_read_line(arguments.get(name, "")) for name in ("start", "end"))
    if start is None or (end is not None and end < start):
        return arguments.get("path", ""), None, None
    return arguments.get("path", ""), start, end


def _read_line(text: str) -> int | None:
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _write_view(path: str, start: int | None, end: int | None) -> str:
    if start is None:
        return f"cat -n {shlex.quote(path)}"
    return f"cat -n {shlex.quote(path)} | sed -n {shlex.quote(f'{start},{end or _LAST}p')}"


def _quote(text: str) -> str:
    """Return a Python literal that shows the text's lines as they are, if it can."""
    if (
        "\\" in text
        or "'''" in text
        or "\r" in text
        or not text.replace("\n", "").replace("\t", "").isprintable()
    ):
        return repr(text)
    return f"'''\n{text}\n'''[1:-1]"


def _end_with_newline(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
