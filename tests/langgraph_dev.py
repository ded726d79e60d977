"""LangGraph's development server as a process on a free port of loopback."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psutil
from langgraph_sdk import get_sync_client

ROOT = Path(__file__).parents[1]
STARTS_WITHIN_S = 120
ENDS_WITHIN_S = 60


class DevServer:
    """`langgraph dev` in a directory, and its client."""

    def __init__(
        self,
        directory: Path,
        config: Path,
        *,
        python: str | Path = sys.executable,
        headers: dict[str, str] | None = None,
        jobs: int = 0,
        **variables: str,
    ) -> None:
        self.directory, self.config, self.variables = directory, config, variables
        self.listed = directory / ".langgraph_api" / ".langgraph_ops.pckl"
        self._python, self._headers, self.jobs = python, headers, jobs
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.client: Any = None
        self.start()

    def start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        env = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
        env |= {
            "PYTHONPATH": str(ROOT),
            "LANGGRAPH_NO_VERSION_CHECK": "true",
            "LANGGRAPH_CLI_NO_ANALYTICS": "1",
            "LANGSMITH_TRACING": "false",
            **self.variables,
        }
        command = ["-m", "langgraph_cli", "dev", "--config", str(self.config), "--no-browser", "--no-reload"]
        command += ["--n-jobs-per-worker", str(self.jobs)] if self.jobs else []
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._python, *command, "--host", "127.0.0.1", "--port", str(port)],
                cwd=self.directory,
                env=env,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.url = f"http://127.0.0.1:{port}"
        self.client = get_sync_client(url=self.url, headers=self._headers)
        self.wait(lambda: self._is_up(port), STARTS_WITHIN_S)

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        return (self.directory / "server.log").read_text(errors="replace")[-5000:]

    def thread(self) -> str:
        return str(self.client.threads.create()["thread_id"])

    def values(self, thread: str, **options: Any) -> dict[str, Any]:
        """The values of a thread's newest checkpoint, or of the one that the options name."""
        values = self.client.threads.get_state(thread, **options)["values"]
        assert isinstance(values, dict)
        return values

    def wait_until_idle(self, thread: str) -> None:
        """Wait for the release: the server confirms a cancellation before it releases the run."""
        self.wait(lambda: self.client.threads.get(thread)["status"] != "busy")

    def wait_until_ended(self, thread: str, run: str) -> None:
        unfinished = ("pending", "running")
        self.wait(lambda: self.client.runs.get(thread, run)["status"] not in unfinished, 2 * ENDS_WITHIN_S)

    def wait_until_it_runs(self, command: list[str]) -> None:
        """Wait until an agent of this server runs that command in its sandbox."""
        self.wait(lambda: command in self.list_commands())

    def list_commands(self) -> list[list[str]]:
        """The command lines of the server's child processes."""
        assert self._process is not None
        commands = []
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.Error):  # the process has ended
                commands.append(process.cmdline())
        return commands

    def wait_until_listed(self, run: str) -> None:
        """Wait until the server has saved its list of threads and runs, every ten seconds."""
        run_id_bytes = UUID(run).int.to_bytes(16, "little")
        self.wait(lambda: self.listed.exists() and run_id_bytes in self.listed.read_bytes())

    def wait(self, is_reached: Callable[[], bool], seconds: float = ENDS_WITHIN_S) -> None:
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while not is_reached():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)

    def _is_up(self, port: int) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/ok", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


def stream_reply(text: str = "", tool_calls: tuple[dict[str, Any], ...] = ()) -> bytes:
    """The reply of an OpenAI-compatible endpoint as a server streams it, word by word."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in re.findall(r"\S+\s*|\s+", text)]
    deltas += [{"tool_calls": [{"index": n, **call}]} for n, call in enumerate(tool_calls)]
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices += [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if tool_calls else "stop"}]
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    lines = [json.dumps({**head, "choices": [choice]}) for choice in choices]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()
