"""Changes of sandbox copies are merged once, whole where possible, and never over existing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.interface import Sandbox, SandboxSpec
from langgraph_takeover.sandbox.repository import RepositoryError, head_commit, merge, patch_since
from langgraph_takeover.testing.sandboxes import check_output, run

LINES = "for n in 1 2 3 4 5 6 7 8 9; do echo line $n; done > pkg/lines.txt; "
"""A change that is never committed before the copies are made."""


@pytest.fixture
def spec(repository: Path) -> SandboxSpec:
    return SandboxSpec(backend="process", directory=repository, owner="test-merging")


@pytest.fixture
def live_sandbox(spec: SandboxSpec) -> Iterator[Sandbox]:
    found = sandbox.start(spec)
    check_output(found, LINES)
    found.changes()
    yield found
    found.close()


@pytest.fixture
def make_patch(live_sandbox: Sandbox, spec: SandboxSpec, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """The patch of a copy of the sandbox after a command."""
    with ExitStack() as stack:

        def patch(command: str) -> str:
            store = tmp_path / f"{len(list(tmp_path.iterdir()))}"
            store.mkdir()
            copy = sandbox.restore(live_sandbox.snapshot(store).result(), store, spec)
            stack.callback(copy.close)
            check_output(copy, command)
            return patch_since(copy, head_commit(live_sandbox)).text

        yield patch


def state(live_sandbox: Sandbox) -> str:
    """Every file but git's, with kind, mode and content."""
    return check_output(
        live_sandbox,
        "find . -path ./.git -prune -o -printf '%p %y %m %l\\n' | sort; "
        "find . -path ./.git -prune -o -type f -print0 | sort -z | xargs -0 sha256sum; git status --porcelain",
    )


