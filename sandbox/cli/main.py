"""The command `sandbox`: what this host supports, stale resources, snapshots as files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from langgraph_takeover.base.texts import escape_unprintable
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

    from langgraph_takeover.sandbox.gc import CollectionRequest, Resource, Survey
    from langgraph_takeover.sandbox.interface import Snapshot


app = PlainApp(
    no_args_is_help=True,
    help="Sandboxes of this host: capabilities, stale resources of dead runs, snapshots as files.",
    epilog="Examples:\n  sandbox probe\n  sandbox gc\n  sandbox gc --remove",
)

_GC_EPILOG = """
Examples:
  sandbox gc
  sandbox gc --remove
  sandbox gc --owner 3f9a61c2 --snapshots --remove
  sandbox gc --bases --remove
  sandbox gc --json | jq '.resources[] | select(.status == "removable")'

Resources of living processes are never removed, nor those of other hosts or
people. Without its snapshot image, a record can no longer be taken over. The
next run unpacks its own base again.

Exit codes: 0 done, 2 usage, 3 something could not be inspected or removed, 130
interrupted.
"""
_PROBE_EPILOG = "Examples:\n  sandbox probe\n  sandbox probe --json"
_EXPORT_EPILOG = """
Examples:
  sandbox export runs/20260518-120000/records/ID/record.json
      /mnt/share/ID.snapshot
  sandbox export snapshot.json s3://bucket/ID.snapshot --store /data/snapshots

Exit codes: 0 done, 2 usage, 3 the snapshot or the target failed, 4 disk full,
130 interrupted.
"""
_IMPORT_EPILOG = """
Examples:
  sandbox import /mnt/share/ID.snapshot /data/snapshots >/data/snapshots/ID.json

Exit codes: 0 done, 2 usage, 3 the file or the target failed, 4 disk full, 130
interrupted.
"""

JsonOption = Annotated[bool, Option("--json", help="Print JSON instead of tables.")]


@app.command(epilog=_GC_EPILOG)
def gc(
    remove: Annotated[bool, Option("--remove", help="Remove the stale resources.")] = False,
    snapshots: Annotated[
        bool,
        Option(
            "--snapshots",
            help="Also the Docker snapshot images of dead runs.",
        ),
    ] = False,
    bases: Annotated[
        bool,
        Option("--bases", help="Also unpacked bases, unless a run is alive."),
    ] = False,
    owner: Annotated[
        str | None,
        Option(
            help="Only resources of this run, of any host.",
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        list[Path] | None,
        Option(
            help="Also partial snapshots below it (repeatable).",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List stale resources of dead runs, also of Docker; --remove removes them."""
    from langgraph_takeover.sandbox.gc import CollectionRequest, survey
    from langgraph_takeover.sandbox.ownership import is_owner

    if owner is not None and not is_owner(owner):
        exit_with(f"--owner: not the name of a run: {owner!r} (list the names: {_program()} gc)")
    if owner is not None and (bases or store):
        exit_with(f"{'--bases' if bases else '--store'}: belongs to no run (omit --owner)")
    for path in store or ():
        if not path.is_dir():
            exit_with(f"--store: directory not found: {path}")
    request = CollectionRequest(owner, snapshots, bases, tuple(store or ()))
    with report_errors():
        with _stderr_console().status("looking"):
            found = survey(request)
        outcome = _remove_resources(found.stale_resources) if remove else None
        if as_json:
            from langgraph_takeover.sandbox.cli import terminal

            print(json.dumps(terminal.to_json_object(found, outcome), indent=1))
        else:
            _show_survey(found, outcome, request)
    has_failed = found.errors or any((outcome or {}).values())
    raise typer.Exit(INFRASTRUCTURE_FAILURE if has_failed else DONE)


@app.command(epilog=_PROBE_EPILOG)
def probe(as_json: JsonOption = False) -> None:
    """Show the back ends, ways to take snapshots, and storage of this host."""
    from langgraph_takeover.sandbox.cli import probe

    with report_errors():
        with _stderr_console().status("trying"):
            facts = probe.list_capabilities()
        if as_json:
            print(json.dumps([fact.model_dump() for fact in facts], indent=1))
            return
        from langgraph_takeover.sandbox.cli import terminal

        terminal.show_capabilities(_stdout_console(), facts)


