"""Situations from public reports about checkpoints, undo and backups of working directories, each with its reports."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from langgraph_takeover.sandbox import DirectorySnapshots, SandboxUnavailableError

from .saved_trees import describe_tree, make_repository, open_snapshots, run_git


def _list_states(directory: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of the last change of each path: what any change of it would alter."""
    found = {str(path): path.lstat() for path in [directory, *directory.rglob("*")]}
    return {path: (info.st_ino, info.st_ctime_ns) for path, info in found.items()}


def test_nested_repositories(tmp_path: Path) -> None:
    """cline/cline#5598, #9590, #2868: `.git` was renamed during a checkpoint, and stayed so after a kill.
    RooCodeInc/Roo-Code#4509: no checkpoints with repositories inside."""
    directory = make_repository(tmp_path / "tree")
    inner = make_repository(directory / "vendor" / "inner")
    run_git(directory, "add", "vendor")
    states = _list_states(directory)
    snapshots = open_snapshots(directory)
    for _ in range(10):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                snapshots.take()
            os._exit(0)
        time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    first = snapshots.take()
    assert _list_states(directory) == states
    before = describe_tree(directory)
    (inner / "README").write_text("changed\n")
    run_git(inner, "commit", "-q", "-a", "-m", "second")
    subprocess.run(["rm", "-rf", inner / ".git" / "refs"], check=True)
    snapshots.restore(first.id)
    assert describe_tree(directory) == before
    assert run_git(inner, "log", "--format=%s") == "base\n"
    run_git(inner, "fsck", "--strict")


def test_submodules_and_worktrees(tmp_path: Path) -> None:
    """zed-industries/zed#51563 and RooCodeInc/Roo-Code#11341: `.git` is a file there, which checkpoints took for a directory."""
    library = make_repository(tmp_path / "library")
    main = make_repository(tmp_path / "main")
    run_git(main, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "library")
    run_git(main, "commit", "-q", "-m", "submodule")
    run_git(main, "worktree", "add", "-q", str(tmp_path / "tree"))
    for directory in (main, tmp_path / "tree"):
        snapshots = open_snapshots(directory, ignore_with_git=True)
        before = describe_tree(directory)
        first = snapshots.take()
        (directory / "src" / "code.py").write_text("two = 2\n")
        (directory / ".git").rename(directory / "was.git")
        with pytest.raises(SandboxUnavailableError, match="git ls-files: fatal"):
            snapshots.restore(first.id)
        snapshots = open_snapshots(directory)
        snapshots.restore(first.id)
        assert describe_tree(directory) == before
        assert run_git(directory, "status", "--short") == ""


def test_commits_of_the_agent(tmp_path: Path) -> None:
    """A restore undoes commits, branches, a merge that waits for a person, and a lock that a killed git left."""
    directory = make_repository(tmp_path / "tree")
    (directory / "src" / "code.py").write_text("staged = 1\n")
    run_git(directory, "add", "src")
    (directory / "README").write_text("not staged\n")
    status = run_git(directory, "status", "--short", "--branch")
    snapshots = open_snapshots(directory)
    first = snapshots.take()
    run_git(directory, "commit", "-q", "-a", "-m", "agent")
    run_git(directory, "checkout", "-q", "-b", "other", "HEAD~1")
    run_git(directory, "gc", "-q", "--aggressive", "--prune=now")
    (directory / ".git" / "index.lock").touch()
    restored = snapshots.restore(first.id)
    assert ".git/index.lock" in restored.removed
    assert run_git(directory, "status", "--short", "--branch") == status
    assert run_git(directory, "log", "--format=%s") == "base\n"
    run_git(directory, "fsck", "--strict")
    (directory / ".git" / "index.lock").touch()
    locked = snapshots.take()
    (directory / ".git" / "index.lock").unlink()
    (directory / "README").write_text("later\n")
    snapshots.restore(locked.id)
    assert not (directory / ".git" / "index.lock").exists()


def test_new_files_go_and_deleted_files_return_without_git(tmp_path: Path) -> None:
    """google-gemini/gemini-cli#1139: a restore left new files. #4115: nothing happened without a repository.
    anthropics/claude-code#34368: deleted files did not return. #18771: changes of shell commands were not saved."""
    directory = tmp_path / "tree"
    directory.mkdir()
    (directory / "old.md").write_text("old")
    snapshots = open_snapshots(directory)
    first = snapshots.take()
    subprocess.run("mkdir -p a/b; echo new >a/b/new.md; mv old.md a", shell=True, cwd=directory, check=True)
    restored = snapshots.restore(first.id)
    assert (restored.created, restored.removed) == (("old.md",), ("a", "a/b", "a/b/new.md", "a/old.md"))
    assert [path.name for path in directory.iterdir()] == ["old.md"]


