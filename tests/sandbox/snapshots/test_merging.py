"""Branches that began in one state, merged: one test for each row of the table in docs/own-graphs.md."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from langgraph_takeover.sandbox import Sandbox
from langgraph_takeover.sandbox.interface import Snapshot
from langgraph_takeover.sandbox.snapshots.merging import (
    Branch,
    BranchConflict,
    Merge,
    merge_lines,
    merge_snapshots,
)
from langgraph_takeover.testing.sandboxes import Kit, check_output

pytestmark = pytest.mark.parametrize(
    "kit", ["process", "host", pytest.param("docker", marks=pytest.mark.slow)], indirect=True
)
LINES = "seq 1 20 > lines; "
REPOSITORY = "git init -q repo; cd repo; git config user.name n; git config user.email e; echo 1 > a; git add .; git commit -qm one"


class Merged(NamedTuple):
    merge: Merge
    run: Callable[[str], str]


@pytest.fixture
def merge(kit: Kit, tmp_path: Path) -> Iterator[Callable[..., Merged]]:
    """Run a command at the start, and one in each branch; merge, and run commands in the result."""
    opened: list[Sandbox] = []

    def run_branches(start: str, *commands: str, policy: Any = "raise") -> Merged:
        with kit.start() as sandbox:
            sandbox.run(start or ":", timeout_s=30)
            base = sandbox.snapshot(tmp_path).result()
        branches = [Branch(f"b{n}", run_branch(base, each), tmp_path) for n, each in enumerate(commands)]

        with kit.restore(base, tmp_path) as sandbox:

            def read(path: str) -> bytes | None:
                try:
                    return sandbox.read_file(path)
                except OSError:
                    return None

            def read_mode(path: str) -> int | None:
                found = sandbox.inspect(f"stat -c %a -- {shlex.quote(path)}").output.strip()
                return int(found, 8) if found.isdigit() else None

            merged = merge_snapshots(
                Branch("base", base, tmp_path),
                branches,
                tmp_path,
                policy=policy,
                read_base=read,
                read_base_mode=read_mode,
            )
        if merged.snapshot is None:
            return Merged(merged, lambda _: "")
        result = kit.restore(merged.snapshot, tmp_path)
        opened.append(result)
        return Merged(merged, lambda command: check_output(result, command))

    def run_branch(base: Snapshot, command: str) -> Snapshot:
        with kit.restore(base, tmp_path) as sandbox:
            result = sandbox.run(command, timeout_s=30)
            assert result.exit_code == 0, result
            return sandbox.snapshot(tmp_path).result()

    yield run_branches
    for each in opened:
        each.close()


def describe(conflicts: Sequence[BranchConflict]) -> list[str]:
    return [str(each) for each in conflicts]


def test_changes_of_one_branch_are_taken(merge: Any) -> None:
    merged = merge(
        "echo 1 > changed; echo 1 > kept; echo 1 > deleted; echo 1 > moved; mkdir old; touch old/x; ln -s kept link",
        "echo 2 > changed; echo new > new; mkdir -p deep/er; echo 3 > deep/er/file",
        "rm deleted; mv moved renamed; ln -sfn changed link; rm -r old; mkdir empty; chmod 700 kept",
        "echo new > new",
    )
    assert merged.merge.conflicts == ()
    shown = merged.run("cat changed new deep/er/file renamed; readlink link; ls -d empty; stat -c %a kept")
    assert shown.split() == ["2", "new", "3", "1", "changed", "empty", "700"]
    assert merged.run("ls -d deleted moved old 2>/dev/null; true") == ""


def test_files_of_the_repository_are_merged_too(merge: Any) -> None:
    """Their first version is in the base, not in the snapshot of the state."""
    merged = merge("", "sed -i 1d 'pkg/old name.py'", "echo 'line 40' >> 'pkg/old name.py'")
    assert merged.merge.conflicts == ()
    assert merged.run("sed -n '1p;$p' 'pkg/old name.py'") == "line 1\nline 40\n"


def test_one_file_is_merged_by_lines(merge: Any) -> None:
    merged = merge(
        LINES, "sed -i s/^2$/two/ lines", "sed -i s/^19$/nineteen/ lines; chmod +x lines", "echo 21 >> lines"
    )
    assert merged.merge.conflicts == ()
    assert merged.run("sed -n '2p;19p;21p' lines; test -x lines && echo x").split() == [
        "two",
        "nineteen",
        "21",
        "x",
    ]


CONFLICTS = {
    "lines": (LINES, "sed -i s/^2$/a/ lines", "sed -i s/^2$/b/ lines", "lines: b0 and b1 changed the same lines"),
    "created": ("", "echo a > new", "echo b > new", "new: b0 and b1 created it with different content"),
    "binary": (
        "printf 'x\\0' > data", "printf 'a\\0' > data", "printf 'b\\0' > data",
        "data: b0 and b1 changed it differently, and it is not text",
    ),
    "deleted": (LINES, "rm lines", "echo 21 >> lines", "lines: b0 and b1 changed it, and one deleted it"),
    "renamed": (LINES, "mv lines moved", "echo 21 >> lines", "lines: b0 and b1 changed it, and one deleted it"),
    "links": (
        "ln -s a link", "ln -sfn b link", "ln -sfn c link",
        "link: b0 and b1 changed its link to different targets",
    ),
    "kinds": ("", "echo 1 > new", "ln -s a new", "new: b0 and b1 made it into different kinds of files"),
    "modes": (
        "touch file", "chmod 700 file", "chmod 640 file", "file: b0 and b1 changed its permissions differently",
    ),
    "directory": (
        "mkdir d; echo 1 > d/x; echo 1 > d/y", "rm -r d", "echo 2 > d/x",
        "d: b0 and b1 changed it, and one removed or replaced it as a directory",
    ),
    "replaced": (
        "mkdir d; echo 1 > d/x", "rm -r d; echo 1 > d", "echo 2 > d/new",
        "d: b0 and b1 changed it, and one removed or replaced it as a directory",
    ),
    "commits": (
        "git init -q repo; cd repo; git config user.email a@b; git config user.name a; git commit -q --allow-empty -m 0",
        "cd ../repo 2>/dev/null || cd repo; git commit -q --allow-empty -m 1",
        "cd ../repo 2>/dev/null || cd repo; git commit -q --allow-empty -m 2",
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFLICTS)
def test_a_contradiction_is_a_conflict(merge: Any, case: str) -> None:
    start, one, other, message = CONFLICTS[case]
    found = merge(start, one, other).merge
    assert found.snapshot is None
    if message:
        assert describe(found.conflicts) == [message]
    else:
        assert ".git/refs/heads/" in describe(found.conflicts)[0]


def test_markers_lose_nothing(merge: Any) -> None:
    merged = merge(
        LINES + "printf 'x\\0' > data; touch gone",
        "sed -i s/^2$/a/ lines; printf 'a\\0' > data; rm gone",
        "sed -i s/^2$/b/ lines; printf 'b\\0' > data; echo 1 > gone",
        policy="markers",
    )
    shown = merged.run("sed -n 1,8p lines; tr -d '\\0' < data; tr -d '\\0' < data.b1; cat gone")
    assert shown.split("\n")[1:5] == ["<<<<<<< b0", "a", "=======", "b"]
    assert shown.endswith("ab1\n")
    assert [each.left for each in merged.merge.conflicts] == [
        "the version of b0, and that of b1 as data.b1",
        "the version of b1",
        "conflict markers",
    ]


@pytest.mark.parametrize(("policy", "number"), [("ours", 0), ("theirs", 1)])
def test_one_branch_can_win(merge: Any, policy: str, number: int) -> None:
    merged = merge(
        LINES + "printf 'x\\0' > data; mkdir d; echo 1 > d/x; echo 1 > d/y",
        "sed -i 's/^2$/a/;s/^9$/nine/' lines; printf 'a\\0' > data; rm -r d",
        "sed -i 's/^2$/b/;s/^19$/nineteen/' lines; printf 'b\\0' > data; echo 2 > d/x",
        policy=policy,
    )
    shown = merged.run("sed -n '2p;9p;19p' lines; tr -d '\\0' < data; echo; ls d 2>/dev/null; true").split()
    assert shown[:4] == ["ab"[number], "nine", "nineteen", "ab"[number]]
    assert shown[4:] == ([], ["x", "y"])[number]


def test_a_function_can_decide(merge: Any) -> None:
    asked: list[BranchConflict] = []

    def decide(conflict: BranchConflict) -> Any:
        asked.append(conflict)
        return {"lines": b"mine\n", "data": "b1", "file": None, "d": "b0"}[conflict.path]

    merged = merge(
        LINES + "printf 'x\\0' > data; touch file; mkdir d; touch d/x",
        "sed -i s/^2$/a/ lines; printf 'a\\0' > data; rm file; rm -r d",
        "sed -i s/^2$/b/ lines; printf 'b\\0' > data; echo 1 > file; echo 1 > d/x",
        policy=decide,
    )
    shown = merged.run("cat lines; tr -d '\\0' < data; ls -d file d 2>/dev/null; true")
    assert shown.split() == ["mine", "b"]
    by_path = {each.path: each for each in asked}
    assert (by_path["lines"].base or b"").startswith(b"1\n2\n3")
    assert (by_path["lines"].versions["b1"] or b"").startswith(b"1\nb\n3")


def test_caches_and_the_index_of_git_are_never_in_conflict(merge: Any) -> None:
    merged = merge(
        "mkdir -p __pycache__; git init -q repo; echo 1 > repo/a",
        "echo 1 > __pycache__/x; cd repo; git add a",
        "echo 2 > __pycache__/x; cd repo; echo 2 > b; git add b",
    )
    assert merged.merge.conflicts == ()
    assert merged.run("cd ../repo 2>/dev/null || cd repo; git status --short; git ls-files; cat ../__pycache__/x").split() == [
        "A", "a", "??", "b", "a", "1",
    ]  # fmt: skip


def test_the_shell_is_merged_by_name(merge: Any) -> None:
    merged = merge(
        "both=0; mkdir -p sub",
        "one=1; both=1; f() { echo f; }; cd sub",
        "two=2; both=2; export three=3; alias g='echo g'",
    )
    assert merged.run("echo $one $two $three $both; f; basename $PWD").split() == [
        "1",
        "2",
        "3",
        "1",
        "f",
        "sub",
    ]


def test_what_branches_started_in_the_background_is_merged(merge: Any) -> None:
    merged = merge("sleep 61 &", "sleep 62 & cd /", "sleep 62 & sleep 63 &")
    processes = merged.merge.snapshot.processes
    assert sorted(each.argv for each in processes) == [("sleep", "62"), ("sleep", "63")]


def test_hard_links_attributes_and_times_survive(merge: Any) -> None:
    merged = merge(
        "echo 1 > first; ln first second; touch -d @1 old",
        "echo 2 > new; ln new newer; touch -d @7 seven",
        "rm first",
    )
    assert merged.run("cat second new newer; stat -c %h new; stat -c %Y old seven").split() == [
        "1", "2", "2", "2", "1", "7",
    ]  # fmt: skip


def test_lines_that_both_changed_equally_are_one(kit: Kit, tmp_path: Path) -> None:
    assert merge_lines(b"1\n2\n", b"1\n3\n", b"1\n3\n", scratch=tmp_path) == (b"1\n3\n", False)
    assert merge_lines(b"", b"\0", b"\0\1", scratch=tmp_path) is None


def test_what_branches_make_in_a_directory_that_was_made_anew_is_merged(merge: Any) -> None:
    """Before the step, or by both branches: its old content is hidden, and nothing of the new one is lost."""
    anew = "rm -r tools; mkdir tools; echo 0 > tools/begin; "
    merged = merge(anew, "echo 1 > tools/one; rm tools/begin", "echo 2 > tools/two")
    assert merged.merge.conflicts == ()
    assert merged.run("ls tools; cat tools/one tools/two").split() == ["one", "two", "1", "2"]
    merged = merge("", anew + "echo 1 > tools/one", anew + "echo 2 > tools/two")
    assert merged.merge.conflicts == ()
    assert merged.run("ls tools; cat tools/one tools/two").split() == ["begin", "one", "two", "1", "2"]


def test_content_for_a_deleted_file_leaves_the_files_after_it(merge: Any) -> None:
    merged = merge(
        "echo 1 > a; echo 1 > b; echo 1 > c",
        "rm a; echo 2 > b; echo 2 > c",
        "echo 3 > a",
        policy=lambda conflict: b"chosen\n",
    )
    assert merged.run("cat a b c").split() == ["chosen", "2", "2"]


def test_copies_beside_a_file_replace_nothing(merge: Any) -> None:
    merged = merge(
        "printf 'x\\0' > data; echo kept > data.b1; truncate -s 4M holes",
        "printf 'a\\0' > data; printf a | dd of=holes conv=notrunc status=none; ln holes second",
        "printf 'b\\0' > data; printf b | dd of=holes conv=notrunc status=none bs=1 seek=9000",
        policy="markers",
    )
    shown = merged.run(
        "for f in data data.b1 data.b1.2 holes second holes.b1; do tr -d '\\0' < $f | head -c 9; done"
    )
    assert shown.replace("\n", "") == "akeptbaab"
    assert merged.run("stat -c %s holes.b1").strip() == str(4 << 20)


def test_the_index_belongs_to_the_commit(merge: Any) -> None:
    """Otherwise the next commit would undo the branch's."""
    merged = merge(
        REPOSITORY,
        "touch -d @9 a; git status --short; echo 1 > new; git add new",
        "echo 2 > a; git commit -qam two",
        "echo 1 > other",
    )
    assert merged.merge.conflicts == ()
    assert merged.run("git status --short; git show HEAD:a").split() == [
        "??",
        "new",
        "??",
        "other",
        "2",
    ]


