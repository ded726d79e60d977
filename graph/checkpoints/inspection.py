"""Facts about a run from its stored checkpoint, without running a graph."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME
from langgraph.types import Interrupt

from langgraph_takeover.nodes.session.snapshots import BASE_STATE

GraphKind = Literal["agent", "takeover", "team"]


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
    return cast(GraphKind, checkpoint.metadata.get("graph", "agent"))


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


def _is_question(interrupts: Any, task: str, number: int) -> bool:
    """Whether a task's interrupt is its question with that number, by the id that LangGraph gives it."""
    ids = {Interrupt.from_ns("", f"{node}:{task}|{number}").id for node in ("tool", "interruption")}
    return any(each.id in ids for each in interrupts)


def is_waiting(checkpoint: CheckpointTuple) -> bool:
    """Whether the run waits for a person's answer."""
    has_question = any(channel == INTERRUPT for _, channel, _ in checkpoint.pending_writes or ())
    return has_question and not has_answer(checkpoint)


def resume_state_id(stored: CheckpointTuple, *, is_rerun: bool) -> str:
    """Return the sandbox state that resuming from a checkpoint needs; a node may have left it just before a crash.

    LangGraph applies such a node's writes, unless the checkpoint is named explicitly: then the node runs again.
    """
    written = [value for _, channel, value in stored.pending_writes or () if channel == "sandbox_state"]
    if written and not is_rerun:
        return str(written[-1])
    return str(stored.checkpoint["channel_values"].get("sandbox_state", BASE_STATE))


def describe_checkpoint(stored: Any, restorable: frozenset[str]) -> CheckpointInfo:
    """Describe a stored checkpoint; `restorable` are the sandbox states with a snapshot."""
    values = stored.checkpoint["channel_values"]
    state_id = values.get("sandbox_state") or BASE_STATE
    prefix = "branch:to:"
    return CheckpointInfo(
        checkpoint=stored.config["configurable"]["checkpoint_id"],
        parent=stored.parent_config["configurable"]["checkpoint_id"] if stored.parent_config else None,
        step=values.get("steps", 0),
        next=tuple(sorted(name.removeprefix(prefix) for name in values if name.startswith(prefix))),
        state_id=state_id,
        is_restorable=state_id in restorable,
        created_at=stored.checkpoint["ts"],
    )


def thread_config(thread: str) -> RunnableConfig:
    """Return LangGraph's configuration for a thread's newest checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
