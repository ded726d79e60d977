"""The recordings of a replay, each assigned to the task that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from langgraph_takeover.evals.models.names import ModelName, ModelNameError, parse_model_name
from langgraph_takeover.handoff.readers import TraceError, read_traces

if TYPE_CHECKING:
    from langgraph_takeover.evals.tasks import Task

_SUFFIXES = (".json", ".jsonl", ".traj")
_INSTANCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*__[A-Za-z0-9_.-]+-\d+")
"""The form of an id of SWE-bench, which a recording that names another task cannot have by accident."""


class _Recording(NamedTuple):
    path: Path
    number: int
    id: str

    def names(self, task_id: str) -> bool:
        """Whether the id of the recording, or of its file, contains the id of the task."""
        return re.search(rf"(?<![A-Za-z0-9]){re.escape(task_id)}(?![A-Za-z0-9])", self.id) is not None

    @property
    def names_a_task(self) -> bool:
        return _INSTANCE_ID.search(self.id) is not None


def assign_recordings(name: str, tasks: Sequence[Task], *, is_part: bool = False) -> dict[str, str]:
    """The recording of each task, as a model name; tasks without one are left out.

    `name` is that of a replay: a file, one run of a file, or a directory of files, below which every readable recording
    counts. `is_part`: the tasks are a shard, so that a recording may belong to another one. Raises ModelNameError.
    """
    model = parse_model_name(name)
    found = _list_recordings(model.file)
    if model.has_number:
        found = tuple(each for each in found if each.number == model.number)
    assigned: dict[str, str] = {}
    for task in tasks:
        own = [each for each in found if each.names(task.id)]
        if len(own) > 1:
            raise ModelNameError(
                f"{name}: two recordings of task {task.id}: {_locate(own[0])} and {_locate(own[1])} (name one of them)"
            )
        if own:
            assigned[task.id] = _name_recording(model, own[0])
    if assigned or (is_part and any(each.names_a_task for each in found)):
        return assigned
    # A file that names no task belongs to the only one; its further runs are selected by `#K`.
    first = next((each for each in found if not each.names_a_task), None)
    if first is not None and len(tasks) == 1 and not _holds_files(model.file):
        return {tasks[0].id: _name_recording(model, first)}
    selected = tasks[0].id if len(tasks) == 1 else f"any of the {len(tasks)} selected tasks"
    named = next((each.id for each in found if each.names_a_task), "")
    if named and len(found) == 1:
        raise ModelNameError(f"{name}: a recording of {named}, not of {selected} (select it by --task-ids)")
    if not found or named:
        raise ModelNameError(f"{name}: no recording of {selected} (pass another file or directory)")
    raise ModelNameError(
        f"{name}: the recording names no task, but {len(tasks)} are selected (select one by --task-ids)"
        if len(tasks) > 1
        else f"{name}: no recording names {selected} (pass the file of its recording)"
    )


def _name_recording(model: ModelName, recording: _Recording) -> str:
    agent = f"{model.agent}:" if model.agent else ""
    start = "" if model.start is None else f"@{model.start}"
    return f"{agent}replay:{recording.path}#{recording.number}{start}"


def _locate(recording: _Recording) -> str:
    return f"{recording.path}#{recording.number}"


def _holds_files(path: Path) -> bool:
    """Whether the path is a directory of recordings; one recording may be a directory of numbered events."""
    return path.is_dir() and not any(path.glob("event-*.json"))


@lru_cache(maxsize=32)
def _list_recordings(path: Path) -> tuple[_Recording, ...]:
    """The readable recordings of a file or below a directory, in the order of their names. Raises ModelNameError."""
    if not _holds_files(path):
        try:
            return tuple(_read_recordings(path))
        except TraceError as error:
            raise ModelNameError(f"replay:{path}: {error}") from error
    found: list[_Recording] = []
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if hidden or not file.is_file() or file.suffix.lower() not in _SUFFIXES:
            continue
        try:
            found += _read_recordings(file)
        except TraceError:
            continue  # for instance a file of results beside the recordings
    return tuple(found)


def _read_recordings(path: Path) -> Iterator[_Recording]:
    for number, trace in enumerate(read_traces(path)):
        if not isinstance(trace, TraceError):
            yield _Recording(path, number, trace.id)
