"""Simple commands of command lines and the meaning of the exit code."""

from __future__ import annotations

import functools
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_takeover.handoff.recordings.inferred_actions import find_directory_after
from langgraph_takeover.handoff.shell.runners import find_runner
from langgraph_takeover.handoff.shell.syntax import SimpleCommand, normalize_path, resolve_path
from langgraph_takeover.handoff.shell.syntax_reader import find_place_after, parse_command


def one(command: str, name: str) -> SimpleCommand:
    """The only simple command with this name."""
    (match,) = [c for c in parse_command(command) if c.name == name]
    return match


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("pytest -q", [["pytest", "-q"]]),
        ("FOO=1 BAR=2 pytest", [["pytest"]]),
        ("env -i FOO=1 pytest -x", [["pytest", "-x"]]),
        ("timeout -k 5 60s pytest", [["pytest"]]),
        ("time nohup nice -n 5 pytest", [["pytest"]]),
        ("find . -name 'a b' | xargs -n 1 grep foo", [["find", ".", "-name", "a b"], ["grep", "foo"]]),
        ("bash -lc 'cd a && pytest \"b c\"'", [["cd", "a"], ["pytest", "b c"]]),
        ("bash <<'EOF'\npytest\nEOF", [["pytest"]]),
        ("eval 'pytest -q'", [["pytest", "-q"]]),
        ("(cd a; pytest); ls", [["cd", "a"], ["pytest"], ["ls"]]),
        ("for i in 1 2; do pytest $i; done", [["pytest", "$i"]]),
        ("f() { pytest; }; ls", [["ls"]]),
        ("f() { pytest; }; f", [["pytest"]]),
        ("echo $(pytest -q)", [["pytest", "-q"], ["echo", "$(pytest -q)"]]),
        ("# pytest\nls", [["ls"]]),
        ("echo 'it'\"'\"'s' # <<EOF\nls", [["echo", "it's"], ["ls"]]),
        ("command -v pytest", [["command", "-v", "pytest"]]),
        ("poetry run pytest", [["pytest"]]),
        ("ls > out -l a", [["ls", "-l", "a"]]),
        ("", []),
    ],
)
def test_simple_commands(command: str, expected: list[list[str]]) -> None:
    assert [list(c.argv) for c in parse_command(command)] == expected


def test_a_written_script_is_not_run() -> None:
    command = "cat <<'EOF' > a.sh; python b.py | tail; ls\npytest -q\nEOF\nmake"
    assert [c.name for c in parse_command(command)] == ["cat", "python", "tail", "ls", "make"]
    assert parse_command(command)[0].stdin == "pytest -q\n"
    assert [(r.operator, r.target) for r in parse_command(command)[0].redirects] == [(">", "a.sh")]


def test_nested_and_consecutive_heredocs() -> None:
    assert [c.name for c in parse_command("git commit -m \"$(cat <<'EOF'\nrun pytest\nEOF\n)\"; tox")] == [
        "cat",
        "git",
        "tox",
    ]
    assert [c.name for c in parse_command("a <<A; b <<-'B C'\npytest\nA\n\ttox\n\tB C\nls")] == [
        "a",
        "b",
        "ls",
    ]


@pytest.mark.parametrize(
    ("command", "cwd"),
    [
        ("pytest", None),
        ("cd x && pytest", "x"),
        ("cd /a; cd b/../c; pytest", "/a/c"),
        ("(cd x); pytest", None),
        ("cd x | pytest", None),
        ("cd x && FOO=1 pytest -q 2>&1 | tail -5; echo $?", "x"),
        ("cd $HOME && pytest", None),
        ("bash -c 'cd x'; pytest", None),
        ("pushd x && pytest", "x"),
    ],
)
def test_working_directory(command: str, cwd: str | None) -> None:
    assert one(command, "pytest").cwd == cwd


