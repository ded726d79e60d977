"""Tables of over-trust: what successors kept of the predecessor's change, and whether they checked it."""

from __future__ import annotations

from collections.abc import Sequence

from langgraph_takeover.evals.reports.collection import ReportData, display_names
from langgraph_takeover.evals.reports.derived import ALREADY_SOLVED
from langgraph_takeover.evals.reports.estimates import quantile, read_values
from langgraph_takeover.evals.reports.tables import effect_tables
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.journal import Row
from langgraph_takeover.evals.run.settings.config import BASELINE

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
