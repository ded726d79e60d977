"""The contract of every sandbox, seventh part: a socket of the runtime on the loopback that the agent's shell reaches."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from langgraph_takeover.sandbox.contract.kit import Kit, check_output, run
from langgraph_takeover.sandbox.interface import Sandbox, SandboxUnavailableError

_ACCEPT_TIMEOUT_S = 30.0
_ASK = "exec 5<>/dev/tcp/127.0.0.1/{port} && echo {word} >&5 && read -r -t 20 answer <&5 && exec 5<&- 5>&-"
# Takes the port with every option that could let two sockets share it.
_HOLD_PORT = """
import socket, sys, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind((sys.argv[2], int(sys.argv[1])))
s.listen()
open("/tmp/holds-port", "w").close()
time.sleep(600)
"""


def find_free_port() -> int:
    """A port that is free on this host."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def port() -> int:
    return find_free_port()


@contextlib.contextmanager
def answer_requests(listener: socket.socket) -> Iterator[list[str]]:
    """Answer each connection's line with `re:` and the line; yields the lines so far."""
    lines: list[str] = []

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(_ACCEPT_TIMEOUT_S)
                    line = connection.makefile("r").readline().strip()
                    lines.append(line)
                    connection.sendall(f"re:{line}\n".encode())

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def ask(sandbox: Sandbox, port: int, word: str) -> str:
    """The answer that a command in the agent's shell gets; empty if it cannot connect."""
    return run(sandbox, f"({_ASK.format(port=port, word=word)} && echo $answer) 2>/dev/null").output.strip()


def await_lines(lines: list[str], number: int) -> None:
    deadline = time.monotonic() + _ACCEPT_TIMEOUT_S
    while len(lines) < number:
        assert time.monotonic() < deadline, lines
        time.sleep(0.01)


def test_a_command_reaches_the_listener(clean_sandbox: Sandbox, port: int) -> None:
    assert ask(clean_sandbox, port, "early") == ""
    with answer_requests(clean_sandbox.listen(port)) as lines:
        assert ask(clean_sandbox, port, "one") == "re:one"
        assert ask(clean_sandbox, port, "two") == "re:two"
        code = f'import socket; s = socket.create_connection(("127.0.0.1", {port})); s.send(b"three\\n"); print(s.recv(99))'
        assert check_output(clean_sandbox, f"python3 -c '{code}'") == "b're:three\\n'\n"
    assert lines == ["one", "two", "three"]
    assert ask(clean_sandbox, port, "late") == ""


def test_the_listener_is_an_ordinary_socket(clean_sandbox: Sandbox, port: int) -> None:
    with clean_sandbox.listen(port) as listener:
        assert listener.getsockname() == ("127.0.0.1", port)
        assert (listener.family, listener.type) == (socket.AF_INET, socket.SOCK_STREAM)
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        assert not listener.get_inheritable()


def test_a_listener_leaves_nothing_inside(kit: Kit, clean_sandbox: Sandbox, port: int) -> None:
    if not kit.is_isolated:
        pytest.skip("this back end shows this host's processes")
    processes, files = (
        "echo /proc/[0-9]*",
        "echo /* /tmp/*",
    )  # by the shell itself, which starts nothing for it
    before = set(check_output(clean_sandbox, processes).split()), check_output(clean_sandbox, files)
    with clean_sandbox.listen(port):
        assert set(check_output(clean_sandbox, processes).split()) <= before[0]
        assert check_output(clean_sandbox, files) == before[1]
        assert clean_sandbox.changes() == ()


def test_a_port_can_be_used_again(clean_sandbox: Sandbox, port: int) -> None:
    for word in ("one", "two", "three"):
        with answer_requests(clean_sandbox.listen(port)):
            assert ask(clean_sandbox, port, word) == f"re:{word}"


def test_two_listeners(clean_sandbox: Sandbox, port: int) -> None:
    other = find_free_port()
    with answer_requests(clean_sandbox.listen(port)) as lines, answer_requests(clean_sandbox.listen(other)):
        assert ask(clean_sandbox, port, "first") == "re:first"
        assert ask(clean_sandbox, other, "second") == "re:second"
        assert lines == ["first"]
        with pytest.raises(SandboxUnavailableError, match=f"port {port} is not available"):
            clean_sandbox.listen(port)


def test_only_this_sandbox_reaches_the_listener(kit: Kit, clean_sandbox: Sandbox, port: int) -> None:
    if not kit.is_isolated:
        pytest.skip("this back end has this host's network")
    with kit.close_started(), answer_requests(clean_sandbox.listen(port)) as lines:
        other = kit.start()
        assert ask(other, port, "other") == ""
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port)) != 0
        # The same port in another sandbox is another socket.
        with answer_requests(other.listen(port)) as others:
            assert ask(other, port, "other") == "re:other"
            assert ask(clean_sandbox, port, "own") == "re:own"
            with socket.socket() as client:
                assert client.connect_ex(("127.0.0.1", port)) != 0
        assert (lines, others) == (["own"], ["other"])


