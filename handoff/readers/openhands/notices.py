"""Notices shared by both generations of OpenHands: rejected commands and running commands."""

from __future__ import annotations

import re

NOT_RUN_NOTICE = re.compile(
    r"Cannot execute multiple commands at once|is NOT executed\. The previous command is still running"
    r"|No previous running command to interact with|ERROR: (?:Cannot|No )|previous command is still running"
)
_RUNTIME_SUFFIX = re.compile(
    r"\n?\[(?:The command completed|Current working directory|Python interpreter|Command finished)"
    r"(?:[^\n\[\]]|\[[^\n\[\]]*\])*\]",
    re.I,
)


def strip_runtime_suffix(text: str) -> str:
    """Remove the notices that the runtime adds to the output of a program."""
    return _RUNTIME_SUFFIX.sub("", text).replace("\r\n", "\n")
