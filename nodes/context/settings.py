"""The type of the progress events that a run streams."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from inspect import iscoroutinefunction
from typing import Any, Literal, Protocol, Required, runtime_checkable

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from typing_extensions import TypedDict

from langgraph_takeover.base.failures import ObserverErrors
from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.ledger.leases import StopMode
from langgraph_takeover.handoff.records.envelope import Mode
from langgraph_takeover.handoff.trace.events import PointKind, Usage
from langgraph_takeover.nodes.context.agent_options import AgentOptions
from langgraph_takeover.nodes.context.agent_program import ExternalAgent
from langgraph_takeover.nodes.context.team_members import TeamMember, name_model
from langgraph_takeover.nodes.model.actions import RESERVED_TOOL_NAMES
from langgraph_takeover.nodes.model.tool_schemas import find_tool_problem
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.sandbox.repository import LeftOut


class Progress(TypedDict, total=False):
    """One custom event of a run's stream; `event` and `step` are always present.

    Events: started, thinking, waiting, repaired, acting, observed, point, record, review, passed, stopped, refused, confirmed,
    child_started, child_finished, went_back.
    """

    event: Required[str]
    step: Required[int]
    text: str
    """One line, at most 300 characters."""
    tool: str
    exit_code: int | None
    refused: bool
    kind: str
    """Of a handoff point, or of a refusal."""
    record: str
    checkpoint: str
    agent: str
    """Teams: the acting agent."""
    how: str
    """Teams: `handoff`, `rotation` or `supervisor`."""
    to: str
    child: str
    """Delegation: the child's thread."""
    mode: str
    stop_reason: str | None
    steps_of_child: int


ProgressCallback = Callable[[Progress], None]


def contain_callback(callback: ProgressCallback | None) -> ProgressCallback | None:
    """Return the callback with its errors logged once instead of raised; KeyboardInterrupt and SystemExit pass.

    Raises SettingsError for a value that is not a function, and for a function that must be awaited.
    """
    if callback is None:
        return None
    if not callable(callback) or iscoroutinefunction(callback):
        raise SettingsError(
            f"on_progress: not a plain function: {callback!r:.60} (nothing awaits it; use def)"
        )
    return ObserverErrors("on_progress")(callback)


class Budget(Frozen):
    """The limits of one child; None: no limit."""

    max_steps: int = Field(gt=0)
    max_events: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    max_seconds: float = Field(gt=0)


class Assignment(Frozen):
    """One child to run: its thread, its record and its budget."""

    thread: str
    record: str
    goal: str
    mode: Mode
    budget: Budget


class ChildResult(Frozen):
    """The result of a child."""

    thread: str
    stop_reason: str | None
    """None if it was stopped from outside and can be resumed."""
    message: str = ""
    """The message that it finished with."""
    patch: str = ""
    """Difference from the task's base commit, including its parent's earlier changes."""
    problem: str = ""
    """The reason for a missing patch."""
    left_out: tuple[LeftOut, ...] = ()
    """Its changes that the patch lacks."""
    left_out_count: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    uncounted_calls: int = 0
    cost: float | None = None
    seconds: float = 0.0


@runtime_checkable
class DelegationRunner(Protocol):
    """Runs children."""

    depth: int
    """Depth of the delegating agent; 0 for one that no agent delegated to."""
    max_depth: int
    max_parallel: int
    max_tasks: int
    """Maximum number of tasks in one call."""
    window_tokens: int
    """Context window of a child."""

    def limit_budget(self, budget: Budget) -> Budget:
        """Return the budget, reduced to what a child may have."""

    def run(
        self,
        assignments: Sequence[Assignment],
        *,
        find_stop: Callable[[], StopMode | None],
        report: Callable[..., Any],
    ) -> tuple[ChildResult, ...]:
        """Run the children or resume them; the result of a finished child is returned unchanged.

        When `find_stop()` returns a mode they stop; `report(event, **fields)` may be called from any
        thread. Raises a child's error once the others have ended.
        """


Policy = Literal["record", "stop", "review", "takeover"]
ALL_POINTS: tuple[PointKind, ...] = (
    "first_source_edit",
    "first_validation",
    "first_post_failure_edit",
    "requested",
)


