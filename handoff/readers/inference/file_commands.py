"""Programs that move, copy, remove, create and print files."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from langgraph_takeover.handoff.readers.inference.command_line import (
    CommandLine,
    ExpandedCommand,
    list_operands,
)
from langgraph_takeover.handoff.readers.inference.content import Content, full_text, known_content
from langgraph_takeover.handoff.trace import file_kinds


def run_move(line: CommandLine, part: ExpandedCommand) -> None:
    move_paths(line, part.words, part.cwd, keep_source=part.command.name != "mv")


def move_paths(line: CommandLine, words: Sequence[str], cwd: str, *, keep_source: bool) -> None:
    """Move or, with `keep_source`, copy files and directories."""
    names = list_operands(words)
    if len(names) < 2:
        return
    *sources, target = names
    target_path = line.files.resolve_path(target, cwd)
    is_directory = target.endswith("/") or target in (".", "..") or len(sources) > 1
    if (
        not is_directory
        and "." not in posixpath.basename(target_path)
        and "." in posixpath.basename(sources[0])
    ):
        is_directory = target_path not in line.files.touched_contents
    for source in sources:
        path = line.files.resolve_path(source, cwd)
        destination = posixpath.join(target_path, posixpath.basename(path)) if is_directory else target_path
        for inner in [p for p in line.files.list_paths_under(path) if p != path]:
            _move_path(line, inner, destination + inner[len(path) :], keep_source)
        if "." not in posixpath.basename(path) and path not in line.files.touched_contents:
            line.files.make_directory(destination)
        else:
            _move_path(line, path, destination, keep_source)


def _move_path(line: CommandLine, path: str, target: str, keep_source: bool) -> None:
    content = line.files.content(path)
    if not keep_source:
        line.write_file(path, None)
    line.write_file(target, content)


def run_remove(line: CommandLine, part: ExpandedCommand) -> None:
    remove_paths(line, part.words, part.cwd)


def remove_paths(line: CommandLine, words: Sequence[str], cwd: str) -> None:
    for word in list_operands(words):
        path = line.files.resolve_path(word, cwd)
        for touched in line.files.list_paths_under(path):
            line.write_file(touched, None)
        if file_kinds.is_code(path) and "*" not in path and path not in line.files.touched_contents:
            line.write_file(path, None)


def run_mkdir(line: CommandLine, part: ExpandedCommand) -> None:
    is_new = line.exit_code == 0 and not any(re.match(r"-\w*p|--parents", w) for w in part.words)
    for word in list_operands(part.words):
        path = line.files.resolve_path(word, part.cwd)
        line.files.make_directory(path, new=is_new and "/" not in path)


def run_touch(line: CommandLine, part: ExpandedCommand) -> None:
    for word in list_operands(part.words):
        path = line.files.resolve_path(word, part.cwd)
        if not line.files.exists(path):
            line.write_file(path, known_content(""))


def run_printer(line: CommandLine, part: ExpandedCommand) -> None:
    """Apply `cat`, `echo`, `printf` or `tee`, whose output may be known."""
    content = _find_output(line, part)
    if part.command.name == "tee":
        append = "-a" in part.words or "--append" in part.words
        for name in list_operands(part.words):
            line.write_output(line.files.resolve_path(name, part.cwd), content, append=append)
    write_redirects(line, part, content)


def write_redirects(line: CommandLine, part: ExpandedCommand, content: Content | None = None) -> None:
    """Write the output of a command into the files of its redirections."""
    for redirect in part.command.redirects:
        operator, target = redirect.operator, redirect.target
        is_file_output = ">" in operator and "&" not in operator.lstrip("&") and not operator.startswith("2")
        if not is_file_output or not target or target.isdigit() or target.startswith("/dev/"):
            continue
        refused = line.list_refused_targets(part.position)
        for name in line.expand_word(target):
            if name not in refused:
                line.write_output(line.files.resolve_path(name, part.cwd), content, append=">>" in operator)


def find_input_text(line: CommandLine, part: ExpandedCommand) -> str | None:
    """The standard input of a command, if known."""
    content = _find_input(line, part)
    return None if content is None else full_text(content, line.files.known_lines)


def _find_input(line: CommandLine, part: ExpandedCommand) -> Content | None:
    if part.command.stdin is not None:
        return known_content(part.command.stdin)
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
        return known_content(text.replace("\\n", "\n") if options and "e" in options[0] else text)
    if name == "printf" and len(words) == 1:
        return known_content(words[0].replace("\\n", "\n").replace("\\t", "\t"))
    return None
