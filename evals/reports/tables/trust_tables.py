"""Tables of over-trust, of unmatched takeovers, and of excluded rows."""

from __future__ import annotations

from collections.abc import Sequence

from langgraph_takeover.evals.reports.collection import ALREADY_SOLVED, ReportData, display_names
from langgraph_takeover.evals.reports.estimates import quantile, read_values
from langgraph_takeover.evals.reports.tables import effect_tables
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
from langgraph_takeover.evals.run.journal import Row
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


_KEPT_NOTE = (
    "Kept: share of the predecessor's changed source lines in the final patch. Only takeovers at points with a changed "
    "source line count."
)


def build_trust_table(data: ReportData) -> Table:
    columns = (
        *("successor", "view", "runs", "left out", "with a change", "median kept %", "kept all %"),
        *(
            "reexamined %",
            "verified before finish %",
            "pairs",
            "harm",
            "rescue",
            "already solved",
            "preserved",
        ),
    )
    notes = (
        _KEPT_NOTE,
        "Reexamined: the successor read a changed file or ran a validation before its first edit of those files, or its end. "
        "Verified before finish: a validation gave a result after its last source change.",
        f"Harm: solved under {BASELINE} at the same point, successor and repeat, but not under this view. Rescue: the "
        "reverse. Preserved: of snapshots that were already solved, those still solved at the end. All takeovers are at common "
        "points.",
        *data.describe_left_out(),
    )
    return Table(
        11, "trust", "Over-trust and harm", columns, effect_tables.build_rows(data, _trust_cells), notes
    )


def _trust_cells(rows: tuple[Row, ...], view: str) -> tuple[Cell, ...]:
    kept = read_values(rows, "kept")
    pairs = [row for row in rows if row["harm"] is not None]
    solved_before = [row for row in rows if row["preserved"] is not None]
    return (
        *(len(rows), len(kept)),
        None if not kept else 100 * (quantile(kept, 0.5) or 0),
        _percent_of([share == 1 for share in kept]),
        *(_percent_of(_list_answers(rows, name)) for name in ("reexamined", "verified_before_finish")),
        len(pairs) if pairs else None,
        *(sum(row[name] for row in pairs) if pairs else None for name in ("harm", "rescue")),
        len(solved_before) if solved_before else None,
        sum(row["preserved"] for row in solved_before) if solved_before else None,
    )


def build_belief_table(data: ReportData) -> Table:
    """Predecessor right or wrong, by successor kept or changed."""
    names, found = display_names(data.successors), []
    for successor in data.successors:
        for view in data.views:
            selected = data.select(successor=successor, view=view)
            for state in ("right", "wrong"):
                for treatment in ("kept", "changed"):
                    rows = [row for row in selected if _classify(row) == (state, treatment)]
                    if rows:
                        solved = sum(bool(row["resolved"]) for row in rows)
                        unexamined = sum(row.get("reexamined") is False for row in rows)
                        cells = (len(rows), unexamined, solved, 100 * solved / len(rows))
                        found.append((names[successor], view, state, treatment, *cells))
    columns = (
        *("successor", "view", "predecessor", "successor's action"),
        *("runs", "not reexamined", "solved", "solved %"),
    )
    notes: tuple[str, ...] = (
        f"Right: the official state at the point is {ALREADY_SOLVED}; wrong: any other state. Kept: every changed source line "
        "of the predecessor is in the final patch, to which the successor may have added lines. Points without a changed "
        "source line are left out. A wrong change that was kept and not reexamined was trusted too much. All takeovers are at "
        "common points.",
        *data.describe_left_out(),
    )
    if not found:
        notes = ("No takeover with a labelled state and a changed source line.",)
    return Table(12, "belief", "Predecessor right or wrong, change kept or not", columns, tuple(found), notes)


def _classify(row: Row) -> tuple[str, str] | None:
    kept, state = row.get("kept"), row.get("handoff_state")
    if kept is None or state not in (ALREADY_SOLVED, "needs_completion", "behavior_broken"):
        return None
    return "right" if state == ALREADY_SOLVED else "wrong", "kept" if kept == 1 else "changed"


def _list_answers(rows: Sequence[Row], name: str) -> list[bool]:
    return [row[name] for row in rows if row.get(name) is not None]


def _percent_of(answers: Sequence[bool]) -> float | None:
    return 100 * sum(answers) / len(answers) if answers else None
