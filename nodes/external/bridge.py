"""The bridge: an HTTP server that receives the model requests of an external agent.

A request of the main conversation is held until the runtime has an answer. Requests of subagents and for titles are answered
at once. Every process in the sandbox can send requests, so that all of them are bounded.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from langchain_core.messages import AIMessage

from langgraph_takeover.nodes.external.apis import (
    MODEL_PATHS,
    Api,
    HttpReply,
    ModelRequest,
    RequestError,
    WireRequest,
    estimate_request_tokens,
    parse_request,
    write_error,
)
from langgraph_takeover.nodes.external.held_request import HeldRequest
from langgraph_takeover.nodes.external.http_connection import (
    HttpConnection,
    HttpRefusalError,
    PeerLostError,
    RequestHead,
)
from langgraph_takeover.nodes.external.limits import BridgeLimits, ByteBudget, TokenBucket
from langgraph_takeover.nodes.external.side_requests import SideAnswer, SideRequests
from langgraph_takeover.sandbox.interface import TakeoverError

RequestKind = Literal["main", "child", "aside"]
"""Of the main conversation, of a subagent, or beside both, such as for a title."""
_COUNT_PATH = "/v1/messages/count_tokens"
_JSON_TYPE = "application/json"
_POLL_S = 0.25
_REFUSAL_PAUSE_S = 0.1
"""A refused connection keeps its slot that long, so that a flood cannot keep a core busy."""
_OVERLOAD_PAUSE_S = 0.005
_CLOSE_S = 2.0


class Bridge:
    """The server on a listening socket, which it closes.

    Args:
        classify: whose request it is, from the request and its headers.
        is_expected: whether a main request continues the conversation as the runtime knows it.
        answer_side: the reply to a child or aside request; called in threads of the bridge.
        has_budget: whether the budget allows another one, after the answers that `take_side_usage` has not returned yet.
        model_name: the one model that the bridge lists.
        accept_images: replace images by a marker, because requests are passed on unchanged.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        api: Api,
        classify: Callable[[ModelRequest, Mapping[str, str]], RequestKind],
        is_expected: Callable[[ModelRequest], bool],
        answer_side: Callable[[ModelRequest], AIMessage],
        has_budget: Callable[[Sequence[SideAnswer]], bool] = lambda answers: True,
        model_name: str = "model",
        accept_images: bool = False,
        limits: BridgeLimits | None = None,
    ) -> None:
        self.refused: Counter[str] = Counter()
        """Refused requests by reason."""
        self._listener, self._api, self._limits = listener, api, limits or BridgeLimits()
        self._classify, self._is_expected = classify, is_expected
        self._side = SideRequests(answer_side, self._limits, has_budget)
        self._model_name, self._accept_images = model_name, accept_images
        self._changed = threading.Condition()
        self._held: HeldRequest | None = None
        self._requests = 0
        self._bug: Exception | None = None
        self._connections: dict[HttpConnection, threading.Thread] = {}
        self._is_closed = False
        self._parsing = threading.Lock()
        self._budget = ByteBudget(self._limits.shared_body_bytes)
        self._rate = TokenBucket(self._limits.requests_per_s, self._limits.requests_per_s)
        self._byte_rate = TokenBucket(self._limits.body_bytes_per_s, self._limits.shared_body_bytes)
        listener.settimeout(_POLL_S)
        self._acceptor = threading.Thread(target=self._accept, name="bridge", daemon=True)
        self._acceptor.start()

    def __enter__(self) -> Bridge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, timeout_s: float) -> HeldRequest | None:
        """Return the held request, as soon as there is one; None after `timeout_s` or when the bridge is closed.

        Raises what a function of the caller, such as `classify`, raised in a thread of the bridge.
        """
        ends_at = time.monotonic() + timeout_s
        with self._changed:
            while not self._is_closed:
                if self._bug is not None:
                    raise self._bug
                if self._held is not None and self._held.is_open:
                    return self._held
                remaining_s = ends_at - time.monotonic()
                if remaining_s <= 0:
                    return None
                self._changed.wait(min(remaining_s, _POLL_S))
        return None

    @property
    def open_side_requests(self) -> int:
        """Number of child and aside requests that are being answered."""
        return self._side.open_count

    def take_side_usage(self) -> list[SideAnswer]:
        """Return the child and aside requests that were answered since the last call."""
        return self._side.take_answers()

    def close(self) -> None:
        """End all connections and threads; a side request in the middle of its model call ends with that call."""
        with self._changed:
            self._is_closed = True
            connections, held = dict(self._connections), self._held
            self._changed.notify_all()
        if held is not None:
            held.drop()
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
        while not self._is_closed:
            try:
                peer, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                if self._listener.fileno() < 0 or self._is_closed:
                    return
                time.sleep(_POLL_S)  # such as no free descriptor
                continue
            self._start(peer)

    def _start(self, peer: socket.socket) -> None:
        """Serve a connection in a thread of its own, or close it."""
        connection = HttpConnection(peer, self._limits, self._budget)
        thread = threading.Thread(target=self._serve, args=(connection,), name="bridge-request", daemon=True)
        with self._changed:
            is_refused = self._is_closed or len(self._connections) >= self._limits.connections
            if not is_refused:
                self._connections[connection] = thread
        if is_refused:
            connection.close()
            self._count_refusal("connections")
            time.sleep(_OVERLOAD_PAUSE_S)
            return
        try:
            thread.start()
        except RuntimeError:  # no further thread
            self._count_refusal("threads")
            self._end(connection)

    def _serve(self, connection: HttpConnection) -> None:
        is_refused = False
        head = None
        try:
            try:
                head = connection.read_head()
                answer = self._answer(head, connection)
            except HttpRefusalError as refusal:
                is_refused = self._count_refusal(refusal.reason)
                answer = write_error(self._api, refusal.status, str(refusal))
            except TakeoverError:
                raise
            except Exception as error:
                is_refused = self._count_refusal("internal errors")
                self._report_bug(error)
                answer = write_error(self._api, 500, "internal error")
            connection.release_body()
            if answer is not None:
                connection.send_reply(answer, has_body=head is None or head.method != "HEAD")
        except PeerLostError:
            is_refused = self._count_refusal("lost connections")
        finally:
            if is_refused:
                time.sleep(_REFUSAL_PAUSE_S)
            self._end(connection)

    def _count_refusal(self, reason: str) -> bool:
        with self._changed:
            self.refused[reason] += 1
        return True

    def _report_bug(self, error: Exception) -> None:
        with self._changed:
            self._bug = self._bug or error
            self._changed.notify_all()

    def _end(self, connection: HttpConnection) -> None:
        connection.close()
        with self._changed:
            self._connections.pop(connection, None)

    def _answer(self, head: RequestHead, connection: HttpConnection) -> HttpReply | None:
        """Return the reply to a request, None if there is none to send. Raises HttpRefusalError."""
        if not self._rate.take_within(self._limits.wait_s):
            raise HttpRefusalError(429, "request rate", "too many requests per second")
        if head.path in ("/", "/v1/models"):
            if head.method not in ("GET", "HEAD"):
                raise HttpRefusalError(405, "method", "this path has GET and HEAD only")
            return self._list_models() if head.path == "/v1/models" else HttpReply("text/plain", b"ok\n")
        is_count = self._api == "messages" and head.path == _COUNT_PATH
        if head.path != MODEL_PATHS[self._api] and not is_count:
            raise HttpRefusalError(404, "path", f"unknown path (requests go to {MODEL_PATHS[self._api]})")
        if head.method != "POST":
            raise HttpRefusalError(405, "method", "this path has POST only")
        with self._changed:
            self._requests += 1
            if self._requests > self._limits.requests:
                raise HttpRefusalError(429, "requests", f"more than {self._limits.requests:,} requests")
        body = connection.read_body(head)
        request = replace(self._parse(body), wire=WireRequest(head.target, head.headers, body))
        if is_count:
            count = {"input_tokens": estimate_request_tokens(request)}
            return HttpReply(_JSON_TYPE, json.dumps(count).encode())
        kind = self._classify(request, head.headers)
        if kind == "main":
            return self._hold(HeldRequest(request, connection.is_peer_waiting))
        if len(body) > self._limits.side_body_bytes:
            limit = self._limits.side_body_bytes
            raise HttpRefusalError(
                413, "body size", f"the body of a side request is larger than {limit:,} bytes"
            )
        return self._side.answer(kind, request, connection.is_peer_waiting)

    def _list_models(self) -> HttpReply:
        model = {"id": self._model_name, "object": "model", "type": "model", "display_name": self._model_name}
        listing = {"object": "list", "data": [model], "has_more": False}
        return HttpReply(_JSON_TYPE, json.dumps(listing).encode())

    def _parse(self, body: bytes) -> ModelRequest:
        if not self._byte_rate.take(len(body)):
            raise HttpRefusalError(429, "body rate", "too many bytes per second")
        try:
            # One at a time: parsing needs several times the memory of the body.
            with self._parsing:
                return parse_request(self._api, body, accept_images=self._accept_images)
        except RequestError as error:
            raise HttpRefusalError(error.status, "unreadable request", str(error)) from None

    def _hold(self, held: HeldRequest) -> HttpReply | None:
        if not self._is_expected(held.request):
            raise HttpRefusalError(
                409, "unexpected request", "the request does not continue the conversation"
            )
        with self._changed:
            if self._is_closed:
                return None
            if self._held is not None and self._held.is_open:
                raise HttpRefusalError(409, "second request", "another request is being answered")
            self._held = held
            self._changed.notify_all()
        try:
            return held.wait_for_answer()
        finally:
            with self._changed:
                self._held = None if self._held is held else self._held
