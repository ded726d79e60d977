"""Commands about handoffs: what a successor would get, whether a record is whole, where each handoff stands."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer import Argument, Option

from langgraph_takeover.handoff.text.files import describe_error

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from langgraph_takeover.handoff.ledger.handoffs import Handoff
    from langgraph_takeover.handoff.records.record import HandoffRecord
    from langgraph_takeover.handoff.records.verification import Verification

DONE, USAGE, INFRASTRUCTURE_FAILURE, NO_SPACE, INTERRUPTED = 0, 2, 3, 4, 130

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Handoffs: what a successor would get, whether a record is whole, where each handoff stands, and people in them.",
    epilog="Examples:\n\n  python -m handoff show runs/X/records/ID\n\n  python -m handoff verify runs/X/records/*"
    "\n\n  python -m handoff list --home work\n\n  python -m handoff take work/records/ID",
)

_SHOW_EPILOG = """
Examples:

  python -m handoff show runs/X/records/ID

  python -m handoff show runs/X/records/ID --view trace >prompt.txt

  python -m handoff show runs/X/records/ID --view transcript --protocol native --json | jq '.[].role'

  python -m handoff show run.traj.json --point first_validation --view cited

A view goes to standard output exactly as it is, its size to standard error. Several messages have a line above
each that names whose it is; --json has them exactly. To a terminal, control characters are written as escapes.

