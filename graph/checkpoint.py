"""What a stored checkpoint tells of its run before any graph reads it."""

from __future__ import annotations

from typing import Literal, cast

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import RESUME

from nodes.session import BASE

Kind = Literal["agent", "takeover", "team"]


def kind_of(found: CheckpointTuple) -> Kind:
    return cast(Kind, found.metadata.get("graph", "agent"))


def answered(found: CheckpointTuple) -> bool:
    """Whether a person's answer is kept with the checkpoint, although its node may not have got to use it."""
    return any(channel == RESUME for _, channel, _ in found.pending_writes or ())


def machine_to_come(found: CheckpointTuple, *, redone: bool) -> str:
    """The machine that going on from a checkpoint needs, which a node may have left just before a crash.

    LangGraph takes such a node's writes up, unless the checkpoint is named: then the node is `redone`.
    """
    written = [value for _, channel, value in found.pending_writes or () if channel == "machine"]
    if written and not redone:
        return str(written[-1])
    return str(found.checkpoint["channel_values"].get("machine", BASE))
