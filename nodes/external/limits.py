"""Limits of a bridge: every process in the sandbox can send it requests."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

MIB = 1024**2
_POLL_S = 0.1


class BridgeLimits(NamedTuple):
    """What the processes of a sandbox may ask of a bridge. Beyond a rate, requests wait: a flood must not end the agent."""

    body_bytes: int = 32 * MIB
    """Size of one request's body; after the first main request, less: see `side_body_bytes`."""
    side_body_bytes: int = 8 * MIB
    """Size of the body of a subagent's request or a side task: each of them is paid for. No body may be larger than that
    and twice the last main request."""
    small_body_bytes: int = 1 * MIB
    """Bodies do not wait for memory up to this size."""
    large_body_bytes: int = 32 * MIB
    """Size of all larger bodies in memory at the same time; further ones wait."""
    body_bytes_per_s: int = 16 * MIB
    """Rate of body bytes, after a burst of one body: each byte is parsed. Further ones wait."""
    side_wait_s: float = 1.0
    """Longest wait for that rate, except for requests that may be of the main conversation."""
    header_bytes: int = 32 * 1024
    header_count: int = 100
    connections: int = 16
    """Connections at the same time; further ones wait in the queue of the socket."""
    head_s: float = 10.0
    """Time to send the head of a request."""
    request_s: float = 60.0
    """Time to send a complete request."""
    reply_s: float = 120.0
    """Time to receive a complete reply."""
    contended_s: float = 1.0
    """Either time while others wait for a connection or for memory; the reply to the main conversation has its own."""
    requests_per_s: float = 50.0
    """Rate of requests; further ones wait."""
    side_requests: int = 50
    """Requests of subagents and for titles, of a run."""
    parallel_side_requests: int = 2
    waiting_side_requests: int = 6


class TokenBucket:
    """A rate limit: `burst` units at once, and `per_s` more each second."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._units, self._filled_at = burst, time.monotonic()
        self._lock = threading.Lock()

    def take(self, units: float = 1.0, *, max_wait_s: float = math.inf) -> float | None:
        """Take units, and return the seconds until they are available: callers are served in order.

        None, and nothing is taken, if that is longer than `max_wait_s`.
        """
        with self._lock:
            now = time.monotonic()
            filled = self._units + (now - self._filled_at) * self._per_s
            self._units, self._filled_at = min(self._burst, filled), now
            wait_s = max((units - self._units) / self._per_s, 0.0)
            if wait_s > max_wait_s:
                return None
            self._units -= units
            return wait_s


class ByteBudget:
    """Bytes that several connections may hold together; those that need more wait in order."""

    def __init__(self, total: int) -> None:
        self._total = self._free = total
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def is_contended(self) -> bool:
        """Whether a connection waits."""
        return bool(self._queue)

    def reserve(self, count: int, is_needed: Callable[[], bool]) -> bool:
        """Wait until the bytes are free, and reserve them; False as soon as they are not needed any more."""
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                while self._queue[0] is not ticket or min(count, self._total) > self._free:
                    self._changed.wait(_POLL_S)
                    if not is_needed():
                        return False
                self._free -= count
                return True
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()

    def release(self, count: int) -> None:
        """Return reserved bytes."""
        with self._changed:
            self._free += count
            self._changed.notify_all()
