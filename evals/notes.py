"""Check the notes that a model writes about recorded runs against these runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from langgraph_takeover.base.untrusted_input import describe_error
from langgraph_takeover.evals.cli.runner import INFRASTRUCTURE_FAILURES, INTERRUPTED, USAGE, SingleUseCommand
from langgraph_takeover.evals.cli.trace_files import WorkspaceOption
from langgraph_takeover.evals.run.settings.run_options import NOTES_TIMEOUT_S
from langgraph_takeover.sandbox.cli.program import PlainApp, degrade_output, run_app

if TYPE_CHECKING:
    from langgraph_takeover.evals.models import Models
    from langgraph_takeover.handoff.records.record import HandoffRecord, Notes

_EPILOG = """
Examples:
  takeover-notes run.traj.json --model openai:gpt-5-mini
  takeover-notes trajectories/ --point first_validation --limit 10 --model
      openai:qwen --base-url http://127.0.0.1:8091/v1 --out notes
  takeover-notes trajectories/ --models examples/models.yaml --model thinker

Completed notes stay in --out; the same command resumes with the rest.

Exit codes: 0 done, 2 usage, 3 the model failed on some runs, 130 interrupted.
"""
app = PlainApp()


@app.command(epilog=_EPILOG, cls=SingleUseCommand)
def command(
    traces: Annotated[
        list[str],
        typer.Argument(help="Files, directories or globs, as for takeover-detect.", metavar="TRACE…"),
    ],
    model: Annotated[str, typer.Option(help="openai:NAME, or an entry of --models.")],
    models_file: Annotated[
        Path | None,
        typer.Option("--models", help="Models file (YAML).", show_default=False),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(envvar="OPENAI_BASE_URL", help="OpenAI-compatible server.", show_default=False),
    ] = None,
    notes_timeout_s: Annotated[
        float, typer.Option(min=0.1, help="Time limit of one note.")
    ] = NOTES_TIMEOUT_S,
    read_timeout_s: Annotated[
        float, typer.Option(min=0.1, help="Time limit without data from the server.")
    ] = 300.0,
    point: Annotated[str, typer.Option(help="Handoff point of the notes.")] = "first_validation",
    workspace: WorkspaceOption = "",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of runs.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for the notes, one file per run.")] = Path("notes"),
) -> None:
    """Let a model write notes about recorded runs, and check them against the record."""
    from langgraph_takeover.evals import models
    from langgraph_takeover.evals.cli.trace_files import UnknownTraceError, find_trace_files, read_traces
    from langgraph_takeover.evals.run.settings.config import POINTS, RunUsageError, read_names
    from langgraph_takeover.handoff.interop.session_records import build_record, list_handoff_points
    from langgraph_takeover.handoff.records.record import RecordError

    try:
        kind = read_names("--point", "point", point, POINTS)[0]
        if not models.parse_model_name(model).is_llm:
            raise RunUsageError(
                f"--model: {model} cannot write notes about recorded runs (use an LLM: openai:NAME)"
            )
        entries = models.load_models(models_file) if models_file is not None else {}
        models.check_model(model, (), base_url, entries)
        records: list[tuple[str, HandoffRecord]] = []
        for name, trace in read_traces(find_trace_files(traces), "auto", workspace):
            found = [each for each in list_handoff_points(trace) if each.kind == kind]
            if found and (limit is None or len(records) < limit):
                records.append((name, build_record(trace, found[0])))
        if not records:
            raise RunUsageError(f"--point: none of the runs reaches {kind}")
        out.mkdir(parents=True, exist_ok=True)
    except models.ModelsFileError as error:
        print(f"error: --models: {error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    except (RunUsageError, UnknownTraceError, models.ModelNameError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    except OSError as error:
        print(f"error: --out: {out}: {describe_error(error)}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    try:
        limits = {"timeout_s": notes_timeout_s, "read_timeout_s": read_timeout_s}
        raise typer.Exit(_write_all(records, model, base_url, entries, out, **limits))
    except RecordError as error:
        print(f"error: --out: {error} (remove that file to write it again)", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {describe_error(error)}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    except KeyboardInterrupt:
        print("\ninterrupted; completed notes are saved. Run the same command to resume.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def _write_all(
    records: list[tuple[str, HandoffRecord]],
    model: str,
    base_url: str | None,
    entries: Models,
    out: Path,
    *,
    timeout_s: float,
    read_timeout_s: float,
) -> int:
    from langgraph_takeover.base.untrusted_input import read_untrusted_file
    from langgraph_takeover.evals.models import build_notes_llm
    from langgraph_takeover.handoff.notes.writer import OUTPUT_TOKENS, write_notes
    from langgraph_takeover.handoff.records.record import Notes, RecordError, parse_model, write_durably
    from langgraph_takeover.nodes.model.model_errors import ModelError
    from langgraph_takeover.nodes.model.note_calls import build_ask

    llm = build_notes_llm(
        model, base_url=base_url, models=entries, max_tokens=OUTPUT_TOKENS, read_timeout_s=read_timeout_s
    )
    entry = entries.get(model)
    ask = build_ask(
        llm,
        timeout_s=(entry and entry.notes_timeout_s) or timeout_s,
        window_tokens=entry.window if entry else None,
    )
    rows, failed = [], 0
    for number, (name, record) in enumerate(records, 1):
        path = out / f"{number:03}-{record.digest[:12]}.json"
        if path.is_file():
            notes = parse_model(read_untrusted_file(path), path, Notes)
            if notes.model != model:
                raise RecordError(f"{path}: notes of {notes.model}, not of {model}")
        else:
            print(f"{number}/{len(records)} {Path(name).name}, {len(record.trace)} events", flush=True)
            try:
                notes = write_notes(record, ask, model)
            except ModelError as error:
                print(f"error: {name}: {error}", file=sys.stderr)
                failed += 1
                continue
            write_durably(path, json.dumps(notes.model_dump(mode="json"), indent=1))
        rows.append(_build_row(name, record, notes))
    _print_table(rows)
    return INFRASTRUCTURE_FAILURES if failed else 0


def _build_row(name: str, record: HandoffRecord, notes: Notes) -> dict[str, Any]:
    from langgraph_takeover.handoff.notes.contradictions import measure_soundness
    from langgraph_takeover.handoff.notes.evidence import Evidence
    from langgraph_takeover.handoff.views import find_view, measure_view

    shown = record.model_copy(update={"notes": notes})
    return {
        "run": Path(name).name,
        "events": len(record.trace),
        "retried": notes.retried or "–",
        "malformed": "yes" if notes.malformed else "no",
        **measure_soundness(notes, Evidence(record))._asdict(),
        "structured, ch": measure_view(find_view("structured")(shown)).characters,
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from langgraph_takeover.handoff.notes.contradictions import Soundness

    if not rows:
        return
    table = Table(title="Notes compared with the record")
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "run" else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(str, row.values()))
    sums = {name: sum(row[name] for row in rows) for name in Soundness._fields}
    malformed = sum(row["malformed"] == "yes" for row in rows)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    console.print(
        f"{len(rows)} runs, {malformed} malformed notes; of {sums['stated']} stated fields {sums['contradicted']} "
        f"contradicted; of {sums['claims']} statements {sums['missing_paths']} name a path that does not exist.",
        highlight=False,
    )


def main() -> None:
    """Run the command line."""
    degrade_output()
    run_app(app, "takeover-notes")


if __name__ == "__main__":
    main()
