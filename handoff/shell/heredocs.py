"""How here-documents are taken out of a shell text, so that the rest of it parses reliably."""

from __future__ import annotations

import re

PLACEHOLDER = "/dev/heredoc/"
"""Where a here-document stood, an input redirection from this path and its number stands."""

_START = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([A-Za-z_][\w.-]*))")
_PLAIN_TEXT = re.compile(r"[^<\n#'\"`\\$()]+")
"""Text in which nothing opens, closes or begins anything."""
_OPENERS = {"'": "'", '"': '"', "`": "`"}


def extract_heredocs(text: str) -> tuple[str, tuple[str, ...]]:
    """The text without its here-documents, and their bodies in order.

    The grammar loses the rest of a line after `<<EOF ...;` and takes the body for commands, which would
    make a script that is merely written look as if it were run.
    """
    if "<<" not in text:
        return text, ()
    out: list[str] = []
    bodies: list[str] = []
    waiting: list[tuple[int, str, bool]] = []
    nesting: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        within = nesting[-1] if nesting else ""
        start = _START.match(text, position) if char == "<" and within not in ("'", '"', "`") else None
        if start and text[position - 1 : position] != "<" and text[position : position + 3] != "<<<":
            word = start[2] or start[3] or start[4]
            out.append(f"< {PLACEHOLDER}{len(bodies)}")
            waiting.append((len(bodies), word, bool(start[1])))
            bodies.append("")
            position = start.end()
        elif char == "\n" and waiting:
            out.append(char)
            position += 1
            for number, word, tabs in waiting:
                bodies[number], position = _read_body(text, position, word, tabs)
            waiting = []
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
    """How many characters to copy, after keeping the stack of open quotes and substitutions up to date."""
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
    """The lines from a position to the one that is only the word, and the position after that line."""
    indent = r"\t*" if strip_tabs else ""
    end = re.compile(rf"^{indent}{re.escape(delimiter)}$\n?", re.M).search(text, position)
    body = text[position : end.start() if end else len(text)]
    if body and not body.endswith("\n"):
        body += "\n"
    return (re.sub(r"^\t+", "", body, flags=re.M) if strip_tabs else body), end.end() if end else len(text)
