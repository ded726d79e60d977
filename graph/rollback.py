"""Giving work back: the thread that handed over stands again where its record was made, and so does its machine."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from graph.checkpoint import kind_of
from graph.home import Home
from graph.seals import CheckpointCorruptError
from graph.team import graph_of
from handoff.event import Event
from handoff.ledger import handoffs
from handoff.ledger.handoffs import Handoff
from handoff.record import HandoffRecord
from handoff.verification import verify
from nodes.session import Session
from nodes.state import AgentState
from sandbox.machine import BackendName, SandboxSpec
from sandbox.repository import RepositoryBroken, patch_since

_MARK = "rolled_back"


class RollbackRefused(ValueError):
    """Checkpoint and snapshot cannot both be had, or do not belong together; one line that says what is missing."""


class RolledBack(NamedTuple):
    """Where the work stands again."""

    handoff: Handoff
    thread: str
    checkpoint: str
    events: int
    """How many the thread has there."""


def roll_back(
    home: Home, handoff_id: str, *, by: str, reason: str = "", sandbox: SandboxSpec | None = None
) -> RolledBack:
    """Take a handoff back, whatever state it is in: checkpoint and machine are restored together, then compared.

    The successor is fenced off; its thread and its records stay to be read. Asked again after a crash it goes on;
    asked again after it was done it changes nothing. Left out, `sandbox` is an isolated one, whatever the snapshot was
    taken of. Raises RollbackRefused or SandboxUnavailable before anything is changed, IllegalTransition where it was
    handed on since, and ThreadHeld while the source is still at work.
    """
    found = handoffs.load(home.ledger, handoff_id)
    record = _whole(home, found)
    try:
        point = home.saver.get_tuple(_at(record.thread_id, record.checkpoint_id))
    except CheckpointCorruptError as error:
        raise RollbackRefused(f"handoff {found.id}: {error}") from error
    if point is None:
        raise RollbackRefused(
            f"handoff {found.id}: thread {record.thread_id!r} has no checkpoint {record.checkpoint_id} any more; "
            f"its record can still be taken over: {record.id}"
        )
    spec = sandbox or spec_of(record)
    if found.state != "rolled_back":
        found = handoffs.move(
            home.ledger, found.id, "rolled_back", by=by, version=found.version, reason=reason
        )
    with home.session(record.thread_id, spec) as (session, saver):
        graph = graph_of(kind_of(point), saver)
        done = _restored(home, found)
        if done is None:
            at = _at(record.thread_id, record.checkpoint_id) | {
                "metadata": {"graph": kind_of(point), _MARK: found.id}
            }
            values: dict[str, Any] = {"machine": session.adopt(record), "fired": [], "stop_reason": None}
            if kind_of(point) == "team":
                values["passing"] = None
            written = graph.update_state(at, values, as_node="interruption")
            done = written["configurable"]["checkpoint_id"]
        state = cast(AgentState, graph.get_state(_at(record.thread_id, done)).values)
        _compare(session, state, record)
        events = len(state.get("events", ()))
    return RolledBack(found, record.thread_id, done, events)


def spec_of(record: HandoffRecord, backend: BackendName | None = None) -> SandboxSpec:
    """A machine that a record's snapshot can be restored in: an isolated one, unless the caller names its kind.

    Raises RecordRefused or SandboxUnavailable.
    """
    from sandbox.bases import spec_for

    return spec_for(record.machine, backend)


def _whole(home: Home, found: Handoff) -> HandoffRecord:
    wrong = verify(home.records.directory(found.record)).wrong
    if wrong:
        raise RollbackRefused(f"handoff {found.id}: record {found.record}: {wrong[0]}")
    return home.records.load(found.record)


def _restored(home: Home, found: Handoff) -> str | None:
    """The checkpoint that this roll-back has written already, if it has."""
    for each in home.saver.list(_at(found.thread)):
        if each.metadata.get(_MARK) == found.id:
            return _id(each)
    return None


def _compare(session: Session, state: AgentState, record: HandoffRecord) -> None:
    """Raises RollbackRefused where state, machine and record are not of one moment."""
    events = [Event.model_validate(event) for event in state.get("events", ())]
    before = len(record.trace) - len(events)
    told = [event.model_copy(update={"index": event.index - before}) for event in record.trace[before:]]
    if before < 0 or _texts(events) != _texts(told):
        raise RollbackRefused(
            f"record {record.id}: its trace is not that of its checkpoint {record.checkpoint_id}"
        )
    machine = session.enter(state["machine"])  # which compares the snapshot's digest
    try:
        patch = patch_since(machine, record.task.base_commit)
    except RepositoryBroken:
        patch = ""
    if patch != record.patch:
        raise RollbackRefused(
            f"record {record.id}: the machine that was restored differs from the record's patch"
        )


def _texts(events: list[Event]) -> list[tuple[int, str, str]]:
    return [(event.index, event.kind, event.tree) for event in events]


def _id(found: CheckpointTuple) -> str:
    return str(found.config["configurable"]["checkpoint_id"])


def _at(thread: str, checkpoint: str | None = None) -> RunnableConfig:
    place: dict[str, Any] = {"thread_id": thread, "checkpoint_ns": ""}
    return {"configurable": place | ({"checkpoint_id": checkpoint} if checkpoint else {})}
