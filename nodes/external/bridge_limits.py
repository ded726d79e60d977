"""What a bridge accepts: the agent's own connections, within limits."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import psutil

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


_SIOCGSKNS = 0x894C
"""Opens the network namespace of a socket."""
_LOCAL, _REMOTE, _INODE = 1, 2, 9
"""Columns of the kernel's tables of connections."""


class AgentPeers:
    """The processes of an agent, as this host sees them.

    Args:
        agent: the first process of the agent, the leader of its session.
    """

    def __init__(self, agent: psutil.Process) -> None:
        self._agent = agent
        self._last = agent
        """The process of the last connection, probably that of the next one, too."""

    def owns(self, peer: socket.socket) -> bool:
        """Whether a process of the agent holds the other end of a connection, or hides its sockets from this user."""
        inode = _find_inode(self._agent.pid, peer)
        if inode is None:
            return False
        # A process may move its connection to another descriptor, or to a child, while this looks; so it looks twice.
        for process in chain(self._list_processes(), self._list_processes()):
            if process.is_running() and _holds(process.pid, inode):
                self._last = process
                return True
        return False

    def _list_processes(self) -> Iterator[psutil.Process]:
        yield self._last
        with contextlib.suppress(psutil.NoSuchProcess):
            yield self._agent
            yield from self._agent.children(recursive=True)
        for process in psutil.process_iter():
            # A process whose parent has ended still belongs to the agent's session.
            with contextlib.suppress(OSError):
                if os.getsid(process.pid) == self._agent.pid:
                    yield process


def find_agent_peers(listener: socket.socket, pid: int) -> AgentPeers | None:
    """Return the processes of the agent that has the id `pid` in the sandbox of a listening socket.

    None if this host does not show them, such as one that hides the processes of others.
    """
    network = _get_network(listener)
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            directory = Path(f"/proc/{process.pid}")
            is_inside = os.path.samestat((directory / "ns/net").stat(), network)
            if is_inside and _read_inner_id(directory) == pid:
                return AgentPeers(process)
    return None


def _get_network(listener: socket.socket) -> os.stat_result:
    """Identify the network namespace of a socket; without power over it, it is this process's own."""
    try:
        namespace = fcntl.ioctl(listener, _SIOCGSKNS)
    except PermissionError:
        return Path("/proc/self/ns/net").stat()
    try:
        return os.fstat(namespace)
    finally:
        os.close(namespace)


def _read_inner_id(directory: Path) -> int:
    """Return the id of a process in its own namespace."""
    for line in (directory / "status").read_text().splitlines():
        name, _, ids = line.partition(":")
        if name == "NSpid":
            return int(ids.split()[-1])
    return 0


def _find_inode(pid: int, peer: socket.socket) -> str | None:
    """Return the inode of a connection's other end, in the tables of a process's network."""
    try:
        (address, port), (_, own_port) = peer.getpeername(), peer.getsockname()
    except OSError:
        return None
    (number,) = struct.unpack("=I", socket.inet_aton(address))
    local, remote = f"{number:08X}:{port:04X}", f":{own_port:04X}"
    for table in ("tcp", "tcp6"):  # An IPv6 socket can connect to an IPv4 address.
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                columns = line.split()
                if columns[_LOCAL].endswith(local) and columns[_REMOTE].endswith(remote):
                    return columns[_INODE]
    return None


def _holds(pid: int, inode: str) -> bool:
    name = f"socket:[{inode}]"
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except PermissionError:
        return True
    except OSError:
        return False
    for each in descriptors:
        with contextlib.suppress(OSError):
            if str(each.readlink()) == name:
                return True
    return False
