"""Caveats about models and their replies, excluded points, and differences between combined runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from langgraph_takeover.evals.models import is_builtin, parse_model_name
from langgraph_takeover.evals.reports.collection import ExcludedPoints, find_excluded_points
from langgraph_takeover.evals.reports.estimates import read_values, select_graded
from langgraph_takeover.evals.reports.published_tables import list_studies
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.rows import AgentRow, LabelRow, PredecessorRow, Takeover
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.evals.run.settings.study import list_quotas

_COMPARED_SETTINGS = (
    *("points", "notes_model", "protocol", "max_steps", "max_tokens", "max_reply_tokens", "max_seconds"),
    *("window_tokens", "condense", "command_timeout_s", "sandbox", "base_url"),
)
"""Settings that affect the result of a takeover."""
_MAX_NAMES = 3
_LIMIT_TO_RAISE = re.compile(r"\(raise [^()]*\)")


def list_caveats(*configs: RunConfig) -> list[str]:
    """Caveats about models that are not LLMs."""
    roles: dict[str, set[str]] = {"predecessor": set(), "successor": set(), "notes writer": set()}
    for config in configs:
        roles["predecessor"] |= set(config.predecessors)
        roles["successor"] |= set(config.successors)
        roles["notes writer"] |= set(map(config.choose_writer, config.predecessors))
    scripted = sorted(name for name in set().union(*roles.values()) if not parse_model_name(name).is_llm)
    if not scripted:
        return []
    descriptions = []
    for name in scripted:
        own_roles = [role for role, names in roles.items() if name in names]
        short_name = name.rsplit("/", 1)[-1] if name.startswith("replay:") else name
        descriptions.append(
            short_name if len(own_roles) == len(roles) else f"{short_name} (as {' and '.join(own_roles)})"
        )
    bound = (
        "; builtin:oracle knows every bundled fix and spends events only on information missing from its view: "
        "a lower bound."
    )
    succeeds = any(is_builtin(name) for name in roles["successor"])
    return [
        f"No LLM: {', '.join(descriptions)}. Its tokens are estimated at four characters each{bound if succeeds else '.'}"
    ]


def list_result_caveats(results: Results) -> tuple[str, ...]:
    """Caveats about models, about excluded points, and about differences between combined runs."""
    configs = [source.config for source in results.sources]
    excluded = find_excluded_points(results)
    counted = [row for row in select_graded(results.takeovers) if not excluded.contains(row)]
    caveats = [*list_caveats(*configs), *_list_excluded_points(excluded), *_list_other_verdicts(counted)]
    if waiting := list_waiting_points(results):
        caveats.append(f"Handoff points without a takeover yet: {_format_names(waiting)}.")
    caveats += list_incomplete_patches((*results.predecessors, *results.labels, *counted))
    settings = [config.model_dump() for config in configs]
    differ = [name for name in _COMPARED_SETTINGS if any(one[name] != settings[0][name] for one in settings)]
    if differ:
        caveats.append(f"The combined runs differ in these settings: {', '.join(differ)}.")
    studies = list_studies(results)
    if len(studies) > 1:
        caveats.append(
            f"The combined runs belong to different studies ({', '.join(sorted(studies))}): no comparison with the paper."
        )
    reused = {config.describe_predecessor_limits() for config in configs}
    caveats += [
        f"Reused predecessors ran with other limits: {limits}." for limits in sorted(filter(None, reused))
    ]
    caveats += _list_model_caveats(results)
    versions = sorted({row.prompts for row in results.takeovers if row.prompts})
    if len(versions) > 1:
        caveats.append(f"The takeovers used different prompt versions: {', '.join(versions)}.")
    return tuple(caveats)


def list_waiting_points(results: Results) -> list[str]:
    """The records of takeover runs without a row of a takeover, except of runs that select some of the points."""
    if any(list_quotas(source.config) for source in results.sources) or not results.takeovers:
        return []
    records = {record for row in results.predecessors for record in row.records or ()}
    return sorted(records - {row.record_id for row in results.takeovers})


def _format_names(names: Sequence[str]) -> str:
    """Their number, and the first three."""
    return f"{len(names)} ({', '.join(names[:_MAX_NAMES])}{', …' if len(names) > _MAX_NAMES else ''})"


def _list_excluded_points(excluded: ExcludedPoints) -> list[str]:
    caveats = []
    for what, points in (("notes", excluded.without_notes), ("record", excluded.without_record)):
        if points:
            names = ", ".join(sorted(points)[:_MAX_NAMES]) + (", …" if len(points) > _MAX_NAMES else "")
            caveats.append(
                f"Excluded handoff points without {what}, with all their takeovers: {len(points)}; a point counts only if every "
                f"view can be shown ({names})."
            )
    if excluded.is_unchecked:
        caveats.append("No rows of notes (notes.jsonl missing?): points without notes could not be excluded.")
    return caveats


def list_incomplete_patches(rows: Iterable[AgentRow | LabelRow]) -> list[str]:
    """A caveat about rows whose graded patch lacks changes."""
    names = [
        f"snapshot of {row.record_id}" if isinstance(row, LabelRow) else str(row.trace)
        for row in rows
        if row.left_out_count
    ]
    if not names:
        return []
    more = ", …" if len(names) > _MAX_NAMES else "."
    return [
        f"Graded patches that lack changes of the run: {len(names)} (left_out in the rows names the files): "
        f"{', '.join(names[:_MAX_NAMES])}{more}"
    ]


def _list_other_verdicts(takeovers: Iterable[Takeover]) -> list[str]:
    """A caveat about takeovers whose verdict depends on the scratch files in their patch."""
    differ = [
        row for row in takeovers if row.cleaned_resolved is not None and row.cleaned_resolved != row.is_solved
    ]
    if not differ:
        return []
    names = ", ".join(
        f"{row.record_id} {row.view} {row.successor} {row.repeat} "
        f"({'solved only as submitted' if row.resolved else 'solved only cleaned'})"
        for row in differ[:_MAX_NAMES]
    )
    more = ", …" if len(differ) > _MAX_NAMES else "."
    return [
        f"Takeovers whose verdict depends on scratch or build files: {len(differ)} (table 16): {names}{more}"
    ]


def _list_model_caveats(results: Results) -> list[str]:
    """Caveats about replies without text and action, and about divergent replays."""
    caveats = []
    roles: tuple[tuple[str, Sequence[AgentRow]], ...] = (
        ("predecessor", results.predecessors),
        ("successor", results.takeovers),
    )
    for role, rows in roles:
        for name in dict.fromkeys(getattr(row, role) for row in rows):
            own = [row for row in rows if getattr(row, role) == name]
            empty = int(sum(read_values(own, "empty_replies")))
            if empty:
                calls = int(sum(read_values(own, "llm_calls")))
                limits = (_LIMIT_TO_RAISE.search(row.detail or "") for row in own)
                cure = next((f" {found[0]}" for found in limits if found), "")
                caveats.append(
                    f"{empty} of {calls} replies of {name} as {role} had neither text nor action{cure}."
                )
    caveats += _list_divergent_replays(results)
    without_text = [row for row in results.notes if row.outcome == "written" and row.detail]
    if without_text:
        caveats.append(f"{len(without_text)} notes lack text: {without_text[0].detail}.")
    return list(dict.fromkeys(caveats))


def _list_divergent_replays(results: Results) -> list[str]:
    """A caveat about replays whose observations differ from their recordings."""
    every: tuple[PredecessorRow | Takeover, ...] = (*results.predecessors, *results.takeovers)
    rows = [row for row in every if row.divergence]
    if not rows:
        return []
    names = ", ".join(
        f"{f'{row.record_id} {row.view}' if isinstance(row, Takeover) else row.task_id} from action "
        f"{row.divergence_step} on ({row.divergence:.0%} of its steps)"
        for row in rows[:_MAX_NAMES]
    )
    more = ", …" if len(rows) > _MAX_NAMES else ""
    missed = sum(len(row.missed_points or ()) for row in results.predecessors if row.divergence)
    points = f"; {missed} points of the recordings were not reached" if missed else ""
    return [
        f"Warning: replays whose observations differ from the recording: {len(rows)}: {names}{more}{points}."
    ]
