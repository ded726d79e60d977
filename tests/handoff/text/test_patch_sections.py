"""The sections of patches that git itself wrote."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from langgraph_takeover.handoff.text.patch_sections import PatchSection, split_patch


def run_git(repository: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=repository, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def sections(tmp_path: Path) -> dict[str, PatchSection]:
    run_git(tmp_path, "init", "-q")
    (tmp_path / "changed.py").write_text("one\n--two\nthree\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\x00")
    (tmp_path / "old name.py").write_text("kept\n" * 9)
    run_git(tmp_path, "add", ".")
    run_git(tmp_path, "commit", "-qm", "base")
    (tmp_path / "changed.py").write_text("one\n++2\n\nthree\ndiff --git a/x b/x\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\x01\x00")
    (tmp_path / "old name.py").rename(tmp_path / "new name.py")
    (tmp_path / "added.py").write_text("added\n")
    run_git(tmp_path, "add", "-A")
    return {section.path: section for section in split_patch(run_git(tmp_path, "diff", "--cached", "-M"))}


def test_each_file_has_a_section(sections: dict[str, PatchSection]) -> None:
    assert set(sections) == {"added.py", "changed.py", "new name.py", "picture.png"}
    assert [path for path, section in sections.items() if section.is_new] == ["added.py"]
    renamed = {path: section.old_path for path, section in sections.items() if section.old_path}
    assert renamed == {"new name.py": "old name.py"}


def test_changed_lines_are_those_of_the_hunks_alone(sections: dict[str, PatchSection]) -> None:
    assert list(sections["changed.py"].list_changed_lines()) == [
        *("---two", "+++2", "+"),
        "+diff --git a/x b/x",
    ]
    assert list(sections["added.py"].list_changed_lines()) == ["+added"]


@pytest.mark.parametrize("name", ["picture.png", "new name.py"])
def test_a_section_without_hunks_has_no_lines(sections: dict[str, PatchSection], name: str) -> None:
    assert sections[name].hunks == ""
    assert list(sections[name].list_changed_lines()) == []


@pytest.mark.parametrize("quoted", ["true", "false"])
def test_names_that_git_quotes(tmp_path: Path, quoted: str) -> None:
    run_git(tmp_path, "init", "-q")
    names = ('a"b.py', "tab\there.py", "back\\slash.py", "größe.py", "x b/y.py", "two words.py")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text\n")
    (tmp_path / 'é".bin').write_bytes(b"\x00\xff")
    run_git(tmp_path, "add", "-A")
    patch = run_git(
        tmp_path,
        "-c",
        f"core.quotePath={quoted}",
        "diff",
        "--cached",
        "--binary",
        "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    )
    assert {section.path for section in split_patch(patch)} == {*names, 'é".bin'}


def test_text_that_is_no_patch_has_no_section() -> None:
    assert split_patch("") == ()
    assert split_patch("no patch at all\n@@ -1 +1 @@\n+x\n") == ()
