"""Synthetic repository from which benchmark sandboxes start, as a directory and as an image."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

from langgraph_takeover import SandboxSpec, sandbox
from langgraph_takeover.sandbox.interface import BackendName

FILES = 6_200
_FILES_PER_PACKAGE = 100
_LINES_PER_FILE = 223
_WORDS = ("self", "value", "result", "index", "matrix", "symbol", "token", "parse", "node", "graph", "state")
_DISTINCT_LINES = 20_000


def make_testbed(directory: Path, files: int = FILES) -> Path:
    """Create a reproducible repository: Python-like text, one commit, one pack."""
    rng = random.Random(3)
    lines = [
        f"    {' '.join(rng.choices(_WORDS, k=4))} = {rng.getrandbits(40)}\n" for _ in range(_DISTINCT_LINES)
    ]
    for number in range(files):
        path = directory / "pkg" / f"part{number // _FILES_PER_PACKAGE:02}" / f"module{number:04}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(rng.choices(lines, k=_LINES_PER_FILE)))
    commit_all(directory)
    return directory


def commit_all(directory: Path) -> None:
    """Make a directory a repository with one commit in one pack, of a fixed time."""
    date = "2024-01-01T00:00:00Z"
    environment = os.environ | {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    identity = ("-c", "user.name=benchmark", "-c", "user.email=benchmark@example.org", "-c", "gc.auto=0")
    for command in ("init -q -b main --template=", "add -A", "commit -q -m base", "repack -q -a -d"):
        git = ["git", "-C", str(directory), *identity, *command.split()]
        subprocess.run(git, check=True, env=environment)


def make_spec(directory: Path, files: int, backend: BackendName | None = None) -> SandboxSpec:
    """A sandbox with a new testbed in this directory, in the best back end of this host."""
    return SandboxSpec(
        backend=backend or sandbox.default_backend(allow_process=True),
        directory=make_testbed(directory, files),
        owner="benchmark",
    )


def change_files_command(count: int) -> str:
    """The command that appends a line to the first `count` files."""
    script = '\'echo "# changed" | tee -a -- "$@" >/dev/null\''
    return f"find pkg -name '*.py' | sort | head -n {count} | xargs bash -c {script} bash"


@contextlib.contextmanager
def build_image(base: str, directory: Path) -> Iterator[str]:
    """Build an image from `base` with this directory at /testbed; removed at the end."""
    from langgraph_takeover.sandbox.docker_client import client, require_image

    tag = f"takeover/benchmark-{secrets.token_hex(4)}"
    container = client().containers.create(require_image(base).id, ["true"])
    try:
        tar = [
            "tar",
            "-c",
            "--owner=0",
            "--group=0",
            "--transform=s,^\\.,testbed,",
            "-C",
            str(directory),
            ".",
        ]
        container.put_archive("/", subprocess.run(tar, capture_output=True, check=True).stdout)
        container.commit(tag)
    finally:
        container.remove(force=True)
    try:
        yield tag
    finally:
        client().images.remove(tag, force=True)
