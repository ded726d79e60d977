"""A request of the main conversation whose sender waits for the reply."""

from __future__ import annotations

import threading
from collections.abc import Callable

from langgraph_takeover.nodes.external.apis import HttpReply, ModelRequest

_POLL_S = 0.25


class HeldRequest:
    """A request of the main conversation, whose sender waits for the reply."""

    def __init__(self, request: ModelRequest, is_waiting: Callable[[], bool]) -> None:
        self.request = request
        """With its bytes in `request.wire`."""
        self._is_waiting = is_waiting
        self._answer: HttpReply | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @property
    def is_open(self) -> bool:
        """Whether the request has no reply yet and its sender still waits for one."""
        return not self._ended.is_set() and self._is_waiting()

    def reply(self, answer: HttpReply) -> bool:
        """Send the reply, without waiting for its delivery; False if the sender no longer waits."""
        with self._lock:
            if not self.is_open:
                return False
            self._answer = answer
            self._ended.set()
            return True

    def drop(self) -> None:
        """Drop the request; its sender sees a closed connection."""
        with self._lock:
            self._ended.set()

    def wait_for_answer(self) -> HttpReply | None:
        """Wait, for hours if need be; None if the sender left or the request was dropped."""
        while not self._ended.wait(_POLL_S):
            if not self._is_waiting():
                self.drop()
        return self._answer
