"""Roll a handoff back: restore the source's checkpoint and sandbox together, and validate both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_takeover.graph.checkpoints.inspection import GraphKind, graph_kind, is_own_graph
from langgraph_takeover.graph.checkpoints.savers import Saver, fork_checkpoint
from langgraph_takeover.graph.errors import CheckpointCorruptError, RollbackError
from langgraph_takeover.graph.home import Home
from langgraph_takeover.graph.runs.validation import check_sandbox
from langgraph_takeover.graph.team import build_graph
from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.ledger.handoffs import Handoff
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.records.verification import verify_record
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.nodes.events import load_events
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.sandbox.interface import BackendName, SandboxSpec
from langgraph_takeover.sandbox.repository import RepositoryError, patch_since

_ROLLBACK_KEY = "rolled_back"


class Rollback(NamedTuple):
    """The restored state.

    Example:
        >>> from langgraph_takeover.protocol import roll_back
        >>> roll_back(home, handoff.id, by="me", sandbox=sandbox_spec).events == len(record.trace)
        True
    """

    handoff: Handoff
    thread: str
    checkpoint: str
    events: int
    """Number of events in the restored state."""


def roll_back(
    home: Home, handoff_id: str, *, by: str, reason: str = "", sandbox: SandboxSpec | None = None
) -> Rollback:
    """Take a handoff back, in any state: restore checkpoint and sandbox together, then compare them with the record.

    The successor is fenced off; its thread and records stay readable. A repeated call resumes or changes nothing. Default
    sandbox: an isolated one, whatever the snapshot was taken in. Raises HandoffNotFoundError; RollbackError,
    RecordError and SandboxUnavailableError before anything changes; IllegalTransitionError if the work was handed on
    since; ThreadHeldError while the source is working; SettingsError if `sandbox` is no SandboxSpec.

    Example:
        >>> from langgraph_takeover.protocol import roll_back
        >>> rollback = roll_back(home, handoff.id, by="me", reason="wrong agent", sandbox=sandbox_spec)
        >>> rollback.thread, rollback.handoff.state
        ('fix-1', 'rolled_back')
    """
    if sandbox is not None:
        check_sandbox(sandbox)
    found = handoffs.load(home.ledger, handoff_id)
    record = _load_verified(home, found)
    try:
        point = home.saver.get_tuple(_config_at(record.thread_id, record.checkpoint_id))
    except CheckpointCorruptError as error:
        raise RollbackError(f"handoff {found.id}: {error}") from error
    if point is None:
        raise RollbackError(
            f"handoff {found.id}: thread {record.thread_id!r} no longer has checkpoint {record.checkpoint_id} "
            f"(its record can still be taken over: {record.id})"
        )
    kind = None if is_own_graph(point) else graph_kind(point)
    spec = sandbox or sandbox_spec_for(record)
    if found.state != "rolled_back":
        found = handoffs.change_state(
            home.ledger, found.id, "rolled_back", by=by, version=found.version, reason=reason
        )
    with home.open_session(record.thread_id, spec) as (session, saver):
        done = _find_rollback_checkpoint(home, found)
        if done is None:
            done = _write_checkpoint(found, point, kind, session.adopt_record(record), saver)
        stored: Any = saver.get_tuple(_config_at(record.thread_id, done))
        state = cast(
            AgentState,
            build_graph(kind, saver).get_state(stored.config).values
            if kind
            else stored.checkpoint["channel_values"],
        )
        _check_consistency(session, state, record)
        events = len(state.get("events", ()))
    return Rollback(found, record.thread_id, done, events)


def _write_checkpoint(
    handoff: Handoff, point: CheckpointTuple, kind: GraphKind | None, sandbox_state: str, saver: Saver
) -> str:
    """Write a copy of a record's checkpoint, in its sandbox, as the thread's newest; return its id."""
    values: dict[str, Any] = {"sandbox_state": sandbox_state}
    metadata = {_ROLLBACK_KEY: handoff.id}
    if kind is None:  # of a graph that only the user can build
        return fork_checkpoint(saver, point, values, metadata)
    values |= {"fired": [], "stop_reason": None}
    if kind == "team":
        values["passing"] = None
    at = cast(RunnableConfig, {**point.config, "metadata": {"graph": kind, **metadata}})
    written = build_graph(kind, saver).update_state(at, values, as_node="interruption")
    return str(written["configurable"]["checkpoint_id"])


def sandbox_spec_for(record: HandoffRecord, backend: BackendName | None = None) -> SandboxSpec:
    """Build the spec to restore a record's snapshot: an isolated sandbox, unless the caller chooses the back end.

    Raises RecordError and SandboxUnavailableError.
    """
    from langgraph_takeover.sandbox.backends.base import make_restore_spec

    return make_restore_spec(record.required_snapshot, backend)


def _load_verified(home: Home, handoff: Handoff) -> HandoffRecord:
    wrong = verify_record(home.records.directory(handoff.record)).problems
    if wrong:
        raise RollbackError(f"handoff {handoff.id}: record {handoff.record}: {wrong[0]}")
    return home.records.load(handoff.record)


def _find_rollback_checkpoint(home: Home, handoff: Handoff) -> str | None:
    """Return the checkpoint that this rollback has already written, if any."""
    for each in home.saver.list(_config_at(handoff.thread)):
        if each.metadata.get(_ROLLBACK_KEY) == handoff.id:
            return _checkpoint_id(each)
    return None


def _check_consistency(session: Session, state: AgentState, record: HandoffRecord) -> None:
    """Raise RollbackError unless state, sandbox and record belong together."""
    events = load_events(state)
    before = len(record.trace) - len(events)
    own_events = [event.model_copy(update={"index": event.index - before}) for event in record.trace[before:]]
    if before < 0 or _comparable_events(events) != _comparable_events(own_events):
        raise RollbackError(
            f"record {record.id}: its trace does not match its checkpoint {record.checkpoint_id}"
        )
    sandbox = session.enter_state(state["sandbox_state"])  # this compares the snapshot's digest
    if record.patch_error:
        return
    try:
        patch = patch_since(sandbox, record.task.base_commit, open_base=session.open_base).text
    except RepositoryError:
        patch = ""
    if patch != record.patch:
        raise RollbackError(f"record {record.id}: the restored sandbox does not match the record's patch")


def _comparable_events(events: Iterable[Event]) -> list[tuple[int, str, str]]:
    return [(event.index, event.kind, event.tree) for event in events]


def _checkpoint_id(checkpoint: CheckpointTuple) -> str:
    return str(checkpoint.config["configurable"]["checkpoint_id"])


def _config_at(thread: str, checkpoint: str | None = None) -> RunnableConfig:
    configurable: dict[str, Any] = {"thread_id": thread, "checkpoint_ns": ""}
    return {"configurable": configurable | ({"checkpoint_id": checkpoint} if checkpoint else {})}
