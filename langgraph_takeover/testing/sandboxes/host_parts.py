"""The contract of every sandbox: programs of this host, mounted read-only, and sockets of the runtime inside."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from langgraph_takeover.sandbox.interface import (
    FileAccessError,
    ProgramMount,
    Sandbox,
    SandboxUnavailableError,
)
from langgraph_takeover.testing.sandboxes.kit import Kit, check_output, run

PROGRAM = "/opt/takeover/greeter"
_SCRIPT = "#!/bin/sh\necho hello from {name}\n"
_LIBRARY_BYTES = 3 << 20


def make_program(directory: Path, name: str) -> ProgramMount:
    """Create a program with a library that no archive could compress away."""
    directory.mkdir()
    (directory / "bin").mkdir()
    (directory / "bin/greet").write_text(_SCRIPT.format(name=name))
    (directory / "library").write_bytes(secrets.token_bytes(_LIBRARY_BYTES))
    for path, mode in (
        (directory, 0o755),
        (directory / "bin", 0o755),
        (directory / "bin/greet", 0o755),
        (directory / "library", 0o644),
    ):
        path.chmod(mode)
    return ProgramMount(directory=directory, inside=PROGRAM)


@pytest.fixture(scope="session")
def program(kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> ProgramMount:
    """A program in a directory whose parents are closed to other users."""
    if not kit.is_isolated:
        pytest.skip("this back end has no mounts")
    return make_program(tmp_path_factory.mktemp("programs") / "greeter", "this host")


@pytest.fixture(scope="session")
def program_sandbox(kit: Kit, program: ProgramMount) -> Iterator[Sandbox]:
    """One sandbox with a program for all tests that it survives."""
    with kit.close_started():
        yield kit.start(programs=(program,))


def list_contents(program: ProgramMount) -> dict[Path, tuple[int, bytes]]:
    """The program's files as they are on this host."""
    files = [path for path in program.directory.rglob("*") if path.is_file()]
    return {path: (path.stat().st_mode, path.read_bytes()) for path in files}


def greet(sandbox: Sandbox) -> str:
    return check_output(sandbox, f"{PROGRAM}/bin/greet")


def test_a_program_runs(program_sandbox: Sandbox, program: ProgramMount) -> None:
    assert greet(program_sandbox) == "hello from this host\n"
    assert program_sandbox.inspect(f"{PROGRAM}/bin/greet").output == "hello from this host\n"
    assert program_sandbox.read_file(f"{PROGRAM}/library") == (program.directory / "library").read_bytes()


def test_several_programs(kit: Kit, program: ProgramMount, tmp_path: Path) -> None:
    other = make_program(tmp_path / "other", "the other").model_copy(update={"inside": "/opt/takeover/x.y-2"})
    with kit.close_started():
        sandbox = kit.start(programs=(program, other))
        assert greet(sandbox) == "hello from this host\n"
        assert check_output(sandbox, f"{other.inside}/bin/greet") == "hello from the other\n"


def test_a_program_is_read_only(program_sandbox: Sandbox, program: ProgramMount) -> None:
    before = list_contents(program)
    attempts = (
        f"echo x > {PROGRAM}/bin/greet",
        f"echo x >> {PROGRAM}/library",
        f"touch {PROGRAM}/new",
        f"rm -f {PROGRAM}/library",
        f"chmod 777 {PROGRAM}/bin/greet",
        f"ln {PROGRAM}/bin/greet {PROGRAM}/linked",
        f"mv {PROGRAM}/bin/greet /tmp/greet",
        f"rmdir {PROGRAM}",
        f"mount -o remount,rw {PROGRAM}",
        f"mount -o remount,bind,rw {PROGRAM}",
        f"umount {PROGRAM}",
        f"unshare -Urm mount -o remount,bind,rw {PROGRAM}",
    )
    for attempt in attempts:
        assert run(program_sandbox, attempt).exit_code != 0, attempt
    with pytest.raises(FileAccessError):
        program_sandbox.write_file(f"{PROGRAM}/bin/greet", b"x")
    assert list_contents(program) == before
    assert greet(program_sandbox) == "hello from this host\n"


def test_the_programs_host_directory_is_out_of_reach(program_sandbox: Sandbox, program: ProgramMount) -> None:
    place = program.directory.resolve()
    beside = place.parent / "beside"
    beside.write_text("beside the program\n")
    for path in (beside, place, place / "library"):
        for root in ("", "/proc/1/root", "/proc/self/root", "/proc/$$/root", "/proc/1/cwd"):
            assert run(program_sandbox, f"ls -d {root}{path}").exit_code != 0, (root, path)
    # The parent of a mount's root is the sandbox's own directory.
    assert run(program_sandbox, f"cat {PROGRAM}/../beside {PROGRAM}/bin/../../beside").exit_code != 0
    code = f'import os; d = os.open("{PROGRAM}", os.O_RDONLY); os.open("../beside", os.O_RDONLY, dir_fd=d)'
    assert "No such file" in run(program_sandbox, f"python3 -c '{code}'").output


