"""Checkpointed handoffs between coding agents, on LangGraph.

The names here run agents and hand their work over. More by topic: `protocol`, `models`, `errors`, `views`,
`sandbox`, `agents`, `integrations`, `middleware`.

Stability: these names and those of the topic modules follow semantic versioning from 1.0 on; until then a minor
version may change them, and CHANGELOG.md says how. Everything else is internal.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langgraph_takeover.base.takeover_error import TakeoverError
    from langgraph_takeover.graph.agent import build_agent, build_takeover
    from langgraph_takeover.graph.checkpoints.inspection import CheckpointInfo
    from langgraph_takeover.graph.delivery.delivery import Delivery, deliver
    from langgraph_takeover.graph.delivery.offers import hand_over
    from langgraph_takeover.graph.home import Home, open_home
    from langgraph_takeover.graph.outcome import Outcome, RunStatus
    from langgraph_takeover.graph.runs.api import open_run, resume, run, run_team, take_over
    from langgraph_takeover.graph.runs.child_runs import Delegation
    from langgraph_takeover.graph.runs.run import Run
    from langgraph_takeover.graph.team import build_team
    from langgraph_takeover.handoff.names import ViewName
    from langgraph_takeover.handoff.records.envelope import Envelope
    from langgraph_takeover.handoff.records.record import Review
    from langgraph_takeover.nodes.context.settings import Prices
    from langgraph_takeover.nodes.context.team_members import Agent
    from langgraph_takeover.sandbox.interface import SandboxSpec

try:
    __version__ = version("langgraph-takeover")
except PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+unknown"

_MODULES = {
    "Agent": "nodes.context.team_members",
    "CheckpointInfo": "graph.checkpoints.inspection",
    "Delegation": "graph.runs.child_runs",
    "Delivery": "graph.delivery.delivery",
    "Envelope": "handoff.records.envelope",
    "Home": "graph.home",
    "Outcome": "graph.outcome",
    "Prices": "nodes.context.settings",
    "Review": "handoff.records.record",
    "Run": "graph.runs.run",
    "RunStatus": "graph.outcome",
    "SandboxSpec": "sandbox.interface",
    "TakeoverError": "base.takeover_error",
    "ViewName": "handoff.names",
    "build_agent": "graph.agent",
    "build_takeover": "graph.agent",
    "build_team": "graph.team",
    "deliver": "graph.delivery.delivery",
    "hand_over": "graph.delivery.offers",
    "open_home": "graph.home",
    "open_run": "graph.runs.api",
    "resume": "graph.runs.api",
    "run": "graph.runs.api",
    "run_team": "graph.runs.api",
    "take_over": "graph.runs.api",
}

__all__ = [
    "Agent",
    "CheckpointInfo",
    "Delegation",
    "Delivery",
    "Envelope",
    "Home",
    "Outcome",
    "Prices",
    "Review",
    "Run",
    "RunStatus",
    "SandboxSpec",
    "TakeoverError",
    "ViewName",
    "build_agent",
    "build_takeover",
    "build_team",
    "deliver",
    "hand_over",
    "open_home",
    "open_run",
    "resume",
    "run",
    "run_team",
    "take_over",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: LangGraph and SQLAlchemy take a second to import."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
