"""Facts about a run from its stored checkpoint, without running a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple, cast, get_args

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, TASKS
from langgraph.constants import START
from langgraph.types import Interrupt
from sqlalchemy import text

from langgraph_takeover.graph.checkpoints.checksums import ChainKey
from langgraph_takeover.graph.usage_errors import (
    CheckpointCorruptError,
    ForeignThreadError,
    ThreadNotHeldError,
    UnstorableValueError,
)
from langgraph_takeover.handoff.ledger import Lease, Ledger
from langgraph_takeover.nodes.session.graph_tasks import join_states, split_state
from langgraph_takeover.nodes.session.state_store import BASE_STATE

Writes = Sequence[tuple[str, Any]]
KEY_MATCHES = "thread_id = {0} AND checkpoint_ns = {0} AND checkpoint_id = {0}"


@contextmanager
def explain_unstorable_values() -> Iterator[None]:
    try:
        yield
    except TypeError as error:
        if "msgpack" not in str(error):
            raise
        raise UnstorableValueError(
            f"{error} (a state holds messages, text, numbers, and lists and dicts of them)"
        ) from error


def drop_failed_writes(writes: Writes) -> Writes:
    """Drop the writes of a node that failed or was cancelled: it must run again."""
    if any(channel == ERROR for channel, _ in writes):
        return [write for write in writes if write[0] in WRITES_IDX_MAP]
    return writes


def list_needless(found: Sequence[CheckpointTuple], keep: int = 1) -> list[tuple[str, str, str]]:
    """List the keys of a thread's checkpoints that its newest ones do not need: neither for subgraphs nor for deltas.

    `found` are all its checkpoints, newest first.
    """
    keys = [*map(checkpoint_key, found)]
    roots = [id_ for _, namespace, id_ in keys if not namespace][:keep]
    needless, needed = [], set[tuple[str, str, bool]]()
    for (thread, namespace, id_), stored in zip(keys, found, strict=True):
        has_deltas = "counters_since_delta_snapshot" in stored.metadata
        if not namespace:
            is_needed = id_ in roots or has_deltas
        else:
            # The checkpoints of a task's subgraph name the one that the task began with.
            begun = stored.metadata.get("parents", {}).get("", "")
            of_task = bool(begun) and ":" in namespace
            users = {
                (namespace, root, root == begun)
                for root in roots
                if root == begun or (root > begun and not of_task)
            }
            is_needed = not users <= needed or (has_deltas and (bool(users) or not of_task))
            needed |= users
        if not is_needed:
            needless.append((thread, namespace, id_))
    return needless


def checkpoint_key(stored: CheckpointTuple) -> tuple[str, str, str]:
    """Return the thread, the namespace and the id of a checkpoint."""
    return (*chain_key(stored.config), str(stored.config["configurable"]["checkpoint_id"]))


def chain_key(config: RunnableConfig) -> ChainKey:
    at = config["configurable"]
    return ChainKey(str(at["thread_id"]), str(at.get("checkpoint_ns", "")))


def require_lease(thread: str, lease: Lease | None, row: Sequence[Any] | None) -> None:
    if lease is None or lease.thread != thread:
        raise ThreadNotHeldError(thread, lease.thread if lease else None)
    lease.update_from_row(row)


GraphKind = Literal["agent", "takeover", "team"]
_NEXT_PREFIX = "branch:to:"
"""Before a node's name, in the channel that makes it due."""
_OWN_CHANNEL = "fired"
"""A channel that every graph of the runtime writes in its first step."""
_FIRST_CHANNELS = frozenset((_OWN_CHANNEL, "branch:to:begin", "branch:to:receive"))
"""Channels of the runtime's graphs, one of which is written before their first node runs."""
_DELIVERY = "delivery"
DELIVERY_METADATA = {"graph": _DELIVERY}
"""Marks the checkpoints of a delivery."""


class CheckpointInfo(NamedTuple):
    """One checkpoint of a thread.

    Example:
        >>> newest = home.history("fix-1")[0]
        >>> newest.next, newest.is_restorable
        ((), True)
    """

    checkpoint: str
    parent: str | None
    step: int
    """Number of model replies before it."""
    next: tuple[str, ...]
    """The nodes that run next."""
    state_id: str
    is_restorable: bool
    """Whether its sandbox state has a snapshot."""
    created_at: str


def graph_kind(checkpoint: CheckpointTuple) -> GraphKind:
    """Return which of the runtime's graphs wrote a checkpoint. Raises ForeignThreadError if none did."""
    kind = _find_kind(checkpoint)
    if kind in get_args(GraphKind):
        return cast(GraphKind, kind)
    thread = checkpoint.config["configurable"]["thread_id"]
    raise ForeignThreadError(
        f"thread {thread!r:.60} belongs to the delivery of a handoff, not to an agent (call deliver)"
        if kind == _DELIVERY
        else f"thread {thread!r:.60} belongs to a graph of your own, not to an agent or a team of this package "
        "(open it with open_sandbox)"
    )


def require_graph(saver: Any, thread: str, *, own: bool | None) -> None:
    """Raise ForeignThreadError unless the thread is new or has the right graph.

    With `own` that is a user's graph, with None that or one of the runtime's, else one of the runtime's.
    """
    stored = None
    with suppress(CheckpointCorruptError):  # an earlier checkpoint may still be intact
        stored = saver.get_tuple(thread_config(thread))
    if stored is None or (own is None and is_own_graph(stored)):
        return
    if not own:
        graph_kind(stored)
    elif kind := _find_kind(stored):
        raise ForeignThreadError(
            f"thread {thread!r:.60} belongs to {'a delivery' if kind == _DELIVERY else 'a run'} of this package, not to a "
            "graph of your own (resume it there, or choose another name)"
        )


