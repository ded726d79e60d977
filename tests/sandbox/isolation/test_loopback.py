"""Listening in network namespaces of processes that are no sandbox's, and where it is refused."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from langgraph_takeover.sandbox import docker_client
from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.isolation import namespaces
from langgraph_takeover.testing.sandboxes import find_free_port

from ...conftest import skip_missing


@contextlib.contextmanager
def start_in_namespace(script: str) -> Iterator[psutil.Process]:
    """A process with a network of its own, after it has printed a line."""
    if os.geteuid() != 0:
        skip_missing("only root enters the network of another process without its user namespace")
    if shutil.which("ip") is None:
        skip_missing("ip is not installed (Debian: apt-get install iproute2)")
    with subprocess.Popen(["unshare", "--net", "sh", "-c", script], stdout=subprocess.PIPE) as started:
        try:
            assert started.stdout is not None
            started.stdout.readline()
            yield psutil.Process(started.pid)
        finally:
            started.kill()


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_socket_is_in_the_other_network() -> None:
    port = find_free_port()
    with start_in_namespace("ip link set lo up; echo ready; exec sleep 60") as process:
        children = set(psutil.Process().children())
        with namespaces.listen_inside(process, port) as listener, socket.socket() as client:
            assert listener.getsockname() == ("127.0.0.1", port)
            assert client.connect_ex(("127.0.0.1", port)) != 0
            connect = f"exec 5<>/dev/tcp/127.0.0.1/{port} && echo ping >&5"
            subprocess.run(["nsenter", f"--target={process.pid}", "--net", "bash", "-c", connect], check=True)
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(99) == b"ping\n"
        assert set(psutil.Process().children()) == children


def test_a_loopback_that_is_down() -> None:
    with (
        start_in_namespace("echo ready; exec sleep 60") as process,
        pytest.raises(SandboxUnavailableError, match="loopback interface is down"),
    ):
        namespaces.listen_inside(process, 8377)


def test_this_hosts_own_network_is_refused() -> None:
    with pytest.raises(SandboxUnavailableError, match="it is this host's own"):
        namespaces.listen_inside(psutil.Process(), find_free_port())


def test_a_process_that_has_ended() -> None:
    with subprocess.Popen(["true"]) as ended:
        process = psutil.Process(ended.pid)
        ended.wait()
    with pytest.raises(SandboxUnavailableError, match="cannot be entered"):
        namespaces.listen_inside(process, 8377)


def test_a_helper_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with start_in_namespace("ip link set lo up; echo ready; exec sleep 60") as process:
        monkeypatch.setattr(namespaces, "_find_interpreter", lambda: "/no/such/python")
        with pytest.raises(SandboxUnavailableError, match=r"cannot be entered: .*/no/such/python") as caught:
            namespaces.listen_inside(process, 8377)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_helper_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "_TIMEOUT_S", 0.5)
    monkeypatch.setattr(namespaces, "_HELPER_PROGRAM", "import time; time.sleep(600)")
    with start_in_namespace("ip link set lo up; echo ready; exec sleep 60") as process:
        children, before = set(psutil.Process().children()), count_descriptors()
        started = time.monotonic()
        with pytest.raises(SandboxUnavailableError, match="no answer within"):
            namespaces.listen_inside(process, 8377)
        assert time.monotonic() - started < 60
        assert set(psutil.Process().children()) == children
        assert count_descriptors() == before


def test_a_refused_port_leaves_no_descriptor() -> None:
    with (
        start_in_namespace("ip link set lo up; echo ready; exec sleep 60") as process,
        namespaces.listen_inside(process, 8377),
    ):
        before = count_descriptors()
        for _ in range(3):
            with pytest.raises(SandboxUnavailableError, match="port 8377 is not available inside"):
                namespaces.listen_inside(process, 8377)
        assert count_descriptors() == before


def test_a_process_of_another_hosts_container() -> None:
    with (
        start_in_namespace("echo ready; exec sleep 60") as process,
        pytest.raises(SandboxUnavailableError, match="on the daemon's own host"),
    ):
        docker_client.listen("0123456789ab" * 5, process.pid, 8377)


def test_a_container_and_a_runtime_that_is_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SandboxUnavailableError, match="a runtime that is root"):
        docker_client.listen("0123456789ab" * 5, os.getpid(), 8377)
