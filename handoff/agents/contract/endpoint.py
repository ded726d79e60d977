"""A scripted model endpoint on the loopback interface, in the wire format of an agent."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple

from langgraph_takeover.handoff.agents.adapter import AgentAdapter, Asker
from langgraph_takeover.handoff.agents.contract.wire import ScriptedReply, write_reply


class ReceivedRequest(NamedTuple):
    """A request of the agent."""

    asker: Asker
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class ScriptedEndpoint:
    """Answers the main conversation with `replies` in order, and side requests with a word.

    A main request after the last reply is held until the agent ends or `close`. `requests` lists everything received.
    `listener` is a listening socket, such as one in the network of a sandbox; by default a new one of this host.
    """

    def __init__(
        self, adapter: AgentAdapter, replies: Sequence[ScriptedReply], listener: socket.socket | None = None
    ) -> None:
        self.adapter, self.replies = adapter, list(replies)
        self.requests: list[ReceivedRequest] = []
        self._changed = threading.Condition()
        self._is_closed = False
        handler = type("Handler", (_EndpointHandler,), {"endpoint": self})
        self._server = _EndpointServer(("127.0.0.1", 0), handler, bind_and_activate=listener is None)
        if listener is not None:
            self._server.socket.close()
            self._server.socket = listener
        self.port: int = self._server.socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> ScriptedEndpoint:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    @property
    def main_requests(self) -> list[ReceivedRequest]:
        """The requests of the main conversation."""
        return [each for each in self.requests if each.asker == "main"]

    def wait_for_request(self, number: int, timeout_s: float) -> ReceivedRequest | None:
        """Return main request `number`, counted from 0; None if it does not arrive in time."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.main_requests) > number, timeout_s)
            return self.main_requests[number] if len(self.main_requests) > number else None

    def answer(self, received: ReceivedRequest) -> ScriptedReply | None:
        """Return the reply to a request; None if the endpoint closes first."""
        with self._changed:
            self.requests.append(received)
            self._changed.notify_all()
            if received.asker != "main":
                return ScriptedReply("Title")
            number = len(self.main_requests) - 1
            if number < len(self.replies):
                return self.replies[number]
            self._changed.wait_for(lambda: self._is_closed)
            return None


class _EndpointServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the broken connection of an agent that was killed."""


class _EndpointHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    endpoint: ScriptedEndpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        asker = self.endpoint.adapter.classify(body, headers)
        reply = self.endpoint.answer(ReceivedRequest(asker, self.path, headers, body))
        if reply is None:
            self.close_connection = True
            return
        if reply.status != 200:
            error = {"type": "error", "error": {"type": "api_error", "message": reply.text}}
            self._send(reply.status, "application/json", json.dumps(error).encode())
            return
        self._send(200, *write_reply(self.endpoint.adapter.api, body, reply))

    def do_GET(self) -> None:
        self._send(200, "application/json", json.dumps({"object": "list", "data": []}).encode())

    def do_HEAD(self) -> None:
        self._send(200, "application/json", b"")

    def _send(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Log nothing."""
