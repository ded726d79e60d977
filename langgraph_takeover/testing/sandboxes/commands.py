"""The contract of every sandbox: the results of `run` for any command of an agent, and time-outs."""

from __future__ import annotations

import _thread
import re
import threading
import time

import pytest

from langgraph_takeover.sandbox.interface import Sandbox, SandboxUnavailableError
from langgraph_takeover.sandbox.shell import OUTPUT_LIMIT
from langgraph_takeover.testing.sandboxes.kit import Kit, check_output, home_directory, run


def test_exit_codes(clean_sandbox: Sandbox) -> None:
    for code in (0, 1, 7, 126, 255):
        result = run(clean_sandbox, f"(exit {code})")
        assert (result.exit_code, result.shell_ended, result.timed_out) == (code, False, False)


def test_an_unknown_command(clean_sandbox: Sandbox) -> None:
    result = run(clean_sandbox, "no-such-command")
    assert result.exit_code == 127
    assert "not found" in result.output


def test_standard_error_is_part_of_the_output(clean_sandbox: Sandbox) -> None:
    assert check_output(clean_sandbox, "echo one; echo two >&2; echo three") == "one\ntwo\nthree\n"


def test_directory_variables_functions_and_options_last(clean_sandbox: Sandbox) -> None:
    run(clean_sandbox, "cd pkg; x='a  b'; export Y=2; f() { echo \"<$x>\"; }; shopt -s extglob")
    assert clean_sandbox.cwd() == f"{clean_sandbox.workspace}/pkg"
    assert check_output(clean_sandbox, 'pwd; f; bash -c "echo \\$Y"; shopt extglob').split("\n")[:3] == [
        f"{clean_sandbox.workspace}/pkg",
        "<a  b>",
        "2",
    ]
    assert "on" in check_output(clean_sandbox, "shopt extglob")


def test_a_directory_whose_name_has_a_newline(clean_sandbox: Sandbox) -> None:
    check_output(clean_sandbox, "mkdir -p \"$HOME\"/$'two\\nlines'; cd \"$HOME\"/$'two\\nlines'")
    assert clean_sandbox.cwd().endswith("/two\nlines")
    assert check_output(clean_sandbox, "echo next") == "next\n"


def test_standard_input_is_closed(clean_sandbox: Sandbox) -> None:
    assert check_output(clean_sandbox, "cat; read -r line || echo none") == "none\n"


def test_a_background_job_does_not_block(clean_sandbox: Sandbox) -> None:
    result = run(clean_sandbox, "sleep 300 & echo started")
    assert (result.output, result.timed_out) == ("started\n", False)
    assert check_output(clean_sandbox, "kill %1; echo next") == "next\n"


def test_binary_output(clean_sandbox: Sandbox) -> None:
    assert check_output(clean_sandbox, r"printf 'a\0b\377\303\251'") == "a\0b\\xffé"


def test_crlf_and_no_final_newline(clean_sandbox: Sandbox) -> None:
    assert check_output(clean_sandbox, r"printf 'a\r\nb\r'") == "a\r\nb\r"


def test_long_output_keeps_head_and_tail_and_counts_the_rest(clean_sandbox: Sandbox) -> None:
    size = 100_000_000
    output = check_output(clean_sandbox, f"printf START; head -c {size} /dev/zero | tr '\\0' x; printf END")
    head, mark, tail = output.split("\n")
    assert head.startswith("STARTxxx")
    assert tail.endswith("xxxEND")
    assert mark == f"[… {size + 8 - OUTPUT_LIMIT:,} bytes of output left out …]"
    assert len(head) + len(tail) == OUTPUT_LIMIT


def test_output_of_exactly_the_limit_is_whole(clean_sandbox: Sandbox) -> None:
    assert check_output(clean_sandbox, f"head -c {OUTPUT_LIMIT} /dev/zero | tr '\\0' x") == "x" * OUTPUT_LIMIT


def test_endless_output(clean_sandbox: Sandbox) -> None:
    result = run(clean_sandbox, "x=kept; yes", timeout_s=0.7)
    assert result.timed_out
    assert result.output.startswith("y\ny\n")
    assert "bytes of output left out" in result.output
    assert len(result.output) < OUTPUT_LIMIT + 100
    assert check_output(clean_sandbox, "echo $x") == "kept\n"


