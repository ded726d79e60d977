"""The network of a container."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import psutil

from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.isolation import loopback


def listen(container: str, pid: int, port: int) -> socket.socket:
    """Listen on the loopback of a container, whose first process is `pid`. Raises as `loopback.listen_inside` does."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if os.geteuid() == 0 and _belongs_to_container(pid, container):
            return loopback.listen_inside(process, port)
    raise SandboxUnavailableError(
        f"the network of container {container[:12]} cannot be entered: this needs a runtime that is root on the daemon's own "
        "host, and a container that runs (run as root on that host, or use --sandbox host)"
    )


def _belongs_to_container(pid: int, container: str) -> bool:
    """Whether a process of this host is a container's: the process ids of a remote daemon are of another host."""
    with contextlib.suppress(OSError):
        return container in Path(f"/proc/{pid}/cgroup").read_text()
    return False
