"""The command `handoff`: show, verify, export and import records; list and move handoffs; let people take part."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from langgraph_takeover.base.texts import escape_unprintable
from langgraph_takeover.base.untrusted_input import describe_error
from langgraph_takeover.graph.cli.handoff_commands import add_commands
from langgraph_takeover.graph.cli.record_ids import AgentHomeOption, RecordArgument, find_record, list_some
from langgraph_takeover.handoff.names import HOME_VARIABLE, USER_HOME
from langgraph_takeover.sandbox.cli.program import (
    DONE,
    INFRASTRUCTURE_FAILURE,
    PlainApp,
    degrade_output,
    exit_with,
    program_name,
    report_errors,
    report_full_disk,
    run_app,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from langgraph_takeover.graph.cli.record_ids import ModelBuilder
    from langgraph_takeover.handoff.records.record import HandoffRecord
    from langgraph_takeover.handoff.records.verification import Verification


app = PlainApp(
    no_args_is_help=True,
    help="Handoffs: show what a successor sees, check records, move handoffs, and take part as a person.",
    epilog="Examples:\n  handoff show runs/X/records/ID\n  handoff verify runs/X/records/*\n"
    "  handoff list --home work\n  handoff take work/records/ID",
)

_SHOW_EPILOG = """
Examples:
  handoff show runs/X/records/ID
  handoff show runs/X/records/ID --view trace >prompt.txt
  handoff show runs/X/records/ID --view transcript --protocol native --json | jq
      '.[].role'
  handoff show run.traj.json --point first_validation --view cited

The view goes to standard output unchanged, its size to standard error. Before
each of several messages, a line names its role; --json prints them exactly. On
a terminal, control characters are escaped.

