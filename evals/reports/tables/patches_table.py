"""The table of final patches, and the takeovers whose verdict depends on leftover files."""

from __future__ import annotations

from collections.abc import Sequence

from langgraph_takeover.evals.reports.collection import ReportData
from langgraph_takeover.evals.reports.estimates import quantile, read_values
from langgraph_takeover.evals.reports.tables import effect_tables
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.journal import Row

_COLUMNS = (
    *(
        "successor",
        "view",
        "runs",
        "left out",
        "median patch lines",
        "median patch files",
        "with scratch files",
    ),
    *("with changed tests", "solved", "cleaned verdicts", "solved cleaned", "verdicts differ"),
    *("solved only as submitted", "solved only cleaned"),
)


def build_patches_table(data: ReportData) -> Table:
    return Table(
        16,
        "patches",
        "Final patches",
        _COLUMNS,
        effect_tables.build_rows(data, lambda rows, _: _patch_cells(rows)),
        (
            "Patch lines: added and deleted. Scratch files: new files outside the source tree, such as reproduction scripts, and "
            "new files in caches and build directories. Changed tests: "
            "test files that the patch changes. All counts are of runs.",
            "Cleaned: the verdict of the patch without scratch files and without changes of pyproject.toml, setup.cfg, setup.py "
            "and tox.ini in the root; if there are none, that of the submitted patch. Cleaned "
            "verdicts: the runs for which it is known. Everywhere else, solved is the verdict of the patch as submitted. All "
            "runs are at common points.",
            *data.describe_left_out(),
        ),
    )


def _patch_cells(rows: Sequence[Row]) -> tuple[Cell, ...]:
    verdicts = [
        (bool(row["resolved"]), cleaned)
        for row in rows
        if isinstance(cleaned := row.get("cleaned_resolved"), bool)
    ]
    submitted_only = sum(submitted and not cleaned for submitted, cleaned in verdicts)
    cleaned_only = sum(cleaned and not submitted for submitted, cleaned in verdicts)
    counts = (
        *(len(verdicts), sum(cleaned for _, cleaned in verdicts)),
        *(submitted_only + cleaned_only, submitted_only, cleaned_only),
    )
    return (
        len(rows),
        *(quantile(read_values(rows, name), 0.5) for name in ("patch_lines", "patch_files")),
        *(_count_with_files(rows, name) for name in ("scratch_files", "test_files")),
        sum(row["resolved"] for row in rows),
        *(counts if verdicts else (None,) * len(counts)),
    )


def _count_with_files(rows: Sequence[Row], name: str) -> int | None:
    """The runs with such files; None if no row states them."""
    known = [row[name] for row in rows if isinstance(row.get(name), list)]
    return sum(bool(files) for files in known) if known else None
