"""The compatibility check: versions that all hosts of a run share, so that rows do not depend on the host."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

from langgraph_takeover.evals.models import parse_model_name
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.evals.run.settings.inputs import digest_path, find_image_id
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.sandbox.untrusted_trees import walk

_PACKAGES = ("sandbox", "handoff", "nodes", "graph", "evals")
_DEPENDENCIES = (
    "langchain-core",
    "langchain-openai",
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "pydantic",
    "ray",
    "swebench",
)

Versions = dict[str, str]
"""Versions by name."""


def collect_versions(config: RunConfig, tasks: tuple[Task, ...]) -> Versions:
    """The versions, images and recorded trajectories of this host that can influence a row."""
    versions = {"Python": platform.python_version(), "this package's source": _source_digest()}
    versions |= {name: _package_version(name) for name in _DEPENDENCIES}
    if config.sandbox != "process":
        images = [task.build_spec(config.sandbox, config.run_id, Path()).image for task in tasks]
        versions |= {
            f"image {name}": find_image_id(name) for name in dict.fromkeys(images) if name is not None
        }
    for name in (*config.predecessors, *config.successors):
        if parse_model_name(name).kind == "replay":
            recorded = [
                parse_model_name(each).file for each in config.recordings.get(name, {"": name}).values()
            ]
            versions |= {str(file): digest_path(file) for file in recorded}
    return versions


def find_difference(theirs: Versions, ours: Versions) -> str:
    """The first version that differs on another host, as text; empty if none differs."""
    for name, value in ours.items():
        if theirs.get(name) != value:
            return f"{name} is {theirs.get(name) or 'not installed'}, but {value} is required"
    return ""


def _source_digest() -> str:
    digest = hashlib.sha256()
    for package in _PACKAGES:
        root = Path(str(files(f"langgraph_takeover.{package}")))
        for path in sorted(root / name for name, _ in walk(root)):
            if path.is_file() and "__pycache__" not in path.parts:
                name = f"{package}/{path.relative_to(root)}"
                digest.update(f"{name}\0{digest_path(path)}\0".encode())
    return digest.hexdigest()[:12]


def _package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
