"""Task sources: the bundled suite, task repos, files and datasets on the hub."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from langgraph_takeover.evals.tasks.task import SUITE, Task, TaskSourceError
from langgraph_takeover.handoff.text.files import describe_error, read_untrusted_file
from langgraph_takeover.sandbox.storage.untrusted_json import parse_json

BUNDLED = "bundled"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REQUIRED_FIELDS = (
    "instance_id",
    "problem_statement",
    "repo",
    "version",
    "FAIL_TO_PASS",
    "eval_script",
    "log_parser",
    "eval_type",
)


def load_tasks(source: str, ids: Sequence[str] | None = None, limit: int | None = None) -> tuple[Task, ...]:
    """Load the tasks of a source in its order, or the tasks with these ids in the order of the ids.

    `source` is `bundled`, the directory of a task repo, a .parquet, .jsonl or .json file, or the name of a
    dataset on the hub. Raises TaskSourceError.
    """
    tasks = {task.id: task for task in _load_all(source)}
    if ids:
        missing = [name for name in ids if name not in tasks]
        if missing:
            known = ", ".join(sorted(tasks)[:8]) + (", …" if len(tasks) > 8 else "")
            raise TaskSourceError(
                f"{source}: task not found: {', '.join(missing)} (choose from its {len(tasks)} tasks: {known})"
            )
        tasks = {name: tasks[name] for name in ids}
    return tuple(tasks.values())[:limit]


def locate_source(source: str) -> str:
    """The source for storing: a file or directory with its absolute path, any other source unchanged."""
    is_local = source != BUNDLED and (Path(source).exists() or _names_file(source))
    return str(Path(source).resolve()) if is_local else source


def _names_file(source: str) -> bool:
    return source.startswith((".", "/")) or Path(source).suffix in (".parquet", ".jsonl", ".json")


def _load_all(source: str) -> list[Task]:
    path = Path(source)
    if source == BUNDLED:
        return _load_task_repo(SUITE)
    if path.is_dir():
        return _load_task_repo(path)
    if path.suffix == ".parquet":
        return _parse_rows(source, _read_parquet(path))
    if path.suffix in (".jsonl", ".json"):
        return [_parse_task(row, location) for location, row in _read_json_rows(path)]
    if path.exists() or _names_file(source):
        problem = "not a task file" if path.exists() else "no such file or directory"
        raise TaskSourceError(
            f"{source}: {problem} (pass a directory, a .parquet, .jsonl or .json file, or 'bundled')"
        )
    return _parse_rows(source, _load_from_hub(source))


def _parse_rows(source: str, rows: Iterable[Any]) -> list[Task]:
    return [_parse_task(row, f"{source}: row {number}") for number, row in enumerate(rows, 1)]


def _parse_task(row: Any, location: str, directory: Path | None = None) -> Task:
    if not isinstance(row, Mapping):
        raise TaskSourceError(
            f"{location}: expected an object with the fields of a task, got {type(row).__name__}"
        )
    missing = [name for name in _REQUIRED_FIELDS if not row.get(name)]
    if missing:
        raise TaskSourceError(
            f"{location}: field {missing[0]!r} is missing or empty (use the columns of swebench 5)"
        )
    if not _ID.fullmatch(str(row["instance_id"])):
        raise TaskSourceError(
            f"{location}: field 'instance_id' contains invalid characters (use letters, digits, '.', '_' and '-')"
        )
    return Task(id=str(row["instance_id"]), instance={"PASS_TO_PASS": "[]", **row}, directory=directory)


def _load_task_repo(root: Path) -> list[Task]:
    from swebench.task.repo import load_task, task_dirs

    try:
        directories = task_dirs(root)
    except FileNotFoundError as error:
        raise TaskSourceError(
            f"{root}: not a task repo (it needs a directory tasks/ with one directory per task)"
        ) from error
    tasks = []
    for directory in directories:
        try:
            tasks.append(_parse_task(load_task(directory), str(directory), directory))
        except (OSError, ValueError) as error:
            raise TaskSourceError(f"{directory}: cannot be read: {error}") from error
    return tasks


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet
    from pyarrow.lib import ArrowException

    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    except FileNotFoundError as error:
        raise TaskSourceError(f"{path}: no such file") from error
    except (ArrowException, OSError) as error:
        raise TaskSourceError(f"{path}: not a readable parquet file: {str(error).splitlines()[0]}") from error
    return rows


def _read_json_rows(path: Path) -> list[tuple[str, Any]]:
    """The rows of a .json or .jsonl file, each with its location."""
    try:
        text = read_untrusted_file(path).decode()
    except FileNotFoundError as error:
        raise TaskSourceError(f"{path}: no such file") from error
    except OSError as error:
        raise TaskSourceError(f"{path}: {describe_error(error)}") from error
    except UnicodeDecodeError as error:
        raise TaskSourceError(f"{path}: not UTF-8 text (byte {error.start})") from error
    return _parse_json_list(path, text) if path.suffix == ".json" else _parse_json_lines(path, text)


def _parse_json_list(path: Path, text: str) -> list[tuple[str, Any]]:
    try:
        rows = parse_json(text)
    except ValueError as error:
        raise TaskSourceError(f"{path}: not JSON: {error}") from error
    rows = list(rows.values()) if isinstance(rows, dict) else rows
    if not isinstance(rows, list):
        raise TaskSourceError(f"{path}: expected a list of tasks, got {type(rows).__name__}")
    return [(f"{path}: entry {number}", row) for number, row in enumerate(rows, 1)]


def _parse_json_lines(path: Path, text: str) -> list[tuple[str, Any]]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append((f"{path}: line {number}", parse_json(line)))
            except ValueError as error:
                raise TaskSourceError(f"{path}: line {number}: not JSON: {error}") from error
    return rows


def _load_from_hub(name: str) -> list[Any]:
    from swebench.harness.utils import load_swebench_dataset

    try:
        return list(load_swebench_dataset(name, "test"))
    except Exception as error:  # the hub's client passes on any exception of its transport
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TaskSourceError(
            f"{name}: not a local file, and not available as a dataset on the hub ({reason[:200]})"
        ) from error
