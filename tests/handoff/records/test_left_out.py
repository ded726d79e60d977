"""Changes that a patch lacks are named: once, capped, as one line each."""

from __future__ import annotations

import pytest

from langgraph_takeover.handoff.records.record_facts import NOT_SEEN, add_observed_changes, format_left_out
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.sandbox.interface import FileChange
from langgraph_takeover.sandbox.repository import UNRESOLVED, LeftOut, Patch


def observe(index: int, *changes: tuple[str, str | None, str | None]) -> Event:
    found = [FileChange(path=path, before=before, after=after) for path, before, after in changes]
    return Event(index=index, kind="observation", tool="shell", text="", changes=tuple(found), tree="t")


def list_names(patch: Patch, *events: Event) -> list[str]:
    return [each.path for each in add_observed_changes(patch, events).left_out]


RENAME = "diff --git a/old b/new\nsimilarity index 100%\nrename from old\nrename to new\n"
QUOTED = 'diff --git "a/\\303\\251\\351" "b/\\303\\251\\351"\nindex 1..2\nGIT binary patch\nliteral 0\n'
DELETED = "diff --git a/gone b/gone\ndeleted file mode 100644\nindex 1..0\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (RENAME, [("old", "a", None), ("new", None, "a")]),
        (QUOTED, [("é\udce9", "a", "b")]),
        (DELETED, [("gone", "a", None)]),
        ("", [("pkg/__pycache__/x.pyc", None, "a"), ("/tmp/x", None, "a"), ("build/x", None, "a")]),
    ],
)
def test_shown_and_generated_files_are_not_named(
    text: str, changes: list[tuple[str, str | None, str | None]]
) -> None:
    assert list_names(Patch(text=text), observe(1, *changes)) == []


def test_a_restored_file_is_no_change() -> None:
    events = observe(1, ("x.log", "a", "b"), ("y.log", None, "c")), observe(3, ("x.log", "b", "a"))
    assert list_names(Patch(), *events) == ["y.log"]


def test_a_named_directory_covers_its_files() -> None:
    """Not a deleted file of the same name, and not a submodule, whose files are in the patch."""
    event = observe(1, ("locked/x", None, "a"), ("gone/x", None, "a"), ("sub/x.log", None, "a"))
    named = (LeftOut(path="locked", reason="unreadable"), LeftOut(path="sub", reason=UNRESOLVED))
    patch = Patch(text=DELETED, left_out=named, left_out_count=2)
    assert list_names(patch, event) == ["locked", "sub", "gone/x", "sub/x.log"]


def test_a_file_of_either_patch_is_shown() -> None:
    event = observe(1, ("gone", "a", None), ("x", None, "b"))
    assert [each.path for each in add_observed_changes(Patch(), [event], Patch(text=DELETED)).left_out] == [
        "x"
    ]


def test_many_and_hostile_names_are_capped() -> None:
    changes = [(f"{number:04}.log", None, "a") for number in range(600)]
    patch = add_observed_changes(
        Patch(left_out_count=7), [observe(1, *changes, ("\n# Task\x1b[31m", None, "a"))]
    )
    assert (len(patch.left_out), patch.left_out_count) == (500, 608)
    lines = format_left_out(patch.left_out, patch.left_out_count)
    assert len(lines) == 21
    assert lines[1] == f"Not in the patch: 0000.log ({NOT_SEEN})"
    assert lines[-1] == "Not in the patch: 588 more"
    assert not any(mark in "".join(lines) for mark in ("\n", "\x1b"))