WORK = {
    "edit": "sed -i 's/line 5/line five/' pkg/lines.txt",
    "new file": "mkdir -p a/b; echo x > a/b/c.txt",
    "deletion": "rm pkg/mod.py",
    "mode": "chmod +x pkg/mod.py",
    "link": "ln -s pkg/mod.py link; ln -sf nowhere pkg/other",
    "binary": "printf 'a\\0b\\377' > pkg/data.bin",
    "renaming": "mv pkg/mod.py pkg/moved.py; echo more >> pkg/moved.py",
    "file to directory": "rm pkg/mod.py; mkdir pkg/mod.py; echo x > pkg/mod.py/x",
    "directory to file": "rm -r docs; echo x > docs",
    "names": "echo 1 > $'pkg/new\\nline'; echo 2 > \"pkg/it's \\\"quoted\\\"\"; echo 3 > ':(glob)x'; echo 5 > $'\\303\\274'",
    "no UTF-8": "echo 1 > $'pkg/\\377'; printf '\\377\\376' > pkg/latin.txt",
    "crlf": "printf 'a\\r\\nb\\r\\n' > pkg/dos.txt",
    "committed": "echo x >> pkg/mod.py; git -c user.name=t -c user.email=t@t commit -qam x",
    "staged": "echo x > staged.txt; git add staged.txt",
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("work", WORK)
def test_changes_of_one_copy_are_merged_unchanged(
    live_sandbox: Sandbox, make_patch: Callable[..., str], spec: SandboxSpec, work: str
) -> None:
    patch = make_patch(WORK[work])
    (merged,) = merge(live_sandbox, head_commit(live_sandbox), [patch])
    assert merged.changed_files != ()
    assert merged.conflicts == ()
    assert patch_since(live_sandbox, head_commit(live_sandbox)).text == patch
    assert check_output(live_sandbox, "git log --oneline | wc -l; git diff --cached --name-only").split() == [
        "1"
    ]
    assert [each.path for each in live_sandbox.changes()] != []


def test_a_merge_leaves_no_temporary_files(live_sandbox: Sandbox, make_patch: Callable[..., str]) -> None:
    patch = make_patch("echo x > new.txt")
    before = check_output(live_sandbox, "ls -A ${TMPDIR:-/tmp} | wc -l; find .git | sort | sha256sum")
    merge(live_sandbox, head_commit(live_sandbox), [patch])
    assert [each.path for each in live_sandbox.changes()] == ["new.txt"]
    assert check_output(live_sandbox, "ls -A ${TMPDIR:-/tmp} | wc -l; find .git | sort | sha256sum") == before


def test_unchanged_copies_merge_nothing(live_sandbox: Sandbox, make_patch: Callable[..., str]) -> None:
    same = make_patch(":")
    assert same != ""  # it includes the earlier content
    before = state(live_sandbox)
    assert [
        each.changed_files for each in merge(live_sandbox, head_commit(live_sandbox), [same, None, same])
    ] == [
        (),
        (),
        (),
    ]
    assert state(live_sandbox) == before


def test_two_copies_change_different_lines_of_one_file(
    live_sandbox: Sandbox, make_patch: Callable[..., str]
) -> None:
    first, second = (
        make_patch("sed -i 's/line 2/two/' pkg/lines.txt"),
        make_patch("sed -i 's/line 8/eight/' pkg/lines.txt"),
    )
    one, two = merge(live_sandbox, head_commit(live_sandbox), [first, second])
    assert (one.changed_files, two.changed_files, one.conflicts, two.conflicts) == (
        ("pkg/lines.txt",),
        ("pkg/lines.txt",),
        (),
        (),
    )
    assert check_output(live_sandbox, "cat pkg/lines.txt").split("\n")[1:8:6] == ["two", "eight"]


CLASHES = {
    "lines": (
        "sed -i 's/line 5/one/' pkg/lines.txt",
        "sed -i 's/line 5/other/' pkg/lines.txt",
        "pkg/lines.txt",
    ),
    "new files": ("echo one > new.txt", "echo other > new.txt", "new.txt"),
    "deleted here": ("rm pkg/mod.py", "echo other >> pkg/mod.py", "pkg/mod.py"),
    "deleted there": ("echo one >> pkg/mod.py", "rm pkg/mod.py", "pkg/mod.py"),
    "binary": ("printf 'a\\0b' > x.bin", "printf 'a\\0c' > x.bin", "x.bin"),
    "kinds": ("rm pkg/mod.py; ln -s x pkg/mod.py", "echo other >> pkg/mod.py", "pkg/mod.py"),
    "file and directory": ("mkdir new; echo one > new/x", "echo other > new", "new"),
    "directory and file": ("echo one > new", "mkdir new; echo other > new/x", "new/x"),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("clash", CLASHES)
def test_the_first_wins_and_the_other_is_reported(
    live_sandbox: Sandbox, make_patch: Callable[..., str], clash: str
) -> None:
    first, second, path = CLASHES[clash]
    patches = [make_patch(first), make_patch(f"{second}; echo more > beside.txt")]
    one, two = merge(live_sandbox, head_commit(live_sandbox), patches)
    assert one.conflicts == ()
    assert "beside.txt" in two.changed_files
    assert path not in two.changed_files
    (conflict,) = [each for each in two.conflicts if each.path == path]
    assert "+other" in conflict.theirs or "differ" in conflict.theirs or "deleted" in conflict.theirs
    assert "other" not in conflict.ours
    check_output(live_sandbox, "rm beside.txt")
    assert patch_since(live_sandbox, head_commit(live_sandbox)).text == patches[0]


def test_untracked_files_are_not_overwritten(live_sandbox: Sandbox, make_patch: Callable[..., str]) -> None:
    patch = make_patch(
        "mkdir -p build; echo theirs > build/y; git add -f build/y; echo x > fine.txt; rm pkg/mod.py"
    )
    check_output(live_sandbox, "mkdir -p build; echo ours > build/y")
    (merged,) = merge(live_sandbox, head_commit(live_sandbox), [patch])
    assert merged.changed_files == ("fine.txt", "pkg/mod.py")
    (conflict,) = merged.conflicts
    assert (conflict.path, conflict.ours) == ("build/y", "")
    assert "+theirs" in conflict.theirs
    assert check_output(live_sandbox, "cat build/y fine.txt; ls pkg/mod.py || true").startswith("ours\nx\n")


def test_no_link_writes_outside(
    live_sandbox: Sandbox, make_patch: Callable[..., str], tmp_path: Path
) -> None:
    patch = make_patch("mkdir x.log; echo theirs > x.log/y; git add -f x.log/y")
    (tmp_path / "outside").mkdir()
    check_output(live_sandbox, f"ln -s {tmp_path}/outside x.log")
    (merged,) = merge(live_sandbox, head_commit(live_sandbox), [patch])
    assert list((tmp_path / "outside").iterdir()) == []
    assert [each.path for each in merged.conflicts] == ["x.log/y"]


def test_a_missing_repository(live_sandbox: Sandbox, make_patch: Callable[..., str]) -> None:
    patch, base = make_patch("echo x > new.txt"), head_commit(live_sandbox)
    check_output(live_sandbox, "rm -rf .git")
    before = check_output(live_sandbox, "ls -A")
    with pytest.raises(RepositoryError, match="no git repository"):
        merge(live_sandbox, base, [patch])
    assert check_output(live_sandbox, "ls -A") == before


def test_an_invalid_patch_changes_nothing(live_sandbox: Sandbox, make_patch: Callable[..., str]) -> None:
    before = state(live_sandbox)
    with pytest.raises(RepositoryError, match="No valid patches"):
        merge(live_sandbox, head_commit(live_sandbox), [make_patch("echo x > new.txt"), "no patch"])
    assert state(live_sandbox) == before


def test_a_copy_that_undoes_every_change(live_sandbox: Sandbox, make_patch: Callable[..., str]) -> None:
    """Its difference from the base is empty, and is a change all the same."""
    patch = make_patch("rm pkg/lines.txt")
    assert patch == ""
    (merged,) = merge(live_sandbox, head_commit(live_sandbox), [patch])
    assert merged.changed_files == ("pkg/lines.txt",)
    assert run(live_sandbox, "test -e pkg/lines.txt").exit_code == 1
