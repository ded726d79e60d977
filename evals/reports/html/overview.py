"""Overview of runs on the page: key figures, settings, filters, and the index of takeovers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from langgraph_takeover.evals.reports.collection import collect_report_data, count_takeovers, format_usd
from langgraph_takeover.evals.reports.html.timelines import run_name, takeover_key
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.rows import AgentRow, Takeover
from langgraph_takeover.evals.run.settings.config import BASELINE, RunConfig
from langgraph_takeover.handoff.views import CHARS_PER_TOKEN

_ROW_FIELDS = (
    "task_id", "predecessor", "view", "successor", "repeat", "outcome", "resolved", "events", "steps", "llm_calls",
    "prompt_tokens", "cached_tokens", "completion_tokens", "seconds", "first_prompt_chars", "first_prompt_tokens",
    "shown_chars", "reshown_tokens", "reshown_share", "verification_chars", "kept", "reexamined",
    "verified_before_finish", "harm", "rescue", "preserved", "debt_vs_uninterrupted", "token_debt_vs_uninterrupted",
    "rediscovery_events", "rediscovery", "verification_events", "recalls", "recall_tokens", "stop_reason", "detail",
    "trace", "uncounted_calls", "cost_usd", "empty_replies", "condensed", "session_account",
)  # fmt: skip
_AGENT_FIELDS = ("agent", "agent_version", "side_requests", "refused_requests")
"""Fields of rows of external agents."""
_NUMBER = re.compile(r"[-+−±]?[\d.,]+( ?%)?|–|-|")
UNKNOWN = "unknown"
"""The state of an unlabelled record."""


class KeyFigure(NamedTuple):
    """One of the figures at the top of the page."""

    name: str
    value: str
    basis: str = ""


class Filter(NamedTuple):
    """A filter of rows and its values."""

    name: str
    title: str
    values: tuple[str, ...]


def point_kind(record_id: str) -> str:
    """The kind of a record's handoff point, which is the suffix of its name."""
    return record_id.rpartition(".")[2]


def states_by_record(results: Results) -> dict[str, str]:
    """The evaluator's state of every labelled record."""
    return {row.record_id: row.handoff_state or UNKNOWN for row in results.labels if row.outcome == "graded"}


def build_index(results: Results, chunks: Iterable[str]) -> dict[str, Any]:
    """A summary of each takeover and handoff point, with the number of the chunk that contains the details."""
    numbers = {name: number for number, name in enumerate(chunks)}
    labelled, baseline = states_by_record(results), _baseline_events(results)
    details = {row.record_id: row.detail for row in results.labels}
    derived = {_get_key(row): row for row in collect_report_data(results).takeovers}
    rows = [
        _select_known(row, (*_ROW_FIELDS, *_AGENT_FIELDS))
        | {
            "record": row.record_id,
            "key": takeover_key(row),
            "point": point_kind(row.record_id),
            "state": labelled.get(row.record_id, UNKNOWN),
            "run": _find_run_id(results, row),
            "delta": _relative_delta(row, baseline),
        }
        for row in (derived.get(_get_key(row), row) for row in results.takeovers)
    ]
    ids: dict[str, tuple[str | None, str]] = {
        record_id: (row.task_id, row.predecessor)
        for row in results.predecessors
        for record_id in row.records or ()
    }
    agents = {
        record_id: {name: value for name, value in _select_known(row, _AGENT_FIELDS).items() if value}
        for row in results.predecessors
        for record_id in row.records or ()
    }
    for row in results.takeovers:
        ids.setdefault(row.record_id, (row.task_id, row.predecessor or ""))
    points = [
        {
            "id": record_id,
            "task_id": task,
            "predecessor": predecessor,
            "point": point_kind(record_id),
            "state": labelled.get(record_id, UNKNOWN),
            "detail": details.get(record_id, ""),
            "chunk": numbers[run_name(record_id)],
            **agents.get(record_id, {}),
        }
        for record_id, (task, predecessor) in ids.items()
    ]
    return {"takeovers": rows, "points": points, "views": list(_list_views(results)), "baseline": BASELINE}


def _select_known(row: AgentRow, names: Sequence[str]) -> dict[str, Any]:
    """The known fields of these names."""
    values = zip(names, row.read(*names), strict=True)
    return {name: value for name, value in values if value is not None}


def _get_key(row: Takeover) -> tuple[str, str]:
    return row.record_id, takeover_key(row)


def build_key_figures(results: Results, summary: Mapping[str, Any]) -> tuple[KeyFigure, ...]:
    """The figures at the top of the page."""
    data = collect_report_data(results)
    graded = data.takeovers
    pooled = data.restrict_to_common_points().restrict_to_pooled_successors().takeovers
    counts = count_takeovers(results, data)
    solved = sum(row.is_solved for row in graded)
    shown = sum(row.shown_chars or 0 for row in pooled) // CHARS_PER_TOKEN
    views = summary["views"].values()
    reshown = sum(each["reshown_tokens"] or 0 for each in views)
    harm, rescue = ([each[name] for each in views if each[name] is not None] for name in ("harm", "rescue"))
    baseline_events = [row.events or 0 for row in pooled if row.view == BASELINE]
    view_events = [row.events or 0 for row in pooled if row.view != BASELINE]
    return (
        KeyFigure("takeovers graded", f"{len(graded):,}", f"of {len(results.takeovers):,}"),
        KeyFigure("solved", _format_percent(solved, len(graded)), f"{solved:,} of {len(graded):,}"),
        KeyFigure(
            "handoff points",
            f"{counts.points:,}",
            f"in {counts.tasks:,} task{'s' if counts.tasks != 1 else ''}",
        ),
        KeyFigure("median events", _format_median(view_events), "with a view of the work"),
        KeyFigure("median events", _format_median(baseline_events), f"with the {BASELINE} only"),
        KeyFigure("re-shown", _format_percent(reshown, shown), "of the text that successors saw"),
        KeyFigure(
            "harm / rescue",
            f"{sum(each['true'] for each in harm)} / {sum(each['true'] for each in rescue)}" if harm else "–",
            f"of {sum(each['of'] for each in harm):,} pairs with {BASELINE}" if harm else "no pairs",
        ),
        KeyFigure("infrastructure failures", f"{len(summary['infrastructure_failures']):,}", "excluded"),
        KeyFigure(
            "US dollars", format_usd(summary["costs"]["all"]["cost_usd"]), _describe_cost_basis(summary)
        ),
    )