def test_a_listener_opens_no_other_way_out(kit: Kit, clean_sandbox: Sandbox, port: int) -> None:
    if not kit.is_isolated:
        pytest.skip("this back end has this host's network")
    with socket.create_server(("0.0.0.0", 0)) as host_server, answer_requests(clean_sandbox.listen(port)):
        host_port = host_server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", host_port), timeout=3):
            pass  # otherwise the checks below prove nothing
        for address in {"127.0.0.1", socket.gethostbyname(socket.gethostname()), "172.17.0.1", "192.0.2.1"}:
            code = f'import socket; s = socket.socket(); s.settimeout(3); print(s.connect_ex(("{address}", {host_port})))'
            assert check_output(clean_sandbox, f"python3 -c '{code}'") != "0\n", address
        interfaces = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"
        assert check_output(clean_sandbox, interfaces) == "lo\n"
        assert ask(clean_sandbox, port, "one") == "re:one"


def test_a_new_shell_needs_a_new_listener(clean_sandbox: Sandbox, port: int) -> None:
    for command in ("sleep 60", "exit 3"):
        with answer_requests(clean_sandbox.listen(port)):
            assert ask(clean_sandbox, port, "before") == "re:before"
            ended = run(clean_sandbox, command, timeout_s=0.3)
            assert ended.timed_out or ended.shell_ended
        with answer_requests(clean_sandbox.listen(port)):
            assert ask(clean_sandbox, port, "after") == "re:after"


def test_a_restored_sandbox_can_listen(kit: Kit, fresh_sandbox: Sandbox, store: Path, port: int) -> None:
    snapshot = fresh_sandbox.snapshot(store).result()
    with answer_requests(fresh_sandbox.listen(port)):
        assert ask(fresh_sandbox, port, "original") == "re:original"
    restored = kit.restore(snapshot, store)
    with answer_requests(restored.listen(port)):
        assert ask(restored, port, "restored") == "re:restored"


def test_a_background_process_asks_during_a_snapshot(
    kit: Kit, fresh_sandbox: Sandbox, store: Path, port: int
) -> None:
    """An agent that waits for an answer when its sandbox is snapshotted gets it afterwards."""
    loop = f"while {_ASK.format(port=port, word='$BASHPID')}; do echo $answer >>/tmp/answers; sleep .01; done"
    with fresh_sandbox.listen(port) as listener:
        listener.settimeout(_ACCEPT_TIMEOUT_S)
        home = check_output(fresh_sandbox, 'printf %s "${TMPDIR:-/tmp}"')
        check_output(fresh_sandbox, f"({loop.replace('/tmp', home)}) >/dev/null 2>&1 </dev/null &")
        held, _ = listener.accept()
        held.settimeout(_ACCEPT_TIMEOUT_S)
        asker = held.recv(100)
        future = fresh_sandbox.snapshot(store)
        with answer_requests(listener) as lines:
            held.sendall(b"held\n")
            held.close()
            await_lines(lines, 3)
            snapshot = future.result()
            await_lines(lines, len(lines) + 3)
        assert {f"{line}\n".encode() for line in lines} == {asker}
    answers = check_output(fresh_sandbox, f"cat {home}/answers").splitlines()
    assert answers[0] == "held"
    restored = kit.restore(snapshot, store)
    place = check_output(restored, 'printf %s "${TMPDIR:-/tmp}"')
    assert run(restored, f"cat {place}/answers").exit_code == 1, "the snapshot is older than the answer"


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_an_agent_that_takes_the_port_first(clean_sandbox: Sandbox, port: int, address: str) -> None:
    clean_sandbox.write_file("hold.py", _HOLD_PORT.replace("/tmp", clean_sandbox.workspace).encode())
    check_output(
        clean_sandbox, f"rm -f holds-port; python3 hold.py {port} {address} >/dev/null 2>&1 & holder=$!"
    )
    deadline = time.monotonic() + _ACCEPT_TIMEOUT_S
    while "holds-port" not in (clean_sandbox.directory_listing("") or ()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(SandboxUnavailableError, match=f"port {port} is not available") as caught:
        clean_sandbox.listen(port)
    assert "a program holds it" in str(caught.value)
    run(clean_sandbox, "kill -9 $holder; wait")
    with answer_requests(clean_sandbox.listen(port)):
        assert ask(clean_sandbox, port, "one") == "re:one"


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_an_agent_that_takes_the_port_too(clean_sandbox: Sandbox, port: int, address: str) -> None:
    clean_sandbox.write_file("hold.py", _HOLD_PORT.replace("/tmp", clean_sandbox.workspace).encode())
    with answer_requests(clean_sandbox.listen(port)):
        result = run(clean_sandbox, f"python3 hold.py {port} {address}")
        assert "Address already in use" in result.output
        assert ask(clean_sandbox, port, "one") == "re:one"


def test_an_invalid_port(clean_sandbox: Sandbox) -> None:
    for port in (-1, 0, 65_536):
        with pytest.raises(ValueError, match="not a port"):
            clean_sandbox.listen(port)


def test_a_closed_sandbox_cannot_listen(kit: Kit, port: int) -> None:
    if not kit.is_isolated:
        pytest.skip("this back end has this host's network")
    sandbox = kit.start()
    sandbox.close()
    with pytest.raises(SandboxUnavailableError):
        sandbox.listen(port)
