"""One task: its prompt, its repository and its sandbox."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.sandbox.interface import BackendName, Frozen, SandboxSpec, TakeoverError
from langgraph_takeover.sandbox.storage.removal import list_matches

SUITE = Path(str(files("langgraph_takeover.evals.tasks") / "suite"))
_STREAM = "repo.fast-export"
# SWE-bench images keep their interpreter in a conda environment; other images have no such file.
_SHELL_INIT = "[ ! -f /opt/miniconda3/bin/activate ] || { . /opt/miniconda3/bin/activate; conda activate testbed; } >/dev/null 2>&1"
_PACKAGES = "lib*/python3*/*-packages"


class TaskSourceError(TakeoverError, ValueError):
    """An unusable task or task source."""


class Task(Frozen):
    """One SWE-bench instance: `instance` is its row with the columns of swebench 5.

    `directory` is set for tasks of a task repo, which may include the repository's history.
    """

    id: str
    instance: Mapping[str, Any]
    directory: Path | None = None
    prompt_name: Literal["short", "paper"] = "short"

    @property
    def prompt(self) -> str:
        """The task prompt, identical for every agent."""
        statement = str(self.instance["problem_statement"]).replace("\r\n", "\n").strip()
        return self.template.replace("{problem_statement}", statement)

    @property
    def template(self) -> str:
        return load_prompt(self.prompt_name, "evals.tasks")

    def list_files(self) -> list[tuple[str, Path]]:
        """The files and directories of a task repo that results depend on, besides the columns, each with its part."""
        parts = {"repository": _STREAM, "tests": "test_assets", "fields": "oracle.yaml"}
        paths = [(part, self.directory / name) for part, name in parts.items()] if self.directory else []
        return [(part, path) for part, path in paths if path.exists()]

    @property
    def gold_patch(self) -> str | None:
        """The reference fix, if the task has one. No agent sees it."""
        patch = self.instance.get("patch")
        return patch if isinstance(patch, str) and patch.strip() else None

    @property
    def stream(self) -> Path | None:
        """The repository's history as a git fast-export stream, if the task includes one."""
        path = self.directory / _STREAM if self.directory else None
        return path if path is not None and path.is_file() else None

    @property
    def is_bundled(self) -> bool:
        return self.directory is not None and self.directory.is_relative_to(SUITE)

    def find_image(self, backend: BackendName) -> str | None:
        """The Docker image from which the task's sandbox starts, if any."""
        image = self.instance.get("image")
        starts_from_image = backend == "docker" or (backend == "host" and self.stream is None)
        return str(image) if image and starts_from_image else None

    def build_spec(self, backend: BackendName, owner: str, work: Path) -> SandboxSpec:
        """Specify the sandbox in which the task starts. Raises TaskSourceError."""
        if image := self.find_image(backend):
            return SandboxSpec(backend=backend, image=image, shell_init=_SHELL_INIT, owner=owner)
        if backend == "docker":
            raise TaskSourceError(
                f"task {self.id}: no Docker image (add the column 'image' or choose another --sandbox)"
            )
        if self.stream is None:
            raise TaskSourceError(
                f"task {self.id}: the repository exists only as a Docker image (choose --sandbox docker or host)"
            )
        # A package installed below the system's directories contains the solutions of the suite.
        hidden = (*_find_installed_packages(), SUITE) if self.is_bundled else (SUITE,)
        return SandboxSpec(backend=backend, directory=work / self.id, hidden=hidden, owner=owner)

    def check_out(self, work: Path, *, copy_from: Path | None = None) -> None:
        """Check the repository out at `work/<id>`, for sandboxes that start from a directory.

        Checkouts are identical to the byte, so sandboxes of different runs share one base. Snapshots of a sandbox that
        started from a checkout in `copy_from` need a copy of that checkout as their base.
        """
        target, partial = work / self.id, work / f".partial-{self.id}"
        if self.stream is None or target.exists():
            return
        shutil.rmtree(partial, ignore_errors=True)
        if copy_from is not None and (copy_from / self.id).is_dir():
            shutil.copytree(copy_from / self.id, partial, symlinks=True)
            partial.rename(target)
            return
        partial.mkdir(parents=True)
        _run_git(partial, "init", "-q", "-b", "main")
        with self.stream.open("rb") as stream:
            _run_git(partial, "fast-import", "--quiet", stdin=stream)
        _run_git(partial, "checkout", "-q", "-f", "main")
        # Remove times and paths from the index by reading it anew. The reflog, which has them too, is off.
        _run_git(partial, "read-tree", "HEAD")
        partial.rename(target)


@functools.cache
def _find_installed_packages() -> tuple[Path, ...]:
    """Directories of this host's installed Python packages.

    Bundled tasks need none of them. Hiding them makes results independent of the host.
    """
    roots = (Path(sys.base_prefix), Path("/usr"), Path("/usr/local"))
    return tuple(sorted({path for root in roots for path in list_matches(root, _PACKAGES)}))


def _run_git(directory: Path, *arguments: str, stdin: Any = subprocess.DEVNULL) -> None:
    done = subprocess.run(
        ["git", "-C", str(directory), "-c", "core.logAllRefUpdates=false", *arguments],
        # A process started by a git hook inherits GIT_DIR and similar variables of another repository.
        env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        stdin=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        reason = " ".join(done.stderr.split())
        raise TaskSourceError(f"{directory}: git {arguments[0]} failed: {reason[-200:]}")
