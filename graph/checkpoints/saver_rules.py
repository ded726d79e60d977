"""What savers of every database write, delete and refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import ERROR

from langgraph_takeover.graph.checkpoints.checksums import ChainKey
from langgraph_takeover.graph.errors import ThreadNotHeldError, UnstorableValueError
from langgraph_takeover.handoff.ledger import FencedError, Lease

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


def list_needless(saver: Any, thread: str) -> list[tuple[str, str, str]]:
    """List the keys of checkpoints that a thread's newest one does not need: neither for its subgraphs nor for deltas."""
    found = [*saver.list({"configurable": {"thread_id": thread}})]  # newest first
    keys = [chain_key(each.config) for each in found]
    ids = [str(each.config["configurable"]["checkpoint_id"]) for each in found]
    root = next((id_ for key, id_ in zip(keys, ids, strict=True) if not key.namespace), None)
    needless, seen = [], set()
    for key, id_, stored in zip(keys, ids, found, strict=True):
        # The checkpoints of a task's subgraph name the one that the task began with.
        is_of_task = ":" in key.namespace
        is_current = not is_of_task or stored.metadata.get("parents", {}).get("") == root
        has_deltas = "counters_since_delta_snapshot" in stored.metadata
        if not is_current or (key.namespace in seen and not has_deltas):
            needless.append((thread, key.namespace, id_))
        seen.add(key.namespace)
    return needless


def chain_key(config: RunnableConfig) -> ChainKey:
    at = config["configurable"]
    return ChainKey(str(at["thread_id"]), str(at.get("checkpoint_ns", "")))


def require_lease(thread: str, lease: Lease | None, row: Sequence[Any] | None) -> None:
    if lease is None:
        raise FencedError(thread, row[1] if row else "nobody")
    if lease.thread != thread:
        raise ThreadNotHeldError(thread, lease.thread)
    lease.update_from_row(row)