def build_view_table(summary: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
    """The columns and rows of the table by view."""
    columns = (
        "view", "runs", "left out", "solved", "median events", "Δ events", "median prompt tokens", "Δ prompt tokens",
        "median first prompt, characters", "re-shown", "rediscovery", "Δ solved", "vs uninterrupted, events",
        "median kept", "verified", "harm", "rescue",
        "context overflow", "uncounted calls", "US dollars",
    )  # fmt: skip
    rows = tuple(
        (
            view,
            each["runs"],
            sum(each["left_out"].values()),
            each["solved"],
            each["median_events"],
            _format_signed(each["median_event_delta"]),
            each["median_prompt_tokens"],
            _format_signed(each["median_prompt_token_delta"]),
            each["median_first_prompt_chars"],
            _format_share(each["reshown_share"]),
            _format_share(each["rediscovery_share"]),
            None if each["solved_delta"] is None else f"{each['solved_delta']:+d}".replace("-", "−"),
            each["median_debt_vs_uninterrupted"],
            None if each["median_kept"] is None else f"{100 * each['median_kept']:.0f} %",
            _format_answers(each["verified_before_finish"]),
            *(None if each[name] is None else each[name]["true"] for name in ("harm", "rescue")),
            each["context_overflows"],
            each["uncounted_calls"],
            format_usd(each["cost_usd"]),
        )
        for view, each in summary["views"].items()
        if each["graded"] or each["infrastructure_failures"]
    )
    return columns, rows


def build_filters(results: Results) -> tuple[Filter, ...]:
    """The filters of takeovers; a single predecessor has no filter."""
    rows, labelled = results.takeovers, states_by_record(results)
    values_by_name = {
        "successor": [row.successor for row in rows],
        "predecessor": [row.predecessor for row in results.predecessors],
        "view": [row.view for row in rows],
        "point": [point_kind(row.record_id) for row in rows],
        "state": [labelled.get(row.record_id, UNKNOWN) for row in rows],
    }
    filters = [Filter(name, name, tuple(dict.fromkeys(values))) for name, values in values_by_name.items()]
    solved = Filter("solved", "solved", ("yes", "no", "infrastructure failure"))
    return (*(each for each in filters if len(each.values) > 1 or each.name != "predecessor"), solved)


def describe_settings(config: RunConfig) -> tuple[tuple[str, str], ...]:
    """A run's settings for display, without empty ones."""
    settings = config.model_dump(mode="json", exclude={"inputs"})
    entries = settings.pop("models")
    return (
        *(
            (name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value))
            for name, value in settings.items()
            if value not in (None, [], False)
        ),
        *((f"model {name}", _describe_entry(entry)) for name, entry in entries.items()),
    )


def _describe_entry(entry: Mapping[str, Any]) -> str:
    return ", ".join(f"{field}: {value}" for field, value in entry.items() if value not in (None, {}))


def _describe_cost_basis(summary: Mapping[str, Any]) -> str:
    uncounted = summary["costs"]["all"]["uncounted_calls"]
    if uncounted:
        return f"{uncounted:,} calls without usage"
    return "of all stages" if summary["costs"]["all"]["cost_usd"] is not None else "a price is unknown"


def find_number_columns(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> tuple[bool, ...]:
    """Which columns contain numbers and are right-aligned."""
    return tuple(
        any(row[index] is not None for row in rows) and all(_is_number(row[index]) for row in rows)
        for index in range(len(columns))
    )


def format_value(value: object) -> str:
    """Format a table cell."""
    if value is None or value != value:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or value.is_integer():
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3f}"


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return _NUMBER.fullmatch(value.strip()) is not None
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _list_views(results: Results) -> tuple[str, ...]:
    return tuple(dict.fromkeys(view for source in results.sources for view in source.config.views))


def _find_run_id(results: Results, row: Takeover) -> str:
    return next(source.config.run_id for source in results.sources if str(source.out) == row.out)


def _baseline_events(results: Results) -> dict[tuple[Any, ...], int]:
    return {
        (row.record_id, row.successor, row.repeat): row.events or 0
        for row in results.takeovers
        if row.view == BASELINE and row.outcome == "graded"
    }


def _relative_delta(row: Takeover, baseline: Mapping[tuple[Any, ...], int]) -> float | None:
    """Relative difference in events from the takeover under the baseline."""
    if row.view == BASELINE or row.outcome != "graded":
        return None
    base = baseline.get((row.record_id, row.successor, row.repeat))
    return round((row.events or 0) / base - 1, 4) if base else None


def _format_median(values: list[int]) -> str:
    return format_value(median(values)) if values else "–"


def _format_percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


def _format_share(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f} %"


def _format_answers(answers: Mapping[str, int] | None) -> str | None:
    return None if answers is None else f"{100 * answers['true'] / answers['of']:.0f} %"


def _format_signed(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:+.0f} %".replace("-", "−")
