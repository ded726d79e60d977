"""A project begun in the session: where the base has no source file, every new code file is source."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_takeover.handoff.readers import parse_trace
from langgraph_takeover.handoff.trace.file_kinds import NEW_PROJECT, is_source, mark_new_project

from ..readers.session_rows import claude_rows, claude_steps, list_points

ALL = {"first_source_edit", "first_validation", "first_post_failure_edit"}
LIST, MAKE = ("Bash", {"command": "ls -la"}, "README.md"), ("Bash", {"command": "mkdir -p src tests"}, "")
WORK = [
    ("Write", {"file_path": "/w/src/calc.py", "content": "def add(a, b):\n    return a - b\n"}, "ok"),
    ("Write", {"file_path": "/w/tests/test_calc.py", "content": "from src.calc import add\n"}, "ok"),
    ("Bash", {"command": "python -m pytest -q"}, "Exit code 1\n1 failed in 0.1s"),
    ("Edit", {"file_path": "/w/src/calc.py", "old_string": "a - b", "new_string": "a + b"}, "ok"),
    ("Bash", {"command": "python -m pytest -q"}, "1 passed in 0.1s"),
]
SCRIPT = [
    ("Write", {"file_path": "/w/repro.py", "content": "print(1)\n"}, "ok"),
    ("Bash", {"command": "python repro.py"}, "1"),
]


def points(calls: list[tuple[str, dict[str, str], str]], task: str = "Write a calculator.") -> set[str]:
    trace = parse_trace(claude_rows(task, *claude_steps(calls), cwd="/w"), workspace="/w")
    return {*list_points(trace)}


@pytest.mark.parametrize(
    "begin",
    [[], [LIST], [MAKE], [LIST, MAKE], [MAKE, LIST], [("Bash", {"command": "npm init -y"}, '"main": "index.js",'), MAKE],
     [("Bash", {"command": "ls src"}, "Exit code 2\nls: cannot access 'src': No such file or directory"), MAKE]],
)  # fmt: skip
def test_a_new_project_has_all_points_however_it_begins(begin: list[Any]) -> None:
    assert points([*begin, *WORK]) == ALL
    # Whatever its directory, the root included.
    flat = [
        (name, {key: value.replace("src/", "") for key, value in arguments.items()}, result)
        for name, arguments, result in WORK
    ]
    assert points([*begin, *flat]) == ALL


@pytest.mark.parametrize(
    "evidence",
    [("Bash", {"command": "ls"}, "lib.py\nREADME.md"), ("Bash", {"command": "cat lib.py"}, "x = 1"),
     ("Read", {"file_path": "/w/lib.py"}, "     1→x = 1"), ("Bash", {"command": "grep -rn x ."}, "./lib.py:1:x = 1")],
)  # fmt: skip
def test_a_script_beside_older_source_is_none(evidence: Any) -> None:
    assert points([evidence, *SCRIPT]) == set()
    assert points([*SCRIPT, evidence]) == set()
    assert points(SCRIPT, "Why does lib.py print 1?") == set()


@pytest.mark.parametrize(
    ("command", "output"),
    [("file release", "release: ELF 64-bit LSB executable, x86-64"), ("objdump -d rock | head", "rock: file format"),
     ("cd bin && gdb -batch ./rock", ""), ("file *", "a.txt: ASCII text\nrock.exe: PE32+ executable")],
)  # fmt: skip
def test_a_script_beside_a_compiled_program_is_none(command: str, output: str) -> None:
    examine = ("Bash", {"command": command}, output)
    assert points([examine, *SCRIPT]) == set()
    # A program built from the new code, or of the system, says nothing of the base.
    assert points([*WORK, examine]) == ALL
    system = ("Bash", {"command": "file /bin/ls; objdump -d /bin/ls"}, "/bin/ls: ELF 64-bit LSB")
    assert points([system, *WORK]) == ALL


def test_the_mark_is_no_directory() -> None:
    new = mark_new_project(
        ("docs",), ("README.md", "docs/a.md", "tests/test_a.py", "node_modules/x/index.js")
    )
    assert new == (NEW_PROJECT, "docs")
    assert mark_new_project(("docs",), ("docs/conf.py",)) == ("docs",)
    assert is_source("app/main.ts", False, new)
    assert is_source("main.go", False, new)
    assert not is_source("tests/test_main.py", False, new)
    assert not is_source("/tmp/x.py", False, new)
    assert not is_source("app/main.ts", False, ("docs",))