@pytest.mark.parametrize("policy", ["ours", "theirs", "markers"])
def test_no_object_of_a_repository_is_lost(merge: Any, policy: str) -> None:
    merged = merge(
        REPOSITORY,
        "git gc -q --prune=now",
        "git checkout -qb side; for n in 1 2 3 4 5 6; do echo $n > f$n; git add .; git commit -qm $n; done",
        policy=policy,
    )
    assert merged.run("git fsck --full 2>&1 | grep -c missing; git log --oneline side | wc -l").split() == [
        "0",
        "7",
    ]


def test_builds_of_a_branch_are_not_up_to_date_after_a_merge(merge: Any) -> None:
    merged = merge(
        "printf 'a = 1\\n\\n\\n\\n\\n\\nb = 1\\n' > m.py",
        "sed -i 's/a = 1/a = 2/' m.py; PYTHONDONTWRITEBYTECODE= python3 -c 'import m'; sleep 0.1; cp m.py out",
        "sed -i 's/b = 1/b = 2/' m.py; PYTHONDONTWRITEBYTECODE= python3 -c 'import m'",
    )
    shown = merged.run("python3 -c 'import m; print(m.a, m.b)'; [ m.py -nt out ] && echo newer")
    assert shown.split() == ["2", "2", "newer"]