Exit codes: 0 done, 2 usage, 3 the record is damaged, 4 disk full, 130
interrupted.
"""
_VERIFY_EPILOG = """
Examples:
  handoff verify runs/X/records/ID
  handoff verify runs/X/records/* && echo all intact

Exit codes: 0 all intact, 2 usage, 3 a record is damaged, 4 disk full, 130
interrupted.
"""
_EXPORT_EPILOG = """
Examples:
  handoff export runs/X/records/ID /mnt/share/ID.record
  handoff export runs/X/records/ID/record.json s3://bucket/ID.record

Exit codes: 0 done, 2 usage, 3 the record or the target failed, 4 disk full, 130
interrupted.
"""
_IMPORT_EPILOG = """
Examples:
  handoff import /mnt/share/ID.record runs/X/records
  handoff import s3://bucket/ID.record work/records --replace

Exit codes: 0 done, 2 usage, 3 the file or the target failed, 4 disk full, 130
interrupted.
"""


class ProtocolName(StrEnum):
    """The successor's protocol."""

    text = "text"
    native = "native"


@app.command(epilog=_SHOW_EPILOG)
def show(
    record: Annotated[
        Path,
        Argument(
            metavar="RECORD",
            help="Id of a record or handoff, its beginning, a directory, or a recorded run of any agent.",
            show_default=False,
        ),
    ],
    view: Annotated[str | None, Option(help="View to print.", show_default=False)] = None,
    protocol: Annotated[ProtocolName, Option(help="Protocol of the successor.")] = ProtocolName.text,
    window_tokens: Annotated[
        int, Option(min=1000, help="Context window of the successor, in tokens.")
    ] = 128_000,
    point: Annotated[
        str | None,
        Option(
            help="Handoff point of a recorded run.",
            show_default="end of the recording",
        ),
    ] = None,
    workspace: Annotated[
        str,
        Option(
            help="Absolute path of the repository in a recorded run.",
            metavar="DIR",
            show_default=False,
        ),
    ] = "",
    home: AgentHomeOption = None,
    database: Annotated[
        str | None,
        Option(help="URL of the ledger, if it is not the file in the home.", show_default=False),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON: the view as messages with roles.")] = False,
) -> None:
    """Print what a successor would see under --view; without it, the sizes of all."""
    with report_errors():
        found = (
            _load_recording(record, point, workspace)
            if _is_recording(record)
            else _load_record(record, home, database)
        )
        from langgraph_takeover.handoff.views import (
            Recipient,
            UnknownViewError,
            display,
            find_view,
            measure_view,
        )

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
            exit_with(f"--view: {error}")
        sent = (
            json.dumps(display.to_openai_messages(messages), indent=1) + "\n"
            if as_json
            else display.format_messages(messages)
        )
        _write_output(sent)
        print(display.describe_size(messages), file=sys.stderr)
        if warning := display.warn_about_size(view, measure_view(messages).tokens, window_tokens):
            print(warning, file=sys.stderr)


@app.command(epilog=_VERIFY_EPILOG)
def verify(
    records: Annotated[
        list[Path],
        Argument(help="Records: ids, their unique beginnings, or directories.", metavar="RECORD…"),
    ],
    home: AgentHomeOption = None,
) -> None:
    """Check digests, snapshots and traces of records; one line per record.

    Notes and reviews, which are added later, have their own digests.
    """
    from langgraph_takeover.handoff.records import verification

    # One invalid path must not hide the results of the others.
    several = len(records) > 1
    with report_errors():
        directories = [
            each.resolve() if several and each.is_dir() else find_record(str(each), home).directory
            for each in records
        ]
    whole = True
    with report_errors():
        for directory in directories:
            with _show_status(f"verifying {directory.name}"):
                found = verification.verify_record(directory)
            if found.problems:
                whole = False
            print(
                escape_unprintable(
                    f"{directory.name}: {'; '.join(found.problems) or _describe_verification(found)}"
                ),
                flush=True,
            )
    raise typer.Exit(DONE if whole else INFRASTRUCTURE_FAILURE)


def _describe_verification(verification: Verification) -> str:
    """Describe an intact record."""
    return "whole" if verification.has_snapshot else "whole; it has no snapshot"


@app.command(epilog=_EXPORT_EPILOG)
def export(
    record: RecordArgument,
    url: Annotated[
        str, Argument(metavar="FILE", help="File to write: a path, or a URL that fsspec supports.")
    ],
    home: AgentHomeOption = None,
) -> None:
    """Write a verified record to one file; print its size and name its secrets.

    The file contains notes, review and snapshot."""
    from rich.filesize import decimal

    from langgraph_takeover.graph.continuation.working_tree import list_secret_files
    from langgraph_takeover.handoff.records import archive

    with report_errors():
        directory = find_record(record, home).directory
        with _show_status(f"writing {url}"):
            size = archive.export_record(directory, url)
            secret_files = list_secret_files(directory)
        print(escape_unprintable(f"{url}: {decimal(size)}"))
        if secret_files:
            print(
                escape_unprintable(
                    f"It holds files that usually contain secrets: {list_some(secret_files)}. Keep it private."
                )
            )


@app.command("import", epilog=_IMPORT_EPILOG)
def import_(
    url: Annotated[
        str, Argument(metavar="FILE", help="File to read: a path, or a URL that fsspec supports.")
    ],
    directory: Annotated[
        Path | None,
        Argument(
            metavar="DIRECTORY",
            help="Directory for the record; created if missing.",
            show_default=f"{USER_HOME}/records",
        ),
    ] = None,
    home: Annotated[
        Path | None,
        Option("--home", envvar=HOME_VARIABLE, help="Home for the record.", show_default=str(USER_HOME)),
    ] = None,
    replace: Annotated[bool, Option("--replace", help="Replace a record with the same id.")] = False,
) -> None:
    """Verify an exported record and add it to a home; print its directory."""
    from langgraph_takeover.graph.continuation.known_records import ensure_private_directory
    from langgraph_takeover.handoff.records import archive

    if directory is None:
        directory = (home or USER_HOME).expanduser() / "records"
        ensure_private_directory(directory.parent)
    if (directory / "records").is_dir():
        exit_with(f"DIRECTORY: {directory}: the records are in {directory / 'records'}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        exit_with(f"DIRECTORY: {directory}: {describe_error(error)}")
    with report_errors():
        try:
            with _show_status(f"reading {url}"):
                imported = archive.import_record(url, directory, replace=replace)
        except archive.RecordExistsError as error:
            exit_with(f"{error} (--replace replaces it)")
        print(imported)


def _load_record(record: Path, home: Path | None, database: str | None) -> HandoffRecord:
    from langgraph_takeover.handoff.records.record import RecordStore

    with report_errors():
        found = find_record(str(record), home, database=database)
    known = RecordStore(found.directory.parent).load(found.id)
    return known.model_copy(update={"envelope": found.handoff.envelope}) if found.handoff else known


def _is_recording(path: Path) -> bool:
    with suppress(OSError):  # the caller, who looks for a record, reports it
        return path.is_file() and path.name != "record.json"
    return False


def _load_recording(path: Path, point: str | None, workspace: str) -> HandoffRecord:
    """Return the first run of a recording, and one of its points."""
    from langgraph_takeover.handoff.interop.session_records import build_record, list_handoff_points
    from langgraph_takeover.handoff.readers import TraceError, describe_warnings, read_traces

    if workspace and not workspace.startswith("/"):
        exit_with(f"--workspace: not an absolute path: {workspace:.200} (pass DIR of the recorded run)")
    try:
        run = next(iter(read_traces(path, workspace=workspace)), None)
        if run is None or isinstance(run, TraceError):
            exit_with(f"RECORD: {run or f'{path}: no run in it'}")
    except TraceError as error:
        exit_with(f"RECORD: {error}")
    for warning in describe_warnings(run):
        print(escape_unprintable(f"warning: {path}: {warning}"), file=sys.stderr)
    points = list_handoff_points(run)
    found = [each for each in points if each.kind == point] if point else points[-1:]
    if not found:
        names = ", ".join(each.kind for each in points) or "none: it has no events"
        exit_with(f"--point: {path} does not reach {point or 'any point'} (its points: {names})")
    return build_record(run, found[0])


def _write_output(text: str) -> None:
    """Write text unchanged to a pipe or file, escaped to a terminal."""
    from langgraph_takeover.handoff.views.display import escape_control_chars

    if sys.stdout.isatty():
        text = escape_control_chars(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.flush()


def _show_status(action: str) -> Status:
    from rich.console import Console

    from langgraph_takeover.sandbox.cli.terminal import to_plain_text

    return Console(file=sys.stderr, highlight=False).status(to_plain_text(action))


def _make_console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120, highlight=False)


add_commands(app)


def main(build_model: ModelBuilder) -> None:
    """Run the command line. `build_model` builds the model that works for an external agent in a sandbox."""
    degrade_output()
    with report_full_disk():
        run_app(app, program_name("handoff", "handoff"), obj=build_model)
