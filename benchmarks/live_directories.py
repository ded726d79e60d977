"""Speed of snapshots and restores of a live directory, compared with git.

The reference is a repository of its own beside the directory, as tools for checkpoints use it: `git add -A` and
`git write-tree`, and for a restore also `git read-tree --reset -u`. It saves less: no `.git`, times or empty directories.
Each restore saves the present state first. Every figure is a median over the rounds of one run; both sides alternate.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import testbed
from benchmarks.figures import Goal, format_count, print_figures, print_progress, run_command
from benchmarks.turns import AsJson, Comparison, Files, Rounds, measure_in_turns, open_work_directory
from langgraph_takeover.sandbox import DirectorySnapshots

_MANY_FILES = 3_000
"""Files changed before a restore; at most half of the repository's files."""


class _Side(NamedTuple):
    """One way to save a directory, and to restore the state that it saved first."""

    take: Callable[[], object]
    restore: Callable[[], object]


def main(rounds: Rounds = 7, files: Files = testbed.FILES, as_json: AsJson = False) -> None:
    """Measure snapshots and restores of a live directory, compared with git."""
    many = min(_MANY_FILES, files // 2)
    with open_work_directory() as work:
        directory = testbed.make_testbed(work / "testbed", files)
        megabytes = sum(path.lstat().st_size for path in directory.rglob("*")) / 1e6
        repository = f"a repository of {files:,} files, {megabytes:.0f} MB with its history"
        print_progress(repository)
        sides = {"own": _open_own(directory, work), "git": _open_git(directory, work)}

        def measure(side: _Side) -> Callable[[int], dict[str, float]]:
            return lambda _: _measure_round(side, directory, many)

        samples = measure_in_turns(rounds, {name: measure(side) for name, side in sides.items()})
    figures = samples.compare(
        Comparison("snapshot, nothing changed", "own_unchanged", "git_unchanged", "git", Goal(50)),
        Comparison("snapshot, 1 file changed", "own_one", "git_one", "git", Goal(60)),
        Comparison(f"snapshot, {many:,} files changed", "own_many", "git_many", "git"),
        Comparison("restore, 1 file changed", "own_restore_one", "git_restore_one", "git"),
        Comparison(f"restore, {many:,} files changed", "own_restore_many", "git_restore_many", "git"),
    )
    print_figures(f"medians of {format_count(rounds, 'round')} on {repository}", figures, as_json=as_json)


def _open_own(directory: Path, work: Path) -> _Side:
    snapshots = DirectorySnapshots(directory, store=work / "store")
    base = snapshots.take()
    return _Side(snapshots.take, lambda: snapshots.restore(base.id))


def _open_git(directory: Path, work: Path) -> _Side:
    """Snapshots by git, with an index and objects of its own."""
    environment = os.environ | {"GIT_DIR": str(work / "git"), "GIT_WORK_TREE": str(directory)}

    def run(command: str) -> str:
        done = subprocess.run(
            command, shell=True, env=environment, cwd=directory, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    run("git init -q")
    take = "git add -A && git write-tree"
    tree = run(take)
    return _Side(lambda: run(take), lambda: run(f"{take} && git read-tree --reset -u {tree}"))


def _measure_round(side: _Side, directory: Path, many: int) -> dict[str, float]:
    side.take()  # the other side wrote the files before
    seconds = {"unchanged": _measure(side.take)}
    for name, count in (("one", 1), ("many", many)):
        _change_files(directory, count)
        seconds[name] = _measure(side.take)
        _change_files(directory, count)
        seconds[f"restore_{name}"] = _measure(side.restore)
    return seconds


def _measure(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def _change_files(directory: Path, count: int) -> None:
    for path in sorted((directory / "pkg").rglob("*.py"))[:count]:
        with path.open("a") as file:
            file.write("# changed\n")


if __name__ == "__main__":
    run_command(main)
