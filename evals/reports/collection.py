"""Data that tables and plots share: graded takeovers with derived measures and costs, and the order of their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from langgraph_takeover.evals.reports.common_points import (
    UNMATCHED,
    UNPOOLED,
    describe_left_out,
    list_uncounted,
    split_by_common_points,
    split_by_pooled_successors,
)
from langgraph_takeover.evals.reports.estimates import (
    POINT_KEY,
    Pair,
    pair_with_baseline,
    select_graded,
)
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.rows import (
    UNLABELLED,
    CostRow,
    CountedTakeover,
    Fields,
    LabelRow,
    PredecessorRow,
    Takeover,
    UncountedTakeover,
)
from langgraph_takeover.evals.run.settings.config import BASELINE, POINTS, shorten_model_name
from langgraph_takeover.handoff.names import CONTINUATION
from langgraph_takeover.handoff.views import CHARS_PER_TOKEN, VIEWS, VIEWS_WITH_NOTES

_RowT = TypeVar("_RowT", Takeover, CountedTakeover, UncountedTakeover)
OVERFLOW = "context_overflow"
"""The stop reason of a conversation that exceeded its model's context window."""


class CostSum(NamedTuple):
    """Sums over rows. None if a row's value is unknown, because the sum would be incomplete."""

    runs: int
    llm_calls: int
    prompt_tokens: int | None
    cached_tokens: int | None
    """The part of the prompt tokens that was cached; None also if no row reports it."""
    completion_tokens: int | None
    uncounted_calls: int
    cost_usd: float | None


class CostGroup(NamedTuple):
    """The rows of one role and model, and of one view for successors."""

    role: str
    model: str
    view: str
    cost: CostSum
    left_out: int
    """Infrastructure failures, whose costs are unknown."""


def sum_costs(rows: Iterable[CostRow]) -> CostSum:
    """Sum the costs of rows. Infrastructure failures have none."""
    counted = [row for row in rows if not row.is_failure]
    prompt = _sum_tokens(counted, "prompt_tokens")
    cached = [row.cached_tokens for row in counted if row.cached_tokens is not None]
    costs = [row.cost_usd for row in counted]
    return CostSum(
        runs=len(counted),
        llm_calls=sum(row.llm_calls or 0 for row in counted),
        prompt_tokens=prompt,
        cached_tokens=sum(cached) if cached and prompt is not None else None,
        completion_tokens=_sum_tokens(counted, "completion_tokens"),
        uncounted_calls=sum(row.uncounted_calls or 0 for row in counted),
        cost_usd=None if None in costs else round(sum(cost for cost in costs if cost is not None), 8),
    )


def list_cost_groups(results: Results, views: Sequence[str]) -> tuple[CostGroup, ...]:
    """The costs of predecessors, notes and successors by model, those of successors also by view, and of all."""
    groups = [
        *_group("predecessor", results.predecessors, "predecessor"),
        *_group("notes", results.notes, "model"),
        *(
            group._replace(view=view)
            for view in views
            for group in _group(
                "successor", [row for row in results.takeovers if row.view == view], "successor"
            )
        ),
    ]
    every = (*results.predecessors, *results.notes, *results.takeovers)
    return (*groups, CostGroup("all", "", "", sum_costs(every), _count_failures(every)))


def _group(role: str, rows: Iterable[CostRow], field: str) -> list[CostGroup]:
    by_model: dict[str, list[CostRow]] = {}
    for row in rows:
        by_model.setdefault(getattr(row, field) or "", []).append(row)
    return [
        CostGroup(role, model, "", sum_costs(mine), _count_failures(mine))
        for model, mine in sorted(by_model.items())
    ]


def _count_failures(rows: Iterable[CostRow]) -> int:
    return sum(row.is_failure for row in rows)


def _sum_tokens(rows: Sequence[CostRow], name: str) -> int | None:
    values = [getattr(row, name) for row in rows if row.llm_calls != 0]
    return None if None in values else sum(values)


