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
    """An executor that is not yet open."""

    def check(self, config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
        """Check that it can run the jobs. Raises RunUsageError."""

    def open_executor(self) -> AbstractContextManager[Executor]:
        """The executor; an interrupt ends the jobs that have begun.

        SystemExit, as `end_on_sigterm` raises it, lets their agents end the action they are at.
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
    """The executor of that name. Raises RunUsageError."""
    if name == "ray":
        if workers != 1:
            raise RunUsageError(
                "--workers: a cluster has as many as its nodes offer; see `sandbox` in docs/cluster.md"
            )
        from langgraph_takeover.evals.cluster.executor import RayExecutor

        return RayExecutor(address or "auto", artifact_store, node_dir)
    if name != "local":
        raise RunUsageError(f"--executor: there is no {name!r}; there are local, ray")
    for option, value in (("--artifact-store", artifact_store), ("--node-dir", node_dir)):
        if value is not None:
            raise RunUsageError(f"{option}: is for --executor ray")
    return LocalExecutor(workers)


def format_resume_options(name: str, **options: str | None) -> str:
    """The options with which a resumed run names the same executor."""
    words = ["", "--executor", name] if name != "local" else []
    for option, value in options.items():
        words += [f"--{option.replace('_', '-')}", shlex.quote(value)] if words and value else []
    return " ".join(words)
