"""What a command line does to files, read off its words and off what it printed."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import TYPE_CHECKING

from handoff.commands import executed, parse, resolve
from handoff.inference import git, moving, patches, printing, programs, rewriting
from handoff.inference.line import Line, Part

if TYPE_CHECKING:
    from handoff.inference.files import Files

_MAX_DEPTH = 3
_DONE_BY: dict[str, Callable[[Line, Part], None]] = {
    **dict.fromkeys(rewriting.FORMATTERS, rewriting.format_files),
    **dict.fromkeys(("sed", "perl", "ruby", "find"), rewriting.edit_in_place),
    **dict.fromkeys(("patch", "apply_patch"), patches.apply_patch),
    **dict.fromkeys(("mv", "cp", "install"), moving.move),
    **dict.fromkeys(("rm", "unlink"), moving.remove_files),
    **dict.fromkeys(programs.SHELLS, programs.run_script),
    "git": git.run_git,
    "mkdir": moving.make_directories,
    "touch": moving.touch,
}
_PRINTERS = {"cat", "tee", "echo", "printf"}


def directory_after(command: str, cwd: str | None) -> str | None:
    """Where a shell that stood in `cwd` stands after a command line."""
    commands = parse(command)
    last = commands[-1] if commands else None
    if last is None:
        return cwd
    there = last.cwd
    if last.name in ("cd", "pushd") and last.stages == 1:
        words = [w for w in last.argv[1:] if w == "-" or not w.startswith("-")]
        if not words or words[0] == "-" or "$" in words[0]:
            return None
        there = resolve(words[0], last.cwd)
    if there is None:
        return cwd
    return there if there.startswith("/") or cwd is None else posixpath.normpath(posixpath.join(cwd, there))


def carry_out(
    files: Files, command: str, text: str, exit_code: int | None, timed_out: bool, depth: int = 0
) -> set[str]:
    """Let the files change as the command line changes them; the paths it touched."""

    def nested(inner: str) -> set[str]:
        return carry_out(files, inner, text, exit_code, False, depth + 1) if depth < _MAX_DEPTH else set()

    ran = executed(command, text)
    # Of a line that bash could not read to its end, the exit code is that of the reading.
    code = exit_code if ran == command else None
    line = Line(files, ran, text, code, timed_out=timed_out, nested=nested)
    for position in range(len(line.commands)):
        if line.ran(position):
            _do(line, line.part(position))
    return line.touched


def _do(line: Line, part: Part) -> None:
    name = part.simple.name
    if name in _PRINTERS:
        printing.printed(line, part)
        return
    if name.startswith(("python", "pypy")):
        programs.run_python(line, part)
    elif name in _DONE_BY:
        _DONE_BY[name](line, part)
    elif "/" in part.simple.argv[0] or name.endswith(".sh"):
        programs.run_script(line, part)
    printing.redirected(line, part)
