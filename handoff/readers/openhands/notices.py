"""Notices shared by both generations of OpenHands: rejected commands, running commands, the workspace."""

from __future__ import annotations

import re

NOT_RUN_NOTICE = re.compile(
    r"Cannot execute multiple commands at once|is NOT executed\. The previous command is still running"
    r"|No previous running command to interact with|ERROR: (?:Cannot|No )|previous command is still running"
)
_WORKSPACE_NOTICE = re.compile(
    r"<uploaded_files>\s*(/\S+)|repository (?:in|at) (?:the directory )?(/[\w./-]+)"
)
_RUNTIME_SUFFIX = re.compile(
    r"\n?\[(?:The command completed|Current working directory|Python interpreter|Command finished)"
    r"(?:[^\n\[\]]|\[[^\n\[\]]*\])*\]",
    re.I,
)


def find_workspace(task: str) -> str | None:
    """The path of the repository in the prompt of the task."""
    match = _WORKSPACE_NOTICE.search(task)
    return (match[1] or match[2]).rstrip("./") if match else None


def strip_runtime_suffix(text: str) -> str:
    """Remove the notices that the runtime adds to the output of a program."""
    return _RUNTIME_SUFFIX.sub("", text).replace("\r\n", "\n")
