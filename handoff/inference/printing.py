"""Programs that print, and the files and programs that their text goes into."""

from __future__ import annotations

import re

from handoff.inference import content as contents
from handoff.inference.content import Content
from handoff.inference.line import CommandLine, ExpandedCommand, list_operands


def run_printer(line: CommandLine, part: ExpandedCommand) -> None:
    """`cat`, `echo`, `printf` and `tee`, whose text is known."""
    held = _find_output(line, part)
    if part.command.name == "tee":
        append = "-a" in part.words or "--append" in part.words
        for name in list_operands(part.words):
            line.write_output(line.files.resolve_path(name, part.cwd), held, append=append)
    write_redirects(line, part, held)


def write_redirects(line: CommandLine, part: ExpandedCommand, content: Content | None = None) -> None:
    """The output of a part goes where its redirections say."""
    for redirect in part.command.redirects:
        operator, target = redirect.operator, redirect.target
        into_file = ">" in operator and "&" not in operator.lstrip("&") and not operator.startswith("2")
        if not into_file or not target or target.isdigit() or target.startswith("/dev/"):
            continue
        for name in line.expand_word(target):
            line.write_output(line.files.resolve_path(name, part.cwd), content, append=">>" in operator)


def find_input_text(line: CommandLine, part: ExpandedCommand) -> str | None:
    """The text on a part's standard input, if it is known."""
    held = _find_input(line, part)
    return None if held is None else contents.full_text(held, line.files.known_lines)


def _find_input(line: CommandLine, part: ExpandedCommand) -> Content | None:
    if part.command.stdin is not None:
        return contents.from_text(part.command.stdin)
    for redirect in part.command.redirects:
        if redirect.operator == "<":
            return line.files.content(line.files.resolve_path(redirect.target, part.cwd))
    return _find_output(line, line.expand_command(part.position - 1)) if part.command.stage else None


def _find_output(line: CommandLine, part: ExpandedCommand) -> Content | None:
    name, words, names = part.command.name, part.words, list_operands(part.words)
    if name == "tee" or (name == "cat" and not names):
        return _find_input(line, part)
    if name == "cat" and len(names) == 1 and names == list(words) and not line.is_grouped(part):
        return line.files.content(line.files.resolve_path(names[0], part.cwd))
    if name == "echo":
        options = [w for w in words[:1] if re.fullmatch(r"-[neE]+", w)]
        text = " ".join(words[len(options) :])
        return contents.from_text(text.replace("\\n", "\n") if options and "e" in options[0] else text)
    if name == "printf" and len(words) == 1:
        return contents.from_text(words[0].replace("\\n", "\n").replace("\\t", "\t"))
    return None
