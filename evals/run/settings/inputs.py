"""The inputs of a run: digests of its tasks, recordings and prompts, so that results of changed ones are never mixed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.prompts import compute_digests
from langgraph_takeover.sandbox.interface import SandboxUnavailableError

if TYPE_CHECKING:
    from langgraph_takeover.evals.tasks import Task
    from langgraph_takeover.sandbox.interface import BackendName

_COLUMNS = {
    "statement": ("problem_statement",),
    "tests": ("FAIL_TO_PASS", "PASS_TO_PASS", "eval_script", "test_patch", "log_parser", "eval_type"),
    "repository": ("repo", "version", "base_commit"),
}
"""The columns of each part of a task. All others are its `fields`."""
_PROMPT_PACKAGES = ("handoff", "nodes")


class RunInputs(Frozen):
    """Digests of what a run reads, except its models, whose entries the settings contain."""

    tasks: Mapping[str, str]
    """Of each task, of all shards and in their order: `statement:DIGEST tests:DIGEST …`."""
    recordings: Mapping[str, Mapping[str, str]] = {}
    """Of each replay: the digest of each task's recording."""
    prompts: Mapping[str, str] = {}

    def list_digests(self) -> dict[str, str]:
        """Every digest by what it covers, such as `the tests of task a-1`."""
        parts = ((task, part.partition(":")) for task, text in self.tasks.items() for part in text.split())
        return (
            {f"the {name} of task {task}": digest for task, (name, _, digest) in parts}
            | {
                f"the recording of task {task} for {model}": digest
                for model, own in self.recordings.items()
                for task, digest in own.items()
            }
            | {f"the prompt {name}": digest for name, digest in self.prompts.items()}
        )


def compute_inputs(
    tasks: Sequence[Task],
    backend: BackendName,
    recordings: Mapping[str, Mapping[str, str]],
) -> RunInputs:
    """The digests of these tasks with their images, of the recordings by model and task, and of all prompts."""
    from langgraph_takeover.evals.models import parse_model_name

    files = {name: parse_model_name(name).file for own in recordings.values() for name in own.values()}
    digests = {path: digest_path(path) for path in set(files.values())}
    images = {name: find_image_id(name) for name in {task.find_image(backend) for task in tasks} if name}
    return RunInputs(
        tasks={task.id: _digest_task(task, images.get(task.find_image(backend) or "", "")) for task in tasks},
        recordings={
            model: {task: digests[files[name]] for task, name in own.items()}
            for model, own in recordings.items()
        },
        prompts={**compute_digests(*_PROMPT_PACKAGES), "of the tasks": _shorten(tasks[0].template.encode())}
        if tasks
        else {},
    )


def find_changed_input(before: RunInputs, now: RunInputs) -> str | None:
    """The first input that both have and that differs, such as `the tests of task a-1 changed`."""
    return next((f"{name} changed" for name in list_changed_inputs(before, now)), None)


def list_changed_inputs(before: RunInputs, now: RunInputs) -> list[str]:
    """The inputs that both have and that differ, such as `the tests of task a-1`."""
    ours = now.list_digests()
    return [name for name, digest in before.list_digests().items() if ours.get(name, digest) != digest]


def find_input_difference(before: RunInputs, now: RunInputs) -> str | None:
    """The first difference at all, for runs that need the same tasks in the same order."""
    removed = (f"task {task} was removed" for task in before.tasks if task not in now.tasks)
    added = (f"task {task} was added" for task in now.tasks if task not in before.tasks)
    moved = "the order of the tasks changed" if list(before.tasks) != list(now.tasks) else None
    return find_changed_input(before, now) or next(chain(removed, added), moved)


def digest_path(path: Path) -> str:
    """The digest of a file, or of the files below a directory; empty if it cannot be read."""
    try:
        if path.is_dir():
            below = sorted(each for each in path.rglob("*") if each.is_file())
            return _shorten(
                "".join(f"{each.relative_to(path)}\0{digest_path(each)}\0" for each in below).encode()
            )
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()[:12]
    except OSError:
        return ""


def find_image_id(name: str) -> str:
    """The id of a local Docker image; empty if unknown."""
    from langgraph_takeover.sandbox.docker_client import require_image

    try:
        return str(require_image(name).id)
    except SandboxUnavailableError:
        return ""


def _digest_task(task: Task, image_id: str) -> str:
    known = {column for columns in _COLUMNS.values() for column in columns}
    groups = {
        **{name: {each: task.instance.get(each) for each in columns} for name, columns in _COLUMNS.items()},
        "fields": {name: value for name, value in task.instance.items() if name not in known},
    }
    for part, path in task.list_files():
        groups[part] = groups[part] | {str(path.name): digest_path(path)}
    digests = {
        part: _shorten(json.dumps(group, sort_keys=True, default=str).encode())
        for part, group in groups.items()
    }
    if image_id:  # unknown before the image is on this host
        digests["image"] = _shorten(image_id.encode())
    return " ".join(f"{part}:{digest}" for part, digest in digests.items())


def _shorten(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
