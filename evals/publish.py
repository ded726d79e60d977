"""Publish runs as a dataset: parquet tables, SWE-bench predictions, ATIF trajectories."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from langgraph_takeover.evals.cli.extra import require_experiment
from langgraph_takeover.evals.cli.runner import USAGE, SingleUseCommand
from langgraph_takeover.sandbox.cli.program import degrade_output

if TYPE_CHECKING:
    from langgraph_takeover.evals.run.journal import Row
    from langgraph_takeover.evals.run.results import Results

_EPILOG = """
Examples:

  takeover-publish runs/main --out dataset

  takeover-publish runs/shard1 runs/shard2 --out dataset --no-trajectories
"""
_CARD_TEMPLATE = """---
pretty_name: Takeovers
configs:
{configs}
---
# Takeovers

One coding agent continues another's unfinished work: {takeovers} takeovers from {points} handoff
points of {tasks} tasks, under the views {views}. The fields of a row are those of the run's journal.

- `data/*.parquet`: one table per stage; nested fields are JSON text
- `predictions/SUCCESSOR.VIEW.POINT.REPEAT/all_preds.jsonl`: input for `swebench` and its leaderboard
- `trajectories/*.json`: every run as ATIF; a predecessor links to its successors

{caveats}
"""
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog=_EPILOG, cls=SingleUseCommand)
def command(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs, such as shards.", metavar="RUN…")],
    out: Annotated[Path, typer.Option(help="Directory for the dataset; new or empty.")],
    trajectories: Annotated[bool, typer.Option(help="Write the runs' traces as ATIF documents.")] = True,
    journal: Annotated[
        str | None,
        typer.Option(envvar="TAKEOVER_JOURNAL", help="Database URL for the rows.", show_default=False),
    ] = None,
) -> None:
    """Write runs as a dataset that `datasets.load_dataset` reads."""
    require_experiment()
    from langgraph_takeover.evals.run.journal import JournalError
    from langgraph_takeover.evals.run.results import load_results
    from langgraph_takeover.evals.run.settings.config import RunUsageError
    from langgraph_takeover.handoff.ledger import LedgerUnavailableError

    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RunUsageError(f"--out: {out} already exists (use a new directory)")
        results = load_results(runs, journal)
        if not (results.predecessors or results.takeovers):
            raise RunUsageError(f"{', '.join(map(str, runs))}: no completed row to publish")
        written = publish(results, out, trajectories=trajectories)
    except (RunUsageError, JournalError, LedgerUnavailableError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    for warning in results.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{out}: {written}")


def publish(results: Results, out: Path, *, trajectories: bool) -> str:
    """A summary of the written files, as text."""
    (out / "data").mkdir(parents=True)
    tables = {
        name: [_flatten_row(row) for row in getattr(results, name)]
        for name in ("takeovers", "predecessors", "labels", "notes")
    }
    tables = {name: rows for name, rows in tables.items() if rows}
    for name, rows in tables.items():
        _write_parquet(out / "data" / f"{name}.parquet", rows)
    predictions = _write_predictions(results.takeovers, out / "predictions")
    documents = _write_trajectories(results, out / "trajectories") if trajectories else 0
    (out / "README.md").write_text(_format_card(results, list(tables)), encoding="utf-8")
    return f"{len(tables)} tables, {predictions} prediction files, {documents} trajectories"


def _flatten_row(row: Row) -> Row:
    """A row without its directory. Nested fields are text, so that every row has the same types."""
    return {
        name: json.dumps(value) if isinstance(value, (dict, list)) else value
        for name, value in row.items()
        if name != "out"
    }


def _write_parquet(path: Path, rows: Sequence[Row]) -> None:
    import pyarrow
    import pyarrow.parquet

    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [_to_column_value(row.get(name)) for row in rows] for name in names}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def _to_column_value(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _write_predictions(rows: Sequence[Row], directory: Path) -> int:
    """One file per successor, view, point and repeat, because a leaderboard takes one patch per task."""
    from langgraph_takeover.evals.run.settings.config import shorten_model_name
    from langgraph_takeover.handoff.records.record import write_durably

    files: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["outcome"] == "graded":
            kind = f"{row['point']}.{shorten_model_name(row['predecessor'])}"
            files[row["successor"], row["view"], kind, str(row["repeat"])].append(row)
    for (successor, view, kind, repeat), mine in files.items():
        name = ".".join((shorten_model_name(successor), view, kind, repeat))
        (directory / name).mkdir(parents=True)
        lines = (
            {"instance_id": row["task_id"], "model_name_or_path": name, "model_patch": row["patch"]}
            for row in mine
        )
        write_durably(directory / name / "all_preds.jsonl", (json.dumps(line) + "\n" for line in lines))
    return len(files)


def _write_trajectories(results: Results, directory: Path) -> int:
    from langgraph_takeover.evals.export import write_documents

    traces = [trace for row in _iterate_runs(results) if (trace := results.load_trace(row)) is not None]
    if not traces:
        return 0
    directory.mkdir()
    return write_documents(directory, traces)


def _iterate_runs(results: Results) -> Iterator[Row]:
    yield from (row for row in results.predecessors if row["outcome"] == "run")
    yield from (row for row in results.takeovers if row["outcome"] == "graded")


def _format_card(results: Results, tables: list[str]) -> str:
    from langgraph_takeover.evals.reports.caveats import list_caveats

    caveats = [caveat for source in results.sources for caveat in list_caveats(source.config)]
    views = dict.fromkeys(row["view"] for row in results.takeovers)
    return _CARD_TEMPLATE.format(
        configs="\n".join(f"- config_name: {name}\n  data_files: data/{name}.parquet" for name in tables),
        takeovers=len(results.takeovers),
        points=len({row["record_id"] for row in results.takeovers}),
        tasks=len({row["task_id"] for row in results.takeovers}),
        views=", ".join(views),
        caveats="\n".join(dict.fromkeys(caveats)),
    )


def main() -> None:
    """Run the command line."""
    degrade_output()
    from langgraph_takeover.evals.cli.trace_files import report_full_disk

    with report_full_disk("--out"):
        app(prog_name="takeover-publish")


if __name__ == "__main__":
    main()
