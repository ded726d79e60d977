"""The bridge knows whose connection it is, on every back end, whatever the peer sends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.nodes.external.bridge_limits import AgentPeers, find_agent_peers
from langgraph_takeover.sandbox.interface import BackendName, SandboxSpec
from langgraph_takeover.testing.sandboxes.host_parts import find_free_port

CONNECT = "exec 5<>/dev/tcp/127.0.0.1/{port}; read <&5"


@pytest.mark.parametrize("backend", ["host", "process", pytest.param("docker", marks=pytest.mark.slow)])
def test_only_the_agent_and_its_processes_own_their_connections(
    backend: BackendName, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if backend == "docker":
        spec = SandboxSpec(backend=backend, image=request.getfixturevalue("base_image"))
    else:
        spec = SandboxSpec(backend=backend, directory=tmp_path)
    port = find_free_port()
    connect = f'bash -c "{CONNECT.format(port=port)}"'
    agent = f"sleep 0.3; {connect} & (setsid {connect}) & (({connect}) &); wait; sleep 60"
    with contextlib.closing(sandbox.start(spec)) as box, box.listen(port) as listener:
        box.run(f"({connect} >/dev/null 2>&1 &)", timeout_s=20)
        started = box.run(f"(setsid sh -c '{agent}' >/dev/null 2>&1 & echo $!)", timeout_s=20)
        peers = find_agent_peers(listener, int(started.output))
        assert peers is not None
        listener.settimeout(20)
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(listener.accept()[0]) for _ in range(4)]
            # The stranger's came first; a child, a session of its own, and an orphan of the agent's session follow.
            assert [peers.owns(each) for each in connections] == [False, True, True, True]
        box.run(f"kill -KILL -- -{started.output.strip()}", timeout_s=20)


def test_a_connection_of_either_family_is_found() -> None:
    reader, writer = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        child = os.fork()
        if child == 0:
            os.setsid()
            os.read(reader, 1)
            peers = [
                socket.create_connection(("127.0.0.1", port)),
                socket.create_connection(("::ffff:127.0.0.1", port)),
            ]
            signal.pause()
            os._exit(len(peers))
        try:
            agent = AgentPeers(psutil.Process(child))
            with socket.create_connection(("127.0.0.1", port)), listener.accept()[0] as own:
                assert not agent.owns(own)
            os.write(writer, b"x")
            for _ in range(2):
                with listener.accept()[0] as peer:
                    assert agent.owns(peer)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reader)
            os.close(writer)


def test_a_process_that_has_ended_is_no_agent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        assert find_agent_peers(listener, child) is None
