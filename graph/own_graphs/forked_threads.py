"""Forks of a thread: conversation and sandbox in threads of their own, of which one is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from langgraph_takeover.graph.checkpoints.inspection import thread_config
from langgraph_takeover.graph.checkpoints.savers import build_fork
from langgraph_takeover.graph.own_graphs.sandboxes import Sandboxes
from langgraph_takeover.graph.own_graphs.thread_sandbox import (
    CHANNEL,
    ThreadSandbox,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
    save_writes,
)
from langgraph_takeover.graph.usage_errors import ThreadExistsError, ThreadNotFoundError
from langgraph_takeover.handoff.ledger import traces
from langgraph_takeover.nodes.session.state_store import BASE_STATE
from langgraph_takeover.sandbox.interface import Snapshot

Saver = BaseCheckpointSaver[Any]


def fork_thread(
    sandboxes: Sandboxes, thread: str, *, saver: Saver, n: int = 1, checkpoint_id: str | None = None
) -> tuple[str, ...]:
    """Copy a thread's newest checkpoint, or the named one, to `n` new threads with the sandbox of that moment.

    The forks are named `THREAD.fork-1` and so on. A fork keeps the question that its thread waits with. Call it while no
    run is on the thread; in an event loop, by `home.acall`. Raises ThreadNotFoundError, ThreadExistsError for a fork that
    exists, ThreadHeldError, SnapshotNotFoundError, and what merging parallel branches raises.

    Example:
        >>> from langgraph.checkpoint.memory import InMemorySaver
        >>> from langgraph_takeover.integrations import Sandboxes, fork_thread
        >>> saver = InMemorySaver()
        >>> sandboxes = Sandboxes(home, sandbox_spec)
        >>> fork_thread(sandboxes, "chat", saver=saver, n=2)
        Traceback (most recent call last):
        ...
        langgraph_takeover.graph.usage_errors.ThreadNotFoundError: thread not found: 'chat' (no checkpoint is in this saver)
    """
    stored = _load(saver, thread, checkpoint_id)
    names = tuple(f"{thread}.fork-{number + 1}" for number in range(n))
    for name in names:
        if load_checkpoint(saver, thread_config(name)) is not None:
            raise ThreadExistsError(
                f"thread exists: {name!r} (choose or delete the forks of {thread!r} first)"
            )
    with sandboxes.open(thread) as work:
        state, snapshot = _save_state(work, stored)
        for name in names:
            with sandboxes.open(name) as fork:
                values = _adopt(fork, work, state, snapshot)
            _copy(saver, stored, name, values)
    return names


def choose_fork(sandboxes: Sandboxes, fork: str, *, saver: Saver, thread: str) -> None:
    """Make the newest checkpoint of a fork, with its sandbox, the newest of the thread. All forks remain.

    Raises what `fork_thread` raises.

    Example:
        >>> from langgraph.checkpoint.memory import InMemorySaver
        >>> from langgraph_takeover.integrations import Sandboxes, choose_fork
        >>> sandboxes = Sandboxes(home, sandbox_spec)
        >>> choose_fork(sandboxes, "chat.fork-1", saver=InMemorySaver(), thread="chat")
        Traceback (most recent call last):
        ...
        langgraph_takeover.graph.usage_errors.ThreadNotFoundError: thread not found: 'chat.fork-1' (no checkpoint is in this saver)
    """
    with sandboxes.open(fork) as chosen, sandboxes.open(thread) as work:
        stored, newest = _load(saver, fork), _load(saver, thread)
        state, snapshot = _save_state(chosen, stored)
        values = _adopt(work, chosen, state, snapshot)
        _, checkpoint, metadata, _ = build_fork(saver, stored, values, {"fork": fork})
        save_checkpoint(saver, newest.config, checkpoint, metadata, checkpoint["channel_versions"])


def _load(saver: Saver, thread: str, checkpoint_id: str | None = None) -> CheckpointTuple:
    config = thread_config(thread)
    if checkpoint_id is not None:
        config["configurable"]["checkpoint_id"] = checkpoint_id
    if (stored := load_checkpoint(saver, config)) is None:
        place = f"checkpoint {checkpoint_id}" if checkpoint_id else "checkpoint"
        raise ThreadNotFoundError(f"thread not found: {thread!r} (no {place} is in this saver)")
    return stored


def _save_state(work: ThreadSandbox, stored: CheckpointTuple) -> tuple[str, Snapshot | None]:
    """Return the checkpoint's state of the sandbox, and its snapshot; none at the base."""
    state = work.resolve_state(str(stored.checkpoint["channel_values"].get(CHANNEL) or BASE_STATE))
    return state, None if state == BASE_STATE else work.snapshot(state)


def _adopt(
    target: ThreadSandbox, source: ThreadSandbox, state: str, snapshot: Snapshot | None
) -> dict[str, Any]:
    """Give a thread the state of another, and its agents' events; return the channels to change."""
    traces.copy(source.session.ledger, source.thread, target.thread)
    if snapshot is None:
        return {} if state == BASE_STATE else {CHANNEL: state}
    return {CHANNEL: target.session.adopt_snapshot(snapshot, source.snapshot_directory(snapshot))}


def _copy(saver: Saver, stored: CheckpointTuple, name: str, values: dict[str, Any]) -> None:
    """Copy a checkpoint under the same id, with what it needs: its writes, its subgraphs, and ancestors for deltas."""
    for each in _list_needed(saver, stored):
        is_newest = each.config == stored.config
        namespace = each.config["configurable"].get("checkpoint_ns", "")
        config: RunnableConfig = {"configurable": {"thread_id": name, "checkpoint_ns": namespace}}
        if each.parent_config is not None and not is_newest:
            config["configurable"]["checkpoint_id"] = each.parent_config["configurable"]["checkpoint_id"]
        checkpoint = {**each.checkpoint}
        if is_newest:
            checkpoint["channel_values"] = {**each.checkpoint["channel_values"], **values}
        kept = save_checkpoint(saver, config, checkpoint, each.metadata, each.checkpoint["channel_versions"])
        writes: dict[str, list[tuple[str, Any]]] = {}
        for task, channel, value in each.pending_writes or ():
            writes.setdefault(task, []).append((channel, value))
        for task, written in writes.items():
            save_writes(saver, kept, written, task)


def _list_needed(saver: Saver, stored: CheckpointTuple) -> Iterator[CheckpointTuple]:
    """Yield the checkpoint and what it refers to, ancestors first."""
    thread, newest = stored.config["configurable"]["thread_id"], str(stored.checkpoint["id"])
    everything: RunnableConfig = {"configurable": {"thread_id": thread}}
    seen: set[str] = set()
    found = [stored]
    for each in list_checkpoints(saver, everything, ""):  # newest first
        namespace = each.config["configurable"].get("checkpoint_ns", "")
        if not namespace or namespace in seen or str(each.checkpoint["id"]) > newest:
            continue
        is_of_task = ":" in namespace
        if is_of_task and each.metadata.get("parents", {}).get("") != newest:
            continue
        seen.add(namespace)
        found.append(each)
    for each in found:
        chain, parent = [each], each.parent_config
        while parent is not None and "counters_since_delta_snapshot" in chain[-1].metadata:
            before = load_checkpoint(saver, parent)
            if before is None:
                break
            chain.append(before)
            parent = before.parent_config
        yield from reversed(chain)
