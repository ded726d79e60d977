"""Comparison of two runs, takeover by takeover."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from langgraph_takeover.evals.reports.collection import ReportData, collect_report_data
from langgraph_takeover.evals.reports.estimates import (
    Estimate,
    McNemar,
    Pair,
    compute_matched_medians,
    compute_median_change,
    estimate_change,
    estimate_solved_delta,
    match_pairs,
    mcnemar,
    select_graded,
)
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.rows import STAGES, Takeover
from langgraph_takeover.evals.run.settings.config import RunConfig, RunUsageError
from langgraph_takeover.evals.run.settings.inputs import list_changed_inputs
from langgraph_takeover.handoff.records.record import HandoffRecord

PAIR_KEY = Takeover.key_fields
ANSWERS = ("reexamined", "verified_before_finish", "harm", "rescue", "preserved")
"""Fields that are true or false."""
_DIRECTORY_SETTINGS = ("run_id", "journal", "records_of", "shard")


class MetricChange(NamedTuple):
    """Medians over pairs before and after, their change, and the mean of the pairs' changes. Reductions are negative."""

    before: float | None
    after: float | None
    change_of_medians: float | None
    mean_change: Estimate


class ViewChange(NamedTuple):
    """Changes of the takeovers under one view that both runs have."""

    view: str
    pairs: int
    only_before: int
    only_after: int
    events: MetricChange
    prompt_tokens: MetricChange
    solved_before: int
    solved_after: int
    solved: Estimate
    test: McNemar
    reshown_tokens: MetricChange
    """Estimated tokens that successors were shown again."""
    kept: MetricChange
    """Share of the predecessor's changed lines in the final patch, from 0 to 1."""
    answers: dict[str, tuple[int, int] | None]
    """Before and after: number of takeovers that were verified, did harm, and so on; None if unknown."""


class OutcomeFlip(NamedTuple):
    """A takeover that only one of the two runs solved."""

    record_id: str
    view: str
    successor: str
    repeat: int
    is_solved: bool
    """Whether the later run solved it."""


class Comparison(NamedTuple):
    """The later run compared with the earlier one."""

    views: tuple[ViewChange, ...]
    flips: tuple[OutcomeFlip, ...]
    records: int
    """Number of records that both runs took over."""
    changed_records: tuple[str, ...]
    """The shared records whose handoff point, patch or files differ."""
    unknown_records: tuple[str, ...]
    """The shared records that may differ, but are not in the directories of both runs."""
    settings: dict[str, tuple[Any, Any]]
    changed_inputs: tuple[str, ...]
    """The tasks, recordings and prompts that both runs read and that differ."""
    prompts: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
    """Prompt versions before and after, for the stages in which they differ."""


def compare(before: Results, after: Results) -> Comparison:
    """Compare two runs. Raises RunUsageError if they share no takeover."""
    first_data, last_data = collect_report_data(before), collect_report_data(after)
    pairs = match_pairs(last_data.takeovers, first_data.takeovers, PAIR_KEY)
    if not pairs:
        raise RunUsageError(f"the runs share no graded takeover: {_explain_no_overlap(before, after)}")
    shared, changes = _compare_records(before, after)
    then, now = (results.sources[0].config.inputs for results in (before, after))
    views = dict.fromkeys((*first_data.views, *last_data.views))
    return Comparison(
        views=tuple(_compare_view(view, first_data, last_data) for view in views),
        flips=tuple(
            OutcomeFlip(now.record_id, now.view, now.successor, now.repeat, now.is_solved)
            for now, then in pairs
            if now.is_solved != then.is_solved
        ),
        records=shared,
        changed_records=tuple(name for name, is_changed in changes.items() if is_changed),
        unknown_records=tuple(name for name, is_changed in changes.items() if is_changed is None),
        settings=_compare_settings(before, after),
        changed_inputs=tuple(list_changed_inputs(then, now)),
        prompts={
            stage: versions
            for stage in STAGES
            if len(set(versions := (_prompt_versions(before, stage), _prompt_versions(after, stage)))) > 1
        },
    )


