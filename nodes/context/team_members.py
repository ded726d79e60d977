"""The agents of a team: their settings, their order, and the instructions that each gets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from pydantic import ConfigDict, Field, field_validator, model_validator
from typing_extensions import TypedDict

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.names import ActionProtocol
from langgraph_takeover.handoff.views.team_views import PassReason, TurnPass


class UnknownAgentError(TakeoverError, LookupError):
    """No agent has the name of a thread's next turn or of a handoff's target."""

    def __str__(self) -> str:
        return str(self.args[0])


def name_model(model: BaseChatModel) -> str:
    """Return the name that a model goes by in records: its own, else its class's."""
    return str(getattr(model, "model_name", None) or type(model).__name__)


class Agent(Frozen):
    """One agent of a team. None means: as the team.

    Example:
        >>> from langchain_core.language_models import FakeListChatModel
        >>> from langgraph_takeover import Agent
        >>> Agent(name="writer", model=FakeListChatModel(responses=[""]), may_finish=False).model_name
        'FakeListChatModel'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str
    """Name in the team: up to 64 letters, digits, `_` and `-`."""
    model: BaseChatModel
    """The chat model that works."""
    tools: tuple[BaseTool, ...] = ()
    """Tools besides shell and editor. They run in this process, outside the sandbox."""
    instructions: str = ""
    """The agent's task in the team; the others see its first line."""
    max_consecutive_turns: int | None = Field(default=None, gt=0)
    """Maximum number of turns in a row. Default: as the team."""
    share_only_tool_results: bool = False
    """After a rotation, show the others only this agent's commands and results, not its words, until a handoff to them."""
    may_finish: bool = True
    """Whether the agent may finish the task."""
    enable_handoff_tool: bool | None = None
    """Give the agent a tool to pass the turn on. Default: as the team."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise ValueError(
                f"name: invalid agent name {name[:80]!r} (use up to 64 letters, digits, '_' and '-')"
            )
        return name

    @property
    def model_name(self) -> str:
        return name_model(self.model)

    @property
    def purpose(self) -> str:
        return next((line.strip() for line in self.instructions.splitlines() if line.strip()), "")


class Team(Frozen):
    """Agents that take turns: in order, or as a supervisor chooses."""

    agents: tuple[Agent, ...] = Field(min_length=1)
    """The agents, in the order of their turns."""
    supervisor: Agent | None = None
    """Starts, and chooses who continues when an agent's turns are used up. Its own turns are limited only if it says so."""
    max_consecutive_turns: int = Field(default=3, gt=0)
    """Maximum number of turns of one agent in a row."""
    enable_handoff_tool: bool = False
    """Give each agent a tool to pass the turn on, with a message."""

    @model_validator(mode="after")
    def _check_team(self) -> Team:
        names = [agent.name for agent in self.all_agents]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"agents: two are named {twice[0]!r} (rename one)")
        if not self.finisher_names:
            raise ValueError("agents: none may finish the task (leave one with may_finish=True)")
        if self.supervisor is not None and self.supervisor.enable_handoff_tool is False:
            raise ValueError("supervisor: it chooses by the handoff tool (leave enable_handoff_tool unset)")
        return self

    @property
    def all_agents(self) -> tuple[Agent, ...]:
        """All agents; the first one starts."""
        return (*((self.supervisor,) if self.supervisor else ()), *self.agents)

    @property
    def finisher_names(self) -> tuple[str, ...]:
        return tuple(agent.name for agent in self.all_agents if agent.may_finish)

    def find_member(self, name: str = "") -> TeamMember:
        """Return the agent of that name; default: the first. Raises UnknownAgentError."""
        for agent in self.all_agents:
            if agent.name == name or not name:
                return TeamMember(team=self, agent=agent)
        raise UnknownAgentError(
            f"agents: the thread continues with {name!r:.70}, not among {_join_names(self.all_agents)} (pass it again)"
        )


class TeamSettings(TypedDict, total=False):
    """The fields of `Team` except its agents, as keyword arguments."""

    supervisor: Agent | None
    max_consecutive_turns: int
    enable_handoff_tool: bool


class TeamMember(Frozen):
    """One agent in its team."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    team: Team
    agent: Agent

    @property
    def name(self) -> str:
        return self.agent.name

    @property
    def is_supervisor(self) -> bool:
        return self.team.supervisor is not None and self.name == self.team.supervisor.name

    @property
    def max_turns(self) -> int | None:
        """Maximum number of turns in a row; None: no limit."""
        if len(self.team.all_agents) == 1:
            return None
        default = None if self.is_supervisor else self.team.max_consecutive_turns
        return self.agent.max_consecutive_turns or default

    @property
    def handoff_targets(self) -> tuple[str, ...]:
        """The agents that it can hand over to; empty without the handoff tool."""
        enabled = self.agent.enable_handoff_tool
        if enabled is None:
            enabled = self.is_supervisor or self.team.enable_handoff_tool
        return (
            tuple(agent.name for agent in self.team.all_agents if agent.name != self.name) if enabled else ()
        )

    @property
    def must_name_target(self) -> bool:
        """Whether its handoff must name a target."""
        return self.is_supervisor and len(self.team.agents) > 1

    def find_next_agent(self, passes: Iterable[TurnPass]) -> tuple[str, PassReason]:
        """Return whose turn is next, and why."""
        team = self.team
        if team.supervisor is not None and not self.is_supervisor:
            return team.supervisor.name, "supervisor"
        order = [agent.name for agent in team.agents]
        # After a supervisor, the order continues from the last other agent that acted.
        previous = [self.name, *(each.source for each in reversed([*passes]))]
        last = next((order.index(name) for name in previous if name in order), -1)
        return order[(last + 1) % len(order)], "rotation"

    def build_instructions(self, protocol: ActionProtocol) -> str:
        """Return the agent's instructions about its team and its own task."""
        text = (files("langgraph_takeover.nodes") / "prompts" / "team.md").read_text(encoding="utf-8")
        agents = "\n".join(
            f"- `{each.name}`{': ' if each.purpose else ''}{each.purpose}" for each in self.team.all_agents
        )
        parts = [
            text.format(name=self.name, agents=agents),
            self._describe_turns(),
            self._describe_finishing(),
        ]
        if self.is_supervisor:
            parts.append(
                "You choose who continues, and get the turn again when that agent's turns are used up."
            )
        if self.handoff_targets:
            to = "`to`" if protocol == "native" else 'as in <handoff to="name">…</handoff>'
            parts.append(
                f"When you hand over, name the agent that continues, {to}: one of {', '.join(self.handoff_targets)}."
            )
        if self.agent.instructions.strip():
            parts.append(f"\nYour task in the team: {self.agent.instructions.strip()}")
        return "\n".join(filter(None, parts))

    def _describe_turns(self) -> str:
        if self.max_turns is None:
            return ""
        follower, _ = self.find_next_agent(())
        after = "an agent" if self.is_supervisor else f"`{follower}`"
        return f"After {self.max_turns} turns in a row, the turn passes to {after} automatically."

    def _describe_finishing(self) -> str:
        finishers = ", ".join(f"`{name}`" for name in self.team.finisher_names)
        if len(self.team.finisher_names) == len(self.team.all_agents):
            return ""
        return f"Only {finishers} may finish the task" + ("." if self.agent.may_finish else "; you may not.")


def _join_names(agents: Iterable[Agent]) -> str:
    return ", ".join(agent.name for agent in agents)
