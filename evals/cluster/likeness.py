"""What two hosts must have alike, so that a row says the same wherever it was made."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

from evals.models import read_name
from evals.run.config import RunConfig
from evals.tasks import Task

_OURS = ("sandbox", "handoff", "nodes", "graph", "evals")
_OTHERS = (
    "langchain-core",
    "langchain-openai",
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "pydantic",
    "ray",
    "swebench",
)

Likeness = dict[str, str]
"""What is compared, by its name."""


def likeness(config: RunConfig, tasks: tuple[Task, ...]) -> Likeness:
    """What this host has of all that a run's rows depend on: versions, images, recorded trajectories."""
    found = {"Python": platform.python_version(), "this package's source": _source()}
    found |= {name: _version(name) for name in _OTHERS}
    if config.sandbox != "process":
        images = [task.spec(config.sandbox, config.run_id, Path()).image for task in tasks]
        found |= {f"image {name}": _image(name) for name in dict.fromkeys(images) if name is not None}
    for name in (*config.predecessors, *config.successors):
        if read_name(name).kind == "replay":
            found[str(read_name(name).file)] = _content(read_name(name).file)
    return found


def difference(theirs: Likeness, ours: Likeness) -> str | None:
    """The first thing that another host has otherwise, in words."""
    for name, value in ours.items():
        if theirs.get(name) != value:
            return f"it has {name} {theirs.get(name) or 'not at all'}, where {value} is needed"
    return None


def _source() -> str:
    digest = hashlib.sha256()
    for package in _OURS:
        root = Path(str(files(package)))
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                name = f"{package}/{path.relative_to(root)}"
                digest.update(f"{name}\0{_content(path)}\0".encode())
    return digest.hexdigest()[:12]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _image(name: str) -> str:
    from sandbox.container import require_image
    from sandbox.machine import SandboxUnavailable

    try:
        return str(require_image(name).id)
    except SandboxUnavailable:
        return ""


def _content(path: Path) -> str:
    try:
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()[:12]
    except OSError:
        return ""
