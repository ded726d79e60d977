"""What both generations of OpenHands say in the same words: what was not run, what still runs, where the work is."""

from __future__ import annotations

import re

NOT_RUN_NOTICE = re.compile(
    r"Cannot execute multiple commands at once|is NOT executed\. The previous command is still running"
    r"|No previous running command to interact with|ERROR: (?:Cannot|No )|previous command is still running"
)
STILL_RUNNING_NOTICE = re.compile(
    r"\[The command has no new output after|\[The command timed out|no change timeout", re.I
)
_WORKSPACE_NOTICE = re.compile(
    r"<uploaded_files>\s*(/\S+)|repository (?:in|at) (?:the directory )?(/[\w./-]+)"
)
_RUNTIME_SUFFIX = re.compile(
    r"\n?\[(?:The command completed|Current working directory|Python interpreter|Command finished)[^\n]*\]",
    re.I,
)


def find_workspace(task: str) -> str | None:
    """The repository's path, as the task's prompt names it."""
    found = _WORKSPACE_NOTICE.search(task)
    return (found[1] or found[2]).rstrip("./") if found else None


def strip_runtime_suffix(text: str) -> str:
    """What a program printed, without what the runtime adds."""
    return _RUNTIME_SUFFIX.sub("", text).replace("\r\n", "\n")
