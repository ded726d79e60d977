"""The order of a reply's calls: LangGraph starts them side by side, but they share one sandbox."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest

from langgraph_takeover.graph.errors import EarlierCallError
from langgraph_takeover.graph.own_graphs.thread_sandbox import ThreadSandbox
from langgraph_takeover.handoff.ledger import effects

_POLL_S = 0.05
_REPEATED_ID = "Not run: several calls of this reply have the same id. Send each call with its own id."


class CallOrder:
    """Lets each call of a reply wait for those before it, and begin in the state that they left."""

    def __init__(self, work: ThreadSandbox) -> None:
        self._work = work
        self._failed: set[str] = set()
        self._changed = threading.Condition()

    def name_calls(
        self, request: ToolCallRequest, is_ours: Callable[[ToolCall], bool]
    ) -> tuple[list[str], str]:
        """Return names for the sandbox's earlier calls of a reply, and for this call. Ids are unique only in one reply.

        A call with a repeated id counts as the reply's last.
        """
        reply, call_id = _find_reply(request), request.tool_call["id"]
        numbers = _number_calls(reply)
        number = numbers.get(call_id, len(reply.tool_calls))
        earlier = [
            f"{reply.id}.{each}"
            for each in numbers.values()
            if each < number and is_ours(reply.tool_calls[each])
        ]
        with self._changed:
            self._failed.discard(f"{reply.id}.{number}")  # a resume makes a failed call again
        return earlier, f"{reply.id}.{number}"

    def refuse_repeated_id(self, request: ToolCallRequest) -> ToolMessage | None:
        """Return an error as the answer if another call of the reply has the same id; otherwise None."""
        call_id = request.tool_call["id"]
        if call_id in _number_calls(_find_reply(request)):
            return None
        return ToolMessage(_REPEATED_ID, tool_call_id=call_id, name=request.tool_call["name"], status="error")

    @contextmanager
    def take_turn(self, state: str, earlier: list[str], name: str) -> Iterator[str]:
        """Wait for the earlier calls, and yield the sandbox's state after them. Raises EarlierCallError."""
        try:
            yield self.wait_for(state, earlier)
        except BaseException:
            with self._changed:
                self._failed.add(name)
                self._changed.notify_all()
            raise
        with self._changed:
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


def _find_reply(request: ToolCallRequest) -> AIMessage:
    return next(each for each in reversed(request.state["messages"]) if isinstance(each, AIMessage))


def _number_calls(reply: AIMessage) -> dict[str | None, int]:
    """Return the position of each call in the reply by its id, without repeated ids."""
    ids = Counter(call["id"] for call in reply.tool_calls)
    return {call["id"]: number for number, call in enumerate(reply.tool_calls) if ids[call["id"]] == 1}
