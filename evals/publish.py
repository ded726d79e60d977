"""Runs as others take them: a dataset folder of parquet tables, predictions for SWE-bench, ATIF trajectories."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evals.conduct import USAGE

if TYPE_CHECKING:
    from evals.run.journal import Row
    from evals.run.results import Results

_EPILOG = """
Examples:

  python -m evals.publish runs/main --out dataset

  python -m evals.publish runs/shard1 runs/shard2 --out dataset --no-trajectories
"""
_CARD = """---
pretty_name: Takeovers
configs:
{configs}
---
# Takeovers

What happened when one coding agent continued another's unfinished work: {takeovers} takeovers from {points} handoff
points of {tasks} tasks, under the views {views}. A row's fields are those of the run's journal.

- `data/*.parquet`: one table a stage; nested fields are JSON text
- `predictions/SUCCESSOR.VIEW.POINT.REPEAT/all_preds.jsonl`: what `swebench` and its leaderboard read
- `trajectories/*.json`: every run in ATIF, a predecessor linked with its successors

{caveats}
"""
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog=_EPILOG)
def command(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs, such as shards.", metavar="RUN…")],
    out: Annotated[Path, typer.Option(help="Directory for the dataset; it must be new or empty.")],
    trajectories: Annotated[bool, typer.Option(help="Write the runs' traces as ATIF documents, too.")] = True,
    journal: Annotated[
        str | None, typer.Option(envvar="TAKEOVER_JOURNAL", help="The database of rows.", show_default=False)
    ] = None,
) -> None:
    """Write runs as a dataset folder that `datasets.load_dataset` reads."""
    from evals.run.config import BadUsage
    from evals.run.journal import BadJournal
    from evals.run.results import load
    from handoff.ledger import LedgerUnusable

    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise BadUsage(f"--out: {out} is there already; name a new directory")
        results = load(runs, journal)
        if not (results.predecessors or results.takeovers):
            raise BadUsage(f"{', '.join(map(str, runs))}: no row is done yet; there is nothing to publish")
        written = publish(results, out, trajectories=trajectories)
    except (BadUsage, BadJournal, LedgerUnusable) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    for warning in results.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{out}: {written}")


def publish(results: Results, out: Path, *, trajectories: bool) -> str:
    """What was written, in words."""
    (out / "data").mkdir(parents=True)
    tables = {
        name: [_plain(row) for row in getattr(results, name)]
        for name in ("takeovers", "predecessors", "labels", "notes")
    }
    tables = {name: rows for name, rows in tables.items() if rows}
    for name, rows in tables.items():
        _write_parquet(out / "data" / f"{name}.parquet", rows)
    predictions = _write_predictions(results.takeovers, out / "predictions")
    documents = _write_trajectories(results, out / "trajectories") if trajectories else 0
    (out / "README.md").write_text(_card(results, list(tables)), encoding="utf-8")
    return f"{len(tables)} tables, {predictions} prediction files, {documents} trajectories"


def _plain(row: Row) -> Row:
    """A row without where it lay, its nested fields as text, so that every row has the same types."""
    return {
        name: json.dumps(value) if isinstance(value, (dict, list)) else value
        for name, value in row.items()
        if name != "out"
    }


def _write_parquet(path: Path, rows: Sequence[Row]) -> None:
    import pyarrow
    import pyarrow.parquet

    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [_as_column(row.get(name)) for row in rows] for name in names}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def _as_column(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _write_predictions(rows: Sequence[Row], place: Path) -> int:
    """One file a successor, view, point and repeat: a leaderboard takes one patch a task."""
    from evals.run.config import short
    from handoff.record import write_durably

    files: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["outcome"] == "graded":
            kind = f"{row['point']}.{short(row['predecessor'])}"
            files[row["successor"], row["view"], kind, str(row["repeat"])].append(row)
    for (successor, view, kind, repeat), mine in files.items():
        name = ".".join((short(successor), view, kind, repeat))
        (place / name).mkdir(parents=True)
        lines = (
            {"instance_id": row["task_id"], "model_name_or_path": name, "model_patch": row["patch"]}
            for row in mine
        )
        write_durably(place / name / "all_preds.jsonl", (json.dumps(line) + "\n" for line in lines))
    return len(files)


def _write_trajectories(results: Results, place: Path) -> int:
    from evals.export import write_documents

    traces = [trace for row in _runs(results) if (trace := results.trace(row)) is not None]
    if not traces:
        return 0
    place.mkdir()
    return write_documents(place, traces)


def _runs(results: Results) -> Iterator[Row]:
    yield from (row for row in results.predecessors if row["outcome"] == "run")
    yield from (row for row in results.takeovers if row["outcome"] == "graded")


def _card(results: Results, tables: list[str]) -> str:
    from evals.reports.summary import caveats

    told = [caveat for source in results.sources for caveat in caveats(source.config)]
    views = dict.fromkeys(row["view"] for row in results.takeovers)
    return _CARD.format(
        configs="\n".join(f"- config_name: {name}\n  data_files: data/{name}.parquet" for name in tables),
        takeovers=len(results.takeovers),
        points=len({row["record_id"] for row in results.takeovers}),
        tasks=len({row["task_id"] for row in results.takeovers}),
        views=", ".join(views),
        caveats="\n".join(dict.fromkeys(told)),
    )


def main() -> None:
    """Run the command line."""
    from evals.trace_files import no_space_told

    with no_space_told("--out"):
        app(prog_name="python -m evals.publish")


if __name__ == "__main__":
    main()
