"""Running, resuming and taking over, each in one call, or several of them under one hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, get_args

from langchain_core.language_models import BaseChatModel
from typing_extensions import Unpack

from langgraph_takeover.graph.errors import check_takeover, check_task
from langgraph_takeover.graph.home import Home
from langgraph_takeover.graph.outcome import Outcome
from langgraph_takeover.graph.runs.delegation import ChildRunner, Delegation
from langgraph_takeover.graph.runs.options import (
    AgentRunOptions,
    OpenRunSettings,
    TakeOverOptions,
    TeamRunOptions,
)
from langgraph_takeover.graph.runs.run import ProgressCallback, Run
from langgraph_takeover.graph.team import create_team
from langgraph_takeover.handoff.ledger.leases import TTL_S
from langgraph_takeover.handoff.records.record import Review
from langgraph_takeover.nodes.context.agents import Agent, Team
from langgraph_takeover.nodes.context.settings import AgentContext, SettingsError, build_agent_config
from langgraph_takeover.nodes.session.session import SnapshotEvery
from langgraph_takeover.sandbox.interface import SandboxSpec


@contextmanager
def open_run(
    home: Home,
    thread: str,
    *,
    model: BaseChatModel | None = None,
    agents: Sequence[Agent] | None = None,
    sandbox: SandboxSpec,
    model_name: str = "",
    snapshot_every: SnapshotEvery = "step",
    lease_s: float = TTL_S,
    on_progress: ProgressCallback | None = None,
    delegation: Delegation | None = None,
    **settings: Unpack[OpenRunSettings],
) -> Iterator[Run]:
    """The sole hold on a thread, with what its agent needs; nobody else works on it meanwhile.

    With `delegation` the agent may hand tasks to others.

    `settings` are those of `nodes.context.settings.Equipment`: protocol, policy, points, budgets, prices, tools.
    With `agents` in place of `model` a team works on it; then those of `nodes.context.agents.Team` are settings too.
    Raises ThreadHeldError, which names who holds it, ThreadNameError, and SettingsError for settings that cannot be.
    """
    of_one: dict[str, Any] = {**settings}
    team = None if agents is None else _extract_team(agents, of_one, model=model, model_name=model_name)
    model = team.all_agents[0].model if team else model
    name = model_name or str(getattr(model, "model_name", "") or type(model).__name__)
    given = build_agent_config(model=model, model_name=name, **of_one)
    if not isinstance(sandbox, SandboxSpec):
        raise SettingsError(
            f"sandbox: give a SandboxSpec, such as SandboxSpec(backend='host', directory=Path('repository')), not {sandbox!r:.60}"
        )
    if snapshot_every not in get_args(SnapshotEvery):
        raise SettingsError(
            f"snapshot_every: there is no {snapshot_every!r}; give 'step', 'point' or 'never'"
        )
    if delegation is not None:
        if not isinstance(delegation, Delegation):
            raise SettingsError(f"delegation: give graph.Delegation(…), not {delegation!r:.60}")
        opening = partial(open_run, home, snapshot_every=snapshot_every, lease_s=lease_s)
        children = ChildRunner(delegation, given, opening, sandbox, on_progress)
        given = given.model_copy(update={"delegation": children})
    with home.open_session(thread, sandbox, snapshot_every=snapshot_every, lease_s=lease_s) as (
        session,
        saver,
    ):
        member = team.find_member() if team else None
        context = AgentContext(**dict(given), session=session, member=member)
        yield Run(home, session, saver, context, on_progress)


def run(
    home: Home,
    thread: str,
    task_id: str,
    prompt: str,
    *,
    model: BaseChatModel,
    sandbox: SandboxSpec,
    successor: BaseChatModel | None = None,
    **options: Unpack[AgentRunOptions],
) -> Outcome:
    """Run a task on a new thread, to its end or its first wait. Options are those of `open_run`.

    Under the policy `takeover`, `successor` goes on at the first handoff, on the thread `<thread>.successor`, to
    its own end.
    """
    takes_over = options.get("policy") == "takeover"
    if takes_over and successor is None:
        raise SettingsError("policy='takeover' needs successor=, the model that takes over")
    if successor is not None and not takes_over:
        raise SettingsError("successor= goes with policy='takeover'; else give it to take_over")
    check_task(task_id, prompt)
    with open_run(home, thread, model=model, sandbox=sandbox, **options) as begun:
        outcome = begun.start(task_id, prompt)
    if successor is None or outcome.stop_reason in (None, "finished") or not outcome.records:
        return outcome
    options["policy"], options["model_name"] = "record", ""
    last = take_over(
        home, f"{thread}.successor", outcome.records[-1], model=successor, sandbox=sandbox, **options
    )
    return last.model_copy(update={"predecessor": outcome})


def run_team(
    home: Home,
    thread: str,
    task_id: str,
    prompt: str,
    *,
    agents: Sequence[Agent],
    sandbox: SandboxSpec,
    **options: Unpack[TeamRunOptions],
) -> Outcome:
    """Let several agents take turns at a task on a new thread, to its end or its first wait.

    Options are those of `open_run`, and of `nodes.context.agents.Team`: supervisor, max_consecutive_turns,
    enable_handoff_tool. `resume` goes on, given the agents anew.
    """
    check_task(task_id, prompt)
    with open_run(home, thread, agents=agents, sandbox=sandbox, **options) as begun:
        return begun.start(task_id, prompt)


def resume(
    home: Home,
    thread: str,
    answer: Review | dict[str, Any] | None = None,
    *,
    checkpoint: str | None = None,
    go_back: bool = False,
    model: BaseChatModel | None = None,
    agents: Sequence[Agent] | None = None,
    sandbox: SandboxSpec,
    **options: Unpack[TeamRunOptions],
) -> Outcome:
    """Go on with a thread after a crash, a stop or a wait: `Run.resume`. Options are those of `open_run`."""
    home.require_thread(thread)  # to hold it would make it
    with open_run(home, thread, model=model, agents=agents, sandbox=sandbox, **options) as going:
        return going.resume(answer, checkpoint=checkpoint, go_back=go_back)


def take_over(
    home: Home, thread: str, record_id: str, view: str = "", **options: Unpack[TakeOverOptions]
) -> Outcome:
    """Let another agent continue from a record, on a new thread: `Run.take_over`. Options are those of `open_run`."""
    check_takeover(home, record_id, view)
    with open_run(home, thread, **options) as taking:
        return taking.take_over(record_id, view)


def _extract_team(agents: Sequence[Agent], settings: dict[str, Any], **agent_only: Any) -> Team:
    """The team, whose own settings are taken out of the others. Raises SettingsError."""
    agent_only |= {name: settings[name] for name in ("tools", "offer_handoff") if name in settings}
    for name in (name for name, value in agent_only.items() if value):
        instead = "enable_handoff_tool=" if name == "offer_handoff" else f"each agent its own {name}"
        raise SettingsError(f"{name}: with agents=, give {instead}")
    if settings.get("policy") == "takeover":
        raise SettingsError("policy='takeover' is for one agent; a team's is 'record', 'stop' or 'review'")
    own = {name: settings.pop(name) for name in Team.model_fields if name in settings}
    return create_team(agents=agents, **own)
