"""What all command lines share: their name in the commands that they suggest, and their standard output."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

from langgraph_takeover.sandbox.storage.observers import ObserverErrors

if TYPE_CHECKING:
    import typer

_PACKAGE = "langgraph_takeover"
_DEGRADE = "takeover.degrade"
DISK_FULL = 4


def program_name(script: str, module: str) -> str:
    """Return `python -m MODULE` if the program was started so, else the name of the installed script.

    `module` is the short name, such as `evals.takeover`.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    started_as = spec.name.removesuffix(".__main__") if spec else ""
    return f"python -m {started_as}" if started_as in (module, f"{_PACKAGE}.{module}") else script


_LOOK_ALIKES = str.maketrans(
    {"–": "-", "—": "-", "−": "-", "…": "...", "Δ": "delta", "×": "x", "→": "->", "≤": "<=", "≥": ">="}
)


def degrade_output() -> None:
    """Let standard output write, where its encoding lacks a character, a look-alike or an escape such as `\\u4e2d`.

    A standard stream that is closed writes to nowhere.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        codecs.register_error(_DEGRADE, partial(_degrade, keeps_bytes=sys.stdout.errors == "surrogateescape"))
        sys.stdout.reconfigure(errors=_DEGRADE)


def run_app(app: typer.Typer, name: str, **context: Any) -> NoReturn:
    """Run a command line and exit; a usage error is one line with its cure, and exit code 2."""
    import typer

    usage_error: type[Exception] = typer.BadParameter.__mro__[1]
    click_error: Any = typer.BadParameter.__mro__[2]
    try:
        code = app(prog_name=name, standalone_mode=False, **context)
    except click_error as error:
        where = getattr(error, "ctx", None)
        command = where.command_path if where is not None else name
        text = " ".join(error.format_message().split()).rstrip(".")
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            raise SystemExit(error.exit_code) from None
        cure = f" (see: {command} --help)" if isinstance(error, usage_error) else ""
        print(f"error: {text[:1].lower()}{text[1:]}{cure}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except typer.Abort:
        code = 130
    raise SystemExit(code or 0)


@contextmanager
def drop_unwritable_output() -> Iterator[None]:
    """Continue without standard output once it cannot be written: its reader has ended, or its disk is full."""
    with redirect_stdout(cast(TextIO, _DroppableOutput(sys.stdout))):
        yield


@contextmanager
def report_full_disk(target: str = "standard output") -> Iterator[None]:
    """Report a full disk in one line, with the common exit code."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _discard_output(sys.stdout)  # Python would try again at exit, and end with code 120
        print(f"error: {error.filename or target}: no space left", file=sys.stderr)
        raise SystemExit(DISK_FULL) from None


class _DroppableOutput:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with ObserverErrors("standard output"):
            try:
                self._stream.write(text)
            except OSError:
                _discard_output(self._stream)
                raise
        return len(text)

    def flush(self) -> None:
        with ObserverErrors("standard output"):
            try:
                self._stream.flush()
            except OSError:
                _discard_output(self._stream)
                raise


def _discard_output(stream: TextIO) -> None:
    """Send what follows, also what the stream still holds, nowhere."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _degrade(error: UnicodeError, *, keeps_bytes: bool) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start]
    if keeps_bytes and "\udc80" <= missing <= "\udcff":  # a byte of a file name
        return bytes([ord(missing) - 0xDC00]), error.start + 1
    return missing.translate(_LOOK_ALIKES).encode("ascii", "backslashreplace").decode(), error.start + 1