def format_usd(value: float | None) -> str:
    """An amount in US dollars, with the digits that small runs need."""
    if value is None:
        return "–"
    return f"{value:,.2f}" if value >= 100 else f"{value:.4f}"


ALREADY_SOLVED = "already_solved"


def add_derived_measures(
    takeovers: Iterable[CountedTakeover], predecessors: Iterable[PredecessorRow]
) -> tuple[CountedTakeover, ...]:
    """Graded takeovers, which have their `handoff_state`, with the fields that need other rows."""
    rows = select_graded(takeovers)
    baselines = {row.read(*POINT_KEY): row for row in rows if row.view == BASELINE}
    remainders = _collect_remainders(predecessors)
    return tuple(
        row.change(
            **_compare_outcomes(row, baselines),
            **_compare_with_remainder(row, remainders.get(row.record_id, {})),
            **_measure_text(row),
        )
        for row in rows
    )


def _compare_outcomes(row: CountedTakeover, baselines: Mapping[tuple[Any, ...], CountedTakeover]) -> Fields:
    baseline = baselines.get(row.read(*POINT_KEY)) if row.view != BASELINE else None
    return {
        "harm": None if baseline is None else baseline.is_solved and not row.is_solved,
        "rescue": None if baseline is None else row.is_solved and not baseline.is_solved,
        "preserved": row.is_solved if row.handoff_state == ALREADY_SOLVED else None,
    }


def _collect_remainders(predecessors: Iterable[PredecessorRow]) -> dict[str, Fields]:
    """By record: what its predecessor still needed, and whether it solved the task at the end."""
    return {
        record_id: {**remainder, "resolved": row.resolved}
        for row in predecessors
        for record_id, remainder in (row.remainders or {}).items()
        if remainder is not None
    }


def _compare_with_remainder(row: Takeover, rest: Fields) -> Fields:
    events, tokens = rest.get("events"), rest.get("prompt_tokens")
    return {
        "uninterrupted_events": events,
        "uninterrupted_prompt_tokens": tokens,
        "uninterrupted_resolved": rest.get("resolved"),
        "debt_vs_uninterrupted": _subtract(row.events, events),
        "token_debt_vs_uninterrupted": _subtract(row.prompt_tokens, tokens),
    }


def _subtract(own: int | None, other: int | None) -> int | None:
    return None if own is None or other is None else own - other


