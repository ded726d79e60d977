"""Facts about a run from its stored checkpoint, without running a graph."""

from __future__ import annotations

from typing import Literal, cast

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME

from langgraph_takeover.nodes.session.snapshots import BASE_STATE

GraphKind = Literal["agent", "takeover", "team"]


def graph_kind(checkpoint: CheckpointTuple) -> GraphKind:
    return cast(GraphKind, checkpoint.metadata.get("graph", "agent"))


def has_answer(checkpoint: CheckpointTuple) -> bool:
    """Whether a person's answer is stored with the checkpoint, even if its node has not used it yet."""
    return any(channel == RESUME for _, channel, _ in checkpoint.pending_writes or ())


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