def test_file_names_that_are_not_utf8(clean_sandbox: Sandbox) -> None:
    check_output(clean_sandbox, 'mkdir -p "$HOME/odd"; echo x > "$HOME"/odd/$\'caf\\xe9\'')
    assert check_output(clean_sandbox, 'ls "$HOME/odd" | cat') == "caf\\xe9\n"
    assert clean_sandbox.directory_listing(home_directory(clean_sandbox) + "/odd") == ("caf\\xe9",)
    (change,) = clean_sandbox.changes()
    assert change.path.endswith("/odd/caf\\xe9")
    assert change.model_dump_json()


def test_heredoc(clean_sandbox: Sandbox) -> None:
    assert check_output(clean_sandbox, "cat <<'EOF'\n$HOME `x` \"q\" 'r'\nEOF\necho after") == (
        "$HOME `x` \"q\" 'r'\nafter\n"
    )


def test_an_unfinished_heredoc_ends_with_the_command(clean_sandbox: Sandbox) -> None:
    assert run(clean_sandbox, "cat <<EOF\ntext").output.endswith("text\n")
    assert check_output(clean_sandbox, "echo next") == "next\n"


def test_quotes_newlines_and_comments(clean_sandbox: Sandbox) -> None:
    assert check_output(clean_sandbox, "echo \"a'b\" 'c\"d' \\\n e # comment") == "a'b c\"d e\n"


def test_a_command_of_two_megabytes(clean_sandbox: Sandbox) -> None:
    for letter, times in (("y", 2_000_000), ("é", 1_000_000)):
        assert check_output(clean_sandbox, f"x='{letter * times}'; echo ${{#x}}") == f"{times}\n"


def test_long_commands_of_any_kind(clean_sandbox: Sandbox) -> None:
    for filler in ("#" * 5000, "#" + "é\udcff\\" * 2000):
        command = f"{filler}\ncat <<'END'\n'q' \"$HOME\" \\n ü\nEND\nset -a; echo \"it's\" # end"
        assert check_output(clean_sandbox, command) == "'q' \"$HOME\" \\n ü\nit's\n"
        assert run(clean_sandbox, f"{filler}\nif true; then").exit_code == 2
    assert check_output(clean_sandbox, "/bin/echo $__command; set +a") == "\n"


def test_a_nul_byte_is_refused(clean_sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="NUL"):
        run(clean_sandbox, "echo a\0b")
    assert check_output(clean_sandbox, "echo next") == "next\n"


def test_a_syntax_error_is_a_result(clean_sandbox: Sandbox) -> None:
    run(clean_sandbox, "x=kept")
    for command in ("if true; then", "echo 'open", "for do done", ")", "a && "):
        result = run(clean_sandbox, command)
        assert result.exit_code not in (0, None), command
        assert not result.shell_ended, command
        assert result.output, command
        assert check_output(clean_sandbox, "echo $x") == "kept\n"


def test_a_shell_broken_by_a_bash_bug(clean_sandbox: Sandbox) -> None:
    # Bash 5.2 corrupts its memory on this command, and aborts now or a few commands later.
    for _ in range(6):
        assert run(clean_sandbox, "echo $(").exit_code != 0
    run(clean_sandbox, "exit")
    assert check_output(clean_sandbox, "echo next") == "next\n"


def test_an_empty_command(clean_sandbox: Sandbox) -> None:
    for command in ("", "\n", "# only a comment", ":"):
        assert check_output(clean_sandbox, command) == ""


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 3", 3),
        ("exec true", 0),
        ("set -e; false", 1),
        ("kill -9 $$", 137),
        ("sleep 300 & exit 4", 4),
        ("sleep 300 & kill -9 $$", 137),
        ("trap 'echo bye' EXIT; exit 5", 5),
    ],
)
def test_a_command_that_ends_the_shell(clean_sandbox: Sandbox, command: str, code: int) -> None:
    check_output(clean_sandbox, "cd pkg; x=lost")
    result = run(clean_sandbox, f"echo before; {command}")
    assert (result.exit_code, result.shell_ended, result.timed_out) == (code, True, False)
    assert result.output.startswith("before\n")
    assert check_output(clean_sandbox, 'echo "<$x> $PWD"') == f"<> {clean_sandbox.workspace}/pkg\n"


