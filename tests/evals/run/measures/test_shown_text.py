"""Which file and line each line of an observation comes from."""

from __future__ import annotations

import pytest

from langgraph_takeover.evals.run.measures.shown_text import (
    Location,
    is_boilerplate,
    join_ranges,
    list_command_parts,
    list_shown_lines,
)
from langgraph_takeover.handoff.trace.events import Event

DIFF = """diff --git a/src/a.py b/src/a.py
index 12ab..34cd 100644
--- a/src/a.py
+++ b/src/a.py
@@ -7,3 +7,3 @@ def f():
 seven
-eight
+ate
 nine
M src/a.py"""


def show(command: str, output: str, cwd: str = "") -> list[tuple[str, tuple[str, ...], int | None]]:
    arguments = {"command": command}
    action = Event(index=0, kind="action", tool="shell", text="", arguments=arguments)
    seen = Event(index=1, kind="observation", tool="shell", text=output, exit_code=0, cwd=cwd or None)
    return [(line.text, line.paths, line.number) for line in list_shown_lines(action, seen, "/repo")]


@pytest.mark.parametrize(
    ("command", "output", "expected"),
    [
        ("cat src/a.py", "one\n\ntwo\n", [("one", ("src/a.py",), 1), ("two", ("src/a.py",), 3)]),
        ("cat /repo/src/a.py", "one", [("one", ("src/a.py",), 1)]),
        ("cd src && cat a.py || true", "one", [("one", ("src/a.py",), 1)]),
        ("sed -n '20,21p' a.py", "x1\nx2", [("x1", ("a.py",), 20), ("x2", ("a.py",), 21)]),
        ("cat a.py | sed -n 5,6p", "x1\nx2", [("x1", ("a.py",), 5), ("x2", ("a.py",), 6)]),
        ("sed -n 1,1p a.py; sed -n 9,9p b.py", "x1\nx2", [("x1", ("a.py", "b.py"), 1), ("x2", ("a.py", "b.py"), 9)]),
        ("head -5 a.py", "one", [("one", ("a.py",), 1)]),
        ("nl -ba a.py | sed -n '7,8p'", "     7\tseven\n     8\teight", [("seven", ("a.py",), 7), ("eight", ("a.py",), 8)]),
        ("nl -ba a.py | grep -n seven -A1", "7:     7\tseven", [("seven", ("a.py",), 7)]),
        ("grep -n x a.py", "4:x = 1", [("x = 1", ("a.py",), 4)]),
        ("grep -C 1 -n x a.py", "3-before\n4:x = 1\n--\n", [("before", ("a.py",), 3), ("x = 1", ("a.py",), 4)]),
        ("grep -rn x src", "src/a.py:4:x = 1\nsrc/b.py-5-y", [("x = 1", ("src/a.py",), 4), ("y", ("src/b.py",), 5)]),
        ("grep -r x src", "src/a.py:x = 1", [("x = 1", ("src/a.py",), None)]),
        ("cat a.py b.py", "one\ntwo", [("one", ("a.py", "b.py"), None), ("two", ("a.py", "b.py"), None)]),
        ("git diff", DIFF, [
            ("seven", ("src/a.py",), 7), ("eight", ("src/a.py",), 8), ("ate", ("src/a.py",), 8),
            ("nine", ("src/a.py",), 9), ("M src/a.py", (), None),
        ]),
        ("pytest -q", "3 passed", [("3 passed", (), None)]),
        ("cat a.py", "one\n[… 40,000 characters left out; request less …]\nlast", [
            ("one", ("a.py",), 1), ("last", ("a.py",), None),
        ]),
    ],
)  # fmt: skip
def test_lines_of_a_command(command: str, output: str, expected: object) -> None:
    assert show(command, output) == expected


def test_paths_follow_the_directory_of_the_shell() -> None:
    assert show("cat a.py", "one", cwd="/repo/src") == [("one", ("src/a.py",), 1)]
    assert show("cat a.py", "one", cwd="src") == [("one", ("src/a.py",), 1)]


def test_lines_of_an_editor() -> None:
    action = Event(
        index=0, kind="action", tool="editor", text="", arguments={"command": "view", "path": "a.py"}
    )
    text = "a.py, lines 3 to 4 of 9:\n     3\tthree\n     4\tfour"
    seen = Event(index=1, kind="observation", tool="editor", text=text)
    found = list_shown_lines(action, seen, "/repo")
    assert [(line.text, line.paths, line.number) for line in found] == [
        ("three", ("a.py",), 3),
        ("four", ("a.py",), 4),
    ]


@pytest.mark.parametrize(
    "line",
    ["", "   ", "-----", ")", "[File: /x.py (9 lines total)]", "(3 more lines above)", "bash-$", "@@ -1,2 +1,3 @@ def f():",
     "+++ b/x.py", "[The command completed with exit code 0.]", "Here's the result of running `cat -n` on /x.py:"],
)  # fmt: skip
def test_boilerplate_never_counts(line: str) -> None:
    assert is_boilerplate(line)


@pytest.mark.parametrize("line", ["return None", "NOTES", "index = 3", "File x", "a b has been", "--- text"])
def test_content_is_no_boilerplate(line: str) -> None:
    assert not is_boilerplate(line)


def test_parts_of_a_command_line() -> None:
    repo = Location(workspace="/repo")
    parts = list_command_parts("cd /repo && git  status; ls -la src | head -3", repo)
    assert parts == (".: git status", ".: ls -la src | head -3")
    assert list_command_parts("git status", Location("/repo", "/repo")) == parts[:1]
    assert list_command_parts("git status", Location("src", "/repo")) == ("src: git status",)
    assert list_command_parts("cd src && git status", repo) == ("src: git status",)


def test_ranges() -> None:
    assert join_ranges([5, 1, 2, 3, 3, 9]) == ((1, 3), (5, 5), (9, 9))
    assert join_ranges([]) == ()
    assert join_ranges([1, 3, 6, 11], others={5}) == ((1, 3), (6, 6), (11, 11))


def test_hostile_output_takes_little_time() -> None:
    for text in ("a/" * 200_000, "1" * 200_000, "x." * 100_000 + "py:1:", " " * 200_000):
        assert len(show("grep -rn x .", text)) <= 1
