"""A scripted OpenAI-compatible endpoint on loopback."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ChatServer:
    """An OpenAI-compatible endpoint on loopback; `answer` computes each response."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        """The API key of each request."""
        self.headers: list[dict[str, str]] = []
        """The headers of each request, with lower-case names."""
        self.serves: list[str] | None = None
        """The models that it lists; None if it has no list."""
        self.answer: Callable[[dict[str, Any]], tuple[int, bytes]] = lambda request: self.reply("ok")
        self.refusal_headers: dict[str, str] = {}
        """Headers of the answers with an error."""
        self.times: list[float] = []
        """When each request came, by the monotonic clock."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = json.loads(body)
                outer.requests.append(request)
                outer.times.append(time.monotonic())
                outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                outer.keys.append(self.headers.get("Authorization", "").removeprefix("Bearer "))
                status, content = outer.answer(request)
                with contextlib.suppress(ConnectionError):  # the client was killed
                    self.send(status, content)

            def send(self, status: int, content: bytes) -> None:
                self.send_response_only(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                for name, value in outer.refusal_headers.items() if status >= 400 else ():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def do_GET(self) -> None:
                outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                listed = [{"id": name, "object": "model"} for name in outer.serves or ()]
                content = json.dumps({"object": "list", "data": listed}).encode()
                self.send_response(404 if outer.serves is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @staticmethod
    def reply(
        text: str,
        finish_reason: str | None = "stop",
        prompt_tokens: int | None = 100,
        *,
        cached_tokens: int | None = None,
        thought: str = "",
        tool_calls: Sequence[dict[str, Any]] = (),
    ) -> tuple[int, bytes]:
        """A reply; without `prompt_tokens` it has no usage."""
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thought:
            message["reasoning_content"] = thought
        if tool_calls:
            message["tool_calls"] = tool_calls
        choice = {"index": 0, "message": message, "finish_reason": finish_reason}
        usage: dict[str, Any] | None = None
        if prompt_tokens is not None:
            usage = {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": 10,
                "total_tokens": prompt_tokens + 10,
            }
            if cached_tokens is not None:
                usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
        body = {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
        return 200, json.dumps(body).encode()

    @classmethod
    def cut_reply(cls, text: str) -> tuple[int, bytes]:
        """A reply whose body ends too early."""
        status, body = cls.reply(text)
        return status, body[:-20]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
