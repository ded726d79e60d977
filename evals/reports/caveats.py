"""Caveats about models, and about differences between combined runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph_takeover.evals.models import is_builtin, parse_model_name
from langgraph_takeover.evals.reports.estimates import (
    read_values,
)
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.settings.config import RunConfig

_COMPARED_SETTINGS = (
    *("points", "notes_model", "protocol", "max_steps", "max_tokens", "max_reply_tokens", "max_seconds"),
    *("window_tokens", "command_timeout_s", "sandbox"),
)
"""Settings that affect the result of a takeover."""


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
    """Caveats about models, and about differences between combined runs."""
    configs = [source.config for source in results.sources]
    caveats = list_caveats(*configs)
    settings = [config.model_dump() for config in configs]
    differ = [name for name in _COMPARED_SETTINGS if any(one[name] != settings[0][name] for one in settings)]
    if differ:
        caveats.append(f"The combined runs differ in these settings: {', '.join(differ)}.")
    caveats += _list_model_caveats(results, configs)
    versions = sorted({row["prompts"] for row in results.takeovers if row.get("prompts")})
    if len(versions) > 1:
        caveats.append(f"The takeovers used different prompt versions: {', '.join(versions)}.")
    return tuple(caveats)


def _list_model_caveats(results: Results, configs: Sequence[RunConfig]) -> list[str]:
    """Caveats about entries that differ between combined runs, and about replies without text and action."""
    caveats = []
    entries: dict[str, Any] = {}
    for config in configs:
        for name, entry in config.models.items():
            if entries.setdefault(name, entry) != entry:
                caveats.append(f"The combined runs have different entries of the model {name}.")
    for role, rows in (("predecessor", results.predecessors), ("successor", results.takeovers)):
        for name in dict.fromkeys(row[role] for row in rows):
            own = [row for row in rows if row[role] == name]
            empty = int(sum(read_values(own, "empty_replies")))
            if empty:
                calls = int(sum(read_values(own, "llm_calls")))
                caveats.append(
                    f"{empty} of {calls} replies of {name} as {role} had neither text nor action (detail of its rows)."
                )
    without_text = [row for row in results.notes if row["outcome"] == "written" and row.get("detail")]
    if without_text:
        caveats.append(f"{len(without_text)} notes lack text: {without_text[0]['detail']}.")
    return list(dict.fromkeys(caveats))