Exit codes: 0 done, 2 usage, 3 the record is not whole, 4 disk full, 130 interrupted.
"""
_VERIFY_EPILOG = """
Examples:

  python -m handoff verify runs/X/records/ID

  python -m handoff verify runs/X/records/* && echo all are whole

Exit codes: 0 all are whole, 2 usage, 3 one is not, 4 disk full, 130 interrupted.
"""
_EXPORT_EPILOG = """
Examples:

  python -m handoff export runs/X/records/ID /mnt/share/ID.record

  python -m handoff export runs/X/records/ID/record.json s3://bucket/ID.record

Exit codes: 0 done, 2 usage, 3 the record or the place failed, 4 disk full, 130 interrupted.
"""
_IMPORT_EPILOG = """
Examples:

  python -m handoff import /mnt/share/ID.record runs/X/records

  python -m handoff import s3://bucket/ID.record work/records --replace

Exit codes: 0 done, 2 usage, 3 the file or the place failed, 4 disk full, 130 interrupted.
"""


class ProtocolName(StrEnum):
    """How a successor acts."""

    text = "text"
    native = "native"


_DEFAULT_HOME = Path(".takeover")
RecordArgument = Annotated[
    Path, Argument(help="A record's directory, or the record.json in it.", show_default=False)
]


@app.command(epilog=_SHOW_EPILOG)
def show(
    record: Annotated[
        Path,
        Argument(
            help="A record's directory, the record.json in it, a recorded run of any agent, or a handoff's id.",
            show_default=False,
        ),
    ],
    view: Annotated[
        str | None, Option(help="Print what a successor gets under this view.", show_default=False)
    ] = None,
    protocol: Annotated[ProtocolName, Option(help="How the successor acts.")] = ProtocolName.text,
    window_tokens: Annotated[int, Option(min=1000, help="The successor's context window.")] = 128_000,
    point: Annotated[
        str | None,
        Option(
            help="Of a recorded run: the handoff point to show it at.",
            show_default="where the recording ends",
        ),
    ] = None,
    home: Annotated[
        Path, Option(envvar="TAKEOVER_RUNS", help="Of a handoff: where runs leave everything.")
    ] = _DEFAULT_HOME,
    database: Annotated[
        str | None,
        Option(help="Of a handoff: its ledger's URL, if it is no file in the home.", show_default=False),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON: a view as messages with roles.")] = False,
) -> None:
    """Print exactly what a successor would get, with its size; without --view, the sizes of all views."""
    with _report_errors():
        found = (
            _load_recording(record, point) if _is_recording(record) else _load_record(record, home, database)
        )
        from langgraph_takeover.handoff.views import Recipient, UnknownViewError, display, find_view

        recipient = Recipient(protocol=protocol.value, window_tokens=window_tokens)
        if view is None:
            if as_json:
                print(json.dumps(display.record_to_dict(found, recipient), indent=1))
            else:
                display.print_record(_make_console(), found, recipient)
            return
        try:
            messages = find_view(view)(found, recipient)
        except UnknownViewError as error:
            _exit_with_usage_error(f"--view: {error}")
        sent = (
            json.dumps(display.to_openai_messages(messages), indent=1) + "\n"
            if as_json
            else display.format_messages(messages)
        )
        _write_output(sent)
        print(display.describe_size(messages), file=sys.stderr)


@app.command(epilog=_VERIFY_EPILOG)
def verify(
    records: Annotated[
        list[Path],
        Argument(help="Records' directories, or the record.json in them.", metavar="RECORD…"),
    ],
) -> None:
    """Check records: their digests, their snapshots, and that trace and snapshot agree; a line each.

    Notes and reviews, which people and models add later, have digests of their own.
    """
    from langgraph_takeover.handoff.records import verification

    # One of several that is no record hides nothing of the others.
    several = len(records) > 1
    directories = [
        each.resolve() if several and each.is_dir() else _find_record_directory(each) for each in records
    ]
    whole = True
    with _report_errors():
        for directory in directories:
            with _show_status(f"verifying {directory.name}"):
                found = verification.verify_record(directory)
            if found.problems:
                whole = False
            print(
                _escape_line(
                    f"{directory.name}: {'; '.join(found.problems) or _describe_verification(found)}"
                ),
                flush=True,
            )
    raise typer.Exit(DONE if whole else INFRASTRUCTURE_FAILURE)


def _describe_verification(verification: Verification) -> str:
    """What is said of a whole record."""
    parts = ["whole", *([] if verification.has_snapshot else ["it has no snapshot"])]
    if verification.files_without_digest:
        parts.append(
            f"not covered: {', '.join(verification.files_without_digest)} (an older version wrote no digest)"
        )
    return "; ".join(parts)


@app.command(epilog=_EXPORT_EPILOG)
def export(
    record: RecordArgument,
    url: Annotated[str, Argument(help="The file to write: a path, or a URL that fsspec knows.")],
) -> None:
    """Write a record with its notes, its review and its snapshot, verified, to one file."""
    from langgraph_takeover.handoff.records import archive

    directory = _find_record_directory(record)
    with _report_errors(), _show_status(f"writing {url}"):
        archive.export_record(directory, url)


@app.command("import", epilog=_IMPORT_EPILOG)
def import_(
    url: Annotated[str, Argument(help="The file to read: a path, or a URL that fsspec knows.")],
    directory: Annotated[
        Path, Argument(help="Where records lie: the `records` of a run or a home; made if it is not there.")
    ],
    replace: Annotated[bool, Option("--replace", help="Replace a record that has its id.")] = False,
) -> None:
    """Put an exported record, verified, among others; prints its directory."""
    from langgraph_takeover.handoff.records import archive

    if (directory / "records").is_dir():
        _exit_with_usage_error(f"DIRECTORY: {directory}: records lie in {directory / 'records'}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _exit_with_usage_error(f"DIRECTORY: {directory}: {describe_error(error)}")
    with _report_errors():
        try:
            with _show_status(f"reading {url}"):
                place = archive.import_record(url, directory, replace=replace)
        except archive.RecordExistsError as error:
            _exit_with_usage_error(f"{error}; --replace replaces it")
        print(place)


def _find_record_directory(record: Path) -> Path:
    from langgraph_takeover.handoff.records.record import RECORD_FILE

    file = record if record.name == RECORD_FILE and not record.is_dir() else record / RECORD_FILE
    try:
        if not file.is_file():
            _exit_with_usage_error(
                f"RECORD: {record}: no record lies there; name its directory, or the {RECORD_FILE} in it"
            )
    except OSError as error:
        _exit_with_usage_error(f"RECORD: {record}: {describe_error(error)}")
    return file.resolve().parent


def _load_record(record: Path, home: Path, database: str | None) -> HandoffRecord:
    from langgraph_takeover.handoff.records.record import RecordStore

    if len(record.parts) == 1 and not record.exists() and home.is_dir():
        with _find_handoff(record.name, home, database) as sent:
            if sent is not None:
                known = RecordStore(home / "records").load(sent.record)
                return known.model_copy(update={"envelope": sent.envelope})
    directory = _find_record_directory(record)
    return RecordStore(directory.parent).load(directory.name)


@contextmanager
def _find_handoff(name: str, home: Path, database: str | None) -> Iterator[Handoff | None]:
    """The handoff of that id in a home's ledger, if there is one."""
    from langgraph_takeover.handoff.ledger import Ledger, LedgerUnavailableError, handoffs

    file = home / "takeover.sqlite"
    if database is None and not file.is_file():
        yield None
        return
    try:
        ledger = Ledger(database or f"sqlite:///{file.absolute()}")
        try:
            yield handoffs.find(ledger, name)
        finally:
            ledger.close()
    except LedgerUnavailableError as error:
        _exit(str(error), INFRASTRUCTURE_FAILURE)


def _is_recording(path: Path) -> bool:
    with suppress(OSError):  # which whoever looks for a record there is told
        return path.is_file() and path.name != "record.json"
    return False


def _load_recording(path: Path, point: str | None) -> HandoffRecord:
    """The first run of a recording, at one of its points."""
    from langgraph_takeover.handoff.interop.recordings import build_record, list_handoff_points
    from langgraph_takeover.handoff.readers import TraceError, read_traces

    try:
        run = next(iter(read_traces(path)), None)
        if run is None or isinstance(run, TraceError):
            _exit_with_usage_error(f"RECORD: {run or f'{path}: holds no run'}")
    except TraceError as error:
        _exit_with_usage_error(f"RECORD: {error}")
    there = list_handoff_points(run)
    found = [each for each in there if each.kind == point] if point else there[-1:]
    if not found:
        names = ", ".join(each.kind for each in there) or "none, because it has no events"
        _exit_with_usage_error(f"--point: {path}: does not reach {point or 'any point'}; there are {names}")
    return build_record(run, found[0])


def _write_output(text: str) -> None:
    """To a pipe or a file exactly this; to a terminal nothing that could steer it."""
    from langgraph_takeover.handoff.views.display import escape_control_chars

    if sys.stdout.isatty():
        text = escape_control_chars(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.flush()


@contextmanager
def _report_errors() -> Iterator[None]:
    """What a person, and not a programmer, can mend is told without a traceback."""
    from langgraph_takeover.handoff.records.record import RecordError
    from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError

    try:
        yield
        sys.stdout.flush()
    except (SandboxUnavailableError, RecordError) as error:
        _exit(str(error), NO_SPACE if isinstance(error, OutOfDiskError) else INFRASTRUCTURE_FAILURE)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            from langgraph_takeover.sandbox.cli.terminal import discard_output

            discard_output()
            _exit(f"{error.filename or 'standard output'}: no space left", NO_SPACE)
        if error.filename is None:
            raise
        _exit(f"{error.filename}: {describe_error(error)}", INFRASTRUCTURE_FAILURE)
    except KeyboardInterrupt:
        _exit("interrupted; what is not done can be done by the same command again", INTERRUPTED)


def _exit_with_usage_error(reason: str) -> NoReturn:
    _exit(reason, USAGE)


def _exit(reason: str, code: int) -> NoReturn:
    start = "" if code == INTERRUPTED else "error: "
    print(f"{start}{_escape_line(reason)}", file=sys.stderr)
    raise typer.Exit(code) from None


def _escape_line(text: str) -> str:
    from langgraph_takeover.sandbox.cli.terminal import escape_text

    return str(escape_text(text))


def _show_status(action: str) -> Status:
    from rich.console import Console

    from langgraph_takeover.sandbox.cli.terminal import escape_text

    return Console(file=sys.stderr, highlight=False).status(escape_text(action))


def _make_console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120, highlight=False)


def main() -> None:
    # A program, which nothing imports, may look to the right: these need checkpoints and machines.
    from langgraph_takeover.graph.cli.handoffs import add_commands

    add_commands(app, _report_errors)
    app(prog_name="python -m handoff")


if __name__ == "__main__":
    main()