def test_a_set_user_id_bit_of_a_program_gives_nothing(kit: Kit, tmp_path: Path) -> None:
    if not kit.is_isolated:
        pytest.skip("this back end has no mounts")
    program = make_program(tmp_path / "greeter", "this host")
    check = program.directory / "identify"
    check.write_bytes(Path("/usr/bin/id").read_bytes())
    if os.geteuid() == 0:
        os.chown(check, 54_321, 54_321)
    check.chmod(0o6755)
    with kit.close_started():
        sandbox = kit.start(programs=(program,))
        assert check_output(sandbox, f"{PROGRAM}/identify -u; {PROGRAM}/identify -g") == "0\n0\n"
        assert check_output(sandbox, "grep NoNewPrivs /proc/self/status").split() == ["NoNewPrivs:", "1"]


def test_a_program_is_no_change(kit: Kit, program: ProgramMount) -> None:
    with kit.close_started():
        sandbox = kit.start(programs=(program,))
        assert sandbox.changes() == ()
        greet(sandbox)
        check_output(sandbox, "echo 1 > new.txt")
        assert [change.path for change in sandbox.changes()] == ["new.txt"]
        assert sandbox.sha256(f"{PROGRAM}/library") is None


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_snapshot_contains_no_program(kit: Kit, program: ProgramMount, store: Path, is_busy: bool) -> None:
    with kit.close_started():
        sandbox = kit.start(programs=(program,))
        if is_busy:
            check_output(sandbox, f"(while :; do {PROGRAM}/bin/greet; sleep .02; done) >/dev/null 2>&1 &")
        check_output(sandbox, "echo 1 > new.txt")
        snapshot = sandbox.snapshot(store).result()
        assert greet(sandbox) == "hello from this host\n"
        archives = [path for path in store.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in archives) < _LIBRARY_BYTES
        assert str(program.directory) not in snapshot.model_dump_json()

        restored = kit.restore(snapshot, store, programs=(program,))
        assert greet(restored) == "hello from this host\n"
        assert restored.changes() == ()
        without = kit.restore(snapshot, store)
        assert check_output(without, "cat new.txt; find /opt/takeover -type f 2>/dev/null || :") == "1\n"
        assert run(without, f"ls {PROGRAM}/bin").exit_code != 0


def test_a_restored_sandbox_has_the_programs_of_its_spec(
    kit: Kit, program: ProgramMount, store: Path, tmp_path: Path
) -> None:
    other = make_program(tmp_path / "other", "the other")
    with kit.close_started():
        first = kit.start()
        snapshot = first.snapshot(store / "1").result()
        second = kit.restore(snapshot, store / "1", programs=(program,))
        assert greet(second) == "hello from this host\n"
        snapshot = second.snapshot(store / "2").result()
        third = kit.restore(snapshot, store / "2", programs=(other,))
        assert greet(third) == "hello from the other\n"


def test_a_new_shell_has_the_program(kit: Kit, program: ProgramMount) -> None:
    with kit.close_started():
        sandbox = kit.start(programs=(program,))
        assert run(sandbox, "sleep 60", timeout_s=0.3).timed_out
        assert greet(sandbox) == "hello from this host\n"
        assert run(sandbox, "exit 3").shell_ended
        assert greet(sandbox) == "hello from this host\n"


def test_an_agent_that_deletes_the_way_to_a_program(kit: Kit, program: ProgramMount, store: Path) -> None:
    before = list_contents(program)
    with kit.close_started():
        sandbox = kit.start(programs=(program,))
        run(sandbox, "rm -rf --no-preserve-root /opt/takeover /opt; rm -rf /opt/*; ls /opt", timeout_s=60)
        assert list_contents(program) == before
        restored = kit.restore(sandbox.snapshot(store).result(), store, programs=(program,))
        assert greet(restored) == "hello from this host\n"


def test_a_missing_program_directory(kit: Kit, program: ProgramMount, tmp_path: Path) -> None:
    owner = f"test-{secrets.token_hex(4)}"
    lost = program.model_copy(update={"directory": tmp_path / "lost", "inside": "/opt/takeover/lost"})
    with pytest.raises(SandboxUnavailableError, match=r"program directory not found: .*/lost") as caught:
        kit.start(owner=owner, programs=(program, lost))
    assert "\n" not in str(caught.value)
    (tmp_path / "lost").write_text("a file\n")
    with pytest.raises(SandboxUnavailableError, match="program directory not found"):
        kit.start(owner=owner, programs=(lost,))
    assert kit.find_stale_resources(owner) == set()


def test_plain_processes_refuse_programs(kit: Kit, tmp_path: Path) -> None:
    if kit.is_isolated:
        pytest.skip("this back end mounts programs")
    program = make_program(tmp_path / "greeter", "this host")
    with pytest.raises(SandboxUnavailableError, match=r"cannot be mounted \(use --sandbox host"):
        kit.start(programs=(program,))


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
