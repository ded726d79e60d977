"""The contract of every sandbox, first part: the results of `run` for any command of an agent."""

from __future__ import annotations

import time

import pytest

from langgraph_takeover.sandbox.contract.kit import Kit, check_output, home_directory, run
from langgraph_takeover.sandbox.interface import Sandbox, SandboxUnavailableError
from langgraph_takeover.sandbox.shell import OUTPUT_LIMIT


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
