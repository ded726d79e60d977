"""The user's repository: where it is, and its commit. Nothing here writes to it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.graph.usage_errors import CaptureError

GIT_TIMEOUT_S = 60
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
    _require_own_git_directory(root)
    try:
        head = run_git(root, "rev-parse", "--verify", "HEAD^{commit}")
    except CaptureError as error:
        raise CaptureError(f"{root}: no commit yet (first: git commit --allow-empty -m start)") from error
    return Repository(root=root, head=head)


def list_tracked(root: Path, paths: Iterable[str] = ()) -> dict[str, str]:
    """Return the tracked files of a repository and its submodules, or those below `paths`; with their blobs in the index.

    The blob of a file in a submodule is empty. Raises CaptureError.
    """
    below = ["--", *(f":(top,literal){path}" for path in paths)]
    blobs: dict[str, str] = {}
    for line in run_git(root, "ls-files", "-s", "-z", "--full-name", *below).split("\0")[:-1]:
        mode_and_blob, _, path = line.partition("\t")
        mode, blob, stage = mode_and_blob.split(" ")
        if mode != "160000":
            blobs[path] = f"{mode} {blob}" if stage in ("0", "2") else blobs.get(path, "")
    inside = run_git(root, "ls-files", "-z", "--full-name", "--recurse-submodules", *below).split("\0")[:-1]
    return dict.fromkeys(inside, "") | blobs


def read_blob(root: Path, blob: str) -> bytes:
    """Return the content of a blob as git has it, without any conversion. Raises CaptureError."""
    return os.fsencode(run_git(root, "cat-file", "blob", blob, whole=True))


def _require_own_git_directory(root: Path) -> None:
    """Raise CaptureError if `GIT_DIR` sends every git command to another repository."""
    named = os.environ.get("GIT_DIR")
    if named is None:
        return
    found = run_git(root, "rev-parse", "--absolute-git-dir")
    if os.path.realpath(named) != os.path.realpath(found):
        raise CaptureError(f"GIT_DIR={named:.300}: names another repository than {root} has (unset GIT_DIR)")


def git_environment() -> dict[str, str]:
    """Return the environment for git commands that no variable sends elsewhere, and that fetch nothing."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
    return {**environment, **_NO_FETCH, "LC_ALL": "C"}


def run_git(
    directory: Path, *arguments: str, whole: bool = False, stdin: bytes = b"", options: Sequence[str] = ()
) -> str:
    """Return the output of a git command, by default without its last line break. Raises CaptureError."""
    # The commands here only read; a repository may belong to another user.
    command = [
        "git",
        "-c",
        "core.fsmonitor=false",
        "-c",
        "safe.directory=*",
        *options,
        "-C",
        str(directory),
        *arguments,
    ]
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            check=False,
            timeout=GIT_TIMEOUT_S,
            env=git_environment(),
        )
    except OSError as error:
        raise CaptureError(f"git: {error.strerror} (install git)") from error
    except subprocess.TimeoutExpired as error:
        raise CaptureError(f"{directory}: git did not end within {GIT_TIMEOUT_S} s (try again)") from error
    if done.returncode not in (0, 1) or (done.returncode == 1 and done.stderr):
        reason = done.stderr.decode(errors="replace").strip().partition("\n")[0][:300]
        raise CaptureError(f"{directory}: {reason or 'git failed'} ({_find_cure(directory)})")
    output = os.fsdecode(done.stdout)
    return output if whole else output.rstrip("\n")


def _find_cure(directory: Path) -> str:
    for place in (directory, *directory.parents):
        if (place / ".git").is_file():
            return (
                "its .git names a git directory that is gone or damaged: in the main repository, "
                f"git worktree repair {place}; or clone again"
            )
    return "run git init and git commit first, or pass --repository DIR"
