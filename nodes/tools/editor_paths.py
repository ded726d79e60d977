"""Paths of the editor: literal, because no shell expands them."""

from __future__ import annotations

import posixpath
import re

from langgraph_takeover.nodes.tools.edited_text import EditError
from langgraph_takeover.sandbox.interface import FileAccessError, Sandbox
from langgraph_takeover.sandbox.shell.state import parse_state

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
