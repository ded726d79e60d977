"""Programs that could not be started, by the words of the shells and of Python, and other spellings that ran."""

from __future__ import annotations

import pytest

from langgraph_takeover.handoff.shell.missing_programs import (
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
        ("pylint a.py", "bash: pylint: command not found"),
        ("python -m pylint a.py", "rated at 10/10"),
        ("python3 -m pylint a.py", "rated at 10/10"),
        ("/x/python -m pylint a.py", "/x/python: No module named pylint"),
        ("mypy a.py", "bash: mypy: command not found"),
    ]
    found = find_running_spellings(steps)
    assert found["pylint"] == "python3 -m pylint"
    assert "mypy" not in found
