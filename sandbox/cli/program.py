"""The parts that all command lines share: plain help, their name in suggested commands, their standard output."""

from __future__ import annotations

import codecs
import errno
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

from langgraph_takeover.base.failures import ObserverErrors
from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.texts import escape_unprintable
from langgraph_takeover.base.untrusted_input import describe_error

_CommandT = TypeVar("_CommandT", bound=Callable[..., Any])
_PACKAGE = "langgraph_takeover"
_DEGRADE = "takeover.degrade"
_NAME_COLUMNS = 26
_SHORTER = (
    (re.compile(r"(?:<(?:int|float)\b.{0,60}>|\b(?:INTEGER|FLOAT)\b.{0,60})$"), "N"),
    (re.compile(r"<(list\[)?str\]?>$"), "TEXT"),
    (re.compile(r"<(list\[)?[Pp]ath\]?>$"), "PATH"),
    (re.compile(r"(?:; )?[\d.<=]{0,24}x[<>]=?[\d.]{1,24}"), ""),
    (re.compile(r"env var: "), "$"),
    (re.compile(r"default: \(([^()]{0,200})\)\]$"), r"default: \1]"),
    (re.compile(r"default: (\d{1,20})\.0\b"), r"default: \1"),
    (re.compile(r" {1,9}\[(?:; )?"), " ["),
    (re.compile(r" \[\]"), ""),
)
"""What to replace in typer's descriptions of options, in versions with click and without."""
DONE, USAGE, INFRASTRUCTURE_FAILURE, DISK_FULL, INTERRUPTED = 0, 2, 3, 4, 130


class PlainCommand(TyperCommand):
    """A command whose help is plain text: one section per panel, and the epilog as it is written."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_epilog(self, formatter)


class _PlainGroup(TyperGroup):
    """The same for a command with subcommands."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            summary = inspect.cleandoc(command.help or "").split("\n\n")[0]
            sections.setdefault(command.rich_help_panel or "Commands", []).append((name, summary))
        _write_sections(formatter, sections)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_epilog(self, formatter)


class PlainApp(typer.Typer):
    """A command line with plain help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            cls=_PlainGroup,
            add_completion=False,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            **settings,
        )

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = PlainCommand, **settings: Any
    ) -> Callable[[_CommandT], _CommandT]:
        return super().command(name, cls=cls, **settings)


def _write_parameters(command: Any, context: Any, formatter: Any) -> None:
    """Write arguments, then options by panel; those without a panel, such as `--help`, join the last one."""
    arguments: list[tuple[str, str]] = []
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        name, text = parameter.get_help_record(context)
        if parameter.param_type_name == "argument":
            arguments.append(
                (parameter.metavar or name.partition(" ")[0], _shorten(text).removesuffix(" [required]"))
            )
        else:
            panel = getattr(parameter, "rich_help_panel", None) or next(reversed(panels), "Options")
            panels.setdefault(panel, []).append((_shorten(name), _shorten(text)))
    _write_sections(formatter, ({"Arguments": arguments} if arguments else {}) | panels)


def _write_sections(formatter: Any, sections: dict[str, list[tuple[str, str]]]) -> None:
    for title, rows in sections.items():
        with formatter.section(title):
            formatter.write_dl(rows, col_max=_NAME_COLUMNS)


def _write_epilog(command: Any, formatter: Any) -> None:
    if command.epilog:
        formatter.write(f"\n{command.epilog.strip()}\n")


def _shorten(text: str) -> str:
    """What typer says of an option, in fewer words; its bounds are in the message of the error."""
    for pattern, shorter in _SHORTER:
        text = pattern.sub(shorter, text)
    return text


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
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]
    click_error: Any = typer.BadParameter.__mro__[2]
    try:
        code = app(prog_name=name, standalone_mode=False, **context)
    except click_error as error:
        where = getattr(error, "ctx", None)
        command = where.command_path if where is not None else name
        text = " ".join(error.format_message().replace("Value error, ", "", 1).split()).rstrip(".")
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
def report_errors() -> Iterator[None]:
    """Report errors that are raised on purpose in one line, with their own exit code; a bug keeps its traceback."""
    try:
        yield
        sys.stdout.flush()
    except TakeoverError as error:
        exit_with(str(error), error.exit_code)
    except OSError as error:
        if error.filename is None or error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        exit_with(f"{error.filename}: {describe_error(error)}", INFRASTRUCTURE_FAILURE)
    except KeyboardInterrupt:
        exit_with("interrupted (run the same command again to continue)", INTERRUPTED)


def exit_with(reason: str, code: int = USAGE) -> NoReturn:
    """Exit with one line on standard error."""
    start = "" if code == INTERRUPTED else "error: "
    print(f"{start}{escape_unprintable(reason)}", file=sys.stderr)
    raise typer.Exit(code) from None


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
