"""Recovery of a handoff: send a refused record again, or roll back."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_takeover.graph.checkpoints.inspection import GraphKind, graph_kind, is_own_graph
from langgraph_takeover.graph.checkpoints.savers import Saver, fork_checkpoint
from langgraph_takeover.graph.home import Home
from langgraph_takeover.graph.runs.argument_checks import check_sandbox
from langgraph_takeover.graph.team import build_graph
from langgraph_takeover.graph.usage_errors import CheckpointCorruptError, HandoffError, RollbackError
from langgraph_takeover.handoff.ledger import effects, handoffs, leases
from langgraph_takeover.handoff.ledger.handoffs import Handoff, HandoffState
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError, is_valid_id
from langgraph_takeover.handoff.records.verification import verify_record
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint
from langgraph_takeover.nodes.deliver import DeliveryPolicy
from langgraph_takeover.nodes.records import save_record
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.state_events import load_events
from langgraph_takeover.sandbox.interface import BackendName, SandboxSpec
from langgraph_takeover.sandbox.repository import RepositoryError, patch_since

_OFFER_GRACE_S = 60.0
"""Seconds that a sender may take from storing a handoff to offering it."""
_PARTIAL_RECORD_AGE_S = 3600.0
_MAX_CLOCK_SKEW_S = 60.0
_ACTOR = "the repair"


class RepairFinding(NamedTuple):
    """One finding of a repair.

    Example:
        >>> from langgraph_takeover.protocol import repair
        >>> [finding.action for finding in repair(home)]
        []
    """

    subject: str
    problem: str
    action: str


def repair(home: Home, *, confirm_s: float = DeliveryPolicy().confirm_timeout_s) -> tuple[RepairFinding, ...]:
    """Repair what a crash may have left in a home; a second call finds nothing more to repair.

    Safe beside active runs: what a live process holds is not touched. Raises LedgerUnavailableError.

    Example:
        >>> from langgraph_takeover.protocol import repair
        >>> repair(home)
        ()
    """
    return (
        *(
            finding
            for found in handoffs.list_handoffs(home.ledger)
            for finding in _check_handoff(home, found, confirm_s)
        ),
        *_check_effects(home),
        *_clean_files(home),
    )


def _check_handoff(home: Home, handoff: Handoff, confirm_s: float) -> Iterator[RepairFinding]:
    what = f"handoff {handoff.id}"
    with home.ledger.read_transaction() as connection:
        now = home.ledger.now(connection)
    if handoff.changed_at > now + _MAX_CLOCK_SKEW_S:
        yield RepairFinding(
            what,
            f"was changed {handoff.changed_at - now:,.0f} s in the future",
            "set this host's clock",
        )
    if handoff.state in handoffs.OPEN_STATES and (trouble := _find_record_problem(home, handoff)):
        yield RepairFinding(what, trouble, f"send the record again, or: handoff rollback {handoff.id}")
    if handoff.state == "prepared" and now - handoff.changed_at > _OFFER_GRACE_S:
        why = "its sender died before it was offered"
        if _try_move(home, handoff, "offered", why, deadline_s=confirm_s):
            yield RepairFinding(what, "was prepared but never offered", f"offered to {handoff.target}")
    elif handoff.state == "offered" and handoff.deadline_at is not None and now > handoff.deadline_at:
        why = f"{handoff.target} did not confirm in time"
        if _try_move(home, handoff, "timed_out", why):
            yield RepairFinding(what, why, f"set to timed_out; deliver it again: {handoff.id}")
    elif handoff.state in ("accepted", "active") and not leases.is_held(home.ledger, handoff.successor):
        yield RepairFinding(
            what,
            f"is {handoff.state}, but no process works on {handoff.successor}",
            f"deliver() continues there; or: handoff retry {handoff.id}",
        )
    elif handoff.state == "blocked":
        yield RepairFinding(
            what, f"is blocked: {handoff.reason}", f"handoff unblock {handoff.id}, or rollback"
        )


def _try_move(home: Home, handoff: Handoff, to: HandoffState, reason: str, **options: Any) -> bool:
    """Try a transition; False if another process has repaired or confirmed it meanwhile."""
    try:
        handoffs.change_state(
            home.ledger, handoff.id, to, by=_ACTOR, version=handoff.version, reason=reason, **options
        )
    except handoffs.IllegalTransitionError:
        return False
    return True


def _find_record_problem(home: Home, handoff: Handoff) -> str:
    try:
        record = home.records.load(handoff.record)
    except RecordError as error:
        return str(error)
    return (
        "" if record.digest == handoff.digest else f"record {handoff.record} is not the record that was sent"
    )


def _check_effects(home: Home) -> Iterator[RepairFinding]:
    for thread in effects.list_unfinished_threads(home.ledger):
        if not leases.is_held(home.ledger, thread):
            yield RepairFinding(
                f"thread {thread}", "a call started and did not end", "undone when the thread resumes"
            )


def _clean_files(home: Home) -> Iterator[RepairFinding]:
    expired = handoffs.remove_expired_keys(home.ledger)
    if expired:
        yield RepairFinding("idempotency keys", f"{expired} had expired", "removed")
    old = home.records.remove_partial(older_than=time.time() - _PARTIAL_RECORD_AGE_S)
    if old:
        yield RepairFinding("records", f"{old} were never completely saved", "removed")
    unused = home.remove_unused_snapshots()
    if unused:
        yield RepairFinding("snapshots", f"{unused} belonged to no checkpoint", "removed")


_CURE = "(restore the record's directory from a copy, or offer another record)"


class _Origin(NamedTuple):
    """Where a record was made: the point, and the checkpoint with its state."""

    point: HandoffPoint
    checkpoint: str
    state: AgentState


def find_fresh_record(
    home: Home,
    handoff: Handoff,
    *,
    sandbox: SandboxSpec,
    resend: Callable[[Handoff], str | None] | None = None,
) -> HandoffRecord | None:
    """Return a whole record of the source in place of a refused one; None if `resend` has none.

    Default for `resend`: the runtime itself. Raises HandoffError, RecordError, ThreadHeldError, SnapshotNotFoundError,
    SandboxUnavailableError and others of TakeoverError.
    """
    record_id = resend(handoff) if resend else _resend(home, handoff, sandbox)
    if record_id is None:
        return None
    record = home.records.load(record_id)
    if (record.task.id, record.thread_id) != (handoff.task, handoff.thread):
        raise HandoffError(
            f"record {record.id}: it belongs to task {record.task.id} on thread {record.thread_id!r} "
            f"(return a record of task {handoff.task} on thread {handoff.thread!r})"
        )
    if problems := verify_record(home.records.directory(record_id)).problems:
        raise HandoffError(f"record {record.id}: {problems[0]}")
    return record


def _resend(home: Home, handoff: Handoff, sandbox: SandboxSpec) -> str:
    found = _load_sent_record(home, handoff)
    if found is not None and not verify_record(home.records.directory(found.id)).problems:
        return found.id
    record_id = f"{find_original_id(handoff.record, handoff.id)}.{handoff.id}.{handoff.offers}"
    if not is_valid_id(record_id):
        raise HandoffError(
            f"handoff {handoff.id}: cannot build a valid id for the replacement record: {record_id!r:.80} {_CURE}"
        )

    def attach(record: HandoffRecord, directory: Path) -> None:
        """Keep notes and review of a record whose own file is whole."""
        if found is not None:
            added = {"notes": found.notes, "review": found.review}
            home.records.write_attachments(directory, record.model_copy(update=added))

    with home.open_session(handoff.thread, sandbox) as (session, saver):
        origin = _find_origin(saver, handoff)
        made = save_record(
            session,
            origin.state,
            origin.point,
            record_id=record_id,
            checkpoint=origin.checkpoint,
            predecessor=found.predecessor if found else handoff.source,
            attach=attach,
        )
    return made.id


def _load_sent_record(home: Home, handoff: Handoff) -> HandoffRecord | None:
    """Return the record that was offered; None if its file is missing or not the same any more."""
    try:
        record = home.records.load(handoff.record)
    except RecordError:
        return None
    return record if record.digest == handoff.digest else None


def find_original_id(record_id: str, handoff_id: str) -> str:
    """Return the id of the first offered record, of which a later one is a copy."""
    return re.sub(rf"\.{re.escape(handoff_id)}\.\d+$", "", record_id)


def _find_origin(saver: Saver, handoff: Handoff) -> _Origin:
    """Return the first checkpoint of the source whose next step made the record. Raises HandoffError."""
    record_id = find_original_id(handoff.record, handoff.id)
    stored = {
        each.config["configurable"]["checkpoint_id"]: each for each in saver.list(_config(handoff.thread))
    }
    for after in reversed(stored.values()):
        parent = (after.parent_config or {}).get("configurable", {}).get("checkpoint_id")
        if parent not in stored or not stored[parent].checkpoint["channel_values"].get("fired"):
            continue
        graph = build_graph(graph_kind(after), saver)
        state, later = (
            cast(AgentState, graph.get_state(each.config).values) for each in (stored[parent], after)
        )
        point = _find_point(record_id, state, later)
        if point is not None:
            return _Origin(point, str(parent), state)
    raise HandoffError(
        f"thread {handoff.thread!r} no longer has the checkpoint of record {record_id} {_CURE}"
    )


def _find_point(record_id: str, before: AgentState, after: AgentState) -> HandoffPoint | None:
    """Return the point whose record one step made; periodic records have a list of their own."""
    fired = [HandoffPoint.model_validate(point) for point in before["fired"]]
    records = after.get("records", [])[len(before.get("records", [])) :]
    periodic = after.get("periodic_records", [])[len(before.get("periodic_records", [])) :]
    pairs = (
        *zip(records, (point for point in fired if point.kind != "periodic"), strict=False),
        *zip(periodic, (point for point in fired if point.kind == "periodic"), strict=False),
    )
    return next((point for made, point in pairs if made == record_id), None)


def _config(thread: str) -> RunnableConfig:
    configurable: dict[str, Any] = {"thread_id": thread, "checkpoint_ns": ""}
    return {"configurable": configurable}


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
