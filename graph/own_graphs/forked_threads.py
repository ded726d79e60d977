"""Forks of a thread: conversation and sandbox in threads of their own, of which one is chosen."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from langgraph_takeover.graph.checkpoints.inspection import resume_state_id, thread_config
from langgraph_takeover.graph.checkpoints.savers import build_fork
from langgraph_takeover.graph.own_graphs.sandboxes import Sandboxes
from langgraph_takeover.graph.own_graphs.thread_sandbox import (
    ThreadSandbox,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
    save_writes,
)
from langgraph_takeover.graph.usage_errors import ThreadAdvancedError, ThreadNotFoundError
from langgraph_takeover.handoff.ledger import traces
from langgraph_takeover.nodes.context.settings import SettingsError
from langgraph_takeover.nodes.session.graph_tasks import split_state
from langgraph_takeover.nodes.session.state_store import BASE_STATE

Saver = BaseCheckpointSaver[Any]


def fork_thread(
    sandboxes: Sandboxes, thread: str, *, saver: Saver, n: int = 1, checkpoint_id: str | None = None
) -> tuple[str, ...]:
    """Copy a thread's newest checkpoint, or the named one, to `n` new threads with the sandbox of that moment.

    The forks are named `THREAD.fork-1` and so on, after those that exist. A fork keeps the question that its thread waits
    with. Call it while no run is on the thread; in an event loop, by `home.acall`. Raises ThreadNotFoundError, SettingsError
    for an invalid number, ThreadHeldError, SnapshotNotFoundError, and what merging parallel branches raises.

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
    if not isinstance(n, int) or n < 1:
        raise SettingsError(f"n: invalid number {n!r:.60} (pass 1 or more)")
    named = (f"{thread}.fork-{number}" for number in itertools.count(1))
    free = (each for each in named if load_checkpoint(saver, thread_config(each)) is None)
    names = tuple(itertools.islice(free, n))
    with sandboxes.open(thread) as work:
        found = _list_needed(saver, stored)
        _save_states(work, found)
        for name in names:
            with sandboxes.open(name) as fork:
                _share(work, fork, found)
            _copy(saver, found, name)
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
        if stored.checkpoint["id"] == newest.checkpoint["id"]:
            return  # nothing ran in the fork
        found, is_newer = _list_needed(saver, stored), stored.checkpoint["id"] > newest.checkpoint["id"]
        if stored.pending_writes and not is_newer:
            raise ThreadAdvancedError(
                f"thread {thread!r}: it has advanced since {fork!r} stopped in the middle of a step (finish that step first)"
            )
        _save_states(chosen, found)
        _share(chosen, work, found)
        if is_newer:
            _copy(saver, found, thread, after=newest)
            return
        for each in found:
            _, checkpoint, metadata, _ = build_fork(saver, each, {}, {"fork": fork})
            config = _at(thread, each, newest if each is stored else None)
            save_checkpoint(saver, config, checkpoint, metadata, checkpoint["channel_versions"])


def _load(saver: Saver, thread: str, checkpoint_id: str | None = None) -> CheckpointTuple:
    config = thread_config(thread)
    if checkpoint_id is not None:
        config["configurable"]["checkpoint_id"] = checkpoint_id
    if (stored := load_checkpoint(saver, config)) is None:
        place = f"checkpoint {checkpoint_id}" if checkpoint_id else "checkpoint"
        raise ThreadNotFoundError(f"thread not found: {thread!r} (no {place} is in this saver)")
    return stored


def _save_states(work: ThreadSandbox, found: Sequence[CheckpointTuple]) -> None:
    """Save the states that checkpoints begin with. Raises SnapshotNotFoundError."""
    for each in found:
        for state in split_state(resume_state_id(each, is_rerun=False)):
            if state != BASE_STATE:
                work.session.save_snapshot(state)


def _share(source: ThreadSandbox, target: ThreadSandbox, found: Sequence[CheckpointTuple]) -> None:
    """Give a thread the states that checkpoints of another one refer to, and its agents' events."""
    target.session.share_states(source.thread, source.list_needed_states(found))
    traces.copy(source.session.ledger, source.thread, target.thread)


def _at(thread: str, stored: CheckpointTuple, parent: CheckpointTuple | None) -> RunnableConfig:
    """Return where a checkpoint of another thread goes."""
    at = {"thread_id": thread, "checkpoint_ns": stored.config["configurable"].get("checkpoint_ns", "")}
    return {"configurable": at | ({"checkpoint_id": str(parent.checkpoint["id"])} if parent else {})}


def _copy(
    saver: Saver, found: Sequence[CheckpointTuple], thread: str, after: CheckpointTuple | None = None
) -> None:
    """Copy checkpoints under the same ids, with their writes; the thread's own follows `after`."""
    copied = dict[tuple[str, str], CheckpointTuple]()
    for each in found:
        namespace = each.config["configurable"].get("checkpoint_ns", "")
        above = (each.parent_config or {}).get("configurable", {}).get("checkpoint_id")
        parent = copied.get((namespace, str(above))) or (None if namespace else after)
        copied[namespace, str(each.checkpoint["id"])] = each
        versions = each.checkpoint["channel_versions"]
        kept = save_checkpoint(saver, _at(thread, each, parent), {**each.checkpoint}, each.metadata, versions)
        writes: dict[str, list[tuple[str, Any]]] = {}
        for task, channel, value in each.pending_writes or ():
            writes.setdefault(task, []).append((channel, value))
        for task, written in writes.items():
            save_writes(saver, kept, written, task)


def _list_needed(saver: Saver, stored: CheckpointTuple) -> list[CheckpointTuple]:
    """List the checkpoint and what it refers to, ancestors first: those of subgraphs, and those that deltas need."""
    thread, newest = stored.config["configurable"]["thread_id"], str(stored.checkpoint["id"])
    everything: RunnableConfig = {"configurable": {"thread_id": thread}}
    seen: set[str] = set()
    found = [stored]
    for each in list_checkpoints(saver, everything, ""):  # newest first
        namespace = each.config["configurable"].get("checkpoint_ns", "")
        # Of its own step, whose results are among its writes; a subgraph with a memory also has earlier ones.
        is_of_step = each.metadata.get("parents", {}).get("") == newest
        is_earlier = ":" not in namespace and str(each.checkpoint["id"]) < newest
        if namespace and namespace not in seen and (is_of_step or is_earlier):
            seen.add(namespace)
            found.append(each)
    needed = []
    for each in found:
        chain, parent = [each], each.parent_config
        while parent is not None and "counters_since_delta_snapshot" in chain[-1].metadata:
            before = load_checkpoint(saver, parent)
            if before is None:
                break
            chain.append(before)
            parent = before.parent_config
        needed += reversed(chain)
    return needed
