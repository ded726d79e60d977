"""Report on runs: rows, summary, tables, plots and page."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from langgraph_takeover.base.untrusted_input import describe_error
from langgraph_takeover.evals.cli.runner import (
    DISK_FULL,
    DONE,
    INFRASTRUCTURE_FAILURES,
    USAGE,
    SingleUseCommand,
    is_disk_full,
    make_console,
    require_experiment,
)
from langgraph_takeover.sandbox.cli.program import PlainApp, degrade_output, run_app

if TYPE_CHECKING:
    from rich.console import Console

    from langgraph_takeover.evals.reports.tables.table_files import Table
    from langgraph_takeover.evals.run.results import Results

TABLES, PLOTS, PAGE = "tables", "plots", "report.html"
_EPILOG = """
Examples:
  takeover-report runs/20260518-120000
  takeover-report runs/shard-1 runs/shard-2 runs/other-successor --out runs/all

Exit codes: 0 done, 2 usage, 3 some rows are infrastructure failures, 4 disk
full.
"""

app = PlainApp()


@app.command(epilog=_EPILOG, cls=SingleUseCommand)
def command(
    directories: Annotated[
        list[Path],
        typer.Argument(help="Directories of runs, finished or not, or of published rows.", metavar="DIR…"),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for the report.", show_default="DIR, if there is only one"),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(help="Database URL for the runs' rows.", show_default="each DIR's own"),
    ] = None,
) -> None:
    """Report on one or several runs, at any time. The rows stay unchanged.

    Several runs are combined, such as shards of a study or studies that share handoff points. Their rows are
    also written to --out.
    """
    require_experiment()
    from langgraph_takeover.evals.run.preparation import usage_errors
    from langgraph_takeover.evals.run.results import load_results

    where = _choose_output(directories, out)
    try:
        results = load_results(directories, journal)
        raise typer.Exit(make_report(make_console(), results, where, journal))
    except usage_errors() as error:
        _fail(str(error))
    except OSError as error:
        if is_disk_full(error):
            _fail(f"{where}: no space left (free some)", DISK_FULL)
        if error.filename is None:
            raise
        _fail(f"{error.filename}: {describe_error(error)} (choose another directory by --out)")


def make_report(
    console: Console, results: Results, out: Path, url: str | None = None, *, with_page: bool = True
) -> int:
    """Write rows and summary into `out`, by default also tables, plots and page; print the table. Return the exit code."""
    from langgraph_takeover.evals.reports.summary import (
        print_paper_comparison,
        print_summary,
        summarize,
        write_summary,
    )

    out.mkdir(parents=True, exist_ok=True)
    _export(results, out, url)
    summary = summarize(results)
    write_summary(out, summary)
    tables, left_out = _write_page(results, out) if with_page else ((), ())
    print_summary(console, summary)
    for table in tables:
        if table.name == "paper":
            print_paper_comparison(console, table)
    for reason in left_out:
        console.print(f"no plot of {reason}", style="dim", markup=False)
    from langgraph_takeover.sandbox.cli.program import program_name

    rows = out / "takeovers.jsonl"
    files = f"Page: {out / PAGE}   rows: {rows}   tables: {out / TABLES}   plots: {out / PLOTS}"
    later = f"Rows: {rows}   report: {program_name('takeover-report', 'evals.report')} {out}"
    console.print(files if with_page else later, markup=False, soft_wrap=True)
    return INFRASTRUCTURE_FAILURES if summary["infrastructure_failures"] else DONE


def _write_page(results: Results, out: Path) -> tuple[Sequence[Table], Sequence[str]]:
    """Write tables, plots and page. Return the tables, and the reasons for missing plots."""
    from langgraph_takeover.evals.reports.collection import collect_report_data
    from langgraph_takeover.evals.reports.html import page
    from langgraph_takeover.evals.reports.plots import figures
    from langgraph_takeover.evals.reports.tables import table_files
    from langgraph_takeover.evals.reports.tables.study_tables import build_tables

    made = build_tables(results)
    table_files.write_tables(out / TABLES, made)
    table_files.write_takeovers(out / TABLES / "takeovers.csv", collect_report_data(results).takeovers)
    drawn = figures.draw_plots(results, out / PLOTS)
    page.write_page(out / PAGE, results, made, drawn.pictures)
    return made, drawn.omissions


def _export(results: Results, out: Path, url: str | None) -> None:
    """Write the rows as files with one JSON object per line, except over the files from which they were read."""
    from langgraph_takeover.evals.run.journal import JOURNAL_FILE
    from langgraph_takeover.evals.run.rows import STAGES
    from langgraph_takeover.handoff.records.record import write_durably

    own = [source.out for source in results.sources if source.out.resolve() == out.resolve()]
    if own and url is None and not (out / JOURNAL_FILE).exists():
        return
    for name in STAGES:
        lines = (json.dumps(row.to_dict()) + "\n" for row in getattr(results, name))
        write_durably(out / f"{name}.jsonl", lines)


def _choose_output(directories: list[Path], out: Path | None) -> Path:
    from langgraph_takeover.evals.run.settings.config import CONFIG_FILE

    if out is None:
        if len(directories) > 1:
            _fail("--out: required for the report of several runs")
        return directories[0]
    alone = len(directories) == 1 and directories[0].resolve() == out.resolve()
    if (out / CONFIG_FILE).exists() and not alone:
        _fail(f"--out: {out} contains another run (choose another directory)")
    return out


def _fail(reason: str, code: int = USAGE) -> None:
    print(f"error: {reason}", file=sys.stderr)
    raise typer.Exit(code)


def main() -> None:
    degrade_output()
    run_app(app, "takeover-report")


if __name__ == "__main__":
    main()
