"""Sessions at the paths of a sandbox: texts, changes, tasks and secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from langgraph_takeover.handoff.interop.session_records import (
    find_assigned_secrets,
    is_inside,
    join_task,
    make_replacement,
    match_changes,
    move_session,
)
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.trace.events import Event, Trace
from langgraph_takeover.sandbox.interface import FileChange


def observe(path: str, after: str | None, before: str | None = "base", cwd: str | None = "") -> Event:
    change = FileChange(path=path, before=before, after=after)
    return Event(index=0, kind="observation", tool="shell", text="", cwd=cwd, changes=(change,))


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("cd /home/u/shop && ls", "cd /testbed && ls"),
        ("cat /home/u/shop/a.py '/home/u/shop'", "cat /testbed/a.py '/testbed'"),
        ("It is in /home/u/shop.", "It is in /testbed."),
        ("/home/u/shop-2 /home/u/shop.git /home/u/shop2", "/home/u/shop-2 /home/u/shop.git /home/u/shop2"),
        ("/mnt/home/u/shop ~/home/u/shop", "/mnt/home/u/shop ~/home/u/shop"),
        ('{"cwd":"/home/u/shop"}', '{"cwd":"/testbed"}'),
        ("PYTHONPATH=/home/u/shop:/home/u/shop/lib", "PYTHONPATH=/testbed:/testbed/lib"),
    ],
)
def test_a_directory_is_replaced_as_a_whole(text: str, moved: str) -> None:
    assert make_replacement({"/home/u/shop": "/testbed"})(text) == moved


def test_a_directory_of_macos_has_two_names() -> None:
    move = make_replacement({"/tmp/shop": "/testbed"})
    assert (
        move("cd /private/tmp/shop; ls /tmp/shop /x/private/tmp/shop")
        == "cd /testbed; ls /testbed /x/private/tmp/shop"
    )


def test_changes_and_directories_of_a_session_below_the_repository(tmp_path: Path) -> None:
    repository = tmp_path / "shop"
    (repository / "web").mkdir(parents=True)
    events = (
        observe("app.js", "1"),
        observe(f"{repository}/lib/core.py", "2", cwd="src"),
        observe("../README.md", "3", cwd=str(repository)),
        observe("/etc/hosts", "4", cwd="/etc"),
    )
    trace = Trace(
        id="t",
        format="codex",
        events=events,
        workspace=str(repository / "web"),
        task=f"See {repository}/a.py.",
    )
    moved = move_session(trace, repository, "/testbed")
    assert [change.path for event in moved.events for change in event.changes] == [
        "web/app.js", "lib/core.py", "README.md", "/etc/hosts",
    ]  # fmt: skip
    assert [event.cwd for event in moved.events] == ["web", "web/src", "", "/etc"]
    assert (moved.workspace, moved.task) == ("/testbed", "See /testbed/a.py.")


def test_the_last_content_gets_the_digest_of_the_file() -> None:
    events = (
        observe("a", "1"),
        observe("b", "1"),
        observe("a", "2", "1"),
        observe("c", None),
        observe("d", "5"),
    )
    matched = match_changes(events, {"a": "real", "b": None, "c": "there"})
    assert [(each.changes[0].before, each.changes[0].after) for each in matched] == [
        ("base", "1"), ("base", "1"), ("1", "real"), ("base", None), ("base", "5"),
    ]  # fmt: skip


def test_a_content_that_comes_back_is_the_same_one() -> None:
    events = (observe("a", "1"), observe("a", "2", "1"), observe("a", "1", "2"))
    matched = match_changes(events, {"a": "real"})
    assert [each.changes[0].after for each in matched] == ["real", "2", "real"]


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("HOME=/root\nSHOP_API_TOKEN=z8Kp2mQx7L\nPATH=/bin", ["z8Kp2mQx7L"]),
        ('declare -x DB_PASSWORD="hunter2hunter2"', ["hunter2hunter2"]),
        ("export AWS_SECRET_ACCESS_KEY=abcd/1234+efgh", ["abcd/1234+efgh"]),
        ("API_KEY = read_key()\nAPI_TOKEN=os.environ['X1']\nTOKEN_LIMIT=12345678", []),
        ("api_token=abcdefgh12", []),
        ("SHOP_API_TOKEN=short1", []),
    ],
)
def test_secrets_in_a_dump_of_the_environment(text: str, secrets: list[str]) -> None:
    assert list(find_assigned_secrets([text])) == secrets


def test_the_task_of_a_continued_session() -> None:
    session = f"{load_prompt('takeover')}\n\nThe user said later:\n\nRead the file x"
    assert join_task("Fix it.", session, ["Read the file"]) == "Fix it."
    later = f"{session}\n\nThe user said later:\n\nAlso add a test."
    assert (
        join_task("Fix it.", later, ["Read the file"])
        == "Fix it.\n\nThe user said later:\n\nAlso add a test."
    )


def test_directories_that_are_inside(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert is_inside(str(link / "sub"), tmp_path)
    assert not is_inside(f"{tmp_path}-2", tmp_path)
    assert not any(
        is_inside(name, tmp_path) for name in ("", "relative", "/\0", "/\ud800", str(tmp_path.parent))
    )
