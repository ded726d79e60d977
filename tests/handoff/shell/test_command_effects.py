"""Command effects are never underestimated: nothing for harmless commands, anything in case of doubt."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from langgraph_takeover.handoff.shell.command_effects import (
    find_effect,
    is_search,
    list_shown_files,
    may_act,
    may_edit,
)
from langgraph_takeover.handoff.shell.syntax_reader import parse_command

from ...random_examples import SHARED_FIXTURES, examples


def read_commands() -> dict[str, list[str]]:
    """The commands in `command_effects.txt`, by their effect."""
    commands: dict[str, list[str]] = {}
    for line in (Path(__file__).parent / "command_effects.txt").read_text().splitlines():
        if line.startswith("== "):
            commands[line.removeprefix("== ")] = found = []
        else:
            found.append(line)
    return commands


COMMANDS_BY_EFFECT = read_commands()
NOTHING, SHELL = COMMANDS_BY_EFFECT["nothing"], COMMANDS_BY_EFFECT["shell"]
ANYTHING = [
    *COMMANDS_BY_EFFECT["anything"],
    "ls\nrm a.txt",
    "ls \\\n> out",
    "ls; \\\nrm a",
    "cat <<EOF > out\nx\nEOF",
    "cat > out <<EOF\nx\nEOF",
    "cat <<EOF\n$(rm a)\nEOF",
    "cat <<EOF\n`rm a`\nEOF",
    "cat <<EOF\n${x:=1}\nEOF",
    "cat <<EOF\nx\nEOF\nrm a",
    "cat <<EOF | sh\nrm a\nEOF",
    "cat <<'EOF' | tee out\nx\nEOF",
    "python3 - <<EOF\nx\nEOF",
    "bash <<EOF\nrm a\nEOF",
    "ls\r\nrm a",
    "ls \x00; rm a",
    "",
    " ",
    "\n",
    "ls " + "x" * 5_000,
    "\tls>out",
    "ls ;\n\n> out",
    "{\nls\n} >out",
    "cat a\n\\rm a",
]


@pytest.mark.parametrize(
    ("commands", "effect"), [(NOTHING, "nothing"), (SHELL, "shell"), (ANYTHING, "anything")]
)
def test_every_command_has_its_effect(commands: list[str], effect: str) -> None:
    assert {each: find_effect(each) for each in commands} == dict.fromkeys(commands, effect)


PIECES = [
    "ls", "cat a", "echo", "pwd", "cd d", "true", "git status", "git log", "git diff", "find .", "sed -n 1p a", "sort a",
    "printf x", "date", "test -f a", "[ -f a ]", "head a", "grep x a", "wc a", "type ls", "which ls", "tr a b",
    "x", "a", "d", "-o", "-oout", "--output=out", "out", "-delete", "-exec touch out ;", "-fprint out", "w out", "-i", "-v",
    "-vx", "x=1", "PATH=d", "1p", "-n", "-e", "-s", "-c", "touch out", "rm a", "tee out", "xargs", "env", "exec", "command",
    "time", "nohup", "timeout 1", "export X=1", "unset HOME", "set -e", "set -- b", "shopt -s nullglob", "umask 0",
    "alias ls=touch",     "ls() { touch out; }", "f() { :; }", "trap 'touch out' EXIT", "eval", "sh -c 'touch out'",
    ";", "&&", "||", "|", "|&", "&", "\n", "(", ")", "{", "}", "!", ">", ">>", ">|", "<", "<>", "&>", "2>", "2>&1", ">&", ">&2",
    "$(touch out)", "`touch out`", "<(touch out)", "$((y=1))", "$[y=1]", "((y=1))", "[[ y=1 -eq 1 ]]", "${z:=1}", "{fd}>", "<<<",
    "<<E\nx\nE\n", "'", '"', "\\", "#", "if", "then", "fi", "for", "in", "do", "done", "while", "[[", "]]", "/dev/null",
    "$X", "*", "~",
]  # fmt: skip
HARMLESS_COMMANDS = ["ls", "cat a", "echo x", "pwd", "git log", "sort a", "find .", "sed -n 1p a", "cd d"]
HARMLESS_PIECES = [*HARMLESS_COMMANDS, "a", ";", "&&", "|", "\n", "2>&1", "-l"]
WORDS = st.one_of(st.sampled_from(HARMLESS_PIECES), st.sampled_from(HARMLESS_PIECES), st.sampled_from(PIECES))
COMMANDS = st.tuples(st.lists(WORDS, min_size=1, max_size=6), st.sampled_from(["", " "])).map(
    lambda both: both[1].join(both[0])
)
STATE = "declare -p; declare -f; alias -p; shopt -p; set +o; umask; trap -p; ulimit -a; pwd"
# Variables that Bash changes by itself.
NOISE = ("BASH_", "_=", "LINENO", "PIPESTATUS", "RANDOM", "SECONDS", "SRANDOM", "EPOCH", "FUNCNAME", "OLDPWD")
NOISE += ("BASHPID",)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("effects")


def _create_tree(directory: Path) -> Path:
    root = directory / "work"
    shutil.rmtree(root, ignore_errors=True)
    (root / "d").mkdir(parents=True)
    (root / "a").write_text("x\n")
    return root


def _hash_tree(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "d"
        for path in root.rglob("*")
    }


def _run(command: str, root: Path) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Run a command and return the files before and after, and the changed lines of the shell state."""
    (root.parent / "command").write_text(command)
    before = _hash_tree(root)
    parent = root.parent
    script = (
        f'{{ {STATE}; }} >{parent}/before\neval "$(<{parent}/command)" </dev/null >{parent}/shown 2>&1\n'
        f"{{ {STATE}; }} >{parent}/after\n"
    )
    subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", script],
        cwd=root,
        env={"PATH": os.environ["PATH"], "HOME": str(root), "LC_ALL": "C"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    states = []
    for name in ("before", "after"):
        lines = (parent / name).read_text().splitlines()
        states.append([line for line in lines if not any(noise in line for noise in NOISE)])
        (parent / name).unlink()
    return before, _hash_tree(root), sorted(set(states[0]) ^ set(states[1]))


@given(COMMANDS)
@example("ls > out")
@example("echo > out")
@example("[[ y=1 -eq 1 ]] && ls")
@settings(max_examples=examples(150), suppress_health_check=SHARED_FIXTURES)
def test_bash_confirms_effects(directory: Path, command: str) -> None:
    effect = find_effect(command)
    if effect == "anything":
        return
    before, after, changed_state = _run(command, _create_tree(directory))
    assert after == before
    if effect == "nothing":
        assert changed_state == []


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("cat a.py b.py", ("a.py", "b.py")),
        ("cd src && cat a.py", ("src/a.py",)),
        ("head -n 20 a.py", ("a.py",)),
        ("tail -5 ./a.py", ("a.py",)),
        ("sed -n '1,5p' a.py", ("a.py",)),
        ("sed -n -e 1p -e 3p a.py", ("a.py",)),
        ("sed -i s/a/b/ a.py", ()),
        ("awk 'NR<5' a.py", ("a.py",)),
        ("nl -ba a.py | sed -n '1,9p'", ("a.py",)),
        ("cat a.py | grep x", ()),
        ("cat a.py | wc -l", ()),
        ("cat < a.py", ("a.py",)),
        ("cat 2>/dev/null a.py", ("a.py",)),
        ("cat a.py 2>/dev/null b.py", ("a.py", "b.py")),
        ("cat a.py | mawk 1", ("a.py",)),
        ("awk -i inplace 1 a.py", ()),
        ("cat a.py > b.py", ()),
        ("cat <<'EOF' > a.py\ncat b.py\nEOF", ()),
        ("grep -n x a.py", ()),
        ("python -c 'print(open(\"a.py\").read())'", ()),
        ("ls a.py; git diff a.py", ()),
        ("less a.py; cat a.py", ("a.py",)),
    ],
)
def test_shown_files(command: str, paths: tuple[str, ...]) -> None:
    assert list_shown_files(command) == paths


