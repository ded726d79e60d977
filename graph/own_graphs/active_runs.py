"""The runs of LangGraph in this process: which one the calling code belongs to, and when each ends.

LangGraph has no event for the end of a run, but it reports its runs to LangChain's callbacks, like every runnable.
"""

from __future__ import annotations

import asyncio
import weakref
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from typing import Any, Protocol
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook
from langgraph.checkpoint.base.id import uuid6
from langgraph.config import get_config

_begun_here: ContextVar[UUID | None] = ContextVar("takeover_begun_here", default=None)
"""The outermost run that began last in the calling context."""


class RunListener(Protocol):
    """Has what a run uses."""

    def end_run(self, run: object) -> None:
        """Release what a run used; it is called in the OS thread, or the event loop, in which the run ends."""


class RunWatcher(BaseCallbackHandler):
    """Knows the outermost run of every runnable and tool in progress, and tells its listeners when one ends."""

    run_inline = True
    ignore_llm = ignore_chat_model = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self) -> None:
        self._outermost: dict[UUID, UUID] = {}
        self._begun_at: dict[UUID, dict[str, str]] = {}
        """For each outermost run and thread of LangGraph: an id that a checkpoint of that moment would have."""
        self._loops: dict[UUID, asyncio.AbstractEventLoop] = {}
        """For each outermost run that began in an event loop: that loop."""
        self._listeners: weakref.WeakSet[RunListener] = weakref.WeakSet()

    def add_listener(self, listener: RunListener) -> None:
        self._listeners.add(listener)

    def find_outermost(self, run: UUID | None) -> UUID | None:
        """Return the outermost run that a run in progress belongs to."""
        return None if run is None else self._outermost.get(run)

    def find_begin(self, run: object, thread: str) -> str | None:
        """Return the id of a checkpoint of the moment at which a run began on a thread.

        None if the run was given a checkpoint to begin with.
        """
        return self._begun_at.get(run, {}).get(thread) or None if isinstance(run, UUID) else None

    def find_loop(self, run: UUID | None) -> asyncio.AbstractEventLoop | None:
        """Return the event loop that a run began in."""
        return None if run is None else self._loops.get(run)

    def has_thread(self, run: object, thread: str) -> bool:
        """Whether a run works on a thread."""
        return isinstance(run, UUID) and thread in self._begun_at.get(run, {})

    def on_chain_start(
        self,
        *given: Any,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **details: Any,
    ) -> None:
        outermost = run_id if parent_run_id is None else self._outermost.get(parent_run_id, run_id)
        self._outermost[run_id] = outermost
        if outermost == run_id:
            _begun_here.set(run_id)
            with suppress(RuntimeError):
                self._loops[run_id] = asyncio.get_running_loop()
        if metadata and (thread := metadata.get("thread_id")) is not None:
            threads = self._begun_at.setdefault(outermost, {})
            if str(thread) not in threads:  # the graph itself starts before its nodes
                is_told = bool(metadata.get("checkpoint_id"))
                threads[str(thread)] = "" if is_told else str(uuid6(clock_seq=-2))

    def on_chain_end(self, *given: Any, run_id: UUID, **details: Any) -> None:
        if self._outermost.pop(run_id, None) == run_id:
            for listener in [*self._listeners]:
                listener.end_run(run_id)
            self._begun_at.pop(run_id, None)
            self._loops.pop(run_id, None)

    on_tool_start = on_chain_start
    on_chain_error = on_tool_end = on_tool_error = on_chain_end


@cache
def watch_runs() -> RunWatcher:
    """Return the watcher of this process, which sees every run that begins from now on."""
    watcher = RunWatcher()
    # A nested run uses the callbacks of its parent.
    register_configure_hook(ContextVar("takeover_run_watcher", default=watcher), inheritable=True)
    return watcher


def find_run() -> UUID | None:
    """Return the outermost run that the calling node or tool belongs to; None outside of one."""
    try:
        callbacks: Any = get_config().get("callbacks")
    except RuntimeError:
        return None
    return watch_runs().find_outermost(getattr(callbacks, "parent_run_id", None))


def find_other_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of the run that the calling node or tool belongs to, if it works in another OS thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return watch_runs().find_loop(find_run())
    return None


def find_loading_run(thread: str) -> UUID | None:
    """Return the run on a thread that has just begun in the calling context, and loads its checkpoint."""
    run = _begun_here.get()
    return run if run is not None and watch_runs().has_thread(run, thread) else None
