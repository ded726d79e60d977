"""The kit that starts sandboxes of one back end for the contract's tests, and its fixtures."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.interface import ExecResult, Sandbox, SandboxSpec, Snapshot
from langgraph_takeover.sandbox.untrusted_trees import list_matches

FILES = {
    "README.txt": "a small repository\n",
    "pkg/__init__.py": "",
    "pkg/mod.py": "def answer():\n    return 41\n",
    "pkg/old name.py": "".join(f"line {n}\n" for n in range(40)),
    "tools/run.sh": "#!/bin/sh\necho run\n",
    "docs/größe.txt": "zwölf\n",
    ".gitignore": "*.log\nbuild/\n",
}


def make_repository(root: Path) -> None:
    """Create the git repository that is the initial workspace of every sandbox of the contract."""
    for name, content in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (root / "tools/run.sh").chmod(0o755)
    (root / "data.bin").write_bytes(bytes(range(256)) * 8)
    (root / "link").symlink_to("README.txt")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "base")


def git(directory: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(
        ["git", "-C", str(directory), *identity, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


class Kit:
    """Starts sandboxes of one back end, and closes those that a test left open.

    `base` holds the fields of a `SandboxSpec` whose workspace is the repository of `make_repository` and whose
    sandbox has bash, coreutils, findutils, git and Python. A back end that `sandbox.start` does not know passes
    its own `start` and `restore`, with the same arguments and results. `is_isolated`: it promises to withstand a
    hostile agent. `has_exact_times`: files keep their times to the nanosecond.
    """

    def __init__(
        self,
        base: dict[str, Any],
        *,
        start: Callable[[SandboxSpec], Sandbox] = sandbox.start,
        restore: Callable[[Snapshot, Path, SandboxSpec], Sandbox] = sandbox.restore,
        is_isolated: bool = True,
        has_exact_times: bool = True,
    ) -> None:
        self.owner = f"test-{secrets.token_hex(4)}"
        self.backend = base["backend"]
        self.is_isolated = is_isolated
        self.has_exact_times = has_exact_times
        self._base = base | {"owner": self.owner}
        self._start, self._restore = start, restore
        self._started: list[Sandbox] = []

    def spec(self, **more: Any) -> SandboxSpec:
        return SandboxSpec.model_validate(self._base | more)

    def start(self, **more: Any) -> Sandbox:
        return self._register(self._start(self.spec(**more)))

    def restore(self, snapshot: Snapshot, store: Path, **more: Any) -> Sandbox:
        return self._register(self._restore(snapshot, store, self.spec(**more)))

    def remove_stale_resources(self, owner: str, *, kept_images: Collection[str] | None = ()) -> None:
        sandbox.remove_stale_resources(self.backend, owner, kept_images=kept_images)

    def find_stale_resources(self, owner: str) -> set[str]:
        """Resources of the owner that are still on this host: directories, containers and processes."""
        found = {str(path) for path in list_matches(ownership.runs_directory(), f"{owner}/*")}
        for process in psutil.process_iter(["cmdline", "status"]):
            if owner in (process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.add(str(process))
        if self.backend == "docker":
            from langgraph_takeover.sandbox.gc import CollectionRequest, list_docker_resources

            listed = list_docker_resources(CollectionRequest(owner))
            found.update(each.name for each in listed if each.kind == "container")
        return found

    @contextlib.contextmanager
    def close_started(self) -> Iterator[None]:
        """Close the sandboxes started inside the `with` block."""
        before = len(self._started)
        try:
            yield
        finally:
            for sandbox in self._started[before:]:
                sandbox.close()
            del self._started[before:]

    def _register(self, started: Sandbox) -> Sandbox:
        self._started.append(started)
        return started


@pytest.fixture(scope="session")
def session_sandbox(kit: Kit) -> Iterator[Sandbox]:
    with kit.close_started():
        yield kit.start()


_RESET = """
git reset -q --hard && git clean -qfdx && find "$HOME" "${TMPDIR:-/tmp}" -mindepth 1 -delete && chmod 644 pkg/mod.py
"""


@pytest.fixture
def clean_sandbox(session_sandbox: Sandbox) -> Sandbox:
    """One sandbox for all tests of a back end. Each test gets a new shell in the initial repository."""
    assert session_sandbox.run("cd; exit", timeout_s=20).shell_ended
    check_output(session_sandbox, f"cd {session_sandbox.workspace}; {_RESET}")
    session_sandbox.changes()
    return session_sandbox


@pytest.fixture
def fresh_sandbox(kit: Kit) -> Iterator[Sandbox]:
    """A new sandbox for one test."""
    with kit.close_started():
        yield kit.start()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store" / "deep"


def run(sandbox: Sandbox, command: str, timeout_s: float = 30) -> ExecResult:
    return sandbox.run(command, timeout_s=timeout_s)


def check_output(sandbox: Sandbox, command: str) -> str:
    """Return the output of a command that must succeed."""
    result = run(sandbox, command)
    assert result.exit_code == 0, result
    assert not result.shell_ended, result
    return result.output


def home_directory(sandbox: Sandbox) -> str:
    return check_output(sandbox, 'printf %s "$HOME"')


def temp_directory(sandbox: Sandbox) -> str:
    return check_output(sandbox, 'printf %s "${TMPDIR:-/tmp}"')
