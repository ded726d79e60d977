"""The order of a reply's calls: LangGraph starts them side by side, but they share one sandbox."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from langchain_core.messages import AIMessage, ToolCall
from langgraph.prebuilt.tool_node import ToolCallRequest

from langgraph_takeover.graph.errors import EarlierCallError
from langgraph_takeover.graph.own_graphs.thread_sandbox import ThreadSandbox
from langgraph_takeover.handoff.ledger import effects

_POLL_S = 0.05


class CallOrder:
    """Lets each call of a reply wait for those before it, and begin in the state that they left."""

    def __init__(self, work: ThreadSandbox) -> None:
        self._work = work
        self._failed: set[str] = set()
        self._changed = threading.Condition()

    def name_calls(self, request: ToolCallRequest, is_ours: Callable[[ToolCall], bool]) -> list[str]:
        """Name the sandbox's calls of a reply, up to this one. Providers repeat the ids of calls in other replies."""
        reply = next(each for each in reversed(request.state["messages"]) if isinstance(each, AIMessage))
        names = []
        for number, call in enumerate(reply.tool_calls):
            if is_ours(call):
                names.append(f"{reply.id}.{number}")
            if call["id"] == request.tool_call["id"]:
                break
        return names

    @contextmanager
    def take_turn(self, state: str, earlier: list[str], name: str) -> Iterator[str]:
        """Wait for the earlier calls, and yield the sandbox's state after them. Raises EarlierCallError."""
        with self._changed:
            self._failed.discard(name)  # a resume makes a failed call again
        try:
            yield self.wait_for(state, earlier)
        except BaseException:
            with self._changed:
                self._failed.add(name)
                self._changed.notify_all()
            raise
        with self._changed:
            self._failed.discard(name)
            self._changed.notify_all()

    def wait_for(self, state: str, names: list[str]) -> str:
        """Return the sandbox's state after these calls, which other threads run."""
        session = self._work.session
        for name in names:
            key = self._work.make_key(state, name)
            with self._changed:
                while True:
                    found = effects.find(session.ledger, key)
                    if found is not None and found.state_after is not None:
                        break
                    session.stop.require_not_urgent()
                    if name in self._failed:
                        raise EarlierCallError(
                            f"thread {self._work.thread!r}: an earlier call of the same reply failed ({name})"
                        )
                    self._changed.wait(_POLL_S)
            state = found.state_after
        return state
