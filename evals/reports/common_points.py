"""Common points: those with a graded takeover under every view of a successor. Levels of views are compared there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from langgraph_takeover.evals.reports.estimates import read_measure, select_graded
from langgraph_takeover.evals.run.rows import CountedTakeover, PredecessorRow, Takeover, UncountedTakeover
from langgraph_takeover.handoff.names import CONTINUATION

UNMATCHED, UNPOOLED, FAILED, EXCLUDED, NOT_RUN = "unmatched", "unpooled", "failed", "excluded", "not run"
REASONS = (UNMATCHED, UNPOOLED, FAILED, EXCLUDED, NOT_RUN)
_UNCERTAIN_MEASURES = ("prompt_tokens", "completion_tokens", "first_prompt_chars", "first_prompt_tokens")
"""Measures that a graded takeover can lack."""
_MAX_NAMES = 3


def split_by_common_points(
    takeovers: Sequence[CountedTakeover],
) -> tuple[tuple[CountedTakeover, ...], tuple[CountedTakeover, ...]]:
    """The graded takeovers at common points, and the others.

    A point is common if the successor has a graded takeover there under each of its views, in the same repeat. Views without
    any graded takeover do not count, nor does `continuation`, which exists only at some points. A measure that one takeover of
    a point lacks is None in all of them, so that medians are over the same points, too.
    """
    views_by_key: dict[tuple[str, str, int], set[str]] = {}
    views_by_successor = _collect_views(takeovers)
    for row in takeovers:
        if row.view != CONTINUATION:
            views_by_key.setdefault(_get_key(row), set()).add(row.view)
    common = {key for key, views in views_by_key.items() if views == views_by_successor[key[1]]}
    inside = [row for row in takeovers if _get_key(row) in common]
    lacking = {
        name: {_get_key(row) for row in inside if read_measure(row, name) is None}
        for name in _UNCERTAIN_MEASURES
    }
    blanked = tuple(
        row.change(**dict.fromkeys(name for name, keys in lacking.items() if _get_key(row) in keys))
        for row in inside
    )
    return blanked, tuple(row for row in takeovers if _get_key(row) not in common)


def split_by_pooled_successors(
    takeovers: Sequence[CountedTakeover],
) -> tuple[tuple[CountedTakeover, ...], tuple[CountedTakeover, ...]]:
    """The takeovers of successors that have every view, over which levels can be pooled, and the others."""
    views = _collect_views(takeovers)
    every = set().union(*views.values())
    pooled = {name for name, own in views.items() if own == every}
    return (
        tuple(row for row in takeovers if row.successor in pooled),
        tuple(row for row in takeovers if row.successor not in pooled),
    )


def _collect_views(takeovers: Iterable[Takeover]) -> dict[str, set[str]]:
    """The views of each successor, without `continuation`."""
    views: dict[str, set[str]] = {}
    for row in takeovers:
        if row.view != CONTINUATION:
            views.setdefault(row.successor, set()).add(row.view)
    return views


def list_uncounted(
    takeovers: Iterable[Takeover],
    counted: Iterable[Takeover],
    views: Mapping[str, Iterable[str]],
    predecessors: Iterable[PredecessorRow],
) -> tuple[UncountedTakeover, ...]:
    """The takeovers that are not counted, each with its `reason`: failed, at an excluded point, or not run.

    `takeovers` are all rows, `counted` the graded ones at complete points. A takeover is expected under each of its successor's
    `views` at every point and repeat at which the successor has a row.
    """
    rows = {(*_get_key(row), row.view): row for row in takeovers}
    done = {(*_get_key(row), row.view) for row in counted}
    owners = {record: row.predecessor for row in predecessors for record in row.records or ()}
    owners |= {row.record_id: row.predecessor for row in rows.values() if row.predecessor}
    tasks = {row.record_id: row.task_id for row in rows.values() if row.task_id}
    uncounted = []
    for key in dict.fromkeys(key[:3] for key in rows):
        record, successor, _ = key
        for view in views[successor]:
            is_impossible = view == CONTINUATION and owners.get(record) != successor
            if (*key, view) in done or (is_impossible and (*key, view) not in rows):
                continue
            uncounted.append(
                UncountedTakeover(
                    *key,
                    view=view,
                    task_id=tasks.get(record),
                    predecessor=owners.get(record),
                    point=record.rpartition(".")[2],
                    reason=_find_reason(rows.get((*key, view))),
                )
            )
    return tuple(uncounted)


def _find_reason(row: Takeover | None) -> str:
    if row is None:
        return NOT_RUN
    return EXCLUDED if select_graded([row]) else FAILED


def _get_key(row: Takeover) -> tuple[str, str, int]:
    """The values of POINT_KEY."""
    return row.record_id, row.successor, row.repeat


def count_by_view(left_out: Iterable[UncountedTakeover], views: Sequence[str]) -> dict[str, dict[str, int]]:
    """By view and reason: the number of takeovers that are left out."""
    counts: dict[str, Counter[str]] = {view: Counter() for view in views}
    for row in left_out:
        counts[row.view][row.reason] += 1
    return {
        view: {reason: found[reason] for reason in REASONS if found[reason]} for view, found in counts.items()
    }


def describe_left_out(left_out: Sequence[UncountedTakeover], views: Sequence[str]) -> str:
    """How many takeovers are left out, by view and reason, and the first points that cause it; empty without any."""
    parts = [
        f"{view} {_format_counts(counts)}"
        for view, counts in count_by_view(left_out, views).items()
        if counts
    ]
    if not parts:
        return ""
    others = [row for row in left_out if row.reason not in (UNMATCHED, UNPOOLED)]
    causes = sorted({f"{row.record_id} {row.view}" for row in others})
    names = (
        f" ({', '.join(causes[:_MAX_NAMES])}{', …' if len(causes) > _MAX_NAMES else ''})" if causes else ""
    )
    return f"Left out by view: {'; '.join(parts)}{names}. Table 21 names all."


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in counts.items())
