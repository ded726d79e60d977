"""Check of a user's tasks before a run: the gold patch resolves each task, and the base commit does not."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from langgraph_takeover.evals.run.rows import Row
from langgraph_takeover.evals.run.settings.config import RunConfig, RunPaths, make_run_id
from langgraph_takeover.evals.tasks import Task, TaskSourceError
from langgraph_takeover.evals.tasks.grading import (
    GradingError,
    NoResultError,
    compute_key,
    grade_with_retries,
)
from langgraph_takeover.handoff.records.record import write_durably
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.sandbox.interface import SandboxSpec
from langgraph_takeover.sandbox.ownership import ensure_directory, ensure_root
from langgraph_takeover.sandbox.untrusted_trees import remove_tree

_CURE = "correct the task, or pass --no-check-tasks"
_MAX_REASON_CHARS = 600


def check_tasks(config: RunConfig, tasks: Sequence[Task], workers: int, *, requested: bool | None) -> None:
    """Grade the gold patch and the base commit of each task, in parallel processes. Raises TaskSourceError.

    A task that passes is not checked again on this host until its content, image, repository or grader changes.
    `requested` is the value of `--check-tasks`: None means the tasks of files and directories, unless a study of the paper
    prescribes them.
    """
    from langgraph_takeover.evals.run.execution.executors import Job, open_local_executor

    tasks = _select_unchecked(config, tasks, requested)
    if not tasks:
        return
    print(
        f"checking {len(tasks)} task{'s' if len(tasks) > 1 else ''} with the gold patch and without",
        flush=True,
    )
    # Another process may be using this run's sandboxes.
    own = config.model_copy(update={"run_id": make_run_id()})
    out = Path(tempfile.mkdtemp(prefix="takeover-check-"))
    out.chmod(0o711)  # the user that sandboxes run as passes through
    jobs = [Job(check_task, own, out, (task,), (task.id,)) for task in tasks]
    problems: dict[str, str] = {}
    try:
        with open_local_executor(workers) as executor:
            for row in executor.run(jobs):
                check = cast("TaskCheck", row)
                if check.detail:
                    problems[check.task_id] = check.detail
    finally:
        logs = RunPaths(out).logs
        remove_tree(RunPaths(out).repositories if problems and logs.exists() else out)
    if problems:
        name, reason = next(iter(problems.items()))
        where = f"logs: {logs}; " if logs.exists() else ""
        raise TaskSourceError(f"task {name}: {reason} ({where}{_CURE}){_list_more(list(problems))}")


def _select_unchecked(config: RunConfig, tasks: Sequence[Task], requested: bool | None) -> list[Task]:
    from langgraph_takeover.evals.run.settings.study import get_study

    if requested is None:
        is_published = config.study is not None and get_study(config.study).tasks is not None
        tasks = [task for task in tasks if not task.is_bundled]
        if is_published or not Path(config.tasks).exists():
            return []
    elif not requested:
        return []
    ungraded = [task.id for task in tasks if task.gold_patch is None]
    if ungraded:
        line = f"task {ungraded[0]}{_count_more(ungraded)}: no gold patch to check the grader with"
        if requested:
            raise TaskSourceError(f"{line} (add it as 'patch', or pass --no-check-tasks)")
        print(f"warning: {line} (add it as 'patch')", file=sys.stderr)
    return [task for task in tasks if not _find_marker(config, task).exists()]


class TaskCheck(Row):
    """The result of a check; `detail` is empty if the task passes."""

    task_id: str


def check_task(config: RunConfig, out: Path, task: Task) -> TaskCheck:
    """Check one task."""
    paths = RunPaths(out)
    try:
        task.check_out(paths.repositories)
        detail = _find_problem(config, task, paths.spec(config, task), paths.logs)
    except TaskSourceError as error:
        detail = f"its repository cannot be checked out: {error}"
    if not detail:
        marker = _find_marker(config, task)
        ensure_directory(marker.parent)
        write_durably(marker, json.dumps({"task": task.id}) + "\n")
    return TaskCheck(task_id=task.id, outcome="checked", detail=redact(detail)[:_MAX_REASON_CHARS])


def _find_problem(config: RunConfig, task: Task, spec: SandboxSpec, logs: Path) -> str:
    network = config.grading_network
    try:
        if task.gold_patch is not None:
            gold = grade_with_retries(task, task.gold_patch, spec, logs, f"{task.id}.gold", network)
            if not gold.resolved:
                return f"its gold patch is not resolved: {gold.detail}"
    except GradingError as error:
        return f"its gold patch cannot be graded: {error}"
    try:
        base = grade_with_retries(task, None, spec, logs, f"{task.id}.base", network)
    except NoResultError:
        return ""  # tests that need the fix to compile print no result without it
    except GradingError as error:
        return f"its base commit cannot be graded: {error}"
    return f"it is resolved without any patch: {base.detail}" if base.resolved else ""


def _find_marker(config: RunConfig, task: Task) -> Path:
    """The file that exists once a task has passed its check with this content."""
    spec = task.build_spec(config.sandbox, config.run_id, Path())
    keys = [compute_key(task, patch, spec, config.grading_network) for patch in (task.gold_patch, None)]
    # A task without an image uses the programs of this host.
    host = "" if spec.image else f"{sys.version} {platform.platform()}"
    digest = hashlib.sha256(" ".join([*keys, host]).encode()).hexdigest()
    return ensure_root() / "task-checks" / f"{digest}.json"


def _count_more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _list_more(names: Sequence[str]) -> str:
    if len(names) == 1:
        return ""
    shown = ", ".join(names[1:6]) + (", …" if len(names) > 6 else "")
    return f"; the check of {len(names) - 1} more failed: {shown}"