@pytest.mark.parametrize(
    ("command", "own", "success"),
    [
        ("pytest", True, True),
        ("cd x && pytest", True, True),
        ("ls; pytest", True, True),
        ("cat x | pytest", True, True),
        ("timeout 9 pytest 2>&1", True, True),
        ("pytest && echo ok", True, True),
        ("pytest || exit 1", True, True),
        ("(cd x && pytest)", True, True),
        ("bash -c 'pytest'", True, True),
        ("set -o pipefail; pytest | tail -3", True, True),
        ("bash -o pipefail -c 'pytest | tail'", True, True),
        ("pytest && tox", False, True),
        ("set -e\npytest\ntox", False, True),
        ("pytest | tail -5", False, False),
        ("pytest |& tee log", False, False),
        ("pytest; echo $?", False, False),
        ("pytest || true", False, False),
        ("cd x && pytest || echo bad", False, False),
        ("pytest & wait", False, False),
        ("! pytest", False, False),
        ("if pytest; then ls; fi", False, False),
        ("x=$(pytest)", False, False),
        ("diff <(pytest) a", False, False),
    ],
)
def test_exit_code_meaning(command: str, own: bool, success: bool) -> None:
    simple = one(command, "pytest")
    assert (simple.exit_code_is_own, simple.success_is_own) == (own, success)


def test_position_in_a_pipeline() -> None:
    stages = [(c.name, c.connector, c.stage, c.stages) for c in parse_command("a && b 2>&1 | c; d")]
    assert stages == [("a", "", 0, 1), ("b", "&&", 0, 2), ("c", "|", 1, 2), ("d", ";", 0, 1)]


@given(st.text(alphabet="ab |&;()<>'\"$\\\n#{}EOF=-", max_size=40))
def test_any_text_can_be_parsed(text: str) -> None:
    assert all(c.argv for c in parse_command(text))


NESTED = {
    "interpreters": "python " * 3_000 + "pytest",
    "coverage": "coverage run " * 3_000 + "pytest",
    "coverage of Python": "python -m coverage run " * 3_000 + "pytest",
    "sudo": "sudo " * 3_000 + "pytest",
    "env": "env a=1 " * 3_000 + "pytest",
    "options": "python " + "-v " * 3_000 + "-m pytest",
    "chain": "true && " * 3_000 + "pytest",
    "pipeline": "true | " * 3_000 + "pytest",
    "subshells": "(" * 3_000 + "pytest" + ")" * 3_000,
    "groups": "{ " * 3_000 + "pytest; " + "}; " * 3_000,
    "branches": "if true; then " * 1_000 + "pytest; " + "fi; " * 1_000,
    "substitutions": "echo $(" * 1_000 + "pytest" + ")" * 1_000,
    "arithmetic": "echo $((" + "(" * 3_000 + "1" + ")" * 3_000 + ")); pytest",
    "scripts": functools.reduce(lambda inner, _: f"bash -c {shlex.quote(inner)}", range(8), "pytest"),
    "functions": "".join(f"f{n}() {{ {f'f{n - 1}; ' * 20}}}; " for n in range(1, 8)).replace("f0", "true")
    + "f7; pytest",
    "directories": "cd a; " * 3_000 + "pytest",
}


