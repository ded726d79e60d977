"""Several agents on one task: who they are, in which order they act, and what each is told of that."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from pydantic import ConfigDict, Field, field_validator, model_validator
from typing_extensions import TypedDict

from langgraph_takeover.handoff.trace.action import ActionProtocol
from langgraph_takeover.handoff.views.team import PassReason, TurnPass
from langgraph_takeover.sandbox.interface import Frozen, TakeoverError


class UnknownAgentError(TakeoverError, LookupError):
    """A thread's turn is that of an agent whom the team does not have."""

    def __str__(self) -> str:
        return str(self.args[0])


def name_model(model: BaseChatModel) -> str:
    """Return the name that a model goes by in records: its own, else its class's."""
    return str(getattr(model, "model_name", None) or type(model).__name__)


class Agent(Frozen):
    """One agent of a team; what is None is as the team has it."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str
    model: BaseChatModel
    tools: tuple[BaseTool, ...] = ()
    """Tools beside shell and editor. They run in this process, outside the sandbox."""
    instructions: str = ""
    """What this agent is for; the others are told its first line."""
    max_consecutive_turns: int | None = Field(default=None, gt=0)
    share_only_tool_results: bool = False
    """Show the others what its actions showed, and not what it said, of turns that did not end by its own handoff."""
    may_finish: bool = True
    enable_handoff_tool: bool | None = None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise ValueError(f"{name[:80]!r} is no agent's name; take up to 64 letters, digits, '_' and '-'")
        return name

    @property
    def model_name(self) -> str:
        return name_model(self.model)

    @property
    def purpose(self) -> str:
        return next((line.strip() for line in self.instructions.splitlines() if line.strip()), "")


class Team(Frozen):
    """Agents that take turns: one after the other, or as a supervisor among them chooses."""

    agents: tuple[Agent, ...] = Field(min_length=1)
    supervisor: Agent | None = None
    """Begins, and chooses who goes on whenever an agent's turns ran out; its own run out only where it says so."""
    max_consecutive_turns: int = Field(default=3, gt=0)
    enable_handoff_tool: bool = False

    @model_validator(mode="after")
    def _check_team(self) -> Team:
        names = [agent.name for agent in self.all_agents]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two agents are named {twice[0]!r}; give one another name")
        if not self.finisher_names:
            raise ValueError("none of the agents may finish the task; leave one of them may_finish=True")
        if self.supervisor is not None and self.supervisor.enable_handoff_tool is False:
            raise ValueError("a supervisor chooses by the handoff tool; leave it enabled")
        return self

    @property
    def all_agents(self) -> tuple[Agent, ...]:
        """All of them, the one who begins first."""
        return (*((self.supervisor,) if self.supervisor else ()), *self.agents)

    @property
    def finisher_names(self) -> tuple[str, ...]:
        return tuple(agent.name for agent in self.all_agents if agent.may_finish)

    def find_member(self, name: str = "") -> TeamMember:
        """The agent of that name, or who begins. Raises UnknownAgentError."""
        for agent in self.all_agents:
            if agent.name == name or not name:
                return TeamMember(team=self, agent=agent)
        raise UnknownAgentError(
            f"agents: the thread goes on with {name!r:.70}, who is not among {_join_names(self.all_agents)}; give it again"
        )


class TeamSettings(TypedDict, total=False):
    """The fields of `Team` except its agents, as keyword arguments."""

    supervisor: Agent | None
    max_consecutive_turns: int
    enable_handoff_tool: bool


class TeamMember(Frozen):
    """One agent of a team, in its place."""

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
        """How many turns it has in a row; None: as many as it wants."""
        if len(self.team.all_agents) == 1:
            return None
        default = None if self.is_supervisor else self.team.max_consecutive_turns
        return self.agent.max_consecutive_turns or default

    @property
    def handoff_targets(self) -> tuple[str, ...]:
        """Whom it can hand over to; nobody where it has no tool for that."""
        enabled = self.agent.enable_handoff_tool
        if enabled is None:
            enabled = self.is_supervisor or self.team.enable_handoff_tool
        return (
            tuple(agent.name for agent in self.team.all_agents if agent.name != self.name) if enabled else ()
        )

    @property
    def must_name_target(self) -> bool:
        """Whether a handoff of its must say to whom."""
        return self.is_supervisor and len(self.team.agents) > 1

    def find_next_agent(self, passes: Iterable[TurnPass]) -> tuple[str, PassReason]:
        """Who has the turn when this agent's is over, and how it comes to that."""
        team = self.team
        if team.supervisor is not None and not self.is_supervisor:
            return team.supervisor.name, "supervisor"
        order = [agent.name for agent in team.agents]
        # After a supervisor comes whoever follows the last of the others that acted.
        acted = [self.name, *(each.source for each in reversed([*passes]))]
        last = next((order.index(name) for name in acted if name in order), -1)
        return order[(last + 1) % len(order)], "rotation"

    def build_instructions(self, protocol: ActionProtocol) -> str:
        """What the agent is told of its team, and of what it is for."""
        text = (files("langgraph_takeover.nodes") / "prompts" / "team.md").read_text(encoding="utf-8")
        agents = "\n".join(
            f"- `{each.name}`{': ' if each.purpose else ''}{each.purpose}" for each in self.team.all_agents
        )
        told = [
            text.format(name=self.name, agents=agents),
            self._describe_turns(),
            self._describe_finishing(),
        ]
        if self.is_supervisor:
            told.append("You choose who goes on, and have the turn again when that agent's are over.")
        if self.handoff_targets:
            to = "`to`" if protocol == "native" else 'as in <handoff to="name">…</handoff>'
            told.append(
                f"When you hand over, name who is to go on, {to}: one of {', '.join(self.handoff_targets)}."
            )
        if self.agent.instructions.strip():
            told.append(f"\nWhat you are for: {self.agent.instructions.strip()}")
        return "\n".join(filter(None, told))

    def _describe_turns(self) -> str:
        if self.max_turns is None:
            return ""
        follower, _ = self.find_next_agent(())
        after = "an agent" if self.is_supervisor else f"`{follower}`"
        return f"After {self.max_turns} turns in a row your turn passes to {after} by itself."

    def _describe_finishing(self) -> str:
        finishers = ", ".join(f"`{name}`" for name in self.team.finisher_names)
        if len(self.team.finisher_names) == len(self.team.all_agents):
            return ""
        return f"Only {finishers} may finish the task" + ("." if self.agent.may_finish else "; you may not.")


def _join_names(agents: Iterable[Agent]) -> str:
    return ", ".join(agent.name for agent in agents)
