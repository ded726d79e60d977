"""Actions as shell commands, run by a real shell."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from langgraph_takeover.handoff.agents.native_sessions import (
    has_shell_command,
    write_shell_command,
    write_view_arguments,
)
from langgraph_takeover.handoff.trace.events import Action
from langgraph_takeover.testing.agents.histories import HOSTILE_TEXTS

TEXTS = [each.replace("\0", "").replace("\ud800", "").replace("\r", "") for each in HOSTILE_TEXTS]


def run(directory: Path, **arguments: str) -> subprocess.CompletedProcess[str]:
    command = write_shell_command(Action("editor", arguments))
    return subprocess.run(["bash", "-c", command], cwd=directory, capture_output=True, text=True, check=False)


@pytest.mark.cases(3)
@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_written_unchanged_and_not_executed(tmp_path: Path, text: str) -> None:
    content = f"first\n{text}\nlast\n"
    assert run(tmp_path, command="create", path="a dir/a.txt", content=content).returncode == 0
    assert (tmp_path / "a dir/a.txt").read_text() == content
    done = run(tmp_path, command="str_replace", path="a dir/a.txt", old=text, new=f"<{text}>")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a dir/a.txt").read_text() == f"first\n<{text}>\nlast\n"
    assert run(tmp_path, command="insert", path="a dir/a.txt", line="0", new=text).returncode == 0
    inserted = text if text.endswith("\n") else f"{text}\n"
    assert (tmp_path / "a dir/a.txt").read_text() == f"{inserted}first\n<{text}>\nlast\n"
    assert [each.name for each in tmp_path.iterdir()] == ["a dir"]


def test_hostile_paths_are_not_executed(tmp_path: Path) -> None:
    path = "$(touch escaped)';touch escaped;'.txt"
    assert run(tmp_path, command="create", path=path, content="x\n").returncode == 0
    assert "x" in run(tmp_path, command="view", path=path, start="1", end="2").stdout
    assert [each.name for each in tmp_path.iterdir()] == [path]


def test_ambiguous_replacement_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x x")
    done = run(tmp_path, command="str_replace", path="a", old="x", new="y")
    assert done.returncode != 0
    assert "occurs 2 times" in done.stderr
    assert (tmp_path / "a").read_text() == "x x"


def test_edit_with_several_replacements(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one two three")
    edits = [{"oldText": "one", "newText": "1"}, {"old_string": "three", "new_string": "it's \\n"}]
    assert run(tmp_path, command="edit", path="a", edits=json.dumps(edits)).returncode == 0
    assert (tmp_path / "a").read_text() == "1 two it's \\n"


@pytest.mark.parametrize("edits", ["", "[", "[]", "[1]", '[{"old": "x"}]', '{"old": "x", "new": "y"}'])
def test_unknown_edit_is_a_comment(tmp_path: Path, edits: str) -> None:
    (tmp_path / "a").write_text("x")
    action = Action("editor", {"command": "edit", "path": "a", "edits": edits})
    assert not has_shell_command(action)
    assert write_shell_command(action).startswith("# editor: ")
    assert run(tmp_path, **action.arguments).returncode == 0
    assert (tmp_path / "a").read_text() == "x"


def test_view_shows_the_lines(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\nthree\nfour\n")
    assert [line.split()[1] for line in run(tmp_path, command="view", path="a", start="2", end="3").stdout.splitlines()] == [
        "two", "three",
    ]  # fmt: skip
    assert len(run(tmp_path, command="view", path="a", start="3").stdout.splitlines()) == 2
    assert len(run(tmp_path, command="view", path="a").stdout.splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"path": "a"}, {}),
        ({"path": "a", "start": "3"}, {"offset": 3}),
        ({"path": "a", "start": "0", "end": "5"}, {"offset": 1, "limit": 5}),
        ({"path": "a", "start": "5", "end": "2"}, {}),
        ({"path": "a", "start": "-1", "end": "x"}, {}),
        ({"path": "a", "start": "9" * 50}, {}),
        ({"path": "a", "start": "²"}, {}),
    ],
)
def test_view_arguments(arguments: dict[str, str], expected: dict[str, int]) -> None:
    view = Action("editor", arguments)
    assert write_view_arguments(view, "/testbed") == {"file_path": "/testbed/a", **expected}


def test_view_arguments_of_other_tools() -> None:
    view = Action("editor", {"path": "/b", "start": "3", "end": "3"})
    expected = {"filePath": "/b", "offset": 2, "limit": 1}
    assert write_view_arguments(view, "/testbed", path_name="filePath", first_line=0) == expected
    assert write_view_arguments(Action("editor", {"command": "create", "path": "a"}), "/testbed") is None