def test_a_restore_without_changes_changes_nothing(tmp_path: Path) -> None:
    """anomalyco/opencode#32529: an undo of a turn without changes reverted what a person had not committed.
    google-gemini/gemini-cli#13331: a restore of a large repository deleted nearly all files."""
    directory = make_repository(tmp_path / "tree")
    (directory / "README").write_text("not committed\n")
    (directory / "untracked").write_text("kept\n")
    snapshots = open_snapshots(directory)
    first, states = snapshots.take(), _list_states(directory)
    restored = snapshots.restore(first.id)
    assert (restored.created, restored.changed, restored.removed) == ((), (), ())
    assert _list_states(directory) == states


def test_ignored_files_survive_when_the_rules_change(tmp_path: Path) -> None:
    """cline/cline#14367: a restore reverted .gitignore first, then deleted what had been ignored.
    anomalyco/opencode#28033: files ignored later were deleted by an undo."""
    directory = make_repository(tmp_path / "tree")
    (directory / ".gitignore").write_text("*.env\n/build/\n")
    (directory / "build").mkdir()
    (directory / "build" / "output").write_text("1")
    (directory / "production.env").write_text("1")
    (directory / "forced.env").write_text("1")
    run_git(directory, "add", "--force", "forced.env")
    snapshots = open_snapshots(directory, ignore_with_git=True)
    first = snapshots.take()
    (directory / ".gitignore").write_text("later.txt\n")
    (directory / "later.txt").write_text("ignored now")
    (directory / "build" / "output").write_text("2")
    (directory / "production.env").write_text("2")
    (directory / "forced.env").write_text("2")
    restored = snapshots.restore(first.id)
    assert (directory / "later.txt").read_text() == "ignored now"
    assert (directory / "build" / "output").read_text() == "2"
    assert (directory / "production.env").read_text() == "2"
    assert (directory / "forced.env").read_text() == "1"
    assert restored.left_out == ()


def test_git_that_cannot_answer_is_no_empty_answer(tmp_path: Path) -> None:
    """anomalyco/opencode#28033: an error of git counted as "nothing is ignored"."""
    directory = make_repository(tmp_path / "tree")
    (directory / ".git" / "index").write_bytes(b"damaged")
    snapshots = open_snapshots(directory, ignore_with_git=True)
    with pytest.raises(SandboxUnavailableError, match="index file smaller than expected"):
        snapshots.take()
    assert open_snapshots(directory).take().left_out == ()