def _measure_text(row: Takeover) -> Fields:
    shown, reshown = row.shown_chars, row.reshown_chars
    return {
        "reshown_share": reshown / shown if reshown is not None and shown else None,
        "reshown_tokens": None if reshown is None else -(-reshown // CHARS_PER_TOKEN),
    }


STATES = ("needs_completion", "already_solved", "behavior_broken")
BEST_INFORMED_VIEWS = ("trace", "transcript", "cited", "payload", "structured", "summary")
"""Views, from the most informative down."""


class ExcludedPoints(NamedTuple):
    """Records of incomplete handoff points, whose takeovers are left out: a point counts with its record and notes only."""

    without_notes: frozenset[str]
    without_record: frozenset[str]
    runs: frozenset[str]
    """The directories of the runs with a view that needs notes; only takeovers of these are left out for missing notes."""
    is_unchecked: bool
    """Whether the rows of notes are missing, as in an export of takeovers alone, so that no point could be checked."""

    def contains(self, row: Takeover) -> bool:
        """Whether a takeover is left out."""
        lacks_notes = row.out in self.runs and row.record_id in self.without_notes
        return lacks_notes or row.record_id in self.without_record


class ReportData(NamedTuple):
    """Graded takeovers with their handoff state, and their names in display order."""

    takeovers: tuple[CountedTakeover, ...]
    """Takeovers at complete points, without an infrastructure failure."""
    left_out: tuple[UncountedTakeover, ...]
    """Takeovers that are not among `takeovers`, each with its `reason`."""
    excluded: ExcludedPoints
    views: tuple[str, ...]
    successors: tuple[str, ...]
    predecessors: tuple[str, ...]
    points: tuple[str, ...]
    states: tuple[str, ...]
    reference_view: str | None
    """The best-informed view that was run, the reference of handoff debt; None if only the baseline was run."""

    def select(self, **fields: str) -> tuple[CountedTakeover, ...]:
        """The takeovers with these field values."""
        return _select(self.takeovers, fields)

    def count_left_out(self, **fields: str) -> int:
        """The number of takeovers with these field values that are left out."""
        return len(_select(self.left_out, fields))

    def describe_left_out(self) -> tuple[str, ...]:
        """A note on the takeovers that are left out, by view; none without any."""
        return tuple(filter(None, (describe_left_out(self.left_out, self.views),)))

    def restrict_to_common_points(self) -> ReportData:
        """The same data with the takeovers at common points alone, over which levels of views are compared."""
        return self._leave_out(UNMATCHED, *split_by_common_points(self.takeovers))

    def restrict_to_pooled_successors(self) -> ReportData:
        """Data at common points without successors that lack a view of another, over which levels of views are pooled."""
        return self._leave_out(UNPOOLED, *split_by_pooled_successors(self.takeovers))

    def _leave_out(
        self, reason: str, kept: tuple[CountedTakeover, ...], others: tuple[CountedTakeover, ...]
    ) -> ReportData:
        names = [name for name in UncountedTakeover._fields if name != "reason"]
        uncounted = tuple(
            UncountedTakeover(**{name: getattr(row, name) for name in names}, reason=reason) for row in others
        )
        return self._replace(takeovers=kept, left_out=(*self.left_out, *uncounted))

    def pair_with_reference(self, rows: tuple[Takeover, ...], view: str) -> tuple[Pair, ...]:
        """Takeovers under a view, each with the one under the best-informed view at the same point."""
        return pair_with_baseline(rows, view, self.reference_view) if self.reference_view else ()


class TakeoverCounts(NamedTuple):
    """How many takeovers results rest on, and how many rows they leave out."""

    takeovers: int
    points: int
    """With a counted takeover."""
    tasks: int
    failures: int
    """Takeovers that are infrastructure failures."""
    excluded: int
    """Graded takeovers at incomplete points."""


def count_takeovers(results: Results, data: ReportData) -> TakeoverCounts:
    """Count takeovers as every report does."""
    failures = sum(row.is_failure for row in results.takeovers)
    return TakeoverCounts(
        takeovers=len(data.takeovers),
        points=len({row.record_id for row in data.takeovers}),
        tasks=len({row.task_id for row in data.takeovers}),
        failures=failures,
        excluded=len(results.takeovers) - failures - len(data.takeovers),
    )


def collect_report_data(results: Results) -> ReportData:
    excluded = find_excluded_points(results)
    states = {row.record_id: row.handoff_state or UNLABELLED for row in results.labels}
    by_regression = read_states_by_regression(results.labels)

    def find_states(record_id: str) -> Fields:
        return {
            "handoff_state": states.get(record_id, UNLABELLED),
            "state_by_regression": by_regression.get(record_id, UNLABELLED),
        }

    takeovers = add_derived_measures(
        (
            CountedTakeover.extend(row, **find_states(row.record_id))
            for row in select_graded(results.takeovers)
            if not excluded.contains(row)
        ),
        results.predecessors,
    )
    configs = [source.config for source in results.sources]
    views = _sort_by_order(
        (BASELINE, *VIEWS, CONTINUATION),
        [
            *(view for config in configs for view in config.views),
            *_distinct_values(results.takeovers, "view"),
        ],
    )
    planned: dict[str, set[str]] = {}
    for name, view in (
        *((name, view) for config in configs for name in config.successors for view in config.views),
        *((row.successor, row.view) for row in results.takeovers),
    ):
        planned.setdefault(name, set()).add(view)
    uncounted = list_uncounted(results.takeovers, takeovers, planned, results.predecessors)
    left_out = tuple(row._replace(**find_states(row.record_id)) for row in uncounted)
    expected: tuple[CountedTakeover | UncountedTakeover, ...] = (*takeovers, *left_out)
    return ReportData(
        takeovers=takeovers,
        left_out=left_out,
        excluded=excluded,
        views=views,
        successors=_sort_by_order(
            [name for config in configs for name in config.successors],
            _distinct_values(results.takeovers, "successor"),
        ),
        predecessors=_sort_by_order(
            [name for config in configs for name in config.predecessors],
            _distinct_values(expected, "predecessor"),
        ),
        points=_sort_by_order(POINTS, _distinct_values(expected, "point")),
        states=_sort_by_order((*STATES, UNLABELLED), _distinct_values(expected, "handoff_state")),
        reference_view=next(
            (view for view in BEST_INFORMED_VIEWS if view in _distinct_values(takeovers, "view")), None
        ),
    )


def read_states_by_regression(labels: Iterable[LabelRow]) -> dict[str, str]:
    """Each record's state in the regression-first order: unresolved with any regression is broken."""
    return {row.record_id: _read_state_by_regression(row) for row in labels if row.handoff_state}


def _read_state_by_regression(label: LabelRow) -> str:
    if label.handoff_state == ALREADY_SOLVED:
        return ALREADY_SOLVED
    if label.regressions is None:
        return UNLABELLED
    return "behavior_broken" if label.regressions else "needs_completion"


def find_excluded_points(results: Results) -> ExcludedPoints:
    """The points without notes, where a run's views need them, and those whose predecessor lists no such record."""
    runs = frozenset(
        str(source.out) for source in results.sources if set(VIEWS_WITH_NOTES) & set(source.config.views)
    )
    takeovers = [row for row in results.takeovers if row.out in runs]
    proofs: dict[str, set[str]] = {}
    for row in select_graded(takeovers):
        if row.view in VIEWS_WITH_NOTES:
            proofs.setdefault(row.record_id, set()).add(row.out)
    notes = {row.record_id: row for row in results.notes}
    failed = {
        name
        for name, row in notes.items()
        # Another run of the same records may have written their notes later.
        if row.is_failure and not proofs.get(name, set()) - {row.out}
    }
    missing = {row.record_id for row in takeovers} - set(notes) - set(proofs)
    return ExcludedPoints(
        without_notes=frozenset(failed | (missing if notes else set())),
        without_record=_find_unlisted_records(results),
        runs=runs,
        is_unchecked=bool(takeovers) and not notes,
    )


def _find_unlisted_records(results: Results) -> frozenset[str]:
    runs = [row for row in results.predecessors if not row.is_failure]
    listed = {record_id for row in runs for record_id in row.records or ()}
    known = {(row.task_id, row.predecessor) for row in runs}
    return frozenset(
        row.record_id
        for row in select_graded(results.takeovers)
        if (row.task_id, row.predecessor) in known and row.record_id not in listed
    )


def display_names(models: Iterable[str]) -> dict[str, str]:
    """Display names of models: a replay has the name of its file if that is unique."""
    names = {
        name: f"replay:{shorten_model_name(name)}" if name.startswith("replay:") else name for name in models
    }
    file_names = {name: f"replay:{name.rsplit('/', 1)[-1]}" for name in names if name.startswith("replay:")}
    unique = {name: text for name, text in file_names.items() if list(file_names.values()).count(text) == 1}
    return names | unique


def _select(rows: Iterable[_RowT], fields: Mapping[str, str]) -> tuple[_RowT, ...]:
    if not fields:
        return tuple(rows)
    read, values = attrgetter(*fields), tuple(fields.values())
    wanted = values if len(values) > 1 else values[0]
    return tuple(row for row in rows if read(row) == wanted)


def _distinct_values(rows: Iterable[Takeover | UncountedTakeover], field: str) -> list[str]:
    return sorted({value for row in rows if (value := getattr(row, field))})


def _sort_by_order(order: Iterable[str], present: Iterable[str]) -> tuple[str, ...]:
    """The present names in that order; names without a place in it come last, by name."""
    ordered, remaining = list(dict.fromkeys(order)), set(present)
    return (*(name for name in ordered if name in remaining), *sorted(remaining.difference(ordered)))
