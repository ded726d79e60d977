"""Tables of what matching leaves out: the levels of all takeovers, as the paper has them, and the takeovers left out."""

from __future__ import annotations

from langgraph_takeover.evals.reports.collection import ReportData, display_names
from langgraph_takeover.evals.reports.estimates import quantile, read_values
from langgraph_takeover.evals.reports.tables.effect_tables import (
    COST_MEASURES,
    EFFECT_COLUMNS,
    Rows,
    add_left_out,
    build_notes,
    cost_cells,
    level_cells,
    solved_share,
    to_percent,
)
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.settings.config import BASELINE

_FIRST_PROMPT_COLUMNS = ("median characters", "P90 characters", "max characters")
_NOTES = (
    "All graded takeovers, as in the paper's tables 2, 4, 5 and 7 to 9: where some are left out, the views' points differ. Δ: the "
    f"view's value against that of {BASELINE}, each over its own takeovers; tables 2, 5, 6 and 8 compare at common points.",
    "Reference effect sizes (the paper's Table 2): median events 20 to 59 % lower, prompt tokens 42 to 63 % lower.",
)


def build_unmatched_table(data: ReportData) -> Table:
    """The levels of all graded takeovers and their differences, overall and by kind."""
    names = display_names((*data.successors, *data.predecessors))
    groups: list[tuple[str, str, dict[str, str]]] = [
        ("all", "", {}),
        *(("point", kind, {"point": kind}) for kind in data.points),
        *(("handoff state", kind, {"handoff_state": kind}) for kind in data.states),
        *(("predecessor", names[kind], {"predecessor": kind}) for kind in data.predecessors),
    ]
    rows = []
    for successor in data.successors:
        for group, category, fields in groups:
            chosen = {**fields, "successor": successor}
            baseline = data.select(**chosen, view=BASELINE)
            for view in data.views:
                selected = data.select(**chosen, view=view)
                expected = len(selected) + data.count_left_out(**chosen, view=view)
                if expected:
                    cells = _build_cells(selected, () if view == BASELINE else baseline)
                    rows.append((names[successor], group, category, view, *add_left_out(cells, expected)))
    measures = tuple(name for name in EFFECT_COLUMNS if name != "pairs")
    columns = ("successor", "group", "category", "view", *measures, *_FIRST_PROMPT_COLUMNS)
    notes = (*build_notes(data), *_NOTES)
    return Table(20, "all_takeovers", "All takeovers, without matching", columns, tuple(rows), notes)


def _build_cells(rows: Rows, baseline: Rows) -> tuple[Cell, ...]:
    changes = (
        (quantile(read_values(rows, name), 0.5), quantile(read_values(baseline, name), 0.5))
        for name in COST_MEASURES[:2]
    )
    sizes = read_values(rows, "first_prompt_chars")
    return (
        *level_cells(rows),
        *(to_percent(own / base - 1) if own is not None and base else None for own, base in changes),
        to_percent(solved_share(rows) - solved_share(baseline)) if rows and baseline else None,
        *cost_cells(rows),
        *(quantile(sizes, share) for share in (0.5, 0.9, 1)),
    )


def build_left_out_table(data: ReportData) -> Table:
    """The takeovers that levels leave out; of data restricted to common points and pooled successors."""
    names = display_names(data.successors)
    rows = sorted(
        (names[row["successor"]], row["view"], row["record_id"], row["repeat"], row["reason"])
        for row in data.left_out
    )
    notes = (
        "Unmatched: graded, but the successor has no graded takeover there under another of its views. Unpooled: its successor "
        "lacks a view of another, so it is left out where levels of several successors are pooled: on the console, in By view "
        "on the page, and in the plot of first prompts. Failed: infrastructure failure. Excluded: the point has no record, or "
        "no notes that a view shows. Not run: the run has no such takeover yet.",
    )
    title = "Takeovers that are not at common points"
    return Table(
        21, "left_out", title, ("successor", "view", "point", "repeat", "reason"), tuple(rows), notes
    )