class Prices(BaseModel):
    """Prices per million tokens, in any one currency.

    Example:
        >>> from langgraph_takeover import Prices
        >>> Prices(prompt=1.25, completion=10).cached is None
        True
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: float = Field(ge=0)
    """Price of prompt tokens."""
    completion: float = Field(ge=0)
    """Price of completion tokens."""
    cached: float | None = Field(default=None, ge=0)
    """Price of cached prompt tokens. Default: the price of prompt tokens."""

    def compute_cost(self, usage: Usage) -> float:
        cached = usage.cached_tokens or 0
        dear = self.prompt if self.cached is None else self.cached
        fresh = (usage.prompt_tokens or 0) - cached
        return (
            fresh * self.prompt + cached * dear + (usage.completion_tokens or 0) * self.completion
        ) / 1_000_000


class Settings(BaseModel, AgentOptions):
    """The configuration of an agent: shared options, points, policy, budgets. No secrets, no live objects."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    offer_handoff: bool = False
    """Give the agent a tool to ask for a handoff."""
    points: tuple[PointKind, ...] = ALL_POINTS
    """Kinds of points to interrupt at. Without `requested`, a spent budget makes no record; the handoff tool and outside
    requests always do."""
    policy: Policy = "record"
    """What follows the record of a handoff point: `record` continues, `stop` ends the run, `review` waits for a person,
    `takeover` hands over to the model in `successor=`."""
    record_every_steps: int | None = Field(default=None, gt=0)
    """Make a `periodic` record every N steps too. It is not a handoff point of the experiment: the run continues under every
    policy."""
    max_events: int | None = Field(default=None, gt=0)
    """Maximum number of events: actions and observations."""
    max_cost: float | None = Field(default=None, gt=0)
    """Maximum cost of the thread. It needs `prices`."""
    prices: Prices | None = None
    """Prices of the model, from which costs are computed."""
    parallel_tool_calls: bool = True
    """Run several native tool calls of one reply, in order. False: one call per reply; the option is also
    passed to a client that supports it."""
    model_timeout_s: float = Field(default=600.0, gt=0)
    """Time limit of one model call, including its retries."""
    model_tries: int = Field(default=3, ge=1)
    """Maximum number of tries of one model call, if the endpoint may recover."""
    observation_chars: int = Field(default=10_000, ge=200)
    """Maximum length of an observation in the conversation; of a longer one, the middle is left out."""

    @model_validator(mode="after")
    def _check_prices(self) -> Settings:
        if self.max_cost is not None and self.prices is None:
            raise ValueError("max_cost needs prices (pass prices=Prices(prompt=…, completion=…))")
        return self


class AgentConfig(Settings):
    """The configuration of an agent: its settings, model and tools. Never stored."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    model: BaseChatModel
    """The chat model that works."""
    model_name: str | None = None
    """Name of the model in records. Default: the model's own name."""
    agent: ExternalAgent | None = None
    """The external agent that works, such as Codex. Default: the built-in agent."""
    agent_name: str | None = None
    """Name under which the agent gives and takes handoffs. Default: the model's name, or the external agent's."""
    run_id: str | None = None
    """Prefix of the ids of its records. Default: the thread's id."""
    tools: tuple[BaseTool, ...] = ()
    """Tools besides shell and editor. They run in this process, outside the sandbox."""
    delegation: DelegationRunner | None = None
    """Gives the agent a tool to hand tasks to children; `open_run` builds it from a `Delegation`."""

    @field_validator("tools")
    @classmethod
    def _check_tool_names(cls, tools: tuple[BaseTool, ...]) -> tuple[BaseTool, ...]:
        names = [tool.name for tool in tools]
        for name in names:
            if name in RESERVED_TOOL_NAMES:
                raise ValueError(f"the name {name!r} belongs to a built-in tool (rename yours)")
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
                raise ValueError(
                    f"invalid tool name {name[:80]!r} (use up to 64 letters, digits, '_' and '-')"
                )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two tools are named {twice[0]!r} (rename one)")
        for problem in filter(None, map(find_tool_problem, tools)):
            raise ValueError(problem)
        return tools

    @property
    def known_window(self) -> int | None:
        """The model's context window in tokens: the setting, else as in the model's profile; None if unknown."""
        return self.window_tokens or (self.model.profile or {}).get("max_input_tokens")

    @model_validator(mode="after")
    def _check_window(self) -> AgentConfig:
        if self.condense and self.known_window is None:
            raise ValueError("condense needs the model's context window (pass window_tokens=…)")
        return self

    @model_validator(mode="after")
    def _check_agent(self) -> AgentConfig:
        if self.agent is None:
            return self
        values = {
            "tools": self.tools,
            "offer_handoff": self.offer_handoff,
            "delegation": self.delegation,
            "condense": self.condense,
        }
        for name in (name for name, value in values.items() if value):
            raise ValueError(
                f"{name}: not for the external agent {self.agent.name}, which has its own tools (leave it out)"
            )
        return self

    @model_validator(mode="after")
    def _check_tool_support(self) -> AgentConfig:
        if getattr(self.model, "passes_requests_on", False):
            if self.agent is None:
                raise ValueError(
                    "model: a vendor's endpoint needs an external agent's requests (pass agent=)"
                )
            return self
        if self.agent is None and self.protocol != "native":
            return self
        if type(self.model).bind_tools is BaseChatModel.bind_tools:
            needs = "agent" if self.agent is not None else "protocol='native'"
            raise ValueError(describe_missing_tool_calls(self.model, needs))
        return self


