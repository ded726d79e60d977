"""Python as an ordinary user, for tests that root runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.untrusted_trees import remove_tree

from ..conftest import skip_missing

_ROOT = Path(__file__).parents[2]
_UID = 54_321


@contextlib.contextmanager
def make_user_directory() -> Iterator[Path]:
    """Provide a directory for the files of an ordinary user. Without root, skips the test; in CI, fails it."""
    if os.geteuid() != 0:
        skip_missing("requires root, to become an ordinary user (without root, the other tests run as one)")
    directory = Path(tempfile.mkdtemp(prefix="takeover-user-", dir="/var/tmp"))
    directory.chmod(0o711)
    try:
        yield directory
    finally:
        remove_tree(directory)


def run_python_as_user(directory: Path, *arguments: str | Path) -> str:
    """Give a directory to the ordinary user, run Python as that user, and return its output."""
    subprocess.run(["chown", "-R", f"{_UID}:{_UID}", directory], check=True)
    done = subprocess.run(
        ["setpriv", f"--reuid={_UID}", f"--regid={_UID}", "--clear-groups", sys.executable, *arguments],
        env={
            "PATH": os.defpath,
            "HOME": str(directory),
            "TMPDIR": str(directory),
            "PYTHONDONTWRITEBYTECODE": "1",
            ownership.ROOT_VARIABLE: str(directory / "home"),
        },
        cwd=_ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout
