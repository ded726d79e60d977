"""What a delegated successor is told at its first read of a file that its predecessor had read."""

from __future__ import annotations

import posixpath
import re
from typing import NamedTuple

from langgraph_takeover.handoff.delegation.selection import build_read_cache
from langgraph_takeover.nodes.context.settings import AgentContext
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.sandbox.interface import Sandbox

_CAT_COMMAND = re.compile(r"cat\s+([\w./+-]+)")


class CachedFile(NamedTuple):
    """A file in the cache: what is said of it, and its content where that can be served."""

    notice: str
    content: str | None


def find_first_read(
    state: AgentState, context: AgentContext, sandbox: Sandbox, path: str
) -> CachedFile | None:
    """What the cache has of a file, by its path as reads are named; None beside a payload, and from its second read on.

    The cache holds a file as long as its content has the digest that it was read with; else it is stale.
    """
    if state.get("view") != "payload" or "record" not in state:
        return None
    if any(read["path"] == path for event in state.get("events", []) for read in event.get("reads", ())):
        return None
    known = build_read_cache(context.session.records.load(state["record"])).get(path)
    if known is None:
        return None
    if sandbox.sha256(posixpath.join(sandbox.workspace, path)) != known.sha256:
        handed = "handed over" if known.event is None else f"read at e{known.event}"
        return CachedFile(f"[stale: {path} is not any more what the earlier agent {handed}]\n", None)
    handed = "handed it over" if known.event is None else f"read it at e{known.event}"
    return CachedFile(f"[unchanged since the earlier agent {handed}: {path}]\n", known.content)


def is_whole_file_read(command: str) -> bool:
    """Whether a command does nothing but show one file as it is."""
    return _CAT_COMMAND.fullmatch(command.strip()) is not None
