"""The events of an agent's earlier steps: in the ledger, because a checkpoint would store all of them with each step."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from langgraph_takeover.graph.home import Home
from langgraph_takeover.graph.own_graphs.thread_sandbox import ThreadSandbox
from langgraph_takeover.handoff.ledger import traces
from langgraph_takeover.handoff.ledger.traces import TracePart
from langgraph_takeover.handoff.trace.events import Event

_MAX_KNOWN = 8


class AgentTrace:
    """The traces of one thread's agents; the latest ones are kept in memory."""

    def __init__(self, work: ThreadSandbox) -> None:
        self._ledger, self._thread = work.session.ledger, work.thread
        self.lock = threading.Lock()
        """Held while handoff points are looked for."""
        self._lock = threading.Lock()
        self._known: OrderedDict[str, TracePart] = OrderedDict()

    def load(self, trace_id: str | None) -> TracePart:
        """Return the events and edits up to a part. They are not to be changed. Raises LedgerUnavailableError."""
        if not trace_id:
            return TracePart([], [])
        with self._lock:
            if trace_id not in self._known:
                self._remember(trace_id, traces.load(self._ledger, self._thread, trace_id))
            return self._known[trace_id]

    def append(self, trace_id: str | None, part: TracePart) -> str:
        """Store what follows a part, and return the id of both."""
        earlier = self.load(trace_id)
        new_id = traces.append(self._ledger, self._thread, part, after=trace_id or "")
        with self._lock:
            # New lists: another agent may begin with the same events.
            self._remember(new_id, TracePart([*earlier.events, *part.events], [*earlier.edits, *part.edits]))
        return new_id

    def _remember(self, trace_id: str, part: TracePart) -> None:
        self._known[trace_id] = part
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)


def read_events(home: Home, state: Mapping[str, Any], *, thread: str) -> tuple[Event, ...]:
    """Return all calls and observations of an agent with a `SandboxMiddleware`. Needs no lease.

    Args:
        home: where the sandboxes are.
        state: the agent's state, for instance what `invoke` returned.
        thread: id of the thread.

    Raises LedgerUnavailableError if events of earlier steps are missing.

    Example:
        >>> from langgraph_takeover.middleware import read_events
        >>> read_events(home, {"messages": []}, thread="chat-1")
        ()
    """
    trace_id = state.get("trace")
    earlier = traces.load(home.ledger, thread, trace_id).events if trace_id else []
    return tuple(Event.model_validate(each) for each in [*earlier, *state.get("events", [])])


def find_trace(work: ThreadSandbox) -> AgentTrace:
    """Return the traces of a thread's agents."""
    return work.keep(AgentTrace, lambda: AgentTrace(work))
