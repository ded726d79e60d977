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
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graph.agent import build_agent, build_takeover
    from graph.delegation import Delegation
    from graph.delivery import Delivery, HandoffError, deliver, hand_over
    from graph.hold import Run
    from graph.home import CheckpointInfo, Home, ThreadNotFoundError, open_home
    from graph.outcome import Outcome
    from graph.refusals import NotWaitingError, ThreadExistsError, WaitingError
    from graph.repair import repair
    from graph.rollback import RollbackError, roll_back
    from graph.running import open_run, resume, run, run_team, take_over
    from graph.savers import UnstorableValueError
    from graph.seals import CheckpointCorruptError
    from graph.team import build_team
    from handoff.envelope import Envelope
    from handoff.ledger import (
        FencedError,
        HandedOverError,
        LedgerUnavailableError,
        ThreadHeldError,
        ThreadNameError,
    )
    from handoff.record import RecordError, Review
    from handoff.views import UnknownViewError
    from nodes.delivering import DeliveryPolicy
    from nodes.replies import ModelError
    from nodes.session import SnapshotNotFoundError
    from nodes.settings import Prices, SettingsError
    from nodes.state import InputError
    from nodes.team import Agent, UnknownAgentError
    from sandbox.machine import SandboxUnavailableError, SnapshotCorruptError

for _name in ("sandbox", "handoff", "nodes"):
    _ours, _found = Path(__file__).parents[1] / _name / "__init__.py", find_spec(_name)
    if _found is None or _found.origin is None or not _ours.samefile(_found.origin):
        raise ImportError(
            f"langgraph-takeover needs its own package {_name!r}, {_ours.parent}, but Python finds "
            f"{(_found and _found.origin) or 'none'}; rename that one, or take it off the path",
            name=__name__,
        )

_MODULES = {
    "Agent": "nodes.team",
    "HandoffError": "graph.delivery",
    "InputError": "nodes.state",
    "SettingsError": "nodes.settings",
    "ThreadNameError": "handoff.ledger",
    "CheckpointCorruptError": "graph.seals",
    "Delegation": "graph.delegation",
    "Delivery": "graph.delivery",
    "Envelope": "handoff.envelope",
    "FencedError": "handoff.ledger",
    "HandedOverError": "handoff.ledger",
    "Home": "graph.home",
    "LedgerUnavailableError": "handoff.ledger",
    "SnapshotNotFoundError": "nodes.session",
    "ModelError": "nodes.replies",
    "Moment": "graph.home",
    "UnknownAgentError": "nodes.team",
    "ThreadNotFoundError": "graph.home",
    "UnknownViewError": "handoff.views",
    "NotWaitingError": "graph.refusals",
    "Outcome": "graph.outcome",
    "Patience": "nodes.delivering",
    "Prices": "nodes.settings",
    "RecordError": "handoff.record",
    "Review": "handoff.record",
    "RollbackError": "graph.rollback",
    "Run": "graph.hold",
    "SandboxUnavailableError": "sandbox.machine",
    "SnapshotCorruptError": "sandbox.machine",
    "ThreadHeldError": "handoff.ledger",
    "ThreadExistsError": "graph.refusals",
    "Unstorable": "graph.savers",
    "Waiting": "graph.refusals",
    "build_agent": "graph.agent",
    "build_takeover": "graph.agent",
    "build_team": "graph.team",
    "deliver": "graph.delivery",
    "hand_over": "graph.delivery",
    "open_home": "graph.home",
    "open_run": "graph.running",
    "repair": "graph.repair",
    "resume": "graph.running",
    "roll_back": "graph.rollback",
    "run": "graph.running",
    "run_team": "graph.running",
    "take_over": "graph.running",
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
