"""An external agent as a setting of a run: its adapter and its program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict

from langgraph_takeover.handoff.agents import find_adapter
from langgraph_takeover.nodes.context.agent_program import AgentProgram, find_program
from langgraph_takeover.sandbox.interface import Frozen, SandboxSpec, TakeoverError
from langgraph_takeover.sandbox.isolation.cgroups import available_controllers

if TYPE_CHECKING:
    from langgraph_takeover.handoff.agents.adapter import AgentAdapter


class ExternalAgentError(TakeoverError, RuntimeError):
    """An external agent could not be started or resumed, or ended before its first model request."""


class ExternalAgent(Frozen):
    """A coding agent with a program of its own, such as Codex, that works on a thread instead of our agent.

    `external_agent` makes it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    adapter: Any
    """An `AgentAdapter`."""
    program: AgentProgram
    model_name: str = "takeover"
    """The model name that the agent sends with its requests."""

    @property
    def name(self) -> str:
        return str(self.adapter.name)

    def mount(self, spec: SandboxSpec) -> SandboxSpec:
        """Return a sandbox specification that mounts the agent's program."""
        own = {each.inside for each in self.program.mounts}
        kept = tuple(each for each in spec.programs if each.inside not in own)
        programs = (*kept, *self.program.mounts)
        memory_mb = spec.memory_mb
        if spec.backend == "host" and "memory" not in available_controllers():
            # Without a control group the limit counts addresses, which some agents reserve in plenty.
            memory_mb = max(memory_mb, self.adapter.program.address_space_mb)
        return spec.model_copy(update={"programs": programs, "memory_mb": memory_mb})


def external_agent(
    name: str | AgentAdapter, *, program: Path | str | None = None, model_name: str = "takeover"
) -> ExternalAgent:
    """Return an external agent by its name, or with an adapter of your own, to pass as `agent=`.

    `program` is its command; by default the one on PATH. Raises UnknownAgentProgramError, and AgentProgramError if the
    program is missing or too old.
    """
    adapter = find_adapter(name) if isinstance(name, str) else name
    found = find_program(adapter, Path(program) if program is not None else None)
    return ExternalAgent(adapter=adapter, program=found, model_name=model_name)
