"""Extraction of here-documents from a shell text, so that the rest parses reliably."""

from __future__ import annotations

import re

PLACEHOLDER = "/dev/heredoc/"
"""An input redirection from this path and a number replaces each here-document."""

_START = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([A-Za-z_][\w.-]*))")
_PLAIN_TEXT = re.compile(r"[^<\n#'\"`\\$()]+")
"""Text without quotes, substitutions, comments and here-documents."""
_OPENERS = {"'": "'", '"': '"', "`": "`"}


def extract_heredocs(text: str) -> tuple[str, tuple[str, ...]]:
    """The text without its here-documents, and their bodies in order.

    The grammar loses the rest of a line after `<<EOF ...;` and reads the body as commands. A script that is
    only written would then look like one that is run.
    """
    if "<<" not in text:
        return text, ()
    out: list[str] = []
    bodies: list[str] = []
    pending: list[tuple[int, str, bool]] = []
    nesting: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        within = nesting[-1] if nesting else ""
        start = _START.match(text, position) if char == "<" and within not in ("'", '"', "`") else None
        if start and text[position - 1 : position] != "<" and text[position : position + 3] != "<<<":
            word = start[2] or start[3] or start[4]
            out.append(f"< {PLACEHOLDER}{len(bodies)}")
            pending.append((len(bodies), word, bool(start[1])))
            bodies.append("")
            position = start.end()
        elif char == "\n" and pending:
            out.append(char)
            position += 1
            for number, word, tabs in pending:
                bodies[number], position = _read_body(text, position, word, tabs)
            pending = []
        elif char == "#" and not within.strip(")") and (position == 0 or text[position - 1] in " \t\n;&|("):
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        else:
            plain = _PLAIN_TEXT.match(text, position)
            step = plain.end() - position if plain else _count_copied_characters(text, position, nesting)
            out.append(text[position : position + step])
            position += step
    return "".join(out), tuple(bodies)


def _count_copied_characters(text: str, position: int, nesting: list[str]) -> int:
    """Number of characters to copy; updates the stack of open quotes and substitutions."""
    char = text[position]
    within = nesting[-1] if nesting else ""
    if within == "'":
        if char == "'":
            nesting.pop()
        return 1
    if char == "\\":
        return 2
    if char == within:
        nesting.pop()
    elif text.startswith("$(", position):
        nesting.append(")")
        return 2
    elif within != '"' and char in _OPENERS:
        nesting.append(_OPENERS[char])
    elif within == ")" and char == "(":
        nesting.append(")")
    return 1


def _read_body(text: str, position: int, delimiter: str, strip_tabs: bool) -> tuple[str, int]:
    """The lines up to the delimiter line, and the position after that line."""
    indent = r"\t*" if strip_tabs else ""
    end = re.compile(rf"^{indent}{re.escape(delimiter)}$\n?", re.M).search(text, position)
    body = text[position : end.start() if end else len(text)]
    if body and not body.endswith("\n"):
        body += "\n"
    return (re.sub(r"^\t+", "", body, flags=re.M) if strip_tabs else body), end.end() if end else len(text)
