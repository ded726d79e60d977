"""Which files a person means by arguments, and the traces in them."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING

from handoff.outside import describe_error

if TYPE_CHECKING:
    from handoff.trace import Trace

_BESIDE_A_RECORD = ("notes.json", "review.json")
_SUFFIXES = (".json", ".jsonl", ".traj")
NO_SPACE = 4


class UnknownTrace(ValueError):
    """Arguments that stand for no file, or a format that nobody knows."""


def trace_files(given: Sequence[str]) -> list[Path]:
    """The files that arguments stand for. Raises UnknownTrace.

    A directory stands for every `.json`, `.jsonl` and `.traj` in it and below it; a record's notes and review,
    hidden directories and links to directories in it are left out, and one that cannot be read is one line on stderr.
    """
    found: list[Path] = []
    for text in given:
        path = Path("/dev/stdin" if text == "-" else text)
        if os.path.lexists(path):
            found += _within(path) if path.is_dir() else [path]
            continue
        matched = [Path(name) for name in sorted(glob(text, recursive=True))]  # noqa: PTH207
        if not matched:
            raise UnknownTrace(f"{printable(text)}: no such file or directory")
        found += [inner for each in matched for inner in (_within(each) if each.is_dir() else [each])]
    if not found:
        raise UnknownTrace(f"no {', '.join(_SUFFIXES)} file in {', '.join(map(printable, given))}")
    return list(dict.fromkeys(found))


def readable(files: Sequence[Path], form: str) -> Iterator[tuple[str, Trace]]:
    """Every trace that can be read, with its name; what cannot be is one line on stderr. Raises UnknownTrace."""
    from handoff.readers import FORMATS, BadTrace, read

    if form != "auto" and form not in FORMATS:
        raise UnknownTrace(f"--format: there is no format {form!r}; there are auto, {', '.join(FORMATS)}")
    for path in files:
        try:
            mode = path.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISFIFO(mode)):
                raise BadTrace(f"{path}: neither a file nor a directory")
            for number, trace in enumerate(read(path, form)):
                if isinstance(trace, BadTrace):
                    _tell(str(trace))
                else:
                    several = number > 0 or path.suffix == ".jsonl"
                    yield f"{path}#{number}" if several else str(path), trace
        except BadTrace as error:
            _tell(str(error))
        except OSError as error:
            _tell(f"{path}: {describe_error(error)}")


def printable(text: str) -> str:
    """Text of a trace or a name of a file must not steer the terminal."""
    return "".join(c if c.isprintable() else "·" for c in text)


@contextmanager
def no_space_told(what: str) -> Iterator[None]:
    """A full disk is one line, with the exit code that it has everywhere."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        from sandbox.listing import discard_output

        discard_output()
        print(f"error: {error.filename or what}: no space left", file=sys.stderr)
        raise SystemExit(NO_SPACE) from None


def _tell(message: str) -> None:
    print(f"error: {printable(message)}", file=sys.stderr)


def _within(directory: Path) -> list[Path]:
    try:
        inside = sorted(directory.iterdir())
    except OSError as error:
        _tell(f"{directory}: {describe_error(error)}")
        return []
    if any(path.name.startswith("event-") and path.suffix == ".json" for path in inside):
        return [directory]
    if "record.json" in {path.name for path in inside}:
        inside = [path for path in inside if path.name not in _BESIDE_A_RECORD]
    found: list[Path] = []
    for path in inside:
        if path.is_dir():
            if not path.is_symlink() and not path.name.startswith("."):
                found += _within(path)
        elif path.is_file() and path.suffix.lower() in _SUFFIXES:
            found.append(path)
    return found
