"""Task sources: the bundled suite, task repos, files and datasets on the hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from langgraph_takeover.base.untrusted_input import describe_error, parse_json, read_untrusted_file
from langgraph_takeover.evals.tasks.task import SUITE, Task, TaskSourceError, read_fields

BUNDLED = "bundled"
_MAX_KEYS = 1_000_000
"""Of a file of tasks by id."""


def load_tasks(source: str, ids: Sequence[str] | None = None, limit: int | None = None) -> tuple[Task, ...]:
    """Load the tasks of a source in its order, or the tasks with these ids in the order of the ids.

    `source` is `bundled`, the directory of a task repo, a .parquet, .jsonl or .json file, or the name of a
    dataset on the hub. Raises TaskSourceError, also if two of its tasks have one id.
    """
    tasks: dict[str, Task] = {}
    locations: dict[str, str] = {}
    for location, task in _load_all(source):
        if task.id in tasks:
            raise TaskSourceError(
                f"two tasks have the id {task.id}: {locations[task.id]} and {location} (give one of them another "
                "instance_id, or remove it)"
            )
        tasks[task.id], locations[task.id] = task, location
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
    return str(Path(source).absolute()) if is_local else source


def _names_file(source: str) -> bool:
    return source.startswith((".", "/")) or Path(source).suffix in (".parquet", ".jsonl", ".json")


def _load_all(source: str) -> Iterator[tuple[str, Task]]:
    """All tasks of a source, each with its location."""
    path = Path(source)
    if source == BUNDLED or path.is_dir():
        yield from _load_task_repo(SUITE if source == BUNDLED else path)
        return
    for location, row in _read_rows(source, path):
        yield location, _make_task(read_fields(row, location))


def _read_rows(source: str, path: Path) -> Iterable[tuple[str, Any]]:
    if path.suffix == ".parquet":
        return _number_rows(source, _read_parquet(path))
    if path.suffix in (".jsonl", ".json"):
        return _read_json_rows(path)
    if path.exists() or _names_file(source):
        problem = "not a task file" if path.exists() else "no such file or directory"
        raise TaskSourceError(
            f"{source}: {problem} (pass a directory, a .parquet, .jsonl or .json file, or 'bundled')"
        )
    return _number_rows(source, _load_from_hub(source))


def _number_rows(source: str, rows: Iterable[Any]) -> list[tuple[str, Any]]:
    return [(f"{source}: row {number}", row) for number, row in enumerate(rows, 1)]


def _make_task(fields: dict[str, Any], directory: Path | None = None) -> Task:
    return Task(id=str(fields["instance_id"]), instance=fields, directory=directory)


def _load_task_repo(root: Path) -> Iterator[tuple[str, Task]]:
    from swebench.task.repo import load_task, task_dirs
    from yaml import YAMLError

    try:
        directories = task_dirs(root)
    except FileNotFoundError as error:
        raise TaskSourceError(
            f"{root}: not a task repo (it needs a directory tasks/ with one directory per task)"
        ) from error
    for directory in directories:
        try:
            _check_unique_keys(directory)
            row = load_task(directory)
        except (OSError, ValueError, TypeError, YAMLError) as error:
            reason = " ".join(str(error).split())
            raise TaskSourceError(f"{directory}: cannot be read: {reason:.300}") from error
        yield str(directory), _make_task(read_fields(row, str(directory)), directory)


def _check_unique_keys(directory: Path) -> None:
    """Raise ValueError if a field of a task repo's task is set twice: only the last value would count."""
    import yaml
    from swebench.task.repo import TASK_FILE, TESTS_FILE

    try:
        parse_json((directory / TESTS_FILE).read_bytes(), unique_keys=True, max_keys=_MAX_KEYS)
    except ValueError as error:
        raise ValueError(f"{TESTS_FILE}: not JSON: {error}") from error
    node = yaml.compose((directory / TASK_FILE).read_text(), yaml.SafeLoader)
    seen: dict[str, int] = {}
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value in seen:
            raise ValueError(
                f"{TASK_FILE} has {key.value} on lines {seen[key.value]} and {key.start_mark.line + 1} (remove one)"
            )
        seen[key.value] = key.start_mark.line + 1


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
        text = read_untrusted_file(path).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise TaskSourceError(f"{path}: no such file") from error
    except OSError as error:
        raise TaskSourceError(f"{path}: {describe_error(error)}") from error
    except UnicodeDecodeError as error:
        raise TaskSourceError(f"{path}: not UTF-8 text (byte {error.start})") from error
    return _parse_json_list(path, text) if path.suffix == ".json" else _parse_json_lines(path, text)


def _parse_json_list(path: Path, text: str) -> list[tuple[str, Any]]:
    try:
        rows = parse_json(text, unique_keys=True, max_keys=_MAX_KEYS)
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
                rows.append(
                    (f"{path}: line {number}", parse_json(line, unique_keys=True, max_keys=_MAX_KEYS))
                )
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