class AgentContext(AgentConfig):
    """The context of a run's nodes: the agent's configuration, and the session of its thread."""

    session: Session
    member: TeamMember | None = None
    """In a team: the acting agent."""

    @property
    def models(self) -> tuple[BaseChatModel, ...]:
        """Every model that works on the thread; none of their keys may be written."""
        return tuple(agent.model for agent in self.member.team.all_agents) if self.member else (self.model,)

    @property
    def display_model(self) -> str:
        """Name of the model in records."""
        return self.model_name or name_model(self.model)

    @property
    def compute_cost(self) -> Callable[[Usage], float] | None:
        """The cost of a model call; None without prices."""
        return self.prices.compute_cost if self.prices else None

    @property
    def name(self) -> str:
        """Name under which the agent gives and takes handoffs."""
        return self.agent_name or (self.agent.name if self.agent else self.display_model)


def describe_missing_tool_calls(model: BaseChatModel, needs: str = "protocol='native'") -> str:
    cure = "" if needs == "agent" else " (use protocol='text')"
    return f"{needs} needs a model with bind_tools, which {type(model).__name__} lacks{cure}"


class SettingsError(TakeoverError, ValueError):
    """A setting is invalid; the line names it and the valid values."""


def build_agent_config(**values: Any) -> AgentConfig:
    """Validate the configuration of an agent. Raises SettingsError."""
    try:
        return AgentConfig(**values)
    except ValidationError as error:
        raise SettingsError(describe_validation_error(error, AgentConfig)) from None


def describe_validation_error(error: ValidationError, model_class: type[BaseModel]) -> str:
    """Describe the first invalid field, in one line."""
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        names = list(model_class.model_fields)
        near = get_close_matches(field, names, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        return f"unknown setting {field!r} ({meant}known: {', '.join(names)})"
    message = first["msg"].removeprefix("Value error, ").replace("a valid dictionary or instance of", "a")
    if first["type"] != "value_error":
        message = f"{message}, not {shorten_value(first['input'])}"
    return f"{field}: {message}" if field else message


def shorten_value(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:59]}…"


class MissingContextError(TakeoverError, TypeError):
    """The graph was run without its context."""


def get_agent_context(runtime: Runtime[AgentContext]) -> AgentContext:
    """Return the run's context. Raises MissingContextError."""
    context: Any = runtime.context
    if isinstance(context, AgentContext):
        return context
    raise MissingContextError(
        "the graph needs context=AgentContext(…, session=…), on every resume too (open_run builds it); "
        f"got {type(context).__name__}"
    )


def get_member(runtime: Runtime[AgentContext]) -> TeamMember:
    """Return the acting agent of a team. Raises MissingContextError."""
    member = get_agent_context(runtime).member
    if member is None:
        raise MissingContextError(
            "the graph of a team needs its agents (build_team and open_run(agents=…) provide them)"
        )
    return member
