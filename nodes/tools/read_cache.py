"""The read cache of a delegated successor: files that its predecessor had read."""

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
    """A file in the cache: a notice for the model, and the content if it is known and unchanged."""

    notice: str
    content: str | None


def find_first_read(
    state: AgentState, context: AgentContext, sandbox: Sandbox, path: str
) -> CachedFile | None:
    """Return the cached file at its first read; None without a payload, without an entry, or at later reads.

    `path` is named as in reads. The entry is stale if the file's digest has changed since the predecessor read it.
    """
    if state.get("view") != "payload" or "record" not in state:
        return None
    if any(read["path"] == path for event in state.get("events", []) for read in event.get("reads", ())):
        return None
    entry = build_read_cache(context.session.records.load(state["record"])).get(path)
    if entry is None:
        return None
    access = "handed it over" if entry.event is None else f"read it at e{entry.event}"
    if sandbox.sha256(posixpath.join(sandbox.workspace, path)) != entry.sha256:
        return CachedFile(f"[stale: {path} has changed since the earlier agent {access}]\n", None)
    return CachedFile(f"[unchanged since the earlier agent {access}: {path}]\n", entry.content)


def is_whole_file_read(command: str) -> bool:
    """Whether a command only prints one file unchanged."""
    return _CAT_COMMAND.fullmatch(command.strip()) is not None
