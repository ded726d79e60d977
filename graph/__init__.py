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

What a caller can mend is BadSettings, BadInput, BadThread, NoSuchThread, NoSuchAgent, ThreadTaken, Waiting or NotWaiting;
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
    from graph.delivery import BadHandoff, Delivery, deliver, hand_over
    from graph.hold import Run
    from graph.home import Home, Moment, NoSuchThread, open_home
    from graph.outcome import Outcome
    from graph.refusals import NotWaiting, ThreadTaken, Waiting
    from graph.repair import repair
    from graph.rollback import RollbackRefused, roll_back
    from graph.running import open_run, resume, run, run_team, take_over
    from graph.savers import Unstorable
    from graph.seals import CheckpointCorruptError
    from graph.team import build_team
    from handoff.envelope import Envelope
    from handoff.ledger import BadThread, Fenced, HandedOver, LedgerUnusable, ThreadHeld
    from handoff.record import RecordRefused, Review
    from handoff.views import NoSuchView
    from nodes.delivering import Patience
    from nodes.replies import ModelFailed
    from nodes.session import MachineNotKept
    from nodes.settings import BadSettings, Prices
    from nodes.state import BadInput
    from nodes.team import Agent, NoSuchAgent
    from sandbox.machine import SandboxUnavailable, SnapshotCorrupt

for _name in ("sandbox", "handoff", "nodes"):
    _ours, _found = Path(__file__).parents[1] / _name / "__init__.py", find_spec(_name)
    if _found is None or _found.origin is None or not _ours.samefile(_found.origin):
        raise ImportError(
            f"langgraph-takeover needs its own package {_name!r}, {_ours.parent}, but Python finds "
            f"{(_found and _found.origin) or 'none'}; rename that one, or take it off the path",
            name=__name__,
        )

_HOMES = {
    "Agent": "nodes.team",
    "BadHandoff": "graph.delivery",
    "BadInput": "nodes.state",
    "BadSettings": "nodes.settings",
    "BadThread": "handoff.ledger",
    "CheckpointCorruptError": "graph.seals",
    "Delegation": "graph.delegation",
    "Delivery": "graph.delivery",
    "Envelope": "handoff.envelope",
    "Fenced": "handoff.ledger",
    "HandedOver": "handoff.ledger",
    "Home": "graph.home",
    "LedgerUnusable": "handoff.ledger",
    "MachineNotKept": "nodes.session",
    "ModelFailed": "nodes.replies",
    "Moment": "graph.home",
    "NoSuchAgent": "nodes.team",
    "NoSuchThread": "graph.home",
    "NoSuchView": "handoff.views",
    "NotWaiting": "graph.refusals",
    "Outcome": "graph.outcome",
    "Patience": "nodes.delivering",
    "Prices": "nodes.settings",
    "RecordRefused": "handoff.record",
    "Review": "handoff.record",
    "RollbackRefused": "graph.rollback",
    "Run": "graph.hold",
    "SandboxUnavailable": "sandbox.machine",
    "SnapshotCorrupt": "sandbox.machine",
    "ThreadHeld": "handoff.ledger",
    "ThreadTaken": "graph.refusals",
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
    "BadHandoff",
    "BadInput",
    "BadSettings",
    "BadThread",
    "CheckpointCorruptError",
    "Delegation",
    "Delivery",
    "Envelope",
    "Fenced",
    "HandedOver",
    "Home",
    "LedgerUnusable",
    "MachineNotKept",
    "ModelFailed",
    "Moment",
    "NoSuchAgent",
    "NoSuchThread",
    "NoSuchView",
    "NotWaiting",
    "Outcome",
    "Patience",
    "Prices",
    "RecordRefused",
    "Review",
    "RollbackRefused",
    "Run",
    "SandboxUnavailable",
    "SnapshotCorrupt",
    "ThreadHeld",
    "ThreadTaken",
    "Unstorable",
    "Waiting",
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
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
