"""The models of the study `agents`, in which each agent takes over from each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from langgraph_takeover.evals.models import parse_model_name, split_agent
from langgraph_takeover.evals.run.settings.config import RunUsageError
from langgraph_takeover.handoff.agent_names import AGENT_NAMES
from langgraph_takeover.handoff.views.names import CONTINUATION


def mix_agents(options: dict[str, Any]) -> dict[str, Any]:
    """The options with every named agent both as predecessor and as successor."""
    names = list(dict.fromkeys([*(options["predecessor"] or ()), *(options["successor"] or ())]))
    return options | {"predecessor": names, "successor": names}


def add_continuation(views: str) -> str:
    """The names of views with `continuation`, the baseline of the study."""
    return views if CONTINUATION in re.split(r"[\s,]+", views) else f"{views},{CONTINUATION}"


def list_installed(model: str, programs: Mapping[str, str]) -> list[str]:
    """The names of this model in each installed external agent, and in the built-in one. Raises RunUsageError."""
    from langgraph_takeover.agents import AgentProgramError, external_agent

    bare = split_agent(model)[1]
    names = []
    for agent in AGENT_NAMES:
        try:
            external_agent(agent, program=programs.get(agent))
        except AgentProgramError:
            continue
        names.append(f"{agent}:{bare}")
    if not names:
        raise RunUsageError(
            f"--study agents: no external agent is installed: {', '.join(AGENT_NAMES)} (put one on PATH, pass "
            "--agent-program, or name the agents by --predecessor)"
        )
    # The vendor's endpoint answers only its own agent.
    is_native = parse_model_name(names[0]).kind == "native"
    return names if is_native else [*names, bare]
