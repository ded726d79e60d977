"""Publish runs as a dataset: parquet tables, SWE-bench predictions, ATIF trajectories."""

from __future__ import annotations

import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from langgraph_takeover.base.untrusted_input import describe_error
from langgraph_takeover.evals.cli.runner import USAGE, SingleUseCommand, is_disk_full, require_experiment
from langgraph_takeover.sandbox.cli.program import PlainApp, degrade_output, report_full_disk, run_app

if TYPE_CHECKING:
    import pyarrow

    from langgraph_takeover.evals.reports.collection import ReportData
    from langgraph_takeover.evals.run.results import Results
    from langgraph_takeover.evals.run.rows import AgentRow, Takeover

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

One coding agent continues another's unfinished work: {counts.takeovers} takeovers from {counts.points} handoff
points of {counts.tasks} tasks, under the views {views}. {others}The fields of a row are those of the run's journal.

{layout}

{caveats}
"""
_LAYOUT = {
    "data": "`data/*.parquet`: one table per stage; nested fields are JSON text, and fields without a column are in "
    "`other_fields`",
    "predictions": "`predictions/SUCCESSOR.VIEW.POINT.PREDECESSOR.REPEAT/all_preds.jsonl`: input for `swebench` and its "
    "leaderboard",
    "trajectories": "`trajectories/*.json`: every run as ATIF; a predecessor links to its successors",
}
_PREDICTION_FIELDS = ("predecessor", "point", "patch")
app = PlainApp()


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
    except OSError as error:
        if is_disk_full(error):
            raise
        print(f"error: --out: {error.filename or out}: {describe_error(error)}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    for warning in results.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{out}: {written}")


def publish(results: Results, out: Path, *, trajectories: bool) -> str:
    """Write the dataset, whole or not at all. Return a summary of the files. Raises RunUsageError or OSError."""
    from langgraph_takeover.evals.reports.collection import collect_report_data
    from langgraph_takeover.evals.reports.estimates import select_graded
    from langgraph_takeover.evals.reports.tables.table_files import build_table
    from langgraph_takeover.evals.run.rows import STAGES

    rows = {name: getattr(results, name) for name in ("takeovers", "predecessors", "labels", "notes")}
    tables = {name: build_table(STAGES[name], own) for name, own in rows.items() if own}
    _check_predictions(select_graded(results.takeovers))
    data = collect_report_data(results)
    out = out.resolve()
    partial = out.with_name(f".partial-{out.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        (partial / "data").mkdir(parents=True)
        for name, table in tables.items():
            _write_parquet(partial / "data" / f"{name}.parquet", table)
        predictions = _write_predictions(data.takeovers, partial / "predictions")
        documents = _write_trajectories(results, partial / "trajectories") if trajectories else 0
        card = _format_card(results, data, list(tables), {each.name for each in partial.iterdir()})
        (partial / "README.md").write_text(card, encoding="utf-8")
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    missing = sum(1 for _ in _iterate_runs(results)) - documents if trajectories else 0
    return f"{len(tables)} tables, {predictions} prediction files, {documents} trajectories" + (
        f" ({missing} runs have no readable trace)" if missing else ""
    )


def _check_predictions(rows: Sequence[Takeover]) -> None:
    """Raises RunUsageError if a graded takeover lacks a field that its prediction needs."""
    from langgraph_takeover.evals.run.settings.config import RunUsageError

    for row in rows:
        missing = next((name for name in _PREDICTION_FIELDS if getattr(row, name) is None), None)
        if missing is not None:
            raise RunUsageError(
                f"{row.out}: takeovers row {' '.join(map(str, row.key))} is graded, but has no {missing!r}, which its prediction "
                "needs (restore the row from a copy, or delete it)"
            )


def _write_parquet(path: Path, table: pyarrow.Table) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(table, path)


def _write_predictions(rows: Sequence[Takeover], directory: Path) -> int:
    """One file per successor, view, point and repeat, because a leaderboard takes one patch per task."""
    from langgraph_takeover.evals.run.settings.config import shorten_model_name
    from langgraph_takeover.handoff.records.record import write_durably

    files: dict[tuple[str, ...], list[Takeover]] = defaultdict(list)
    for row in rows:
        kind = f"{row.point}.{shorten_model_name(row.predecessor or '')}"
        files[row.successor, row.view, kind, str(row.repeat)].append(row)
    for (successor, view, kind, repeat), mine in files.items():
        name = ".".join((shorten_model_name(successor), view, kind, repeat))
        (directory / name).mkdir(parents=True)
        lines = (
            {"instance_id": row.task_id, "model_name_or_path": name, "model_patch": row.patch} for row in mine
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


def _iterate_runs(results: Results) -> Iterator[AgentRow]:
    yield from (row for row in results.predecessors if row.outcome == "run")
    yield from (row for row in results.takeovers if row.outcome == "graded")


def _format_card(results: Results, data: ReportData, tables: Sequence[str], layout: Collection[str]) -> str:
    from langgraph_takeover.evals.reports.caveats import list_result_caveats
    from langgraph_takeover.evals.reports.collection import count_takeovers

    counts = count_takeovers(results, data)
    others = (
        f"{counts.failures} infrastructure failure{'s' * (counts.failures > 1)}",
        f"{counts.excluded} takeover{'s' * (counts.excluded > 1)} at incomplete points",
    )
    also = [text for text, number in zip(others, counts[3:], strict=True) if number]
    return _CARD_TEMPLATE.format(
        configs="\n".join(f"- config_name: {name}\n  data_files: data/{name}.parquet" for name in tables),
        counts=counts,
        views=", ".join(dict.fromkeys(row.view for row in data.takeovers)) or "none",
        others=f"The tables also have {' and '.join(also)}, which do not count. " if also else "",
        layout="\n".join(f"- {text}" for name, text in _LAYOUT.items() if name in layout),
        caveats="\n".join(list_result_caveats(results)),
    )


def main() -> None:
    """Run the command line."""
    degrade_output()
    with report_full_disk("--out"):
        run_app(app, "takeover-publish")


if __name__ == "__main__":
    main()