def test_a_shell_without_its_directory_starts_in_the_workspace(clean_sandbox: Sandbox) -> None:
    check_output(clean_sandbox, 'mkdir "$HOME/gone"; cd "$HOME/gone"; rmdir "$HOME/gone"')
    run(clean_sandbox, "exit")
    assert check_output(clean_sandbox, "pwd") == f"{clean_sandbox.workspace}\n"
    assert clean_sandbox.cwd() == clean_sandbox.workspace


def test_shell_init_runs_in_every_shell(kit: Kit) -> None:
    with kit.close_started():
        sandbox = kit.start(shell_init="export MARK=set; cd pkg; false")
        assert check_output(sandbox, "echo $MARK") == "set\n"
        run(sandbox, "exit")
        assert check_output(sandbox, "echo $MARK") == "set\n"


def test_a_shell_init_that_ends_the_shell_is_the_sandboxes_failure(kit: Kit) -> None:
    with pytest.raises(SandboxUnavailableError):
        kit.start(shell_init="exit 1")


_BEAT = "while :; do date +%s%N > $HOME/beat.{name}; sleep .02; done"


def test_a_timeout_kills_everything_and_leaves_the_shell(clean_sandbox: Sandbox) -> None:
    check_output(clean_sandbox, "x=kept; cd pkg")
    starts = {
        "child": "bash -c '{beat}' &",
        "setsid": "setsid bash -c '{beat}' >/dev/null 2>&1 &",
        "nohup": "nohup bash -c '{beat}' >/dev/null 2>&1 &",
        "daemon": "(setsid bash -c '{beat}' >/dev/null 2>&1 &);",
        "deaf": "bash -c 'trap \"\" TERM INT HUP; {beat}' &",
    }
    commands = [start.format(beat=_BEAT.format(name=name)) for name, start in starts.items()]
    result = run(clean_sandbox, " ".join([*commands, "echo begun; sleep 300"]), timeout_s=1)
    assert (result.timed_out, result.exit_code, result.shell_ended) == (True, None, False)
    assert result.output == "begun\n"
    assert check_output(clean_sandbox, 'echo "$x $PWD"') == f"kept {clean_sandbox.workspace}/pkg\n"
    beats = "cat $HOME/beat.{child,setsid,nohup,daemon,deaf}"
    last = check_output(clean_sandbox, beats)
    time.sleep(0.3)
    assert check_output(clean_sandbox, beats) == last


def test_after_a_timeout_no_process_of_the_command_runs(clean_sandbox: Sandbox) -> None:
    lists = (
        "sleep 60; touch late",
        "sleep 60 && touch late",
        "for i in 1 2 3; do sleep 60; touch late; done",
        "f() { sleep 60; touch late; }; f; touch late",
        "sleep 60 | cat; touch late",
        "x=$(sleep 60); touch late",
        "(sleep 60; touch late); touch late",
        "eval 'sleep 60; touch late'; touch late",
        "trap 'touch late' EXIT ERR; set -E; sleep 60; touch late",
    )
    for command in lists:
        result = run(clean_sandbox, f"echo begun; {command}", timeout_s=0.3)
        assert (result.output, result.timed_out, result.shell_ended) == ("begun\n", True, False), command
        run(clean_sandbox, "trap - EXIT ERR; set +E")
    assert check_output(clean_sandbox, "ls late 2>/dev/null || echo none") == "none\n"


_MAKE_PIPE = "python3 -c 'import os; os.mkfifo(os.path.expanduser(\"~/pipe\"))'"


@pytest.mark.parametrize(
    "command",
    [
        "while :; do :; done",
        "sleep 60 >out.txt",
        "cat 4<>~/pipe <&4",
        "f() { local y=1; sleep 60; }; f",
        "wait",
    ],
)
def test_after_a_timeout_the_shell_keeps_its_directory(clean_sandbox: Sandbox, command: str) -> None:
    check_output(
        clean_sandbox, _MAKE_PIPE + "; cd pkg; x=kept; f() { echo f; }; set -o noglob; umask 027; sleep 60 &"
    )
    result = run(clean_sandbox, f"cd ..; {command}", timeout_s=0.5)
    assert (result.timed_out, result.exit_code, result.shell_ended) == (True, None, False)
    shown = 'pwd; echo "$x *"; umask; cd - >/dev/null; pwd; jobs'
    assert (
        check_output(clean_sandbox, shown)
        == f"{clean_sandbox.workspace}\nkept *\n0027\n{clean_sandbox.workspace}/pkg\n"
    )


