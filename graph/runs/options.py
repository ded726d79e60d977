"""What can be set for a run, as the types of keyword arguments, so that a checker finds a name that there is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Required

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from typing_extensions import TypedDict

from langgraph_takeover.graph.runs.delegation import Delegation
from langgraph_takeover.handoff.trace.action import ActionProtocol
from langgraph_takeover.handoff.trace.events import PointKind
from langgraph_takeover.nodes.context.agents import Agent
from langgraph_takeover.nodes.context.settings import Policy, Prices
from langgraph_takeover.nodes.session.session import SnapshotEvery
from langgraph_takeover.sandbox.interface import SandboxSpec


class AgentSettings(TypedDict, total=False):
    """The fields of `nodes.context.settings.Equipment` but the model; those of one agent or of a team."""

    protocol: ActionProtocol
    offer_handoff: bool
    points: Sequence[PointKind]
    policy: Policy
    max_steps: int
    max_events: int | None
    max_tokens: int | None
    max_cost: float | None
    max_seconds: float
    prices: Prices | None
    model_timeout_s: float
    model_tries: int
    command_timeout_s: float
    observation_chars: int
    window_tokens: int | None
    agent: str
    run_id: str
    tools: Sequence[BaseTool]


class TeamSettings(TypedDict, total=False):
    """The fields of `nodes.context.agents.Team` but its agents."""

    supervisor: Agent | None
    max_consecutive_turns: int
    enable_handoff_tool: bool


class OpenRunSettings(AgentSettings, TeamSettings):
    """What `open_run` hands on."""


class AgentRunOptions(AgentSettings, total=False):
    """What `run` hands on to `open_run`."""

    model_name: str
    snapshot_every: SnapshotEvery
    lease_s: float
    on_progress: Callable[[dict[str, Any]], None] | None
    delegation: Delegation | None


class TeamRunOptions(AgentRunOptions, TeamSettings):
    """What `run_team` and `resume` do."""


class TakeOverOptions(AgentRunOptions):
    """What `take_over` does."""

    model: Required[BaseChatModel]
    sandbox: Required[SandboxSpec]
