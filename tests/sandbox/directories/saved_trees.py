"""Trees to save and to compare with what a restore makes of them."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

from langgraph_takeover.sandbox import DirectorySnapshots

GIT = ("git", "-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")


def describe_tree(directory: Path) -> dict[str, tuple[object, ...]]:
    """What a restore must bring back: kind, mode, owner, time and content of each path; times of links, too."""
    found: dict[str, tuple[object, ...]] = {}
    for top, directories, files in os.walk(directory):
        for name in [*directories, *files]:
            path = Path(top, name)
            info = path.lstat()
            content: object = None
            if stat.S_ISLNK(info.st_mode):
                content = path.readlink()
            elif stat.S_ISREG(info.st_mode):
                content = path.read_bytes()
            state = (oct(info.st_mode), info.st_uid, info.st_gid, info.st_mtime_ns, content)
            found[str(path.relative_to(directory))] = state
    return found


def run_git(directory: Path, *arguments: str) -> str:
    done = subprocess.run([*GIT, *arguments], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_repository(directory: Path) -> Path:
    """A repository with one commit of two files."""
    (directory / "src").mkdir(parents=True)
    (directory / "src" / "code.py").write_text("one = 1\n")
    (directory / "README").write_text("read me\n")
    run_git(directory, "init", "-q", "-b", "main", "--template=")
    run_git(directory, "add", "-A")
    run_git(directory, "commit", "-q", "-m", "base")
    return directory


def open_snapshots(directory: Path, **options: object) -> DirectorySnapshots:
    """Snapshots in a store beside the directory."""
    return DirectorySnapshots(directory, store=directory.parent / f"{directory.name}.store", **options)  # type: ignore[arg-type]
