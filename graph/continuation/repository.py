"""The user's repository: where it is, and its commit. Nothing here writes to it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from langgraph_takeover.graph.errors import CaptureError
from langgraph_takeover.sandbox.interface import Frozen

_TIMEOUT_S = 60
_OWN_VARIABLES = "GIT_"
# A repository's own configuration can name programs that fetch missing objects, the checked-out commit among them.
_NO_FETCH = {"GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1"}


class Repository(Frozen):
    """A git repository of this host."""

    root: Path
    head: str
    """The commit that is checked out."""


def find_repository(directory: Path) -> Repository:
    """Return the repository that holds a directory. Raises CaptureError, with the cure, if it cannot be captured."""
    directory = directory.absolute()
    if not directory.is_dir():
        raise CaptureError(f"{directory}: not a directory (pass --repository DIR)")
    root = Path(run_git(directory, "rev-parse", "--show-toplevel"))
    if not root.is_absolute():
        raise CaptureError(f"{directory}: the repository has no files (pass --repository DIR)")
    if not directory.resolve().is_relative_to(root.resolve()):
        raise CaptureError(
            f"{directory}: its configuration names files elsewhere: {root} (git config --unset core.worktree, or pass "
            f"--repository {root})"
        )
    git_directory = root / ".git"
    if git_directory.is_symlink() or not git_directory.is_dir():
        raise CaptureError(
            f"{root}: .git is not a directory: a linked worktree or a submodule keeps its history elsewhere "
            f"(clone it first: git clone --no-local {root} DIR)"
        )
    if (git_directory / "objects" / "info" / "alternates").exists():
        raise CaptureError(
            f"{root}: its objects are in another repository (first: git repack -ad, then remove "
            f"{git_directory}/objects/info/alternates)"
        )
    try:
        head = run_git(root, "rev-parse", "--verify", "HEAD^{commit}")
    except CaptureError as error:
        raise CaptureError(f"{root}: no commit yet (first: git commit --allow-empty -m start)") from error
    return Repository(root=root, head=head)


def run_git(directory: Path, *arguments: str) -> str:
    """Return the output of a git command that reads. Raises CaptureError."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_S,
            env={**environment, **_NO_FETCH, "LC_ALL": "C"},
        )
    except OSError as error:
        raise CaptureError(f"git: {error.strerror} (install git)") from error
    except subprocess.TimeoutExpired as error:
        raise CaptureError(f"{directory}: git did not end within {_TIMEOUT_S} s (try again)") from error
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip().partition("\n")[0][:300]
        cure = "run git init and git commit first, or pass --repository DIR"
        raise CaptureError(f"{directory}: {reason or 'git failed'} ({cure})")
    return os.fsdecode(done.stdout).rstrip("\n")
