"""Command lines that only restore files, and those that build or install."""

from __future__ import annotations

import pytest

from langgraph_takeover.handoff.shell.command_effects import is_build_or_install, is_restore_only
from langgraph_takeover.handoff.shell.syntax_reader import parse_command


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("git checkout a.py", True),
        ("cd src && git stash && pwd", True),
        ("git diff a.py | sort; git checkout a.py", True),
        ("find . -name '*.py'; git restore a.py", True),
        ("sed -n 1,5p a.py; git checkout a.py", True),
        ("find . -name '*.py' -delete; git checkout a.py", False),
        ("sed -i s/a/b/ a.py; git checkout a.py", False),
        ("make && git checkout a.py", False),
        ("git apply x.diff", False),
        ("git diff", False),
        ("ls", False),
    ],
)
def test_is_restore_only(command: str, expected: bool) -> None:
    assert is_restore_only(parse_command(command)) is expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [("pip install -e .", True), ("python setup.py build_ext", True), ("pip list", False), ("pytest", False)],
)
def test_is_build_or_install(command: str, expected: bool) -> None:
    assert is_build_or_install(parse_command(command)) is expected
