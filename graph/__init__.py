"""The state machines: the agent, its takeover and the team, and how they are run, resumed and looked back upon.

agent     the graphs, each wholly visible
delegation  how an agent hands tasks to others, and who runs these
team      the graph of several agents that take turns
running   run, run_team, resume, take_over, and open_run for more than one of these
options   what can be set for each of these, as types
delivery  handing over by the protocol; rollback, repair, and people and desk, where persons take part
desk      the commands for people, with seat and asking
hold      what can be done under one hold on a thread, to its outcome, and how it is stopped
home      where runs leave everything, and the history of a thread
savers    checkpoints that only a thread's holder can write
seals     a checksum beside each of them on SQLite
server_saver  checkpoints of LangGraph's own server, which outlast its kill
serving   the graphs as LangGraph's own server runs them, each run with its hold on the thread
swarm     handoffs inside graphs that others build: langgraph-swarm's agents, with views instead of transcripts

What a caller can mend is SettingsError, InputError, ThreadNameError, ThreadNotFoundError, UnknownAgentError, ThreadExistsError, Waiting or NotWaitingError;
one line each. `docs/embedding.md` lists the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langgraph_takeover.graph.agent import build_agent, build_takeover
    from langgraph_takeover.graph.checkpoints.checksums import CheckpointCorruptError
    from langgraph_takeover.graph.checkpoints.savers import UnstorableValueError
    from langgraph_takeover.graph.delivery.delivery import Delivery, HandoffError, deliver, hand_over
    from langgraph_takeover.graph.delivery.recovery import repair
    from langgraph_takeover.graph.delivery.rollback import RollbackError, roll_back
    from langgraph_takeover.graph.errors import NotWaitingError, ThreadExistsError, WaitingError
    from langgraph_takeover.graph.home import CheckpointInfo, Home, ThreadNotFoundError, open_home
    from langgraph_takeover.graph.outcome import Outcome
    from langgraph_takeover.graph.runs.api import open_run, resume, run, run_team, take_over
    from langgraph_takeover.graph.runs.delegation import Delegation
    from langgraph_takeover.graph.runs.run import Run
    from langgraph_takeover.graph.team import build_team
    from langgraph_takeover.handoff.ledger import (
        FencedError,
        HandedOverError,
        LedgerUnavailableError,
        ThreadHeldError,
        ThreadNameError,
    )
    from langgraph_takeover.handoff.records.envelope import Envelope
    from langgraph_takeover.handoff.records.record import RecordError, Review
    from langgraph_takeover.handoff.views import UnknownViewError
    from langgraph_takeover.nodes.context.agents import Agent, UnknownAgentError
    from langgraph_takeover.nodes.context.settings import Prices, SettingsError
    from langgraph_takeover.nodes.delivery.policy import DeliveryPolicy
    from langgraph_takeover.nodes.model.calls import ModelError
    from langgraph_takeover.nodes.session.session import SnapshotNotFoundError
    from langgraph_takeover.nodes.state import InputError
    from langgraph_takeover.sandbox.interface import SandboxUnavailableError, SnapshotCorruptError

if __name__ == "graph":  # the short name in a checkout
    from langgraph_takeover._checkout import alias

    alias(__name__)

_MODULES = {
    "Agent": "langgraph_takeover.nodes.context.agents",
    "HandoffError": "langgraph_takeover.graph.delivery.delivery",
    "InputError": "langgraph_takeover.nodes.state",
    "SettingsError": "langgraph_takeover.nodes.context.settings",
    "ThreadNameError": "langgraph_takeover.handoff.ledger",
    "CheckpointCorruptError": "langgraph_takeover.graph.checkpoints.checksums",
    "Delegation": "langgraph_takeover.graph.runs.delegation",
    "Delivery": "langgraph_takeover.graph.delivery.delivery",
    "Envelope": "langgraph_takeover.handoff.records.envelope",
    "FencedError": "langgraph_takeover.handoff.ledger",
    "HandedOverError": "langgraph_takeover.handoff.ledger",
    "Home": "langgraph_takeover.graph.home",
    "LedgerUnavailableError": "langgraph_takeover.handoff.ledger",
    "SnapshotNotFoundError": "langgraph_takeover.nodes.session.session",
    "ModelError": "langgraph_takeover.nodes.model.calls",
    "CheckpointInfo": "langgraph_takeover.graph.home",
    "UnknownAgentError": "langgraph_takeover.nodes.context.agents",
    "ThreadNotFoundError": "langgraph_takeover.graph.home",
    "UnknownViewError": "langgraph_takeover.handoff.views",
    "NotWaitingError": "langgraph_takeover.graph.errors",
    "Outcome": "langgraph_takeover.graph.outcome",
    "DeliveryPolicy": "langgraph_takeover.nodes.delivery.policy",
    "Prices": "langgraph_takeover.nodes.context.settings",
    "RecordError": "langgraph_takeover.handoff.records.record",
    "Review": "langgraph_takeover.handoff.records.record",
    "RollbackError": "langgraph_takeover.graph.delivery.rollback",
    "Run": "langgraph_takeover.graph.runs.run",
    "SandboxUnavailableError": "langgraph_takeover.sandbox.interface",
    "SnapshotCorruptError": "langgraph_takeover.sandbox.interface",
    "ThreadHeldError": "langgraph_takeover.handoff.ledger",
    "ThreadExistsError": "langgraph_takeover.graph.errors",
    "UnstorableValueError": "langgraph_takeover.graph.checkpoints.savers",
    "WaitingError": "langgraph_takeover.graph.errors",
    "build_agent": "langgraph_takeover.graph.agent",
    "build_takeover": "langgraph_takeover.graph.agent",
    "build_team": "langgraph_takeover.graph.team",
    "deliver": "langgraph_takeover.graph.delivery.delivery",
    "hand_over": "langgraph_takeover.graph.delivery.delivery",
    "open_home": "langgraph_takeover.graph.home",
    "open_run": "langgraph_takeover.graph.runs.api",
    "repair": "langgraph_takeover.graph.delivery.recovery",
    "resume": "langgraph_takeover.graph.runs.api",
    "roll_back": "langgraph_takeover.graph.delivery.rollback",
    "run": "langgraph_takeover.graph.runs.api",
    "run_team": "langgraph_takeover.graph.runs.api",
    "take_over": "langgraph_takeover.graph.runs.api",
}
__all__ = [
    "Agent",
    "CheckpointCorruptError",
    "CheckpointInfo",
    "Delegation",
    "Delivery",
    "DeliveryPolicy",
    "Envelope",
    "FencedError",
    "HandedOverError",
    "HandoffError",
    "Home",
    "InputError",
    "LedgerUnavailableError",
    "ModelError",
    "NotWaitingError",
    "Outcome",
    "Prices",
    "RecordError",
    "Review",
    "RollbackError",
    "Run",
    "SandboxUnavailableError",
    "SettingsError",
    "SnapshotCorruptError",
    "SnapshotNotFoundError",
    "ThreadExistsError",
    "ThreadHeldError",
    "ThreadNameError",
    "ThreadNotFoundError",
    "UnknownAgentError",
    "UnknownViewError",
    "UnstorableValueError",
    "WaitingError",
    "build_agent",
    "build_takeover",
    "build_team",
    "deliver",
    "hand_over",
    "open_home",
    "open_run",
    "repair",
    "resume",
    "roll_back",
    "run",
    "run_team",
    "take_over",
]


def __getattr__(name: str) -> Any:
    """The public names, imported at their first use: LangGraph and a database take a while."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