@app.command(epilog=_EXPORT_EPILOG)
def export(
    snapshot_json: Annotated[
        Path,
        Argument(help="A snapshot as JSON, or JSON with it, such as a record."),
    ],
    url: Annotated[str, Argument(help="File to write: a path, or a URL that fsspec supports.")],
    store: Annotated[
        Path | None,
        Option(help="Directory of the snapshot's archive.", show_default="the directory of SNAPSHOT_JSON"),
    ] = None,
) -> None:
    """Write a verified snapshot to one file for another host."""
    from langgraph_takeover.sandbox.snapshots import transfer

    snapshot = _read_snapshot(snapshot_json)
    with report_errors(), _stderr_console().status(f"writing {url}"):
        transfer.export_snapshot(snapshot, store or snapshot_json.parent, url)


@app.command("import", epilog=_IMPORT_EPILOG)
def import_(
    url: Annotated[str, Argument(help="File to read: a path, or a URL that fsspec supports.")],
    store: Annotated[Path, Argument(help="Directory for its archive; created if missing.")],
) -> None:
    """Verify an exported snapshot, add it to a directory, print it as JSON."""
    from langgraph_takeover.sandbox.snapshots import transfer

    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        exit_with(f"STORE: {store}: {error.strerror}")
    with report_errors():
        with _stderr_console().status(f"reading {url}"):
            snapshot = transfer.import_snapshot(url, store)
        print(snapshot.model_dump_json())


def _remove_resources(stale: tuple[Resource, ...]) -> dict[str, str | None]:
    """Remove resources one by one; return why a resource remains, by location."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from langgraph_takeover.sandbox import gc

    outcome: dict[str, str | None] = {}
    console = _stderr_console()
    columns = (
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task("", total=len(stale))
        for one in stale:
            progress.update(bar, description=escape_unprintable(f"{one.kind} {one.name}"))
            outcome[one.location] = gc.remove_resource(one)
            progress.advance(bar)
    return outcome


def _show_survey(survey: Survey, outcome: dict[str, str | None] | None, request: CollectionRequest) -> None:
    from langgraph_takeover.sandbox.cli import terminal

    console, stale = _stdout_console(), survey.stale_resources
    if survey.docker_error is not None:
        console.print(
            terminal.to_plain_text(f"Docker was not inspected: {survey.docker_error.partition(' (')[0]}")
        )
    for error in survey.errors:
        print(f"error: {error}", file=sys.stderr)
    terminal.show_kept_resources(console, survey.kept_resources)
    if survey.kept_resources and stale:
        console.print()
    if not stale:
        whose = f" of {request.owner}" if request.owner else ""
        where = " where it could be inspected" if survey.errors else ""
        console.print(terminal.to_plain_text(f"No stale resources{whose} to remove{where}."))
    elif outcome is None:
        terminal.show_stale_resources(console, stale, "Stale resources")
        console.print()
        console.print(
            terminal.to_plain_text(f"{terminal.format_total(stale)}. Nothing has been removed. To remove it:")
        )
        console.print(
            terminal.to_plain_text(f"  {request.command_line(_program())} --remove"), soft_wrap=True
        )
    else:
        gone = tuple(one for one in stale if outcome[one.location] is None)
        if gone:
            terminal.show_stale_resources(console, gone, "Removed")
            console.print()
        console.print(terminal.to_plain_text(f"Removed: {terminal.format_total(gone)}."))
        for one in stale:
            if outcome[one.location] is not None:
                name = terminal.to_plain_text(f"{one.kind} {one.name} remains: {outcome[one.location]}")
                print(f"error: {name}", file=sys.stderr)


def _read_snapshot(path: Path) -> Snapshot:
    from pydantic import ValidationError

    from langgraph_takeover.sandbox.interface import Snapshot

    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        exit_with(f"SNAPSHOT_JSON: {path}: {error.strerror}")
    except ValueError as error:
        exit_with(f"SNAPSHOT_JSON: {path}: not JSON ({error})")
    if isinstance(document, dict) and isinstance(document.get("snapshot"), dict):
        document = document["snapshot"]
    try:
        return Snapshot.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        exit_with(f"SNAPSHOT_JSON: {path}: not a snapshot ({where}: {first['msg']})")


def _stdout_console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120, highlight=False)


def _stderr_console() -> Console:
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False)


def _program() -> str:
    return program_name("sandbox", "sandbox")


def main() -> None:
    degrade_output()
    with report_full_disk():
        run_app(app, _program())


if __name__ == "__main__":
    main()
