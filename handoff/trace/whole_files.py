"""Whole files in what actions showed, proven by their digests."""

from __future__ import annotations

import hashlib
import re

from langgraph_takeover.handoff.shell.command_effects import list_shown_files
from langgraph_takeover.handoff.trace.events import Event

_EXIT_CODE_LINE = re.compile(r"\[exit code -?\d+\]\n")
_NUMBERED_LINE = re.compile(r"\s*\d+\t(.*)")


def compute_text_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def extract_whole_content(action: Event, observation: Event, sha256: str) -> str | None:
    """Return the file that an observation shows, if it shows all of it: only then it has the digest."""
    if action.tool == "editor":
        lines = [_NUMBERED_LINE.fullmatch(line) for line in observation.text.split("\n")[1:]]
        text = "\n".join(line[1] for line in lines if line)
    elif list_shown_files(action.arguments.get("command", "")):
        text = _EXIT_CODE_LINE.sub("", observation.text, count=1)
    else:
        return None
    for content in (text, f"{text}\n"):
        if compute_text_digest(content) == sha256:
            return content
    return None
