"""An agent's changes come back into a checkout that has others."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from langgraph_takeover.agents import prepare_continuation
from langgraph_takeover.graph.continuation import apply
from langgraph_takeover.graph.continuation.apply import Application, _MergePlan, apply_record
from langgraph_takeover.graph.usage_errors import ContinuationError

from ...agent_sessions import describe_tree, run_git, write_claude_session
from .conftest import Workplace

LINES = "".join(f"line {number}\n" for number in range(20))


class Bench:
    """A captured repository, and a continuation whose files a test changes."""

    def __init__(self, workplace: Workplace, program: Path) -> None:
        self.workplace, self.mine = workplace, workplace.repository
        (self.mine / "long.txt").write_text(LINES)
        (self.mine / "data.bin").write_bytes(b"\0\1\2")
        (self.mine / "dos.txt").write_bytes(b"a\r\nb\r\nc\r\nd\r\ne\r\nf\r\n")
        (self.mine / ".gitignore").write_text("*.log\n")
        (self.mine / "links").symlink_to("old")
        (self.mine / "old").mkdir()
        (self.mine / "old/name.txt").write_text("content\n")
        self.first = workplace.capture().record.id
        self.theirs = workplace.root / "continued"
        prepare_continuation(
            workplace.home, self.first, agent="claude-code", directory=self.theirs, program=program,
            user_home=workplace.user_home,
        )  # fmt: skip
        write_claude_session(workplace.user_home, str(self.theirs), [("true", "", 0)])

    def apply(self, **options: bool) -> Application:
        record = self.workplace.capture("claude-code", repository=self.theirs).record.id
        return apply_record(self.workplace.home, record, repository=self.mine, **options)


@pytest.fixture
def bench(workplace: Workplace, program: Path) -> Bench:
    return Bench(workplace, program)


def test_only_the_agents_changes_come_back(bench: Bench) -> None:
    mine, theirs = bench.mine, bench.theirs
    (theirs / "long.txt").write_text(LINES.replace("line 2\n", "line two\n"))
    (theirs / "data.bin").write_bytes(b"\0\3")
    (theirs / "dos.txt").write_bytes(b"A\r\nb\r\nc\r\nd\r\ne\r\nf\r\n")
    (theirs / "old/name.txt").rename(theirs / "name.txt")
    (theirs / "old").rmdir()
    (theirs / "run.sh").write_text("#!/bin/sh\n")
    (theirs / "run.sh").chmod(0o755)
    (theirs / "link").symlink_to("run.sh")
    (theirs / "debug.log").write_text("ignored\n")
    (theirs / ":!name\n").write_text("looks like a pathspec\n")
    (theirs / ".gitignore").write_text("*.log\n/long.txt\n")
    (theirs / ".git/hooks/post-checkout").write_text("#!/bin/sh\ntouch /tmp/never\n")
    (mine / "long.txt").write_text(LINES.replace("line 18\n", "line eighteen\n"))
    (mine / "dos.txt").write_bytes(b"a\r\nb\r\nc\r\nd\r\ne\r\nF\r\n")
    (mine / "own.txt").write_text("mine\n")
    run_git(mine, "add", "own.txt")
    run_git(mine, "commit", "-q", "-m", "Move the head", "own.txt")
    status = run_git(mine, "status", "--short", "own.txt")
    index = (mine / ".git/index").read_bytes()
    done = bench.apply()
    assert done.is_written
    assert done.conflicts == ()
    assert done.merged == ("dos.txt", "long.txt")
    assert done.ignored == 1
    assert done.changed == (
        ".gitignore", ":!name\n", "data.bin", "dos.txt", "link", "long.txt", "name.txt", "old/name.txt", "run.sh",
    )  # fmt: skip
    expected = LINES.replace("line 2\n", "line two\n").replace("line 18\n", "line eighteen\n")
    assert (mine / "long.txt").read_text() == expected
    assert (mine / "dos.txt").read_bytes() == b"A\r\nb\r\nc\r\nd\r\ne\r\nF\r\n"
    assert (mine / "data.bin").read_bytes() == b"\0\3"
    assert not (mine / "old").exists()
    assert (mine / "run.sh").stat().st_mode & 0o111 == 0o111
    assert (mine / "link").readlink() == Path("run.sh")
    assert (mine / "own.txt").read_text() == "mine\n"
    assert run_git(mine, "status", "--short", "own.txt") == status
    assert (mine / ".git/index").read_bytes() == index
    before = describe_tree(mine)
    assert bench.apply().changed == ()
    assert describe_tree(mine) == before


def test_conflicts_are_named_and_nothing_is_written(bench: Bench) -> None:
    mine, theirs, outside = bench.mine, bench.theirs, bench.workplace.root / "outside"
    outside.mkdir()
    for root, word in ((theirs, "theirs"), (mine, "mine")):
        (root / "long.txt").write_text(LINES.replace("line 2\n", f"{word}\n"))
        (root / "new.txt").write_text(word)
        (root / "data.bin").write_bytes(b"\0" + word.encode())
    (theirs / "old/name.txt").write_text("changed\n")
    (theirs / "old/more.txt").write_text("more\n")
    (theirs / "dos.txt").unlink()
    (theirs / "good.txt").write_text("good\n")
    (theirs / "evil").symlink_to("../../etc/passwd")
    (theirs / "dot").symlink_to(".")
    (theirs / "above").symlink_to("dot/../name")
    (theirs / "sub").mkdir()
    (theirs / "sub/file.txt").write_text("in a link\n")
    (mine / "old/name.txt").unlink()
    (mine / "dos.txt").write_bytes(b"mine\r\n")
    (mine / "sub").symlink_to(outside)
    before = describe_tree(mine)
    done = bench.apply()
    assert not done.is_written
    assert dict(done.conflicts) == {
        "long.txt": "both have changed it",
        "new.txt": "you have another file of this name",
        "data.bin": "both have changed it",
        "old/name.txt": "you have deleted or never had it",
        "dos.txt": "the agent has deleted it, and you have changed it",
        "evil": "the agent's link leads out of the checkout",
        "above": "the agent's link has .. after a name, and may lead out of the checkout",
        "sub/file.txt": "sub is a link in your checkout",
    }
    assert describe_tree(mine) == before
    done = bench.apply(is_partial=True)
    assert done.changed == ("dot", "good.txt", "old/more.txt")
    assert (mine / "new.txt").read_text() == "mine"
    assert list(outside.iterdir()) == []


def test_settings_of_the_checkout_do_not_run(bench: Bench) -> None:
    mark = bench.workplace.root / "mark"
    for root in (bench.mine, bench.theirs):
        for name in ("core.fsmonitor", "filter.x.clean", "filter.x.smudge", "merge.x.driver"):
            subprocess.run(["git", "config", name, f"touch {mark}"], cwd=root, check=True)
        (root / ".gitattributes").write_text("* filter=x merge=x\n")
    (bench.theirs / "long.txt").write_text(LINES.replace("line 2\n", "two\n"))
    (bench.mine / "long.txt").write_text(LINES.replace("line 18\n", "eighteen\n"))
    assert bench.apply().merged == ("long.txt",)
    assert not mark.exists()


def test_a_record_without_an_ancestor_here(bench: Bench) -> None:
    with pytest.raises(ContinuationError, match="itself, without later work"):
        apply_record(bench.workplace.home, bench.first, repository=bench.mine)


def _replace(path: Path, kind: str) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    if kind == "link":
        path.symlink_to("src")
    elif kind == "file":
        path.write_text("a file\n")
    else:
        path.mkdir()
        (path / "name.txt").write_text("new\n")


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("name", "kind"),
    [("old", "file"), ("old", "link"), ("long.txt", "directory"), ("links", "directory"), ("links", "file")],
)
def test_an_entry_becomes_another_kind(bench: Bench, name: str, kind: str) -> None:
    _replace(bench.theirs / name, kind)
    assert bench.apply().conflicts == ()
    mine, theirs = (
        {path: entry for path, entry in describe_tree(root).items() if not path.startswith(".git/")}
        for root in (bench.mine, bench.theirs)
    )
    assert mine == theirs
    again = bench.apply()
    assert (again.changed, again.conflicts) == ((), ())


@pytest.mark.parametrize(
    ("name", "kind", "changed"),
    [("old", "file", "old/name.txt"), ("long.txt", "directory", "long.txt")],
)
def test_no_room_for_another_kind(bench: Bench, name: str, kind: str, changed: str) -> None:
    _replace(bench.theirs / name, kind)
    (bench.theirs / "good.txt").write_text("good\n")
    (bench.mine / changed).write_text("mine\n")
    done = bench.apply(is_partial=True)
    assert done.changed == ("good.txt",)
    assert len(done.conflicts) == 2
    assert (bench.mine / changed).read_text() == "mine\n"


def test_a_full_disk_leaves_the_checkout_as_it_was(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (bench.theirs / "long.txt").unlink()
    (bench.theirs / "a.txt").write_text("small\n")
    (bench.theirs / "new").mkdir()
    (bench.theirs / "new/large.txt").write_text("x" * 300)
    write = _MergePlan.write

    def write_on_full_disk(plan: _MergePlan) -> None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        try:
            write(plan)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(_MergePlan, "write", write_on_full_disk)
    before = describe_tree(bench.mine)
    with pytest.raises(ContinuationError, match=r"too large \(nothing was applied"):
        bench.apply()
    assert describe_tree(bench.mine) == before
    assert (bench.mine / "long.txt").read_text() == LINES


def test_a_failed_replacement_is_undone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (bench.theirs / "long.txt").unlink()
    (bench.theirs / "data.bin").write_bytes(b"new")
    (bench.theirs / "new").mkdir()
    (bench.theirs / "new/z.txt").write_text("new\n")
    replace = Path.replace

    def fail(source: Path, target: Path) -> Path:
        if target.name == "z.txt":
            raise OSError("z.txt")
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", fail)
    before = describe_tree(bench.mine)
    with pytest.raises(ContinuationError, match=r"z\.txt \(nothing was applied"):
        bench.apply()
    assert describe_tree(bench.mine) == before
    assert not (bench.mine / "new").exists()


def test_after_a_kill_the_same_command_completes(bench: Bench) -> None:
    for number in range(4):
        (bench.theirs / f"new-{number}").write_text("theirs")
    (bench.mine / "old/mine.txt").write_text("mine")
    (bench.theirs / "long.txt").write_text("theirs")
    process = os.fork()
    if not process:
        make = apply._Move.make

        def die(move: apply._Move, root: Path) -> None:
            if move._place.name == "new-2":
                os.kill(os.getpid(), signal.SIGKILL)
            make(move, root)

        apply._Move.make = die  # type: ignore[method-assign]
        bench.apply()
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    assert list(bench.mine.glob(".takeover-apply-*"))
    assert not (bench.mine / "new-3").exists()
    assert bench.apply().conflicts == ()
    assert list(bench.mine.glob(".takeover-apply-*")) == []
    assert [(bench.mine / f"new-{number}").read_text() for number in range(4)] == ["theirs"] * 4
    assert ((bench.mine / "long.txt").read_text(), (bench.mine / "old/mine.txt").read_text()) == (
        "theirs",
        "mine",
    )


def test_a_file_that_a_capture_left_out_stays(bench: Bench) -> None:
    (bench.theirs / "dos.txt").unlink()
    (bench.theirs / "data.bin").unlink()
    os.mkfifo(bench.theirs / "data.bin")
    (bench.theirs / "old/new.txt").write_text("new\n")
    capture = bench.workplace.capture
    record = capture("claude-code", repository=bench.theirs, exclude=("long.txt", "name.txt")).record
    done = apply_record(bench.workplace.home, record.id, repository=bench.mine)
    assert done.unsaved == ("data.bin", "long.txt", "old/name.txt")
    assert done.changed == ("dos.txt", "old/new.txt")
    assert (bench.mine / "long.txt").read_text() == LINES