def is_own_graph(checkpoint: CheckpointTuple) -> bool:
    """Whether a graph of the user's own wrote a checkpoint."""
    return _find_kind(checkpoint) is None


def has_next_step(checkpoint: CheckpointTuple) -> bool:
    """Whether a graph has not ended at a checkpoint: a node is due, or has begun."""
    values = checkpoint.checkpoint["channel_values"]
    return bool(
        checkpoint.metadata.get("source") == "input"
        or any(name == START or name.startswith(_NEXT_PREFIX) for name in values)
        or values.get(TASKS)
        or any(_is_complete_join(name, value) for name, value in values.items())
    )


def _is_complete_join(channel: str, value: Any) -> bool:
    """Whether a channel `join:a+b:c` has all nodes that its node waits for."""
    kind, _, rest = channel.partition(":")
    return kind == "join" and bool(value) and set(value) >= set(rest.rpartition(":")[0].split("+"))


def _find_kind(checkpoint: CheckpointTuple) -> str | None:
    """Return the name of the runtime's graph that wrote a checkpoint; None if another graph did."""
    named = checkpoint.metadata.get("graph")
    channels = checkpoint.checkpoint["channel_versions"]
    if named == _DELIVERY:
        return _DELIVERY
    if named in get_args(GraphKind) and (
        checkpoint.metadata.get("source") == "input" or not _FIRST_CHANNELS.isdisjoint(channels)
    ):
        return str(named)
    return "agent" if _OWN_CHANNEL in channels else None


def has_answer(checkpoint: CheckpointTuple) -> bool:
    """Whether the answer to the checkpoint's question is stored with it, even if its node has not used it yet.

    The answers to a tool's earlier questions are stored there too. If the last of them equals a new answer that its
    node has not used yet, the new one counts as missing, so that the run asks the person again.
    """
    writes = checkpoint.pending_writes or ()
    questions = {task: value for task, channel, value in writes if channel == INTERRUPT}
    used = [value for task, channel, value in writes if channel == RESUME and task in questions]
    given = [value for task, channel, value in writes if channel == RESUME and task not in questions]
    if not used:
        return bool(given)
    answers = used[-1] if isinstance(used[-1], list) else [used[-1]]
    if any(_is_question(value, task, len(answers)) for task, value in questions.items()):
        return any(each not in answers[-1:] for each in given)
    return True


_ASKING_NODES = ("tool", "interruption", "think", "shell", "editor", "delegate", "agent")


def _is_question(interrupts: Any, task: str, number: int) -> bool:
    """Whether a task's interrupt is its question with that number, by the id that LangGraph gives it."""
    ids = {Interrupt.from_ns("", f"{node}:{task}|{number}").id for node in _ASKING_NODES}
    return any(each.id in ids for each in interrupts)


def is_waiting(checkpoint: CheckpointTuple) -> bool:
    """Whether the run waits for a person's answer."""
    has_question = any(channel == INTERRUPT for _, channel, _ in checkpoint.pending_writes or ())
    return has_question and not has_answer(checkpoint)


def resume_state_id(stored: CheckpointTuple, *, is_rerun: bool) -> str:
    """Return the sandbox state that resuming from a checkpoint needs; nodes may have left it just before a crash.

    LangGraph applies such a node's writes, unless the checkpoint is named explicitly: then the node runs again.
    """
    written = [value for _, channel, value in stored.pending_writes or () if channel == "sandbox_state"]
    if written and not is_rerun:
        return join_states(map(str, written))
    return str(stored.checkpoint["channel_values"].get("sandbox_state", BASE_STATE))


def find_last_states(ledger: Ledger, saver: Any, thread: str) -> set[str]:
    """Return the sandbox states with which the thread can go on: of its newest checkpoint, and of those of forks."""
    query = text(
        "SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints "
        "WHERE thread_id = :thread AND checkpoint_ns = ''"
    )
    with ledger.read_transaction() as connection:
        parents = {row[0]: row[1] for row in connection.execute(query, {"thread": thread})}
    states = set[str]()
    for last in parents.keys() - parents.values():
        config = {"configurable": thread_config(thread)["configurable"] | {"checkpoint_id": last}}
        if (stored := saver.get_tuple(config)) is not None:
            for is_rerun in (False, True):
                states.update(split_state(resume_state_id(stored, is_rerun=is_rerun)))
    return states


def describe_checkpoint(stored: Any, restorable: frozenset[str]) -> CheckpointInfo:
    """Describe a stored checkpoint; `restorable` are the sandbox states with a snapshot."""
    values = stored.checkpoint["channel_values"]
    state_id = values.get("sandbox_state") or BASE_STATE
    return CheckpointInfo(
        checkpoint=stored.config["configurable"]["checkpoint_id"],
        parent=stored.parent_config["configurable"]["checkpoint_id"] if stored.parent_config else None,
        step=values.get("steps", 0),
        next=tuple(
            sorted(name.removeprefix(_NEXT_PREFIX) for name in values if name.startswith(_NEXT_PREFIX))
        ),
        state_id=state_id,
        is_restorable=restorable.issuperset(split_state(state_id)),
        created_at=stored.checkpoint["ts"],
    )


def thread_config(thread: str) -> RunnableConfig:
    """Return LangGraph's configuration for a thread's newest checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
