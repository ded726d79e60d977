"""The channel to one bash in a container: a single exec for all commands."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

from langgraph_takeover.sandbox.docker import client
from langgraph_takeover.sandbox.docker.client import translate_errors
from langgraph_takeover.sandbox.interface import SandboxUnavailableError

_FRAME_HEADER = struct.Struct(">BxxxL")
_STDOUT = 1
_CHUNK = 64 * 1024
_END_S = 1.0


class ExecChannel:
    """Implements `Channel`. Distinguishes a shell that ended from a container or daemon that did."""

    limits_command = ":"  # the container has limits of its own

    def __init__(self, container_id: str) -> None:
        self._api = api = client.client(client.QUICK_TIMEOUT_S).api
        self._container = container_id
        self._exec = api.exec_create(
            container_id, ["bash", "--norc", "--noprofile"], stdin=True, stdout=True, stderr=False, tty=False
        )["Id"]
        stream = api.exec_start(self._exec, socket=True)
        self._stream = stream
        self._socket: socket.socket = getattr(stream, "_sock", stream)
        self._frame_left = 0
        self._buffer = b""

    def send(self, data: bytes) -> None:
        self._socket.settimeout(client.QUICK_TIMEOUT_S)
        try:
            self._socket.sendall(data)
        except OSError:
            self._require_container()
            raise

    def receive(self, timeout_s: float) -> bytes | None:
        self._socket.settimeout(timeout_s)
        try:
            data = self._socket.recv(_CHUNK)
        except (TimeoutError, BlockingIOError):
            return None
        except OSError:
            data = b""
        if not data:
            self._require_container()
            return b""
        return self._unframe(data) or None

    def is_alive(self) -> bool:
        with translate_errors(f"container {self._container[:12]}"):
            return bool(self._api.exec_inspect(self._exec)["Running"])

    def start_error(self) -> str:
        return ""

    def end(self) -> int | None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._stream.close()
        deadline = time.monotonic() + _END_S
        with contextlib.suppress(SandboxUnavailableError):
            while self.is_alive() and time.monotonic() < deadline:
                time.sleep(0.005)
            with translate_errors("the shell's exit code"):
                code: int | None = self._api.exec_inspect(self._exec)["ExitCode"]
                return code
        return None

    def _require_container(self) -> None:
        with translate_errors(f"container {self._container[:12]} is lost"):
            state = self._api.inspect_container(self._container)["State"]
        if not state["Running"]:
            raise SandboxUnavailableError(f"container {self._container[:12]} was stopped while a command ran")

    def _unframe(self, data: bytes) -> bytes:
        """The payload of Docker's multiplexed stream: frames with a header of eight bytes."""
        self._buffer += data
        payload = bytearray()
        while self._buffer:
            if not self._frame_left:
                if len(self._buffer) < _FRAME_HEADER.size:
                    break
                self._kind, self._frame_left = _FRAME_HEADER.unpack_from(self._buffer)
                self._buffer = self._buffer[_FRAME_HEADER.size :]
            part = self._buffer[: self._frame_left]
            self._buffer = self._buffer[len(part) :]
            self._frame_left -= len(part)
            if self._kind == _STDOUT:
                payload += part
        return bytes(payload)
