"""The error in the output of a program that ended early."""

from __future__ import annotations

import re

_ERROR = re.compile(r"\s*(?:Uncaught )?[\w.]*(?:Error|Exception|error)\b[^:]{0,100}:.*\S")
_MAX_CHARS = 300


def find_error_line(text: str) -> str:
    """Return the last line that names an error, or else the last line that is not blank.

    Node.js prints its version, and Python the line of code, after or before the error. Control characters become `?`.
    """
    lines = [line.strip()[:_MAX_CHARS] for line in text.splitlines() if line.strip()]
    lines = ["".join(each if each.isprintable() else "?" for each in line) for line in lines]
    return next((line for line in reversed(lines) if _ERROR.match(line)), lines[-1] if lines else "")
