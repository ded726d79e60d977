"""HTTP/1.1 for untrusted peers: one request on a connection, and a server with a thread for each connection."""

from __future__ import annotations

import contextlib
import mmap
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import NamedTuple

import h11

from langgraph_takeover.base.secret_names import is_secret_name
from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.nodes.external.apis import HttpReply, ModelRequest
from langgraph_takeover.nodes.external.bridge_limits import BridgeLimits, ByteBudget

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


_CHUNK_BYTES = 65_536
_MAX_PIECES = 20_000
"""Chunks, or received pieces, of a body: each costs about 15 µs, however short it is."""
_DRAIN_S = 1.0
"""Time to receive the rest of a refused request; otherwise the kernel may drop the reply."""


class HttpRefusalError(TakeoverError, ValueError):
    """A request is refused; `reason` is the name under which refusals are counted."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason
        self.headers: tuple[tuple[str, str], ...] = ()
        """Further headers of the answer."""


class PeerLostError(TakeoverError, ConnectionError):
    """The peer closed the connection, or did not send or receive in time."""


class RequestHead(NamedTuple):
    """Method, target and headers of a request; names in lower case, without keys and cookies."""

    method: str
    target: str
    headers: Mapping[str, str]

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class HttpConnection:
    """A connection that serves one request. So it has no idle state that a client could mistake for an open one."""

    def __init__(self, peer: socket.socket, limits: BridgeLimits, budget: ByteBudget) -> None:
        self._peer, self._limits, self._budget = peer, limits, budget
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        self._ends_at = time.monotonic() + min(limits.head_s, limits.request_s)
        self._reserved = 0
        self._peer_since: float | None = time.monotonic()
        """Since when the peer keeps us waiting; None while it waits for us."""
        self.is_main = False
        """Whether the request is of the main conversation, whose reply has its full time."""
        self.is_aborted = False
        self.has_head = False
        """Whether the head of the request is complete."""

    @property
    def peer_s(self) -> float:
        """Time in seconds that the peer has kept us waiting."""
        since = self._peer_since
        return 0.0 if since is None else time.monotonic() - since

    @contextlib.contextmanager
    def _wait_for_peer(self) -> Iterator[None]:
        self._peer_since = None if self.is_main else time.monotonic()
        try:
            yield
        finally:
            self._peer_since = None

    @property
    def peer(self) -> socket.socket:
        """The socket of the connection."""
        return self._peer

    def read_head(self) -> RequestHead:
        """Receive the head of the request. Raises HttpRefusalError or PeerLostError."""
        started = time.monotonic()
        with self._wait_for_peer():
            event = self._next_event()
        self.has_head, self._ends_at = True, started + self._limits.request_s
        if not isinstance(event, h11.Request):
            raise PeerLostError("the connection ended before a request")
        if len(event.headers) > self._limits.header_count:
            raise HttpRefusalError(431, "headers", f"more than {self._limits.header_count} headers")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        shown = {
            name: value for name, value in headers.items() if name != "cookie" and not is_secret_name(name)
        }
        return RequestHead(event.method.decode("latin-1"), event.target.decode("latin-1"), shown)

    def read_body(self, head: RequestHead, limit: int) -> memoryview:
        """Receive a body of at most `limit` bytes. Raises HttpRefusalError or PeerLostError.

        Its memory is mapped, and returns to the system with the last reference to it.
        """
        too_large = HttpRefusalError(413, "body size", f"the body is larger than {limit:,} bytes")
        if head.headers.get("content-encoding", "identity").lower() != "identity":
            raise HttpRefusalError(
                415, "compression", "compressed bodies are not accepted (switch off request compression)"
            )
        # h11 has checked that the length is a number of at most 20 digits.
        length = (
            limit if "transfer-encoding" in head.headers else int(head.headers.get("content-length", "0"))
        )
        if length > limit:
            raise too_large
        body, pieces = mmap.mmap(-1, max(length, 1)), 0
        with self._wait_for_peer():
            while not isinstance(event := self._next_event(), h11.EndOfMessage):
                if not isinstance(event, h11.Data):
                    raise PeerLostError("the connection ended within a request")
                pieces += 1
                received = body.tell() + len(event.data)
                if received > limit or pieces > _MAX_PIECES:
                    raise too_large
                if received > self._limits.small_body_bytes and not self._reserved:
                    self._reserve(length)
                body.write(event.data)
        return memoryview(body)[: body.tell()]

    def _reserve(self, count: int) -> None:
        """Wait for memory. The wait does not count towards the time limit of the peer."""
        started, self._peer_since = time.monotonic(), None
        if not self._budget.reserve(count, self.is_peer_waiting):
            raise PeerLostError("the peer left while it waited for memory")
        self._reserved = count
        self._peer_since = time.monotonic()
        self._ends_at += self._peer_since - started

    def _next_event(self) -> object:
        try:
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                if self._protocol.they_are_waiting_for_100_continue:
                    self._send(self._protocol.send(h11.InformationalResponse(status_code=100, headers=[])))
                self._protocol.receive_data(self._receive())
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            raise HttpRefusalError(status, "HTTP syntax", "the request is not valid HTTP/1.1") from None
        return event

    def _receive(self) -> bytes:
        remaining_s = self._ends_at - time.monotonic()
        try:
            if remaining_s <= 0:
                raise TimeoutError
            self._peer.settimeout(remaining_s)
            data = self._peer.recv(_CHUNK_BYTES)
        except TimeoutError:
            limits = self._limits
            within = (
                f"{limits.request_s:g} s" if self.has_head else f"{min(limits.head_s, limits.request_s):g} s"
            )
            raise HttpRefusalError(408, "slow request", f"no complete request within {within}") from None
        except OSError as error:
            raise PeerLostError("the connection broke") from error
        if self.is_aborted:
            raise PeerLostError("the connection was ended")
        return data

    def send_reply(self, reply: HttpReply, *, has_body: bool = True) -> None:
        """Send the reply and end the connection. Raises PeerLostError."""
        headers = [
            ("Content-Type", reply.content_type),
            ("Content-Length", str(len(reply.body))),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
            *reply.headers,
        ]
        # Written by hand: h11 writes no reply after an error of the peer.
        head = f"HTTP/1.1 {reply.status} {_get_phrase(reply.status)}\r\n"
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        with self._wait_for_peer():
            self._send(f"{head}{lines}\r\n".encode("latin-1") + (reply.body if has_body else b""))
            with contextlib.suppress(OSError):
                self._peer.shutdown(socket.SHUT_WR)
                self._drain()

    def _send(self, data: bytes | None) -> None:
        ends_at = time.monotonic() + self._limits.reply_s
        rest = memoryview(data or b"")
        try:
            while rest:
                self._peer.settimeout(max(ends_at - time.monotonic(), 0.001))
                rest = rest[self._peer.send(rest) :]
        except OSError as error:
            raise PeerLostError("the connection broke, or the peer did not receive in time") from error

    def _drain(self) -> None:
        ends_at = time.monotonic() + _DRAIN_S
        while (remaining_s := ends_at - time.monotonic()) > 0:
            self._peer.settimeout(remaining_s)
            if not self._peer.recv(_CHUNK_BYTES):
                return

    def is_peer_waiting(self) -> bool:
        """Whether the peer still waits for the reply. A peer that closed its writing side does not."""
        try:
            poller = select.poll()
            poller.register(self._peer, select.POLLRDHUP)
            return not poller.poll(0)
        except (OSError, ValueError):
            return False

    def abort(self) -> None:
        """End the connection, also while another thread uses it."""
        self.is_aborted = True
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)

    def release_body(self) -> None:
        """Return the memory of the body to the budget."""
        self._budget.release(self._reserved)
        self._reserved = 0

    def close(self) -> None:
        """Close the connection, and return the memory of its body."""
        self._peer.close()
        self.release_body()


def _get_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


_ACCEPT_POLL_S, _FULL_POLL_S = 0.25, 0.05
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
        listener.settimeout(_ACCEPT_POLL_S)
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
                self.closed.wait(_ACCEPT_POLL_S)  # such as no free descriptor
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
