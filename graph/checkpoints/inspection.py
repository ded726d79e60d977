"""What a stored checkpoint tells of its run before any graph reads it."""

from __future__ import annotations

from typing import Literal, cast

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import RESUME

from langgraph_takeover.nodes.session.session import BASE_STATE

GraphKind = Literal["agent", "takeover", "team"]


def graph_kind(checkpoint: CheckpointTuple) -> GraphKind:
    return cast(GraphKind, checkpoint.metadata.get("graph", "agent"))


def has_answer(checkpoint: CheckpointTuple) -> bool:
    """Whether a person's answer is kept with the checkpoint, although its node may not have got to use it."""
    return any(channel == RESUME for _, channel, _ in checkpoint.pending_writes or ())


def resume_state_id(stored: CheckpointTuple, *, is_rerun: bool) -> str:
    """The machine that going on from a checkpoint needs, which a node may have left just before a crash.

    LangGraph takes such a node's writes up, unless the checkpoint is named: then the node is `redone`.
    """
    written = [value for _, channel, value in stored.pending_writes or () if channel == "sandbox_state"]
    if written and not is_rerun:
        return str(written[-1])
    return str(stored.checkpoint["channel_values"].get("sandbox_state", BASE_STATE))