@pytest.mark.parametrize(
    ("command", "search"),
    [
        ("grep -rn pytest .", True),
        ("grep -n x a.py", True),
        ("nl a.py | grep -n x", True),
        ("cd x && rg foo", True),
        ("find . -name '*.py'", True),
        ("find . -name '*.py' | xargs grep -l x", True),
        ("find . -name '*.pyc' -delete", False),
        ("find . -name '*.py' -exec sed -i s/a/b/ {} +", False),
        ("git grep foo", True),
        ("git log -S foo", True),
        ("git log -3", False),
        ("ls -laR src", True),
        ("ls src", False),
        ("pytest | grep FAILED", False),
        ("cat a.py", False),
        ("echo 'grep -r x'", False),
    ],
)
def test_is_search(command: str, search: bool) -> None:
    assert is_search(command) is search


@pytest.mark.parametrize(
    ("command", "edits", "acts"),
    [
        ("sed -i s/a/b/ a.py", True, True),
        ("sed --in-place s/a/b/ a.py", True, True),
        ("sed s/a/b/ a.py", False, False),
        ("awk -i inplace 1 a.py", True, True),
        ("awk 1 a.py", False, False),
        ("find . -name '*.py'", False, False),
        ("find . -name '*.pyc' -delete", True, True),
        ("find . -exec rm {} +", True, True),
        ("git -C x checkout a.py", True, True),
        ("git stash", True, True),
        ("git -C x diff", False, False),
        ("git add a.py", False, True),
        ("perl -pi -e s/a/b/ a.py", True, True),
        ("python3 -c 'open(1)'", True, True),
        ("python3 x.py", False, True),
        ("patch -p1", True, True),
        ("black a.py", True, True),
        ("pytest", False, True),
        ("unheard-of a.py", False, True),
        ("sort a.py", False, False),
        ("sort -o a.py a.py", False, True),
        ("source bin/activate", False, False),
        ("export X=1; sleep 1", False, False),
        ("ls src", False, False),
    ],
)
def test_may_edit_and_may_act(command: str, edits: bool, acts: bool) -> None:
    commands = parse_command(command)
    assert any(may_edit(simple) for simple in commands) is edits
    assert any(may_act(simple) for simple in commands) is acts


def test_a_redirection_edits_the_file_that_it_names() -> None:
    (simple,) = parse_command("ls > src/a.py")
    assert may_edit(simple, ["lib/a.py"])
    assert not may_edit(simple, ["lib/b.py"])


def test_likely_answers_agree_with_proven_effects() -> None:
    for command in (*NOTHING, *SHELL):
        assert not any(may_edit(simple) or may_act(simple) for simple in parse_command(command)), command


@pytest.mark.parametrize(
    "command", ["ls;" * 1_300, "ls&&" * 900 + "ls", "(" * 4_000, "'" * 3_999, "a=(" * 1_300, "1" * 4_000]
)
def test_long_and_nested_commands_have_an_effect(command: str) -> None:
    assert find_effect(command) in ("nothing", "anything")
