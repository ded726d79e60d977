"""Contract: the processes that a time-out kills, and those that it spares."""

from __future__ import annotations

import _thread
import re
import threading
import time

import pytest

from langgraph_takeover.sandbox.contract.kit import Kit, check_output, run
from langgraph_takeover.sandbox.interface import Sandbox

# Announces itself, each request and a worker on the shell's own output, as a development server does.
_SERVER = """
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
open("port.new", "w").write(str(listener.getsockname()[1]))
os.rename("port.new", "port")
print("listening", flush=True)
while True:
    connection, _ = listener.accept()
    word = connection.makefile().readline().strip()
    if word == "fork" and not os.fork():
        while True:
            open("worker", "a").write(".")
            time.sleep(0.02)
    print("served", word, flush=True)
    connection.sendall(f"re:{word}\\n".encode())
    connection.close()
"""
_ASK = "exec 3<>/dev/tcp/127.0.0.1/$(cat port) && echo {word} >&3 && read -r answer <&3 && echo $answer"
_RUNS = re.compile(r"(?:^|/)python3 server\.py \(pid (\d+)\)$")


def _start_server(sandbox: Sandbox) -> str:
    """Start the server in the background of the agent's shell; return its process id."""
    sandbox.write_file("server.py", _SERVER.encode())
    pid = check_output(sandbox, "rm -f port worker; python3 server.py & echo $!").split()[-1]
    assert "listening" in check_output(sandbox, "until [ -e port ]; do sleep .02; done; sleep .1")
    return pid


def _ask_server(sandbox: Sandbox, word: str) -> list[str]:
    """Send a word to the server; return its answer and its output."""
    asked = f"({_ASK.format(word=word)}); sleep .1"
    return sorted(check_output(sandbox, asked).splitlines())


def test_a_timeout_spares_what_earlier_commands_started(clean_sandbox: Sandbox) -> None:
    pid = _start_server(clean_sandbox)
    check_output(clean_sandbox, "x=kept; cd pkg")
    for command in ("wait", "sleep 60", "while :; do :; done", "sleep 60 | cat", "f() { sleep 60; }; f"):
        result = run(clean_sandbox, command, timeout_s=0.3)
        assert (result.timed_out, result.shell_ended, result.killed) == (True, False, ()), command
        assert check_output(clean_sandbox, 'echo "$x $PWD"') == f"kept {clean_sandbox.workspace}/pkg\n"
        check_output(clean_sandbox, f"cd ..; kill -0 {pid}")
        assert _ask_server(clean_sandbox, "one") == ["re:one", "served one"], command
        check_output(clean_sandbox, "cd pkg")
    run(clean_sandbox, f"kill {pid}")
    assert run(clean_sandbox, f"sleep .1; kill -0 {pid}").exit_code == 1


def test_a_timeout_beside_a_server_that_writes_all_the_time(clean_sandbox: Sandbox) -> None:
    check_output(clean_sandbox, "while :; do echo noise; sleep .001; done & writer=$!")
    check_output(clean_sandbox, "y=$(seq 3000); f() { echo f; }; cd pkg; umask 027")
    shown = 'echo "$PWD $(umask) $(f) ${#y}"; kill -0 $writer && echo runs'
    expected = f"{clean_sandbox.workspace}/pkg 0027 f 13892"
    for _ in range(3):
        result = run(clean_sandbox, "sleep 60", timeout_s=0.2)
        assert (result.timed_out, result.shell_ended, result.killed) == (True, False, ())
        lines = check_output(clean_sandbox, shown).splitlines()
        assert [line for line in lines if line != "noise"] == [expected, "runs"]
    run(clean_sandbox, "kill $writer")


