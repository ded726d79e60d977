"""Real machines of every backend, started from one small git repository."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sandbox
from sandbox.machine import BackendName, ExecResult, Sandbox, SandboxSpec, Snapshot

from ..conftest import missing

FILES = {
    "README.txt": "a small repository\n",
    "pkg/__init__.py": "",
    "pkg/mod.py": "def answer():\n    return 41\n",
    "pkg/old name.py": "".join(f"line {n}\n" for n in range(40)),
    "tools/run.sh": "#!/bin/sh\necho run\n",
    "docs/größe.txt": "zwölf\n",
    ".gitignore": "*.log\nbuild/\n",
}


def git(directory: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(
        ["git", "-C", str(directory), *identity, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository") / "testbed"
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
    return root


_RESET = """
git reset -q --hard && git clean -qfdx && find "$HOME" "${TMPDIR:-/tmp}" -mindepth 1 -delete && chmod 644 pkg/mod.py
"""


class Kit:
    """Starts machines of one backend, and ends all that a test has left."""

    def __init__(self, backend: BackendName, repository: Path, image: str | None) -> None:
        self.backend = backend
        self.owner = f"test-{secrets.token_hex(4)}"
        self._base: dict[str, Any] = {
            "backend": backend,
            "directory": None if image else repository,
            "image": image,
            "owner": self.owner,
        }
        self._started: list[Sandbox] = []

    def spec(self, **more: Any) -> SandboxSpec:
        return SandboxSpec.model_validate(self._base | more)

    def start(self, **more: Any) -> Sandbox:
        return self._kept(sandbox.start(self.spec(**more)))

    def thaw(self, snapshot: Snapshot, store: Path, **more: Any) -> Sandbox:
        return self._kept(sandbox.thaw(snapshot, store, self.spec(**more)))

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        """End, afterwards, what is started within."""
        before = len(self._started)
        yield
        for machine in self._started[before:]:
            machine.close()
        del self._started[before:]

    def _kept(self, machine: Sandbox) -> Sandbox:
        self._started.append(machine)
        return machine


@pytest.fixture(scope="session")
def testbed_image(request: pytest.FixtureRequest) -> Callable[[], contextlib.AbstractContextManager[str]]:
    """The base image with the repository in /testbed, on demand, removed again."""

    @contextlib.contextmanager
    def made() -> Iterator[str]:
        base = request.getfixturevalue("base_image")
        repository = request.getfixturevalue("repository")
        from sandbox.container import client

        tag = f"takeover/contract-{secrets.token_hex(4)}"
        container = client().containers.create(base, ["true"])
        try:
            packed = subprocess.run(
                ["tar", "--owner=0", "--group=0", "-c", "-C", str(repository.parent), "testbed"],
                capture_output=True,
                check=True,
            )
            container.put_archive("/", packed.stdout)
            container.commit(tag)
        finally:
            container.remove(force=True)
        yield tag
        client().images.remove(tag, force=True)

    return made


def kit_of(backend: BackendName, repository: Path, testbed_image: Any) -> Iterator[Kit]:
    with contextlib.ExitStack() as stack:
        image = stack.enter_context(testbed_image()) if backend == "docker" else None
        if backend == "host":
            from sandbox.host import unavailable

            reason = unavailable()
            if reason:
                missing(reason)
        kit = Kit(backend, repository, image)
        stack.callback(sandbox.remove_leftovers, backend, kit.owner)
        stack.enter_context(kit.ended())
        yield kit


@pytest.fixture(scope="session", params=["process", "host", "docker"])
def kit(request: pytest.FixtureRequest, repository: Path, testbed_image: Any) -> Iterator[Kit]:
    yield from kit_of(request.param, repository, testbed_image)


@pytest.fixture(scope="session")
def _lasting(kit: Kit) -> Iterator[Sandbox]:
    with kit.ended():
        yield kit.start()


@pytest.fixture
def machine(_lasting: Sandbox) -> Sandbox:
    """One machine for all tests of a backend: each finds a new shell in the repository as it was."""
    assert _lasting.run("cd; exit", timeout_s=20).shell_ended
    told(_lasting, f"cd {_lasting.workspace}; {_RESET}")
    _lasting.changes()
    return _lasting


@pytest.fixture
def fresh(kit: Kit) -> Iterator[Sandbox]:
    """A machine of the test's own, as it starts."""
    with kit.ended():
        yield kit.start()


def run(machine: Sandbox, command: str, timeout_s: float = 30) -> ExecResult:
    return machine.run(command, timeout_s=timeout_s)


def told(machine: Sandbox, command: str) -> str:
    """The output of a command that must succeed."""
    result = run(machine, command)
    assert result.exit_code == 0, result
    assert not result.shell_ended, result
    return result.output


def home(machine: Sandbox) -> str:
    return told(machine, 'printf %s "$HOME"')


def tmp(machine: Sandbox) -> str:
    return told(machine, 'printf %s "${TMPDIR:-/tmp}"')
