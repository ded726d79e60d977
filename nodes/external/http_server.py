"""A server that gives each connection a thread, and ends slow connections while others wait."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable

from langgraph_takeover.nodes.external.http_connection import HttpConnection
from langgraph_takeover.nodes.external.limits import BridgeLimits, ByteBudget

_POLL_S, _FULL_POLL_S = 0.25, 0.05
_CLOSE_S = 2.0


class HttpServer:
    """The connections of a listening socket, which it closes.

    While all slots are taken, further peers wait in the queue of the socket.

    Args:
        serve: answers the request of a connection, in a thread of its own.
    """

    def __init__(
        self, listener: socket.socket, limits: BridgeLimits, serve: Callable[[HttpConnection], None]
    ) -> None:
        self.closed = threading.Event()
        self._listener, self._limits, self._serve = listener, limits, serve
        self._budget = ByteBudget(limits.large_body_bytes)
        self._connections: dict[HttpConnection, threading.Thread] = {}
        self._changed = threading.Condition()
        listener.settimeout(_POLL_S)
        self._acceptor = threading.Thread(target=self._accept, name="bridge", daemon=True)

    def start(self) -> None:
        """Accept connections."""
        self._acceptor.start()

    def close(self) -> None:
        """End all connections and threads. Idempotent."""
        with self._changed:
            self.closed.set()
            connections = dict(self._connections)
        for connection in connections:
            connection.abort()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        ends_at = time.monotonic() + _CLOSE_S
        for thread in (self._acceptor, *connections.values()):
            if thread is not threading.current_thread():
                thread.join(max(ends_at - time.monotonic(), 0.0))
        self._listener.close()

    def _accept(self) -> None:
        while not self.closed.is_set():
            is_full = not self._has_slot()
            if self._budget.is_contended or (is_full and self._has_waiting_peer()):
                self._end_slowest()
            if is_full:
                with self._changed:
                    self._changed.wait_for(self._has_slot, _FULL_POLL_S)
                continue
            try:
                peer, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                if self._listener.fileno() < 0:
                    return
                self.closed.wait(_POLL_S)  # such as no free descriptor
                continue
            self._start(peer)

    def _has_slot(self) -> bool:
        return len(self._connections) < self._limits.connections

    def _has_waiting_peer(self) -> bool:
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        return bool(poller.poll(0))

    def _end_slowest(self) -> None:
        """End the connection whose peer is slowest, first of those without a complete head, if it has had its time."""
        with self._changed:
            active = [each for each in self._connections if not each.is_aborted]
        slowest = max(active, key=lambda each: (not each.has_head, each.peer_s), default=None)
        if slowest is not None and slowest.peer_s > self._limits.contended_s:
            slowest.abort()

    def _start(self, peer: socket.socket) -> None:
        connection = HttpConnection(peer, self._limits, self._budget)
        thread = threading.Thread(target=self._run, args=(connection,), name="bridge-request", daemon=True)
        with self._changed:
            if not self.closed.is_set():
                # Without a further thread, the peer sees a closed connection.
                with contextlib.suppress(RuntimeError):
                    thread.start()
                    self._connections[connection] = thread
                    return
        connection.close()

    def _run(self, connection: HttpConnection) -> None:
        try:
            self._serve(connection)
        finally:
            connection.close()
            with self._changed:
                self._connections.pop(connection, None)
                self._changed.notify_all()
