"""Programs that could not be started, by the words of the shells and of Python, and other spellings that ran."""

from __future__ import annotations

import pytest

from langgraph_takeover.handoff.shell.program_table import (
    find_running_spellings,
    list_launches,
    list_missing_programs,
)


@pytest.mark.parametrize(
    ("command", "output", "missing"),
    [
        ("pylint a.py", "bash: pylint: command not found", ["pylint"]),
        ("pylint a.py", "/bin/bash: line 12: pylint: command not found\n", ["pylint"]),
        ("pylint a.py", "sh: 1: pylint: not found", ["pylint"]),
        (
            "cd src && pylint a.py | tail",
            "[exit code 0]\nbash: line 1: pylint: command not found",
            ["pylint"],
        ),
        ("python -m pytest -q", "/usr/bin/python: No module named pytest", ["python -m pytest"]),
        ("python3.9 -m pytest", "python3.9: No module named pytest", ["python3.9 -m pytest"]),
        ("env pylint a.py", "env: ‘pylint’: No such file or directory", ["pylint"]),
        ("./bin/lint a.py", "bash: ./bin/lint: No such file or directory", []),
        ("python -m pytest -q", "ModuleNotFoundError: No module named 'numpy'", []),
        ("cat install.log", "bash: pylint: command not found", []),
        ("python a.py", "No module named pytest", []),
        ("pylint a.py", "a.py:1:0: C0114: Missing module docstring", []),
        ("", "bash: pylint: command not found", []),
    ],
)
def test_missing_programs(command: str, output: str, missing: list[str]) -> None:
    assert [launch.spelling for launch in list_missing_programs(command, output)] == missing


def test_launches_are_named_by_program_and_spelling() -> None:
    command = "cd x && timeout 60 python3 -m pylint a.py; ./bin/pylint b.py | head -3"
    assert [tuple(launch) for launch in list_launches(command)] == [
        ("cd", "cd"),
        ("python", "python3"),
        ("pylint", "python3 -m pylint"),
        ("pylint", "./bin/pylint"),
        ("head", "head"),
    ]


def test_the_latest_spelling_that_ran_counts() -> None:
    steps = [
        ("pylint a.py", "bash: pylint: command not found", 127),
        ("python -m pylint a.py", "rated at 10/10", 0),
        ("python3 -m pylint a.py", "rated at 9/10", 16),
        ("/x/python -m pylint a.py", "/x/python: No module named pylint", 1),
        ("mypy a.py", "bash: mypy: command not found", 127),
    ]
    found = find_running_spellings(steps)
    assert found["pylint"] == "python3 -m pylint"
    assert "mypy" not in found


@pytest.mark.parametrize(
    ("command", "output", "exit_code", "ran"),
    [
        ("cd src && tox", "1 failed", 1, True),
        ("which tox && tox", "", 0, True),
        ("tox 2>&1", "1 failed", 1, True),
        ("tox >log 2>&1", "", 0, True),
        ("tox", "", None, False),
        ("tox", "", 126, False),
        ("which tox && tox", "", 1, False),
        ("cd src && tox", "bash: cd: src: No such file or directory", 1, False),
        ("cd src && tox", "bash: cd: src: Kein Verzeichnis", 1, False),
        ("pip install tox && tox", "ERROR: no network", 1, False),
        ("ruff check . || tox", "All checks passed!", 0, False),
        ("tox 2>/dev/null || echo none", "none", 0, False),
        ("tox 2>/dev/null", "", 1, False),
        ("tox >log 2>&1", "", 1, False),
        ("python -m tox", "No module named tox", 1, False),
        ("pipenv run tox", "Error: the command tox could not be found", 1, False),
        ("ls *.x | xargs -r tox", "", 0, False),
        ("tox | tail -3", "", 0, False),
        ("if false; then tox; fi", "", 0, False),
        ("exit 0; tox", "", 0, False),
    ],
)
def test_only_a_certain_start_counts(command: str, output: str, exit_code: int | None, ran: bool) -> None:
    assert ("tox" in find_running_spellings([(command, output, exit_code)])) is ran


def test_a_builtin_is_no_tool() -> None:
    assert find_running_spellings([("test -f a && source b && file c", "", 0)]) == {}