def test_no_character_ends_the_process() -> None:
    """The grammar looks for a digit after `{`, in a table that has only the first characters."""
    code = (
        "from langgraph_takeover.handoff.shell.syntax_reader import parse_command\n"
        "for code in range(0x80, 0x110000, 397):\n"
        "    assert parse_command('echo {' + chr(code))[0].argv == ('echo', '{' + chr(code))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@given(st.text(st.characters(min_codepoint=0x80), min_size=1))
def test_every_character_is_part_of_a_word(text: str) -> None:
    assert [each.argv for each in parse_command(f"echo {text} {{{text}")] == [("echo", text, "{" + text)]


@pytest.mark.cases(5)
@pytest.mark.parametrize("name", NESTED)
def test_nesting_costs_no_recursion(name: str) -> None:
    def parse_at(depth: int) -> tuple[SimpleCommand, ...]:
        """Most calls happen deep inside LangGraph."""
        return parse_at(depth - 1) if depth else parse_command(f"{NESTED[name]} # {name}")

    commands = parse_at(300)
    for command in commands:
        find_runner(command.argv)
    if name in ("sudo", "env", "options", "chain", "pipeline", "arithmetic", "functions", "directories"):
        assert find_runner(commands[-1].argv)
    if name in ("chain", "pipeline"):
        assert len(commands) == 3_001


def test_the_exit_code_of_a_long_chain() -> None:
    commands = parse_command("pytest && echo a && false || exit 1 && make && true")
    assert [command.exit_code_is_own for command in commands] == [False, False, False, False, True, True]
    assert [command.success_is_own for command in commands] == [True, True, True, False, True, True]
    assert [each.exit_code_is_own for each in parse_command("set -o pipefail; pytest | tee a | tail")] == [
        False, True, True, True,
    ]  # fmt: skip


@pytest.mark.slow
def test_the_grammar_reads_the_start_of_a_text_full_of_errors() -> None:
    """Its recovery from errors is quadratic: a million of these characters took minutes."""
    assert parse_command("pytest -q\n" + "<editor>" * 125_000)[0].argv == ("pytest", "-q")


MOVES = (
    "cd a", "cd a; cd b", "cd a && ls", "(cd a && ls)", "(cd a); cd b", "{ cd a; ls; }", "ls | cd a", "x=$(cd a; pwd)",
    "bash -c 'cd a'", "pushd a", "pushd a && popd", "pushd a && pushd b", "pushd a; pushd b; popd", "pushd a; pushd b; popd; popd",
    "cd a && cd -", "cd a; cd b; cd -; cd -", "cd a; (cd b; cd -); ls", "cd a/../a//b", "if true; then cd a; fi",
    "for i in 1; do cd a; done", "cd a & wait", "pushd a >/dev/null; (popd); ls",
)  # fmt: skip


def test_the_directory_after_a_line_is_that_of_bash(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    script = "\n".join(f"( {{ {line}\n}} >/dev/null 2>&1; pwd )" for line in MOVES)
    found = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    base = str(tmp_path)
    expected = dict(zip(MOVES, found.stdout.splitlines(), strict=True))
    assert {line: find_directory_after(line, base) for line in MOVES} == expected


@pytest.mark.parametrize("line", ["popd", "cd -", "cd $X", "pushd", "cd", "pushd a; popd +1"])
def test_an_unknown_directory_after_a_line(line: str) -> None:
    assert find_directory_after(line, "/repo") is None


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("//app//pkg/../a.py", "/app/a.py"), ("C:\\code\\repo\\a.py", "/c/code/repo/a.py"), ("d:/x", "/d/x"),
        ("/private/tmp/x", "/tmp/x"), ("/private/var/folders/x", "/var/folders/x"), ("/private/x", "/private/x"),
        ("a/./b", "a/b"), ("C:", "C:"), ("\\\\?\\C:\\p\\a.py", "/c/p/a.py"), ("//?/c:/p/a.py", "/c/p/a.py"),
        ("\\\\.\\C:\\p", "/c/p"), ("\\\\host\\p\\a.py", "/host/p/a.py"), ("\\\\?\\UNC\\host\\p", "/host/p"),
    ],
)  # fmt: skip
def test_the_shortest_form_of_a_path(path: str, normal: str) -> None:
    assert normalize_path(path) == normal
    assert resolve_path(path, "/elsewhere") == (normal if normal.startswith("/") else f"/elsewhere/{normal}")


def test_deep_stacks_of_directories_are_bounded() -> None:
    place = find_place_after("; ".join(["pushd a"] * 2_000))
    assert len(place.stack) == 20


@pytest.mark.parametrize(
    "line",
    [
        "grep -n 'a b' \"c d\" src/x.py",
        "sed -n '1,20p' src/x.py\n",
        "python -c 'import os\nprint(1)'",
        'git commit -m "it\'s <<EOF" --author="x"',
        "echo '' \"#x\" '; rm y' \"é\"",
        "timeout 5 pytest -k 'a or b'",
        "su -c 'pytest x'",
        "cat <<'EOF' > src/x.py\nprint('a')\nEOF\n",
        "cat >> /tmp/x <<-EOF\n\tcat <<EOF2\n\tEOF",
        "cat > x.py << EOF\nEOF\n",
    ],
)
def test_a_simple_line_is_read_as_the_grammar_reads_it(line: str) -> None:
    # A line of two commands is always read by the grammar.
    _, *expected = parse_command(f"true && {line}")
    found = parse_command(line)

    assert [(c.argv, c.redirects, c.stdin) for c in found] == [
        (c.argv, c.redirects, c.stdin) for c in expected
    ]
    assert found[0].connector == ""
