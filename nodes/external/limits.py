"""Limits of a bridge: every process in the sandbox can send it requests."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

MIB = 1024**2
_PAUSE_S = 0.05


class BridgeLimits(NamedTuple):
    """What the processes of a sandbox may ask of a bridge."""

    body_bytes: int = 32 * MIB
    """Size of one request's body."""
    side_body_bytes: int = 8 * MIB
    """Size of the body of a subagent's request or a side task: each of them is paid for."""
    shared_body_bytes: int = 64 * MIB
    """Size of all bodies in memory at the same time."""
    body_bytes_per_s: int = 16 * MIB
    """Rate of body bytes, after a burst of `shared_body_bytes`: each byte is parsed."""
    header_bytes: int = 32 * 1024
    header_count: int = 100
    connections: int = 16
    """Connections at the same time; further ones are closed at once."""
    request_s: float = 60.0
    """Time to send a complete request."""
    reply_s: float = 120.0
    """Time to receive a complete reply."""
    requests: int = 10_000
    """Requests of a run."""
    requests_per_s: float = 50.0
    wait_s: float = 5.0
    """Time that a request waits for its turn under that rate: a burst of others must not end the agent."""
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

    def take(self, units: float = 1.0) -> bool:
        """Take units; False if there are too few."""
        with self._lock:
            now = time.monotonic()
            self._units = min(self._burst, self._units + (now - self._filled_at) * self._per_s)
            self._filled_at = now
            if self._units < units:
                return False
            self._units -= units
            return True

    def take_within(self, seconds: float) -> bool:
        """Wait for one unit; False if none is free in that time."""
        ends_at = time.monotonic() + seconds
        while not self.take():
            if time.monotonic() >= ends_at:
                return False
            time.sleep(_PAUSE_S)
        return True


class ByteBudget:
    """Bytes that several connections may hold together."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._lock = threading.Lock()

    def reserve(self, count: int) -> bool:
        """Reserve bytes; False if too few are free."""
        with self._lock:
            if count > self._free:
                return False
            self._free -= count
            return True

    def release(self, count: int) -> None:
        """Return reserved bytes."""
        with self._lock:
            self._free += count
