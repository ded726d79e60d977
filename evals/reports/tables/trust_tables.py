"""Tables of over-trust, of unmatched takeovers, and of excluded rows."""

from __future__ import annotations

from collections.abc import Callable

from langgraph_takeover.evals.reports.collection import ALREADY_SOLVED, ReportData, display_names
from langgraph_takeover.evals.reports.estimates import quantile, read_values
from langgraph_takeover.evals.reports.tables.effect_tables import COSTS, LEVELS, build_notes
from langgraph_takeover.evals.reports.tables.selections import (
    COVERED,
    Columns,
    Selection,
    build_view_table,
    count_known,
    count_solved,
    count_true,
    median_of,
    percent_of,
    percent_true,
    quantile_of,
    select_views,
    solved_share,
    to_percent,
)
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.rows import CountedTakeover
from langgraph_takeover.evals.run.settings.config import BASELINE

_NOTES = (
    "All graded takeovers, as in the paper's tables 2, 4, 5 and 7 to 9: where some are left out, the views' points differ. Δ: the "
    f"view's value against that of {BASELINE}, each over its own takeovers; tables 2, 5, 6 and 8 compare at common points.",
    "Reference effect sizes (the paper's Table 2): median events 20 to 59 % lower, prompt tokens 42 to 63 % lower.",
)


def _compare_medians(measure: str) -> Callable[[Selection], Cell]:
    """The column with the change of a median against that of the baseline, each over its own takeovers."""

    def compute(each: Selection) -> Cell:
        own, base = (quantile(read_values(rows, measure), 0.5) for rows in (each.rows, each.baseline))
        return to_percent(own / base - 1) if own is not None and base else None

    return compute


def _compare_solved(each: Selection) -> Cell:
    own, base = solved_share(each.rows), solved_share(each.baseline)
    return None if own is None or base is None else to_percent(own - base)


_UNMATCHED: Columns = {
    **LEVELS,
    "Δ median events %": _compare_medians("events"),
    "Δ median prompt tokens %": _compare_medians("prompt_tokens"),
    "Δ solved pp": _compare_solved,
    **COSTS,
    "median characters": median_of("first_prompt_chars"),
    "P90 characters": quantile_of("first_prompt_chars", 0.9),
    "max characters": quantile_of("first_prompt_chars", 1),
}


def build_unmatched_table(data: ReportData) -> Table:
    """The levels of all graded takeovers and their differences, overall and by kind."""
    names = display_names((*data.successors, *data.predecessors))
    groups: list[tuple[str, str, dict[str, str]]] = [
        ("all", "", {}),
        *(("point", kind, {"point": kind}) for kind in data.points),
        *(("handoff state", kind, {"handoff_state": kind}) for kind in data.states),
        *(("predecessor", names[kind], {"predecessor": kind}) for kind in data.predecessors),
    ]
    rows = tuple(
        (names[successor], group, category, selection.view, *selection.compute(_UNMATCHED))
        for successor in data.successors
        for group, category, fields in groups
        for selection in select_views(data, **fields, successor=successor)
        if selection.expected
    )
    columns = ("successor", "group", "category", "view", *COVERED, *_UNMATCHED)
    notes = (*build_notes(data), *_NOTES)
    return Table(20, "all_takeovers", "All takeovers, without matching", columns, rows, notes)


def build_left_out_table(data: ReportData) -> Table:
    """The takeovers that levels leave out; of data restricted to common points and pooled successors."""
    names = display_names(data.successors)
    rows = sorted(
        (names[row.successor], row.view, row.record_id, row.repeat, row.reason) for row in data.left_out
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


_TRUST: Columns = {
    "with a change": lambda each: len(read_values(each.rows, "kept")),
    "median kept %": lambda each: to_percent(quantile(read_values(each.rows, "kept"), 0.5)),
    "kept all %": lambda each: percent_of([share == 1 for share in read_values(each.rows, "kept")]),
    "reexamined %": percent_true("reexamined"),
    "verified before finish %": percent_true("verified_before_finish"),
    "pairs": count_known("harm"),
    "harm": count_true("harm"),
    "rescue": count_true("rescue"),
    "already solved": count_known("preserved"),
    "preserved": count_true("preserved"),
}


def build_trust_table(data: ReportData) -> Table:
    notes = (
        _KEPT_NOTE,
        "Reexamined: the successor read a changed file or ran a validation before its first edit of those files, or its end. "
        "Verified before finish: a validation gave a result after its last source change.",
        f"Harm: solved under {BASELINE} at the same point, successor and repeat, but not under this view. Rescue: the "
        "reverse. Preserved: of snapshots that were already solved, those still solved at the end. All takeovers are at common "
        "points.",
        *data.describe_left_out(),
    )
    return build_view_table((11, "trust", "Over-trust and harm"), data, _TRUST, notes)


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
                        solved = sum(row.is_solved for row in rows)
                        unexamined = sum(row.reexamined is False for row in rows)
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


def _classify(row: CountedTakeover) -> tuple[str, str] | None:
    kept, state = row.kept, row.handoff_state
    if kept is None or state not in (ALREADY_SOLVED, "needs_completion", "behavior_broken"):
        return None
    return "right" if state == ALREADY_SOLVED else "wrong", "kept" if kept == 1 else "changed"


def _count_files(field: str) -> Callable[[Selection], Cell]:
    """The column with the number of runs with such files; None if no row states them."""

    def compute(each: Selection) -> Cell:
        known = [names for row in each.rows if (names := getattr(row, field)) is not None]
        return sum(map(bool, known)) if known else None

    return compute


def _count_verdicts(matches: Callable[[bool, bool], bool]) -> Callable[[Selection], Cell]:
    """The column with the number of runs whose verdicts, as submitted and cleaned, match."""

    def compute(each: Selection) -> Cell:
        known = [
            (row.is_solved, row.cleaned_resolved) for row in each.rows if row.cleaned_resolved is not None
        ]
        return sum(matches(*verdicts) for verdicts in known) if known else None

    return compute


_PATCHES: Columns = {
    "median patch lines": median_of("patch_lines"),
    "median patch files": median_of("patch_files"),
    "with scratch files": _count_files("scratch_files"),
    "with changed tests": _count_files("test_files"),
    "solved": count_solved,
    "cleaned verdicts": count_known("cleaned_resolved"),
    "solved cleaned": count_true("cleaned_resolved"),
    "verdicts differ": _count_verdicts(lambda submitted, cleaned: submitted != cleaned),
    "solved only as submitted": _count_verdicts(lambda submitted, cleaned: submitted and not cleaned),
    "solved only cleaned": _count_verdicts(lambda submitted, cleaned: cleaned and not submitted),
}


def build_patches_table(data: ReportData) -> Table:
    """Final patches, and the takeovers whose verdict depends on leftover files."""
    notes = (
        "Patch lines: added and deleted. Scratch files: new files outside the source tree, such as reproduction scripts, and "
        "new files in caches and build directories. Changed tests: "
        "test files that the patch changes. All counts are of runs.",
        "Cleaned: the verdict of the patch without scratch files and without changes of pyproject.toml, setup.cfg, setup.py "
        "and tox.ini in the root; if there are none, that of the submitted patch. Cleaned "
        "verdicts: the runs for which it is known. Everywhere else, solved is the verdict of the patch as submitted. All "
        "runs are at common points.",
        *data.describe_left_out(),
    )
    return build_view_table((16, "patches", "Final patches"), data, _PATCHES, notes)
