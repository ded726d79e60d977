"""The contract for background processes: recorded with a snapshot, without secrets, and started again."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest

from langgraph_takeover.sandbox.interface import BackgroundProcess, Sandbox, Snapshot
from langgraph_takeover.testing.sandboxes.host_parts import find_free_port
from langgraph_takeover.testing.sandboxes.kit import Kit, check_output

_SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(repr((os.getcwd(), os.environ.get("MODE"), sys.argv[2:])).encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
_WAIT_S = 10.0
_ASK = "import sys, urllib.request as u; print(u.urlopen('http://127.0.0.1:' + sys.argv[1], timeout=5).read().decode())"


def _start_server(sandbox: Sandbox, command: str, port: int) -> BackgroundProcess:
    """Run a command that starts a server in the background, and return it as the sandbox lists it."""
    sandbox.write_file("server.py", _SERVER.encode())
    check_output(sandbox, command)
    return _find_server(sandbox, port)


def _find_server(sandbox: Sandbox, port: int) -> BackgroundProcess:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        for process in sandbox.processes() or ():
            if port in process.tcp_ports:
                return process
        time.sleep(0.05)
    raise AssertionError(f"nothing listens on port {port}: {sandbox.processes()}")


def _ask(sandbox: Sandbox, port: int) -> str:
    return check_output(sandbox, f"python3 -c {shlex.quote(_ASK)} {port}").strip()


def _list_commands(snapshot: Snapshot) -> list[tuple[str, ...]]:
    return [each.argv for each in snapshot.processes or ()]


def test_a_sandbox_without_background_processes_lists_none(fresh_sandbox: Sandbox, store: Path) -> None:
    check_output(fresh_sandbox, "true & wait; sleep 0.01 & wait")
    assert fresh_sandbox.processes() == ()
    assert fresh_sandbox.snapshot(store).result().processes == ()


def test_a_server_answers_again_after_a_restore(
    kit: Kit, fresh_sandbox: Sandbox, store: Path, port: int
) -> None:
    """With its directory, environment and arguments, whatever they contain; e2b-dev/E2B#1031, tmux-resurrect#358 and #540."""
    words = ["--cmd", "lua x='1'; dofile([[a b]])", "", "$HOME", "größe"]
    start = f"mkdir -p 'a b'; cd 'a b'; MODE='a \"b\" $c' python3 ../server.py {port} {shlex.join(words)} >out.log 2>&1 & cd .."
    server = _start_server(fresh_sandbox, start, port)
    answer = _ask(fresh_sandbox, port)
    assert server.argv == ("python3", "../server.py", str(port), *words)
    assert server.environment == {"MODE": 'a "b" $c'}
    assert server.tcp_ports == (port,)
    assert server.directory == f"{fresh_sandbox.workspace}/a b"
    assert server.output == server.errors == f"{fresh_sandbox.workspace}/a b/out.log"
    snapshot = fresh_sandbox.snapshot(store).result()
    assert snapshot.processes == (server,)
    fresh_sandbox.close()
    restored = kit.restore(snapshot, store)
    assert restored.processes() == ()
    assert [start.problem for start in restored.start_processes(restored.earlier_processes or ())] == [""]
    assert _ask(restored, port).split(",")[1:] == answer.split(",")[1:]
    assert _find_server(restored, port) == (restored.earlier_processes or ())[0]
    assert restored.run("echo $((1 + 1)); pwd", timeout_s=10).output.split() == ["2", restored.workspace]


def test_a_restore_starts_processes_only_if_the_caller_says_so(
    kit: Kit, fresh_sandbox: Sandbox, store: Path, port: int
) -> None:
    _start_server(fresh_sandbox, f"python3 server.py {port} &", port)
    snapshot = fresh_sandbox.snapshot(store).result()
    fresh_sandbox.close()
    for policy in ("never", "ask"):
        restored = kit.restore(snapshot, store, restart_processes=policy)
        assert restored.processes() == ()
        restored.close()
    restored = kit.restore(snapshot, store, restart_processes="always")
    assert _ask(restored, port)


def test_secrets_of_a_process_are_not_recorded(
    kit: Kit, fresh_sandbox: Sandbox, store: Path, port: int
) -> None:
    """In its environment or its command line, also if an option and its value are two words."""
    start = f"DB_PASSWORD=hunter2 URL=http://a:s3cretword@b.c MODE=x python3 server.py {port} &"
    server = _start_server(fresh_sandbox, start, port)
    assert server.environment == {"MODE": "x"}
    assert server.withheld == ("DB_PASSWORD", "URL")
    second = find_free_port()
    _start_server(fresh_sandbox, f"python3 server.py {second} --password hunter3 --token=abcdef12 &", second)
    snapshot = fresh_sandbox.snapshot(store).result()
    text = snapshot.model_dump_json(exclude={"shell_state"})
    assert not [each for each in ("hunter2", "hunter3", "s3cretword", "abcdef12") if each in text]
    fresh_sandbox.close()
    restored = kit.restore(snapshot, store)
    first, other = restored.start_processes(restored.earlier_processes or ())
    assert first.problem == ""
    assert other.problem == "not started: its command line has a secret, which is not recorded"
    assert _list_commands(snapshot)[1][3:] == ("--password", "[redacted]", "--token=[redacted]")


