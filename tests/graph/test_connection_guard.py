"""Peers without the token take no place from its holder: on real connections, for both of uvicorn's protocols."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from langgraph_takeover.graph.mcp.transports import BearerCheck, ConnectionGuard

TOKEN = {"Authorization": "Bearer right"}
HEAD = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
Serve = Callable[..., str]


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, then wait as many seconds as the path says."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await asyncio.sleep(float(scope["path"].strip("/") or 0))
    await send({"type": "http.response.body", "body": b"done"})


@pytest.fixture(params=[H11Protocol, HttpToolsProtocol])
def serve(request: pytest.FixtureRequest) -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:

        def start(**limits: Any) -> str:
            guard, protocol = ConnectionGuard(**limits), type("Guarded", (request.param,), {})
            guard.watch(protocol)
            config = uvicorn.Config(
                BearerCheck(answer, "right", guard), http=protocol, lifespan="off", log_level="error"
            )
            server = uvicorn.Server(config)
            listener = socket.create_server(("127.0.0.1", 0), backlog=512)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()

            def stop() -> None:
                server.should_exit = True
                thread.join()
                listener.close()

            stack.callback(stop)
            return f"http://127.0.0.1:{listener.getsockname()[1]}"

        yield start


def open_peers(url: str, number: int, sent: bytes = HEAD) -> list[socket.socket]:
    peers = [socket.create_connection(("127.0.0.1", httpx2.URL(url).port), timeout=20) for _ in range(number)]
    for peer in peers:
        peer.sendall(sent)
    return peers


def is_closed(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        while data := peer.recv(65_536):
            assert data
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        peer.setblocking(True)


def wait_until_closed(peers: list[socket.socket], trickle: bytes = b"") -> None:
    ends_at = time.monotonic() + 20
    while not all(map(is_closed, peers)):
        assert time.monotonic() < ends_at, "a connection without the token stays open"
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.sendall(trickle)
        time.sleep(0.05)


def test_unfinished_heads_take_no_place(serve: Serve) -> None:
    url = serve(max_waiting=20, head_s=60)
    first, later = open_peers(url, 15), open_peers(url, 25)
    for _ in range(3):
        assert httpx2.post(url, headers=TOKEN).text == "done"
    wait_until_closed(first)
    assert sum(map(is_closed, later)) < 15  # the oldest ones ended
    for peer in (*first, *later):
        peer.close()


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("sent", "trickle"),
    [
        (b"", b""),
        (HEAD, b""),
        (HEAD, b"X: 1\r\n"),
        (HEAD + b"Content-Length: 1000000\r\n\r\n", b"x"),
        (HEAD + b"Authorization: Bearer wrong\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
)
def test_a_connection_without_the_token_ends(serve: Serve, sent: bytes, trickle: bytes) -> None:
    """One byte now and then does not extend its time."""
    url = serve(head_s=0.4)
    wait_until_closed(open_peers(url, 3, sent), trickle)


@pytest.mark.slow
def test_the_holder_of_the_token_has_its_time(serve: Serve) -> None:
    url = serve(head_s=0.2, max_admitted=2)
    (slow,) = open_peers(url, 1, HEAD + b"Authorization: Bearer right\r\nContent-Length: 4\r\n\r\n")
    time.sleep(0.6)
    slow.sendall(b"body")
    assert slow.recv(1000).startswith(b"HTTP/1.1 200 ")
    slow.close()
    long = open_peers(url, 2, b"GET /5 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer right\r\n\r\n")
    for peer in long:
        assert peer.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert httpx2.get(url, headers=TOKEN).status_code == 503
    assert httpx2.get(url).status_code == 401
    assert not any(map(is_closed, long))
    for peer in long:
        peer.close()
    ends_at = time.monotonic() + 20
    while httpx2.get(url, headers=TOKEN).status_code != 200:
        assert time.monotonic() < ends_at
        time.sleep(0.05)