def _compare_view(view: str, before: ReportData, after: ReportData) -> ViewChange:
    then, now = (data.select(view=view) for data in (before, after))
    pairs = match_pairs(now, then, PAIR_KEY)
    return ViewChange(
        view=view,
        pairs=len(pairs),
        only_before=len(then) - len(pairs),
        only_after=len(now) - len(pairs),
        events=_compare_metric(pairs, "events"),
        prompt_tokens=_compare_metric(pairs, "prompt_tokens"),
        solved_before=sum(row.is_solved for _, row in pairs),
        solved_after=sum(row.is_solved for row, _ in pairs),
        solved=estimate_solved_delta(pairs),
        test=mcnemar(pairs),
        reshown_tokens=_compare_metric(pairs, "reshown_tokens"),
        kept=_compare_metric(pairs, "kept"),
        answers={name: _count_true(pairs, name) for name in ANSWERS},
    )


def _count_true(pairs: Iterable[Pair], name: str) -> tuple[int, int] | None:
    answers = [(getattr(then, name), getattr(now, name)) for now, then in pairs]
    known = [each for each in answers if None not in each]
    return (sum(then for then, _ in known), sum(now for _, now in known)) if known else None


def _compare_metric(pairs: tuple[Pair, ...], name: str) -> MetricChange:
    after, before = compute_matched_medians(pairs, name) or (None, None)
    change = compute_median_change(pairs, name)
    return MetricChange(before, after, change, estimate_change(pairs, name, np.mean))


def _compare_records(before: Results, after: Results) -> tuple[int, dict[str, bool | None]]:
    """The number of shared records, and whether those with different digests differ; None if unknown.

    A digest covers times, too, so those of two equal runs differ.
    """
    first, last = ({row.record_id: row for row in each.takeovers if row.digest} for each in (before, after))
    shared = sorted(set(first) & set(last))
    changes: dict[str, bool | None] = {}
    for name in shared:
        if first[name].digest != last[name].digest:
            then, now = before.load_record(first[name]), after.load_record(last[name])
            is_known = then is not None and now is not None
            changes[name] = _read_content(then) != _read_content(now) if is_known else None
    return len(shared), changes


def _read_content(record: HandoffRecord | None) -> object:
    """What a successor finds: the handoff point, the patch and the files."""
    return record and (record.point, record.patch, record.files, record.edited_files)


def _compare_settings(before: Results, after: Results) -> dict[str, tuple[Any, Any]]:
    first, last = (_flatten_settings(results.sources[0].config) for results in (before, after))
    return {
        name: (first.get(name), last.get(name))
        for name in (*first, *(name for name in last if name not in first))
        if name not in _DIRECTORY_SETTINGS and first.get(name) != last.get(name)
    }


def _flatten_settings(config: RunConfig) -> dict[str, Any]:
    """The settings, with one for each field of a model's entry."""
    settings = config.model_dump(mode="json", exclude={"inputs"})
    entries = settings.pop("models")
    return settings | {
        f"models.{name}.{field}": value for name, entry in entries.items() for field, value in entry.items()
    }


def _prompt_versions(results: Results, stage: str) -> tuple[str, ...]:
    return tuple(
        sorted({prompts for row in getattr(results, stage) for prompts in row.read("prompts") if prompts})
    )


def _explain_no_overlap(before: Results, after: Results) -> str:
    """The first field of their keys in which they share no value."""
    for name in PAIR_KEY:
        first, last = (
            {getattr(row, name) for row in select_graded(results.takeovers)} for results in (before, after)
        )
        if not first & last:
            values = " and ".join(", ".join(sorted(map(str, side))[:3]) or "none" for side in (first, last))
            return f"{name} differs ({values})"
    return "no record has the same view, successor and repeat in both"
