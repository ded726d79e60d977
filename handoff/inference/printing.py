"""Programs that print, and the files and programs that their text goes into."""

from __future__ import annotations

import re

from handoff.inference import content as contents
from handoff.inference.content import Content
from handoff.inference.line import Line, Part, operands


def printed(line: Line, part: Part) -> None:
    """`cat`, `echo`, `printf` and `tee`, whose text is known."""
    held = _output(line, part)
    if part.simple.name == "tee":
        append = "-a" in part.words or "--append" in part.words
        for name in operands(part.words):
            line.put(line.files.path(name, part.cwd), held, append=append)
    redirected(line, part, held)


def redirected(line: Line, part: Part, held: Content | None = None) -> None:
    """The output of a part goes where its redirections say."""
    for redirect in part.simple.redirects:
        operator, target = redirect.operator, redirect.target
        into_file = ">" in operator and "&" not in operator.lstrip("&") and not operator.startswith("2")
        if not into_file or not target or target.isdigit() or target.startswith("/dev/"):
            continue
        for name in line.expanded(target):
            line.put(line.files.path(name, part.cwd), held, append=">>" in operator)


def input_text(line: Line, part: Part) -> str | None:
    """The text on a part's standard input, if it is known."""
    held = _input(line, part)
    return None if held is None else contents.text_of(held, line.files.known)


def _input(line: Line, part: Part) -> Content | None:
    if part.simple.stdin is not None:
        return contents.of_text(part.simple.stdin)
    for redirect in part.simple.redirects:
        if redirect.operator == "<":
            return line.files.content(line.files.path(redirect.target, part.cwd))
    return _output(line, line.part(part.position - 1)) if part.simple.stage else None


def _output(line: Line, part: Part) -> Content | None:
    name, words, names = part.simple.name, part.words, operands(part.words)
    if name == "tee" or (name == "cat" and not names):
        return _input(line, part)
    if name == "cat" and len(names) == 1 and names == list(words) and not line.grouped(part):
        return line.files.content(line.files.path(names[0], part.cwd))
    if name == "echo":
        options = [w for w in words[:1] if re.fullmatch(r"-[neE]+", w)]
        text = " ".join(words[len(options) :])
        return contents.of_text(text.replace("\\n", "\n") if options and "e" in options[0] else text)
    if name == "printf" and len(words) == 1:
        return contents.of_text(words[0].replace("\\n", "\n").replace("\\t", "\t"))
    return None