def test_no_program_of_the_repository_or_its_user_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cline/cline#1211, NousResearch/hermes-agent#11261 and kirodotdev/Kiro#6026: a checkpoint signed its commits.
    A repository can name further programs: hooks, filters, a file system monitor, a transport for missing objects."""
    directory = make_repository(tmp_path / "tree")
    marker, program = tmp_path / "marker", tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$0 $@" >>{marker}\ncat\n')
    program.chmod(0o755)
    hooks = directory / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("pre-commit", "post-commit", "post-index-change", "post-checkout", "fsmonitor-watchman"):
        (hooks / name).symlink_to(program)
    (tmp_path / "gitconfig").write_text(
        f"[commit]\ngpgsign = true\n[gpg]\nprogram = {program}\n[core]\nfsmonitor = {program}\nhooksPath = {hooks}\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    for key, value in {
        "core.fsmonitor": program, "filter.x.clean": program, "filter.x.smudge": program, "core.pager": program,
        "remote.origin.url": "local", "remote.origin.uploadpack": program, "remote.origin.promisor": "true",
        "extensions.partialClone": "origin", "core.sshCommand": program, "diff.external": program,
    }.items():  # fmt: skip
        run_git(directory, "config", key, str(value))
    (directory / ".gitattributes").write_text("* filter=x\n")
    marker.unlink(missing_ok=True)
    for ignore_with_git in (False, True):
        snapshots = open_snapshots(directory, ignore_with_git=ignore_with_git)
        first = snapshots.take()
        (directory / "README").write_text("changed\n")
        snapshots.restore(first.id)
        assert (directory / "README").read_text() == "read me\n"
    assert not marker.exists()
    run_git(directory, "status")
    assert marker.exists()  # the programs would run


def test_line_endings_and_attributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shadow repository converts line endings, keywords and encodings by the user's settings and the attributes."""
    directory = make_repository(tmp_path / "tree")
    (tmp_path / "gitconfig").write_text("[core]\nautocrlf = true\neol = crlf\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    (directory / ".gitattributes").write_text("* text=auto ident eol=crlf\n")
    for name, content in (("lf", b"a\nb\n"), ("crlf", b"a\r\nb\r\n"), ("mixed", b"a\r\nb\n$Id$\n")):
        (directory / name).write_bytes(content)
    before = describe_tree(directory)
    snapshots = open_snapshots(directory)
    first = snapshots.take()
    for name in ("lf", "crlf", "mixed"):
        (directory / name).unlink()
    snapshots.restore(first.id)
    assert describe_tree(directory) == before


def test_links_are_saved_as_links_and_replaced(tmp_path: Path) -> None:
    """RooCodeInc/Roo-Code#11341: links were followed out of the workspace. restic/restic#2578, #3368: a restore over
    an existing link failed."""
    directory, outside = tmp_path / "tree", tmp_path / "outside"
    directory.mkdir()
    outside.mkdir()
    (outside / "large").write_bytes(os.urandom(1_000_000))
    (directory / "outside").symlink_to(outside)
    (directory / "self").symlink_to(directory)
    (directory / "loop").symlink_to("loop")
    snapshots = open_snapshots(directory)
    first, before = snapshots.take(), describe_tree(directory)
    assert (first.files, first.stored_bytes < 10_000) == (3, True)
    snapshots.restore(first.id)
    (directory / "outside").unlink()
    (directory / "outside").symlink_to("elsewhere")
    (directory / "loop").unlink()
    (directory / "loop").mkdir()
    snapshots.restore(first.id)
    assert describe_tree(directory) == before
    assert [path.name for path in outside.iterdir()] == ["large"]


def test_the_home_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """anomalyco/opencode#8577, #18857, #32981 and ilovepixelart/pi-code#251: a checkpoint of the home directory filled the disk."""
    home = tmp_path / "users" / "me"
    (home / "project").mkdir(parents=True)
    (tmp_path / "link").symlink_to(home)
    monkeypatch.setenv("HOME", str(tmp_path / "link"))
    for directory in (home, tmp_path / "link", home.parent, Path("/")):
        with pytest.raises(SandboxUnavailableError, match="contains the home directory"):
            DirectorySnapshots(directory, store=tmp_path / "store")
    assert DirectorySnapshots(home / "project", store=tmp_path / "store").take().files == 0


def test_a_store_in_the_directory_is_not_saved(tmp_path: Path) -> None:
    """anomalyco/opencode#20442: the store lay in the worktree, and each snapshot saved the ones before."""
    directory = make_repository(tmp_path / "tree")
    snapshots = DirectorySnapshots(directory, store=directory / "below" / "store")
    first = snapshots.take()
    (directory / "README").write_text("changed\n")
    sizes = [snapshots.take().stored_bytes for _ in range(3)]
    assert sizes[1:] == [0, 0]
    restored = snapshots.restore(first.id)
    assert restored.changed == ("README",)
    assert snapshots.list()[0] == first
    (directory / ".gitignore").write_text("nothing\n")
    assert snapshots.restore(first.id).removed == (".gitignore",)
    assert snapshots.verify() == ()


def test_killed_snapshots_leave_no_garbage(tmp_path: Path) -> None:
    """anomalyco/opencode#15977, #17397: each killed snapshot left a temporary pack, 269 GB in all."""
    directory = tmp_path / "tree"
    directory.mkdir()
    (directory / "small").touch()
    snapshots = open_snapshots(directory)
    first = snapshots.take()
    for _ in range(8):
        (directory / "large").write_bytes(os.urandom(20_000_000))
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                snapshots.take()
            os._exit(0)
        time.sleep(0.08)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    (directory / "large").unlink()
    snapshots.take()
    snapshots.prune(keep=[first.id])
    store = tmp_path / "tree.store"
    assert sum(path.stat().st_size for path in store.iterdir()) < 200_000
    assert [path.name for path in store.iterdir()] == ["snapshots.sqlite"]


def test_a_part_of_a_repository(tmp_path: Path) -> None:
    """anomalyco/opencode#3176: an undo in one directory of a repository reset the whole repository."""
    repository = make_repository(tmp_path / "repository")
    (repository / "other").mkdir()
    (repository / ".gitignore").write_text("*.log\n")
    directory = repository / "src"
    (directory / "x.log").write_text("1")
    snapshots = DirectorySnapshots(directory, store=tmp_path / "store", ignore_with_git=True)
    first = snapshots.take()
    assert first.files == 1
    (directory / "code.py").write_text("two = 2\n")
    (repository / "other" / "work").write_text("kept\n")
    (repository / "README").write_text("kept\n")
    snapshots.restore(first.id)
    assert (directory / "code.py").read_text() == "one = 1\n"
    assert (repository / "other" / "work").read_text() == (repository / "README").read_text() == "kept\n"
