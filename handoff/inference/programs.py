"""Programs that an agent wrote and runs: Python and shell scripts."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from handoff.inference import content as contents
from handoff.inference import moving, scripts
from handoff.inference.line import Line, Part, operands
from handoff.inference.printing import input_text
from handoff.runners import python_target

SHELLS = {"bash", "sh", "zsh", "source", "."}
_READS = re.compile(
    r"\.read\(|\.read_text\(|readlines|fileinput|for \w+ in (?:f|file|fin|src|infile)\b"
    r"|open\([^)]*['\"](?:r[+bt]*|a[+bt]*)['\"]"
)


def run_python(line: Line, part: Part) -> None:
    target = python_target(part.simple.argv[1:])
    if target is None:
        argv = list(part.simple.argv[2:]) if part.simple.argv[1:2] == ("-",) else []
        code, name = input_text(line, part), "<stdin>"
    elif target[0] == "-c":
        argv = list(target[2:])
        code, name = target[1], "<string>"
    else:
        module = target[0] == "-m"
        written = target[1].replace(".", "/") + ".py" if module else target[0]
        path = line.files.path(written, part.cwd)
        code, name = _own_text(line, path), posixpath.basename(path)
        argv = list(target[2 if module else 1 :])
    if code is None:
        return
    if line.timed_out and (part.position == len(line.commands) - 1 or not line.text.strip()):
        return  # what was killed is taken not to have come to its writing
    _run(line, part, code, argv, name)


def run_script(line: Line, part: Part) -> None:
    """A file run by a shell, or by its own name."""
    names = operands(part.words) if part.simple.name in SHELLS else [part.simple.argv[0]]
    path = line.files.path(names[0], part.cwd) if names else ""
    text = _own_text(line, path)
    if text is None:
        return
    if path.endswith(".py") or re.match(r"#!.*python", text):
        _run(line, part, text, part.words, posixpath.basename(path))
    else:
        line.nested(text)


def _own_text(line: Line, path: str) -> str | None:
    """The text of a file that the agent wrote, if it is known."""
    return line.files.text(path) if path in line.files.touched else None


def _run(line: Line, part: Part, code: str, argv: Sequence[str], name: str) -> None:
    exit_code = line.exit_code if part.simple.exit_code_is_own else None
    done = scripts.effects(code, argv, line.text, exit_code, name)
    program = contents.fingerprint(code, *argv)
    for write in done.writes:
        path = line.files.path(write.path, part.cwd)
        is_new = not line.files.exists(path)
        if is_new and path not in line.files.touched and "/" in path:
            line.files.make_directory(path)
        if write.text is not None:
            line.write(path, contents.of_text(write.text))
            continue
        reads = bool(done.replacements) or _READS.search(code) is not None
        if is_new and (path in line.files.touched or not reads):
            line.write(path, contents.unknown(f"made:{program}:{path}"))
            continue
        held = line.existing(path)
        for old, new in done.replacements:
            held = contents.replaced(held, line.files.known, old, new)
        line.change(path, held if done.replacements else contents.opaque(held, program))
    for source, target, stays in done.moves:
        moving.carry(line, [source, target], part.cwd, stays=stays)
    moving.remove(line, done.removes, part.cwd)