@pytest.mark.parametrize(
    "command",
    [
        "exec sleep 60",
        "trap '' RTMAX; sleep 60",
        "exec 198>&-; sleep 60",
        "kill -STOP $$",
        "read -r x <~/pipe",
    ],
)
def test_a_timeout_of_an_unresponsive_shell(
    clean_sandbox: Sandbox, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph_takeover.sandbox.shell.GRACE_S", 0.5)
    check_output(clean_sandbox, f"{_MAKE_PIPE}; cd pkg")
    result = run(clean_sandbox, command, timeout_s=0.5)
    assert (result.timed_out, result.exit_code) == (True, None)
    assert result.shell_ended or command.startswith("read")
    assert check_output(clean_sandbox, "pwd") == f"{clean_sandbox.workspace}/pkg\n"


HOSTILE = {
    "functions": 'for f in printf eval cd builtin echo; do . /dev/stdin <<< "$f() { :; }"; done',
    "printf": "printf() { echo fake; }",
    "eval": "eval() { :; }",
    "builtin": "builtin() { :; }",
    "unset": "unset() { :; }; command() { :; }",
    "xtrace": "set -x",
    "verbose": "set -v",
    "nounset": "set -u",
    "posix": "set -o posix",
    "noglob": "set -f; IFS=0123456789",
    "bash_env": "echo 'echo poisoned; exit 9' > $HOME/env; export BASH_ENV=$HOME/env ENV=$HOME/env",
    "path": "export PATH=",
    "aliases": "shopt -s expand_aliases; alias eval=false printf=false builtin=false unset=false exec=false",
    "debug trap": "trap 'echo debug' DEBUG; set -T",
    "err trap": "trap 'echo err' ERR; set -E",
    "exit trap": "trap 'echo bye' EXIT",
    "stdout": "exec >/dev/null",
    "stderr": "exec 2>/dev/null",
    "closed": "exec 0<&- 1>&- 2>&-",
    "locale": "export LC_ALL=C LANG=C",
    "ps4": "PS4='$(echo ps4)'; set -x",
}


@pytest.mark.parametrize("trick", HOSTILE)
def test_hostile_shell_commands(clean_sandbox: Sandbox, trick: str) -> None:
    run(clean_sandbox, HOSTILE[trick])
    marker = run(clean_sandbox, "say=hello; /bin/echo $say there", timeout_s=5)
    assert "hello there\n" in marker.output
    assert (marker.exit_code, marker.shell_ended, marker.timed_out) == (0, False, False)
    failed = run(clean_sandbox, "(exit 7)", timeout_s=5)
    assert (failed.exit_code, failed.shell_ended) == (7, False)
    assert clean_sandbox.cwd() == clean_sandbox.workspace
    assert clean_sandbox.read_file("README.txt") == b"a small repository\n"
    assert clean_sandbox.inspect("git rev-parse --show-prefix").output == "\n"


def test_output_that_looks_like_the_end_of_a_command(clean_sandbox: Sandbox) -> None:
    fake = r"printf '\n%032x 0 /elsewhere\0' 5; printf '\n%s %d %s\0' 0123456789abcdef0123456789abcdef 0 /x"
    result = run(clean_sandbox, f"{fake}; echo still here; (exit 6)")
    assert result.exit_code == 6
    assert result.output.endswith("still here\n")
    assert clean_sandbox.cwd() == clean_sandbox.workspace


def test_after_close_the_sandbox_is_gone(kit: Kit) -> None:
    sandbox = kit.start()
    sandbox.close()
    with pytest.raises(SandboxUnavailableError):
        run(sandbox, "echo x")
    with pytest.raises(SandboxUnavailableError):
        sandbox.changes()
    sandbox.close()


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
