"""Kills, links put in the place of directories, and several processes: the store stays sound, nothing outside changes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from langgraph_takeover.sandbox import DirectorySnapshots, SandboxUnavailableError
from langgraph_takeover.sandbox.directories import directory_reader, directory_store

from ..ordinary_user import make_user_directory, run_python_as_user
from .saved_trees import describe_tree, make_repository, open_snapshots, run_git

_EVENTS = {
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.symlink",
    "os.chmod",
    "os.utime",
    "os.scandir",
    "open",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    directory = tmp_path / "tree"
    for name in ("first", "second/third"):
        (directory / name).mkdir(parents=True)
        for number in range(3):
            (directory / name / f"{number}.txt").write_text(f"{name} {number}\n")
    (directory / "link").symlink_to("first")
    return directory


def change(directory: Path) -> None:
    """Replace, remove and add files and directories."""
    (directory / "first" / "0.txt").write_text("changed\n")
    (directory / "first" / "1.txt").unlink()
    (directory / "link").unlink()
    (directory / "link").mkdir()
    (directory / "link" / "file").write_text("new\n")
    subprocess.run(["rm", "-r", directory / "second" / "third"], check=True)
    (directory / "second" / "new").write_text("new\n")


def run_child(work: Callable[[], object]) -> int:
    """Run something in a child process, and return how that ended: 0, or the signal that killed it."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            work()
            code = 0
        os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def at_event(number: int, act: Callable[[], object]) -> None:
    """Act before the file operation of this number, in this process and once."""
    count = 0

    def hook(event: str, values: tuple[object, ...]) -> None:
        nonlocal count
        if event in _EVENTS:
            count += 1
            if count == number:
                act()

    sys.addaudithook(hook)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_restore_killed_at_any_step_is_finished_by_the_next_call(tree: Path) -> None:
    snapshots = open_snapshots(tree)
    first, before = snapshots.take(), describe_tree(tree)
    change(tree)
    changed, killed = describe_tree(tree), 0
    for number in range(1, 300):

        def restore(number: int = number) -> None:
            at_event(number, kill_self)
            snapshots.restore(first.id)

        code = run_child(restore)
        if code == 0:
            break
        assert code == signal.SIGKILL
        killed += 1
        taken = snapshots.list()
        state = describe_tree(tree)
        is_begun = len(taken) > 1 and state != changed
        last = snapshots.take()
        if is_begun:
            assert describe_tree(tree) == before
        saved = next((each for each in snapshots.list()[1:] if each.label.startswith("before")), None)
        if saved is not None:
            snapshots.restore(saved.id)
        assert describe_tree(tree) == changed
        snapshots.prune(keep=[first.id])
        assert last.left_out == ()
    assert killed > 30
    assert describe_tree(tree) == before
    assert snapshots.verify() == ()


def test_another_restore_takes_the_place_of_an_interrupted_one(tree: Path) -> None:
    snapshots = open_snapshots(tree)
    first = snapshots.take()
    change(tree)
    changed = describe_tree(tree)
    second = snapshots.take()

    def restore() -> None:
        at_event(45, kill_self)
        snapshots.restore(first.id)

    assert run_child(restore) == signal.SIGKILL
    assert describe_tree(tree) != changed
    half = describe_tree(tree)
    snapshots.prune(keep=[second.id])  # keeps both states of the interrupted restore, too
    assert {first.id, second.id} < {each.id for each in snapshots.list()}
    restored = snapshots.restore(second.id)
    assert describe_tree(tree) == changed
    snapshots.take()
    assert describe_tree(tree) == changed
    assert restored.before is not None
    snapshots.restore(restored.before)
    assert describe_tree(tree) == half


