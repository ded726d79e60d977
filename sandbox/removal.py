"""Directories that an agent could write to: looked through and removed, however deep or locked they are."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


def below(path: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below a directory, however deep, that can be looked at."""
    waiting = [str(path)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def remove_tree(root: Path) -> OSError | None:
    """Remove a directory that an agent could write to; the reason why something of it is still there."""
    if not os.path.lexists(root):
        return None
    if os.geteuid() != 0:
        # An agent may have taken away its own right to look into a directory.
        subprocess.run(["chmod", "-R", "u+rwX", "--", root], capture_output=True)
    done = subprocess.run(["rm", "-rf", "--one-file-system", "--", root], capture_output=True, text=True)
    return OSError(done.stderr.strip().partition("\n")[0]) if done.returncode else None
