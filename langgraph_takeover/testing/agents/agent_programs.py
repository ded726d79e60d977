"""Run the real program of an agent in a directory of its own, against a scripted model endpoint."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from langgraph_takeover.handoff.agents.adapter import (
    MAX_OUTPUT_BYTES,
    AgentAdapter,
    AgentOutput,
    Asker,
    Launch,
)
from langgraph_takeover.handoff.agents.native_sessions import has_results
from langgraph_takeover.sandbox.untrusted_trees import list_matches
from langgraph_takeover.testing.agents.wire import ScriptedReply, write_reply


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


_IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.org")


class AgentKit:
    """An adapter, the command line of its program, and the directories in which it runs.

    `directory` is new or empty. The agent's home directory and its workspace are made in it.
    """

    def __init__(self, adapter: AgentAdapter, program: tuple[str, ...], directory: Path) -> None:
        self.adapter, self.program = adapter, program
        self.home, self.workspace = directory / "home", directory / "work space"
        if self.home.exists():
            raise FileExistsError(f"{directory} is not empty (use a new directory for each trial)")
        self.home.mkdir(parents=True)
        self.workspace.mkdir()
        for arguments in (("init", "-q"), (*_IDENTITY, "commit", "-q", "--allow-empty", "-m", "base")):
            subprocess.run(["git", *arguments], cwd=self.workspace, check=True)

    def launch(self, port: int, message: str, session_id: str | None = None) -> Launch:
        """Return the description of a start."""
        return Launch(
            program=self.program,
            home=str(self.home),
            workspace=str(self.workspace),
            port=port,
            model="scripted-model",
            message=message,
            session_id=session_id,
        )

    def write_files(self, files: Mapping[str, str]) -> None:
        """Write files below the home directory."""
        for name, text in files.items():
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def wait_for_session(
        self, session_id: str, call_ids: Sequence[str] = (), timeout_s: float = 10.0
    ) -> float:
        """Wait until the session's file holds the results of these calls, and return the seconds.

        A session in a database gets a second.
        """
        pattern = self.adapter.session_glob(session_id, str(self.workspace))
        started = time.monotonic()
        if not pattern:
            time.sleep(1)
            return 0.0
        while not any(
            has_results(path.read_text(errors="replace"), call_ids)
            for path in list_matches(self.home, pattern)
        ):
            if time.monotonic() > started + timeout_s:
                raise TimeoutError(f"no file {pattern} with results of {call_ids} after {timeout_s:.0f} s")
            time.sleep(0.005)
        return time.monotonic() - started

    def start(self, launch: Launch) -> AgentRun:
        """Write the files of `setup`, and start the agent."""
        setup, command = self.adapter.setup(launch), self.adapter.command(launch)
        self.write_files(setup.files)
        return AgentRun(self, command.argv, command.stdin, setup.environment)


class AgentRun:
    """A started agent. Leaving its context kills it with everything that it started."""

    def __init__(
        self, kit: AgentKit, argv: tuple[str, ...], stdin: str, environment: Mapping[str, str]
    ) -> None:
        self.kit = kit
        self._stdout, self._stderr = kit.home.parent / "stdout", kit.home.parent / "stderr"
        names = ("PATH", "LANG", "LD_LIBRARY_PATH")
        inherited = {name: os.environ[name] for name in names if name in os.environ}
        standard_input = kit.home.parent / "stdin"
        standard_input.write_text(stdin)
        self.started_at = time.monotonic()
        with standard_input.open() as source, self._stdout.open("w") as out, self._stderr.open("w") as err:
            self._process = subprocess.Popen(
                argv,
                stdin=source,
                stdout=out,
                stderr=err,
                cwd=kit.workspace,
                env={**inherited, "HOME": str(kit.home), "TMPDIR": str(kit.home.parent), **environment},
                start_new_session=True,
            )

    def __enter__(self) -> AgentRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the agent and its process group."""
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def wait(self, timeout_s: float) -> int:
        """Return the exit code. Raises TimeoutError with the end of the agent's output."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(
                f"the agent runs longer than {timeout_s:.0f} s: {self.stdout[-2000:]}\n{self.stderr[-2000:]}"
            ) from None

    @property
    def is_running(self) -> bool:
        """Whether the agent still runs."""
        return self._process.poll() is None

    @property
    def stdout(self) -> str:
        """Standard output so far."""
        return self._stdout.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """Standard error so far."""
        return self._stderr.read_text(errors="replace")

    def read_output(self) -> AgentOutput:
        """Return what the adapter reads from standard output, of which the runtime keeps the start and the end."""
        content, half = self._stdout.read_bytes(), MAX_OUTPUT_BYTES // 2
        stdout = (content[:half] + b"\n" + content[-half:]).decode(errors="replace")
        return self.kit.adapter.read_output(stdout, self._process.poll())
