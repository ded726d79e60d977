"""Caveats about the settings and the replies of the models of runs."""

from __future__ import annotations

import re
from typing import Any

from langgraph_takeover.evals.reports.estimates import read_values
from langgraph_takeover.evals.run.results import Results

_LIMIT_TO_RAISE = re.compile(r"\(raise [^()]*\)")


def list_model_caveats(results: Results) -> list[str]:
    """Caveats about entries that differ between combined runs, and about replies without text and action."""
    caveats = []
    entries: dict[str, Any] = {}
    for config in (source.config for source in results.sources):
        for name, entry in config.models.items():
            if entries.setdefault(name, entry) != entry:
                caveats.append(f"The combined runs have different entries of the model {name}.")
    for role, rows in (("predecessor", results.predecessors), ("successor", results.takeovers)):
        for name in dict.fromkeys(row[role] for row in rows):
            own = [row for row in rows if row[role] == name]
            empty = int(sum(read_values(own, "empty_replies")))
            if empty:
                calls = int(sum(read_values(own, "llm_calls")))
                limits = (_LIMIT_TO_RAISE.search(row.get("detail") or "") for row in own)
                cure = next((f" {found[0]}" for found in limits if found), "")
                caveats.append(
                    f"{empty} of {calls} replies of {name} as {role} had neither text nor action{cure}."
                )
    caveats += _list_divergent_replays(results)
    without_text = [row for row in results.notes if row["outcome"] == "written" and row.get("detail")]
    if without_text:
        caveats.append(f"{len(without_text)} notes lack text: {without_text[0]['detail']}.")
    return list(dict.fromkeys(caveats))


def _list_divergent_replays(results: Results) -> list[str]:
    """A caveat about replays whose observations differ from their recordings."""
    rows = [row for row in (*results.predecessors, *results.takeovers) if row.get("divergence")]
    if not rows:
        return []
    names = ", ".join(
        f"{row.get('record_id') or row['task_id']}{' ' + row['view'] if row.get('view') else ''} from action "
        f"{row['divergence_step']} on ({row['divergence']:.0%} of its steps)"
        for row in rows[:3]
    )
    more = ", …" if len(rows) > 3 else ""
    missed = sum(len(row.get("missed_points") or ()) for row in rows)
    points = f"; {missed} points of the recordings were not reached" if missed else ""
    return [
        f"Warning: replays whose observations differ from the recording: {len(rows)}: {names}{more}{points}."
    ]
