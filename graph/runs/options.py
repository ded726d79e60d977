"""Keyword arguments of the functions that run threads, as types, so that a type checker finds a misspelt name."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.tools import BaseTool
from typing_extensions import TypedDict

from langgraph_takeover.graph.runs.delegation import Delegation
from langgraph_takeover.handoff.trace.action import ActionProtocol
from langgraph_takeover.handoff.trace.events import PointKind
from langgraph_takeover.nodes.context.agent_program import ExternalAgent
from langgraph_takeover.nodes.context.settings import Policy, Prices, ProgressCallback
from langgraph_takeover.nodes.context.team_members import TeamSettings
from langgraph_takeover.nodes.session.state_store import SnapshotEvery


class SharedSettings(TypedDict, total=False):
    """The fields of `AgentConfig` that every agent has."""

    protocol: ActionProtocol
    offer_handoff: bool
    points: Sequence[PointKind]
    policy: Policy
    record_every_steps: int | None
    max_steps: int
    max_events: int | None
    max_tokens: int | None
    max_cost: float | None
    max_seconds: float
    prices: Prices | None
    parallel_tool_calls: bool
    model_timeout_s: float
    model_tries: int
    command_timeout_s: float
    observation_chars: int
    window_tokens: int | None
    condense: bool
    agent: ExternalAgent | None
    run_id: str | None
    tools: Sequence[BaseTool]


class AgentSettings(SharedSettings, total=False):
    """The fields of `AgentConfig` that an agent and a team share."""

    agent_name: str | None


class OpenRunSettings(AgentSettings, TeamSettings):
    """Settings that `open_run` takes for an agent or a team."""


class OpenOptions(TypedDict, total=False):
    """The arguments of `open_run` that are not fields of `AgentConfig`."""

    model_name: str | None
    """Name of the model in records. Default: the model's own name."""
    snapshot_every: SnapshotEvery
    """Sandbox states that get a snapshot: of each step, of handoff points and ends, or of records only."""
    lease_s: float
    """Time after which a holder on another host that no longer renews its lease counts as dead."""
    on_progress: ProgressCallback | None
    """Function that gets one dict per event."""
    delegation: Delegation | None
    """Give the agent a tool to hand tasks to child agents."""


class DeliveryOptions(SharedSettings, OpenOptions):
    """Options of `deliver`."""


class AgentRunOptions(AgentSettings, OpenOptions):
    """Options of `run` and `take_over`."""


class TeamRunOptions(AgentRunOptions, TeamSettings):
    """Options of `run_team` and `resume`."""
