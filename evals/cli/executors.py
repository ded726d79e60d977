"""The executor of a run: processes of this host, or a Ray cluster."""

from __future__ import annotations

import shlex
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from langgraph_takeover.evals.run.execution.executors import Executor, open_local_executor
from langgraph_takeover.evals.run.settings.config import RunConfig, RunUsageError

if TYPE_CHECKING:
    from langgraph_takeover.evals.tasks import Task


class ExecutorChoice(Protocol):
    """An executor that is not open yet."""

    def check(self, config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
        """Check that the executor can run the jobs. Raises RunUsageError."""

    def open_executor(self) -> AbstractContextManager[Executor]:
        """The open executor. An interrupt ends the started jobs.

        On SystemExit, which `exit_on_sigterm` raises, the agents complete their current action first.
        """


class LocalExecutor(NamedTuple):
    """Up to `workers` processes of this host."""

    workers: int

    def check(self, config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
        pass

    def open_executor(self) -> AbstractContextManager[Executor]:
        return open_local_executor(self.workers)


def choose_executor(
    name: str, workers: int, *, address: str | None, artifact_store: str | None, node_dir: str | None
) -> ExecutorChoice:
    """Choose an executor by name. Raises RunUsageError."""
    if name == "ray":
        if workers != 1:
            raise RunUsageError(
                "--workers: not for --executor ray, whose nodes set their number of slots (see `sandbox` in docs/cluster.md)"
            )
        from langgraph_takeover.evals.cluster.executor import RayExecutor

        return RayExecutor(address or "auto", artifact_store, node_dir)
    if name != "local":
        raise RunUsageError(f"--executor: unknown executor {name!r} (use local or ray)")
    for option, value in (("--artifact-store", artifact_store), ("--node-dir", node_dir)):
        if value is not None:
            raise RunUsageError(f"{option}: requires --executor ray")
    return LocalExecutor(workers)


def format_resume_options(name: str, **options: str | None) -> str:
    """The options that select the same executor for a resumed run."""
    words = ["", "--executor", name] if name != "local" else []
    for option, value in options.items():
        words += [f"--{option.replace('_', '-')}", shlex.quote(value)] if words and value else []
    return " ".join(words)
