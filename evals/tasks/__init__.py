"""Tasks: where they come from, what an agent is told of them, and which machine they start on."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from langgraph_takeover.handoff.text.files import describe_error, read_untrusted_file
from langgraph_takeover.sandbox.interface import BackendName, SandboxSpec, TakeoverError
from langgraph_takeover.sandbox.storage.untrusted_json import parse_json

BUNDLED = "bundled"
SUITE = Path(str(files("langgraph_takeover.evals.tasks") / "suite"))
_STREAM = "repo.fast-export"
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
# SWE-bench images keep their interpreter in a conda environment; others have no such file.
_SHELL_INIT = "[ ! -f /opt/miniconda3/bin/activate ] || { . /opt/miniconda3/bin/activate; conda activate testbed; } >/dev/null 2>&1"
_PACKAGES = "lib*/python3*/*-packages"


@functools.cache
def _find_installed_packages() -> tuple[Path, ...]:
    """Where this host keeps what is installed for Python.

    Bundled tasks need none of it, and what one host has and another has not would tell in the results.
    """
    roots = (Path(sys.base_prefix), Path("/usr"), Path("/usr/local"))
    return tuple(sorted({found for root in roots for found in root.glob(_PACKAGES)}))


class TaskSourceError(TakeoverError, ValueError):
    """A task source that cannot be used; the text names the place and the cure."""


class Task(BaseModel):
    """One SWE-bench instance: `instance` is its row in swebench 5's columns.

    `directory` is set for a task of a task repo, which may carry its own repository stream.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    instance: Mapping[str, Any]
    directory: Path | None = None

    @property
    def prompt(self) -> str:
        """The original task prompt, the same for every agent."""
        template = (files("langgraph_takeover.evals.tasks") / "prompts" / "task.md").read_text(
            encoding="utf-8"
        )
        statement = str(self.instance["problem_statement"]).replace("\r\n", "\n").strip()
        return template.replace("{problem_statement}", statement)

    @property
    def stream(self) -> Path | None:
        """The repository's history as a git fast-export stream, where the task carries one."""
        path = self.directory / _STREAM if self.directory else None
        return path if path is not None and path.is_file() else None

    def build_spec(self, backend: BackendName, owner: str, work: Path) -> SandboxSpec:
        """The machine that the task starts on. Raises TaskSourceError where there can be none."""
        image = self.instance.get("image")
        if image and (backend == "docker" or (backend == "host" and self.stream is None)):
            return SandboxSpec(backend=backend, image=str(image), shell_init=_SHELL_INIT, owner=owner)
        if backend == "docker":
            raise TaskSourceError(
                f"task {self.id}: it names no image; add the column 'image' or choose another --sandbox"
            )
        if self.stream is None:
            raise TaskSourceError(
                f"task {self.id}: its repository comes only as a Docker image; choose --sandbox docker or host"
            )
        # Where this package is installed below the system's own directories, its solutions lie there too.
        hidden = (*_find_installed_packages(), SUITE) if self.is_bundled else (SUITE,)
        return SandboxSpec(backend=backend, directory=work / self.id, hidden=hidden, owner=owner)

    @property
    def is_bundled(self) -> bool:
        return self.directory is not None and self.directory.is_relative_to(SUITE)

    def check_out(self, work: Path, *, copy_from: Path | None = None) -> None:
        """Lay the task's repository out at `work/<id>`, for machines that start from a directory.

        All checkouts are the same to the byte, so that machines have one base, whichever run they belong to; only a
        copy of the checkout below `like` is the base of snapshots that were made for that one.
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
        # When and where it was done is in the reflog, which is off, and in the index, until it is read anew.
        _run_git(partial, "read-tree", "HEAD")
        partial.rename(target)


def load_tasks(source: str, ids: Sequence[str] | None = None, limit: int | None = None) -> tuple[Task, ...]:
    """The tasks of a source in its order, or those named in the order they are named.

    `source` is `bundled`, a task repo's directory, a .parquet, .jsonl or .json file, or the name of a
    dataset on the hub. Raises TaskSourceError.
    """
    found = {task.id: task for task in _load_all(source)}
    if ids:
        missing = [name for name in ids if name not in found]
        if missing:
            near = ", ".join(sorted(found)[:8]) + (", …" if len(found) > 8 else "")
            raise TaskSourceError(
                f"{source}: no task {', '.join(missing)}; it has {len(found)} tasks: {near}"
            )
        found = {name: found[name] for name in ids}
    return tuple(found.values())[:limit]


def _load_all(source: str) -> list[Task]:
    path = Path(source)
    if source == BUNDLED:
        return _load_task_repo(SUITE)
    if path.is_dir():
        return _load_task_repo(path)
    if path.suffix == ".parquet":
        return [
            _parse_task(row, f"{source}: row {number}") for number, row in enumerate(_read_parquet(path), 1)
        ]
    if path.suffix in (".jsonl", ".json"):
        return [_parse_task(row, place) for place, row in _read_json_rows(path)]
    if path.exists() or source.startswith((".", "/")):
        what = "is no task file" if path.exists() else "no such file or directory"
        raise TaskSourceError(f"{source}: {what}; give a directory, .parquet, .jsonl or .json, or 'bundled'")
    return [
        _parse_task(row, f"{source}: row {number}") for number, row in enumerate(_load_from_hub(source), 1)
    ]


def _parse_task(row: Mapping[str, Any], location: str, directory: Path | None = None) -> Task:
    if not isinstance(row, Mapping):
        raise TaskSourceError(
            f"{location}: expected an object with a task's fields, found {type(row).__name__}"
        )
    missing = [name for name in _REQUIRED_FIELDS if not row.get(name)]
    if missing:
        raise TaskSourceError(
            f"{location}: field {missing[0]!r} is missing or empty; swebench 5's columns are needed"
        )
    if not _ID.fullmatch(str(row["instance_id"])):
        raise TaskSourceError(
            f"{location}: field 'instance_id' may hold letters, digits, '.', '_' and '-' only"
        )
    return Task(id=str(row["instance_id"]), instance={"PASS_TO_PASS": "[]", **row}, directory=directory)


def _load_task_repo(root: Path) -> list[Task]:
    from swebench.task.repo import load_task, task_dirs

    try:
        directories = task_dirs(root)
    except FileNotFoundError as error:
        raise TaskSourceError(
            f"{root}: no task repo; it needs a directory tasks/ with one directory a task"
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
    try:
        text = read_untrusted_file(path).decode()
    except FileNotFoundError as error:
        raise TaskSourceError(f"{path}: no such file") from error
    except OSError as error:
        raise TaskSourceError(f"{path}: {describe_error(error)}") from error
    except UnicodeDecodeError as error:
        raise TaskSourceError(f"{path}: not UTF-8 text (byte {error.start})") from error
    if path.suffix == ".json":
        try:
            rows = parse_json(text)
        except ValueError as error:
            raise TaskSourceError(f"{path}: not JSON: {error}") from error
        rows = list(rows.values()) if isinstance(rows, dict) else rows
        if not isinstance(rows, list):
            raise TaskSourceError(f"{path}: expected a list of tasks, found {type(rows).__name__}")
        return [(f"{path}: entry {number}", row) for number, row in enumerate(rows, 1)]
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                found.append((f"{path}: line {number}", parse_json(line)))
            except ValueError as error:
                raise TaskSourceError(f"{path}: line {number}: not JSON: {error}") from error
    return found


def _load_from_hub(name: str) -> list[Any]:
    from swebench.harness.utils import load_swebench_dataset

    try:
        return list(load_swebench_dataset(name, "test"))
    except Exception as error:  # the hub's client raises whatever its transport does
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TaskSourceError(
            f"{name}: neither a file here nor a dataset that the hub gave ({reason[:200]})"
        ) from error


def _run_git(directory: Path, *arguments: str, stdin: Any = subprocess.DEVNULL) -> None:
    done = subprocess.run(
        ["git", "-C", str(directory), "-c", "core.logAllRefUpdates=false", *arguments],
        # Started by a git hook, this process has GIT_DIR and the like of another repository.
        env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        stdin=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise TaskSourceError(f"{directory}: git {arguments[0]}: {done.stderr.strip()[-200:]}")