def test_workers_belong_to_their_server(fresh_sandbox: Sandbox, port: int) -> None:
    command = ["python3", "server.py", str(port)]
    program = f"import os, time; os.fork() and os.fork() or os.execvp('python3', {command}); time.sleep(99)"
    server = _start_server(fresh_sandbox, f"python3 -c {shlex.quote(program)} 2>/dev/null &", port)
    assert server.argv == ("python3", "-c", program)
    assert fresh_sandbox.processes() == (server,)


def test_a_program_that_writes_over_its_command_line(fresh_sandbox: Sandbox) -> None:
    """As npm does (tmux-resurrect#201): its title is taken for its command line."""
    start = """python3 -c 'import os; os.mkfifo("pipe")'; bash -c 'exec -a "npm run dev" cat' <>pipe >/dev/null &"""
    check_output(fresh_sandbox, f"{start} sleep 0.2")
    assert [each.argv for each in fresh_sandbox.processes() or ()] == [("npm", "run", "dev")]


def test_a_zombie_does_not_run(fresh_sandbox: Sandbox) -> None:
    """OpenHands#11801: a container whose first process reaps nothing is full of them."""
    program = "import os, time; os.fork() or os._exit(0); time.sleep(60)"
    check_output(fresh_sandbox, f"python3 -c {shlex.quote(program)} & sleep 0.5")
    assert [each.argv[:2] for each in fresh_sandbox.processes() or ()] == [("python3", "-c")]


def test_a_loop_of_the_shell_is_named_and_not_started(kit: Kit, fresh_sandbox: Sandbox, store: Path) -> None:
    check_output(fresh_sandbox, "while true; do sleep 0.05; done &")
    snapshot = fresh_sandbox.snapshot(store).result()
    fresh_sandbox.close()
    assert [(each.argv, each.obstacle) for each in snapshot.processes or ()] == [((), "shell")]
    restored = kit.restore(snapshot, store)
    (start,) = restored.start_processes(restored.earlier_processes or ())
    assert start.problem == "not started: it is a loop, a function or a list of commands of the shell"


def test_a_server_that_does_not_start_again_is_a_result(kit: Kit, fresh_sandbox: Sandbox, port: int) -> None:
    workspace = fresh_sandbox.workspace
    listener = _start_server(fresh_sandbox, f"python3 server.py {port} &", port)
    silent = BackgroundProcess(argv=("sleep", "30"), directory=workspace, tcp_ports=(find_free_port(),))
    processes = (
        BackgroundProcess(argv=("python3", "gone.py"), directory=workspace, output=f"{workspace}/out.log"),
        BackgroundProcess(argv=("no-such-program",), directory=workspace),
        BackgroundProcess(argv=("sleep", "1"), directory=f"{workspace}/gone"),
        listener.model_copy(update={"output": f"{workspace}/out.log", "errors": f"{workspace}/out.log"}),
        BackgroundProcess(argv=("sleep", "60"), directory=workspace),
        silent,
    )
    started = fresh_sandbox.start_processes(processes, timeout_s=3)
    problems = [each.problem for each in started]
    assert problems[0] == f"ended at once with exit code 2 (its output: {workspace}/out.log)"
    assert problems[1:3] == ["ended at once with exit code 127", "ended at once with exit code 1"]
    # The port is taken, as after criu#1784 or podman#3696: the one that has it is not mistaken for the new one.
    assert "ended at once with exit code 1" in problems[3]
    assert problems[4] == ""
    assert problems[5] == f"runs, but does not listen on port {silent.tcp_ports[0]} after 3 s"
    assert check_output(fresh_sandbox, "echo alive") == "alive\n"


@pytest.mark.parametrize(
    "changed",
    [
        {"argv": ("sleep", "$(echo pwned >pwned)", "`id`")},
        {"argv": ("-x", "a=b")},
        {"argv": ("sleep\n\\builtin exit 3\n", "1")},
        {"directory": "/$(touch pwned)"},
        {"environment": {"BASH_ENV": "$(touch pwned)", "PATH": "/nowhere"}},
        {"output": "/dev/full; touch pwned", "errors": "/$(touch pwned)"},
    ],
)
def test_a_hostile_record_cannot_do_more_than_run_a_command_inside(
    fresh_sandbox: Sandbox, changed: dict[str, object]
) -> None:
    process = BackgroundProcess(argv=("sleep", "1"), directory=fresh_sandbox.workspace)
    hostile = BackgroundProcess.model_validate(process.model_dump() | changed)
    fresh_sandbox.start_processes((hostile,), timeout_s=2)
    assert check_output(fresh_sandbox, "echo alive").endswith("alive\n")
    assert "pwned" not in (fresh_sandbox.directory_listing(".") or ())
    assert fresh_sandbox.cwd() == fresh_sandbox.workspace