@pytest.mark.parametrize("operation", ["take", pytest.param("prune", marks=pytest.mark.slow)])
def test_kills_leave_a_sound_store(tree: Path, operation: str) -> None:
    snapshots = open_snapshots(tree)
    rng = random.Random(3)
    kept = snapshots.take(label="kept")
    before = describe_tree(tree)
    for _ in range(25):
        for number in range(40):
            (tree / "first" / f"new{number}").write_bytes(rng.randbytes(20_000))
        if operation == "prune":
            snapshots.take()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                snapshots.take() if operation == "take" else snapshots.prune(keep=[kept.id])
            os._exit(0)
        time.sleep(rng.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert snapshots.verify() == ()
        assert snapshots.list()[0] == kept
        taken, state = snapshots.take(), describe_tree(tree)
        snapshots.restore(kept.id)
        assert describe_tree(tree) == before
        snapshots.restore(taken.id)
        assert describe_tree(tree) == state
        snapshots.prune(keep=[kept.id])


def test_a_second_process_waits_and_a_killed_one_blocks_nobody(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = open_snapshots(tree)
    snapshots.take()
    monkeypatch.setattr(directory_store, "_WAIT_S", 0.2)
    ready, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        with directory_store.open_store(tree.parent / "tree.store", tree):
            os.write(write_end, b"x")
            time.sleep(600)
    os.read(ready, 1)
    try:
        with pytest.raises(SandboxUnavailableError, match="another process uses the store"):
            snapshots.take()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(write_end)
    assert snapshots.take().stored_bytes == 0
    monkeypatch.undo()
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                for _ in range(4):
                    snapshots.take(label="together")
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    assert sum(each.label == "together" for each in snapshots.list()) == 12


def _exchange_for_link(directory: Path, outside: Path) -> None:
    directory.rename(directory.with_name("aside"))
    directory.symlink_to(outside)


@pytest.mark.parametrize(
    "exchanged",
    ["link", *(pytest.param(each, marks=pytest.mark.slow) for each in ("first", "second", "second/third"))],
)
def test_a_link_put_in_the_place_of_a_directory_leads_nowhere(
    tree: Path, tmp_path: Path, exchanged: str
) -> None:
    """At each step of a restore, and of a snapshot, an agent exchanges a directory for a link to another one."""
    snapshots = open_snapshots(tree)
    first = snapshots.take()
    change(tree)
    (tree / "second" / "third").mkdir()
    second = snapshots.take()
    outside = tmp_path / "outside"
    subprocess.run(["cp", "-a", tree / "first", outside], check=True)
    for name in ("new", "file", "0.txt", "1.txt"):
        (outside / name).write_text("secret\n")
    (outside / "third").mkdir()
    before, number, code = describe_tree(outside), 0, 1
    while code != 0:
        number += 1
        reached = tmp_path / "reached"
        reached.unlink(missing_ok=True)

        def restore(number: int = number, reached: Path = reached) -> None:
            at_event(number, lambda: (_exchange_for_link(tree / exchanged, outside), reached.touch()))
            snapshots.restore(first.id)

        code = run_child(restore)
        assert describe_tree(outside) == before
        if reached.exists():
            code = 1
        snapshots.restore(second.id)
        assert describe_tree(outside) == before
        assert not (tree / "aside").exists()
    assert number > 20
    with sqlite3.connect(tmp_path / "tree.store" / "snapshots.sqlite") as database:
        assert not database.execute("SELECT 1 FROM objects WHERE content = ?", (b"secret\n",)).fetchall()
    database.close()


def test_what_changes_during_a_restore_is_kept_and_named(tree: Path) -> None:
    snapshots = open_snapshots(tree)
    first = snapshots.take()
    (tree / "first" / "0.txt").write_text("changed\n")
    (tree / "second" / "new").write_text("new\n")

    def edit() -> None:
        (tree / "first" / "0.txt").write_text("a person's edit\n")
        (tree / "second" / "new").write_text("a person's addition\n")

    def restore() -> None:
        number = [0]

        def hook(event: str, values: tuple[object, ...]) -> None:
            if event == "open" and str(values[0]).startswith(".takeover-restore-") and not number[0]:
                number[0] = 1
                edit()

        sys.addaudithook(hook)
        restored = snapshots.restore(first.id)
        assert [(each.path, each.reason) for each in restored.left_out] == [
            ("first/0.txt", "changed during the restore"),
            ("second/new", "changed during the restore"),
        ]

    assert run_child(restore) == 0
    assert (tree / "first" / "0.txt").read_text() == "a person's edit\n"
    assert (tree / "second" / "new").read_text() == "a person's addition\n"
    assert not [path for path in (tree / "first").iterdir() if path.name.startswith(".takeover")]


def test_a_file_whose_time_is_ahead_of_the_clock_is_read_each_time(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system whose server has another clock: a later change may get the same time."""
    monkeypatch.setattr(directory_reader, "_COARSE_CLOCK", time.CLOCK_MONOTONIC)
    snapshots = open_snapshots(tree)
    snapshots.take()

    def take() -> None:
        opened = []
        sys.addaudithook(lambda event, values: opened.append(values[0]) if event == "open" else None)
        assert snapshots.take().stored_bytes == 0
        assert opened.count("0.txt") == 2

    assert run_child(take) == 0


@pytest.mark.slow
def test_git_may_work_between_any_two_steps_of_a_snapshot(tmp_path: Path) -> None:
    """Whenever git commits and packs, the saved repository has each branch of before, and each object that it names."""
    directory = make_repository(tmp_path / "tree")
    run_git(directory, "branch", "other")
    run_git(directory, "repack", "-q", "-a", "-d")
    snapshots = open_snapshots(directory)
    base, reached = snapshots.take(), tmp_path / "reached"
    number = 0
    while number == 0 or reached.exists():
        number += 1
        reached.unlink(missing_ok=True)

        def work() -> None:
            (directory / "src" / "code.py").write_text("two = 2\n")
            run_git(directory, "commit", "-q", "-a", "-m", "second")
            run_git(directory, "pack-refs", "--all")
            reached.touch()

        def take(number: int = number) -> None:
            at_event(number, work)
            snapshots.take(label="during")

        assert run_child(take) == 0
        taken = snapshots.list()[-1]
        assert (taken.label, taken.left_out) == ("during", ())
        snapshots.restore(taken.id)
        run_git(directory, "fsck", "--strict", "--no-dangling")
        assert run_git(directory, "branch", "--format=%(refname:short)").split() == ["main", "other"]
        snapshots.restore(base.id)
    assert number > 15


_AS_USER = """
import os, stat, sys
from pathlib import Path
from langgraph_takeover.sandbox import DirectorySnapshots
from tests.sandbox.directories.saved_trees import describe_tree

tree = Path(sys.argv[1])
closed, unsearchable, fixed = tree / "closed", tree / "unsearchable", tree / "fixed"
for each in (closed, unsearchable, fixed):
    each.mkdir()
    (each / "file").write_text("kept")
(tree / "unreadable").write_text("kept")
(tree / "unreadable").chmod(0)
(tree / "program").write_text("mine")
(tree / "program").chmod(0o4755)
closed.chmod(0)
unsearchable.chmod(0o444)
fixed.chmod(0o555)
snapshots = DirectorySnapshots(tree, store=Path(sys.argv[2]))
first = snapshots.take()
reasons = {each.path: each.reason for each in first.left_out}
assert reasons == dict.fromkeys(
    ("closed", "unsearchable", "unreadable", "root's", "root's directory"), "cannot be read: permission denied"
), reasons
state = {path: value for path, value in describe_tree(fixed).items()}
fixed.chmod(0o755)
(fixed / "file").write_text("changed")
(fixed / "new").mkdir()
(fixed / "new").chmod(0o555)
fixed.chmod(0o500)
(tree / "program").unlink()
restored = snapshots.restore(first.id)
assert describe_tree(fixed) == state
assert fixed.stat().st_mode & 0o777 == 0o555
assert stat.S_IMODE((tree / "program").stat().st_mode) == 0o4755
assert {each.path for each in restored.left_out} == set(reasons), restored
for path, mode in ((closed, 0), (unsearchable, 0o444), (tree / "unreadable", 0)):
    assert path.stat().st_mode & 0o777 == mode
    path.chmod(0o755)
again = snapshots.restore(first.id)
assert (closed / "file").read_text() == (unsearchable / "file").read_text() == "kept"
assert (tree / "unreadable").read_text() == "kept"
assert {each.path for each in again.left_out} == set(reasons), again
assert (tree / "root's").exists() and (tree / "root's directory").exists()
readable = snapshots.take()
assert {each.path for each in readable.left_out} == {"root's", "root's directory"}
(tree / "theirs").unlink()
snapshots.restore(readable.id)
assert stat.S_IMODE((tree / "theirs").stat().st_mode) == 0o755
"""


def test_as_an_ordinary_user(tmp_path: Path) -> None:
    """Unreadable files and closed directories are named and kept; read-only directories are restored."""
    with make_user_directory() as home, make_user_directory() as work:
        tree = work / "tree"
        tree.mkdir()
        (tree / "root's").write_text("secret")
        (tree / "root's").chmod(0o600)
        (tree / "root's directory").mkdir(mode=0o700)
        (tree / "theirs").write_text("another user's program")
        (tree / "theirs").chmod(0o4755)
        os.chown(tree, 54_321, 54_321)
        script = home / "script.py"
        script.write_text(_AS_USER)
        (home / "store").mkdir()
        run_python_as_user(
            home, "-c", f"import sys; sys.path.insert(0, '.')\n{_AS_USER}", tree, home / "store"
        )


def test_directories_nested_too_deeply_are_named(tmp_path: Path) -> None:
    directory = tmp_path / "tree"
    directory.mkdir()
    descriptor = os.open(directory, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    snapshots = open_snapshots(directory)
    taken = snapshots.take()
    assert [each.reason for each in taken.left_out] == ["nested too deeply"]
    (directory / "new").touch()
    assert snapshots.restore(taken.id).removed == ("new",)
    subprocess.run(["rm", "-rf", directory], check=True)


def test_the_directory_itself_may_become_a_link(tree: Path, tmp_path: Path) -> None:
    snapshots = open_snapshots(tree)
    first = snapshots.take()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    tree.rename(tmp_path / "aside")
    tree.symlink_to("outside")
    with pytest.raises(OSError, match="tree"):
        snapshots.restore(first.id)
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["file"]
    assert isinstance(snapshots, DirectorySnapshots)