def test_ctrl_c_during_a_command(clean_sandbox: Sandbox) -> None:
    pid = _start_server(clean_sandbox)
    check_output(clean_sandbox, "x=kept")
    threading.Timer(0.3, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        run(clean_sandbox, "sleep 60; touch late")
    assert check_output(clean_sandbox, f"echo $x; ls late 2>/dev/null; kill -0 {pid}") == "kept\n"
    assert "re:one" in _ask_server(clean_sandbox, "one")


def test_a_timeout_releases_the_locks_of_the_command(clean_sandbox: Sandbox) -> None:
    lock = "flock -n 9 && echo locked"
    assert run(clean_sandbox, f"{{ {lock}; sleep 60; }} 9>lock", timeout_s=0.3).output == "locked\n"
    assert check_output(clean_sandbox, f"{{ {lock}; }} 9>lock") == "locked\n"


def test_a_timeout_spares_a_new_worker_of_an_earlier_server(clean_sandbox: Sandbox) -> None:
    pid = _start_server(clean_sandbox)
    result = run(clean_sandbox, f"({_ASK.format(word='fork')}); sleep 60", timeout_s=1)
    assert (result.timed_out, result.killed) == (True, ())
    before = clean_sandbox.read_file("worker")
    time.sleep(0.2)
    assert len(clean_sandbox.read_file("worker")) > len(before)
    run(clean_sandbox, f"pkill -P {pid}; kill {pid}")


def test_a_timeout_beside_a_server_kills_everything_that_the_command_started(clean_sandbox: Sandbox) -> None:
    _start_server(clean_sandbox)
    beat = "while :; do echo >>$HOME/beat; sleep .02; done"
    for start in (
        f"(setsid bash -c '{beat}' >/dev/null 2>&1 &)",
        f"trap '(setsid bash -c \"{beat}\" &) >/dev/null 2>&1' CHLD; sleep 0",
    ):
        result = run(clean_sandbox, f"{start}; sleep 60", timeout_s=0.5)
        assert (result.timed_out, result.shell_ended, result.killed) == (True, False, ()), start
        assert (
            run(clean_sandbox, "trap - CHLD; : >$HOME/beat; sleep .2; [ ! -s $HOME/beat ]").exit_code == 0
        ), start
        assert "re:one" in _ask_server(clean_sandbox, "one")


@pytest.mark.parametrize("command", ["exec sleep 60", "trap '' RTMAX; sleep 60"])
def test_a_timeout_names_what_it_cannot_spare(
    clean_sandbox: Sandbox, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph_takeover.sandbox.shell.GRACE_S", 0.5)
    pid = _start_server(clean_sandbox)
    result = run(clean_sandbox, command, timeout_s=0.3)
    assert (result.timed_out, result.shell_ended) == (True, True)
    assert pid in [match[1] for match in map(_RUNS.search, result.killed) if match], result.killed
    assert run(clean_sandbox, f"({_ASK.format(word='one')})").exit_code != 0


def test_the_names_of_killed_processes_are_short_and_printable(
    clean_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph_takeover.sandbox.shell.GRACE_S", 0.5)
    check_output(
        clean_sandbox,
        "for i in $(seq 25); do sleep 300 & done; exec -a $'\\e[2J\\n'\"$(seq -s . 999)\" sleep 300 &",
    )
    killed = run(clean_sandbox, "exec sleep 60", timeout_s=0.3).killed
    assert len(killed) == 21
    assert re.fullmatch(r"\d+ more", killed[-1])
    assert all(name.isprintable() and len(name) < 200 for name in killed)


def test_no_spared_process_outlives_its_sandbox(kit: Kit) -> None:
    def is_running() -> bool:
        return any(name.startswith("psutil.Process") for name in kit.find_stale_resources(kit.owner))

    with kit.close_started():
        sandbox = kit.start()
        check_output(sandbox, f"setsid bash -c 'while sleep .1; do :; done' {kit.owner} >/dev/null 2>&1 &")
        assert run(sandbox, "sleep 60", timeout_s=0.3).timed_out
        assert is_running()
    deadline = time.monotonic() + 10
    while is_running():
        assert time.monotonic() < deadline
        time.sleep(0.05)
