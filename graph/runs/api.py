"""The public functions that run a thread, with their keyword arguments as types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, get_args

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from typing_extensions import TypedDict, Unpack

from langgraph_takeover.graph.checkpoints.inspection import require_graph
from langgraph_takeover.graph.home import Home
from langgraph_takeover.graph.outcome import Outcome, RunStatus
from langgraph_takeover.graph.runs.argument_checks import (
    check_sandbox,
    check_takeover,
    check_task,
    check_tools,
)
from langgraph_takeover.graph.runs.child_runs import ChildRunner, Delegation
from langgraph_takeover.graph.runs.run import Run
from langgraph_takeover.graph.team import create_team
from langgraph_takeover.handoff.ledger import leases
from langgraph_takeover.handoff.ledger.leases import TTL_S
from langgraph_takeover.handoff.names import ActionProtocol, TakeoverView
from langgraph_takeover.handoff.trace.events import PointKind
from langgraph_takeover.nodes.context.agent_program import ExternalAgent
from langgraph_takeover.nodes.context.settings import (
    AgentConfig,
    AgentContext,
    Policy,
    Prices,
    ProgressCallback,
    SettingsError,
    build_agent_config,
    contain_callback,
)
from langgraph_takeover.nodes.context.team_members import Agent, Team, TeamSettings
from langgraph_takeover.nodes.session.state_store import SnapshotEvery
from langgraph_takeover.nodes.session.workers import OpenableContext
from langgraph_takeover.sandbox.interface import SandboxSpec


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
    keep_every_step_s: float | None
    """Time after which the snapshots of steps between handoff points are deleted; None keeps all."""
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


def open_run(
    home: Home,
    thread: str,
    *,
    model: BaseChatModel | None = None,
    agents: Sequence[Agent] | None = None,
    sandbox: SandboxSpec,
    model_name: str | None = None,
    snapshot_every: SnapshotEvery = "step",
    keep_every_step_s: float | None = None,
    lease_s: float = TTL_S,
    on_progress: ProgressCallback | None = None,
    delegation: Delegation | None = None,
    **settings: Unpack[OpenRunSettings],
) -> OpenableContext[Run]:
    """Hold the lease of a thread, by `with` or `async with`, and yield the `Run` that works on it.

    Pass `model` for one agent or `agents` for a team. `settings` are the fields of `AgentConfig` (protocol, policy,
    points, budgets, prices, tools) and, for a team, of `Team`. `lease_s` is how long others wait for a holder on
    another host that no longer renews its lease. With `keep_every_step_s`, snapshots of older steps are thinned beside
    the run, as by `Home.thin_snapshots`. With `delegation` the agent can hand tasks to child agents.

    Raises ThreadHeldError (which names the holder), ThreadNameError, SettingsError and LedgerUnavailableError.

    Example:
        >>> with open_run(home, "fix-1", model=model, sandbox=sandbox_spec) as run:
        ...     outcome = run.start("issue-17", "Make the tests pass.")
        >>> outcome.status
        <RunStatus.FINISHED: 'finished'>
    """
    options = _RunOptions(
        snapshot_every, keep_every_step_s, lease_s, contain_callback(on_progress), delegation
    )
    opening = _open_run(
        home, thread, sandbox, options, {**settings}, model=model, agents=agents, model_name=model_name
    )
    return OpenableContext(opening, home.workers)


class _RunOptions(NamedTuple):
    snapshot_every: SnapshotEvery
    keep_every_step_s: float | None
    lease_s: float
    on_progress: ProgressCallback | None
    delegation: Delegation | None


@contextmanager
def _open_run(
    home: Home,
    thread: str,
    sandbox: SandboxSpec,
    options: _RunOptions,
    agent_settings: dict[str, Any],
    *,
    model: BaseChatModel | None,
    agents: Sequence[Agent] | None,
    model_name: str | None,
) -> Iterator[Run]:
    snapshot_every, keep_every_step_s, lease_s, on_progress, delegation = options
    _check_arguments(sandbox, snapshot_every, delegation)
    leases.check_thread(thread)
    require_graph(home.saver, thread, own=False)
    team = None
    if agents is not None:
        team = _extract_team(agents, agent_settings, model=model, model_name=model_name)
        model = team.all_agents[0].model
    config = build_agent_config(model=model, model_name=model_name, **agent_settings)
    check_tools(config.tools)
    for agent in team.all_agents if team else ():
        check_tools(agent.tools, f"agent {agent.name}: ")
    if config.agent is not None:
        sandbox = config.agent.mount(sandbox)
    if delegation is not None:
        open_child = partial(open_run, home, snapshot_every=snapshot_every, lease_s=lease_s)
        children = ChildRunner(delegation, config, open_child, sandbox, on_progress)
        config = config.model_copy(update={"delegation": children})
    with home.open_session(
        thread, sandbox, snapshot_every=snapshot_every, keep_every_step_s=keep_every_step_s, lease_s=lease_s
    ) as (session, saver):
        context = _build_context(config, session, team)
        yield Run(home, session, saver, context, on_progress)


def run(
    home: Home,
    thread: str,
    *,
    task_id: str,
    prompt: str,
    model: BaseChatModel,
    sandbox: SandboxSpec,
    successor: BaseChatModel | None = None,
    **options: Unpack[AgentRunOptions],
) -> Outcome:
    """Run a task on a new thread until it ends or waits for a person.

    Under `policy="takeover"`, `successor` continues from the first handoff, on the thread `<thread>.successor`, until
    it ends. Other options: `open_run`. Raises what `open_run` and `Run.start` raise.

    Example:
        >>> outcome = run(
        ...     home, "fix-1", task_id="issue-17", prompt="Make the tests pass.", model=model, sandbox=sandbox_spec
        ... )
        >>> outcome.status, outcome.records
        (<RunStatus.FINISHED: 'finished'>, ('fix-1.first_source_edit', 'fix-1.first_validation'))
    """
    takes_over = options.get("policy") == "takeover"
    if takes_over and successor is None:
        raise SettingsError("policy='takeover' needs the model that takes over (pass successor=)")
    if successor is not None and not takes_over:
        raise SettingsError("successor= needs policy='takeover' (or pass the model to take_over)")
    check_task(task_id, prompt)
    with open_run(home, thread, model=model, sandbox=sandbox, **options) as opened:
        outcome = opened.start(task_id, prompt)
    may_continue = outcome.stop_reason is not None and outcome.status is not RunStatus.FINISHED
    if successor is None or not may_continue or not outcome.records:
        return outcome
    options["policy"], options["model_name"] = "record", None
    final = take_over(
        home,
        f"{thread}.successor",
        record_id=outcome.records[-1],
        model=successor,
        sandbox=sandbox,
        **options,
    )
    return final.model_copy(update={"predecessor": outcome})


def run_team(
    home: Home,
    thread: str,
    *,
    task_id: str,
    prompt: str,
    agents: Sequence[Agent],
    sandbox: SandboxSpec,
    **options: Unpack[TeamRunOptions],
) -> Outcome:
    """Let several agents take turns at a task on a new thread until it ends or waits for a person.

    Options: `open_run`, and the fields of `Team`: supervisor, max_consecutive_turns, enable_handoff_tool. Pass the
    agents again to `resume`. Raises what `open_run` and `Run.start` raise.

    Example:
        >>> team = [Agent(name="writer", model=model), Agent(name="tester", model=model)]
        >>> run_team(
        ...     home, "fix-2", task_id="issue-17", prompt="Make the tests pass.", agents=team, sandbox=sandbox_spec
        ... ).status
        <RunStatus.FINISHED: 'finished'>
    """
    check_task(task_id, prompt)
    with open_run(home, thread, agents=agents, sandbox=sandbox, **options) as opened:
        return opened.start(task_id, prompt)


def resume(
    home: Home,
    thread: str,
    *,
    answer: Any = None,
    checkpoint: str | None = None,
    go_back: bool = False,
    model: BaseChatModel | None = None,
    agents: Sequence[Agent] | None = None,
    sandbox: SandboxSpec,
    **options: Unpack[TeamRunOptions],
) -> Outcome:
    """Resume a thread after a crash, a stop or a wait. Arguments: `Run.resume`; options: `open_run`.

    Raises what `open_run` and `Run.resume` raise.

    Example:
        >>> resume(home, "fix-1", model=model, sandbox=sandbox_spec).status
        <RunStatus.FINISHED: 'finished'>
    """
    home.require_thread(thread)  # opening a session would create it
    with open_run(home, thread, model=model, agents=agents, sandbox=sandbox, **options) as opened:
        return opened.resume(answer, checkpoint=checkpoint, go_back=go_back)


def take_over(
    home: Home,
    thread: str,
    *,
    record_id: str,
    view: TakeoverView | None = None,
    model: BaseChatModel,
    sandbox: SandboxSpec,
    **options: Unpack[AgentRunOptions],
) -> Outcome:
    """Let another agent continue from a record, on a new thread. Arguments: `Run.take_over`; options: `open_run`.

    Raises what `open_run` and `Run.take_over` raise.

    Example:
        >>> take_over(
        ...     home, "fix-1b", record_id="fix-1.first_validation", view="structured", model=model, sandbox=sandbox_spec
        ... ).status
        <RunStatus.FINISHED: 'finished'>
    """
    check_takeover(home, record_id, view)
    with open_run(home, thread, model=model, sandbox=sandbox, **options) as opened:
        return opened.take_over(record_id, view)


def _check_arguments(sandbox: object, snapshot_every: object, delegation: object) -> None:
    """Raises SettingsError."""
    check_sandbox(sandbox)
    if snapshot_every not in get_args(SnapshotEvery):
        raise SettingsError(
            f"snapshot_every: unknown value {snapshot_every!r} (use 'step', 'point' or 'never')"
        )
    if delegation is not None and not isinstance(delegation, Delegation):
        raise SettingsError(f"delegation: not a Delegation: {delegation!r:.60} (pass Delegation(…))")


def _extract_team(agents: Sequence[Agent], settings: dict[str, Any], **agent_only: Any) -> Team:
    """Return the team, and remove its settings from `settings`. Raises SettingsError."""
    agent_only |= {name: settings[name] for name in ("tools", "offer_handoff") if name in settings}
    for name in (name for name, value in agent_only.items() if value):
        instead = "enable_handoff_tool=" if name == "offer_handoff" else f"{name} of each Agent"
        raise SettingsError(f"{name}: not for a team (with agents=, pass {instead})")
    if settings.get("policy") == "takeover":
        raise SettingsError("policy='takeover' is for one agent (a team's policies: record, stop, review)")
    if settings.get("agent"):
        raise SettingsError("agent: an external agent works alone (leave agents= out)")
    if settings.get("condense"):
        raise SettingsError("condense: not for a team, whose agents see messages of their own (leave it out)")
    own = {name: settings.pop(name) for name in Team.model_fields if name in settings}
    return create_team(agents=agents, **own)


def _build_context(config: AgentConfig, session: Any, team: Team | None) -> AgentContext:
    member = team.find_member() if team else None
    return AgentContext(**dict(config), session=session, member=member)
