"""The files and directories below a run's output directory."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from langgraph_takeover import Home, open_home
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.sandbox.interface import SandboxSpec


class RunPaths:
    """The files and directories of a run."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.repositories = out / ".repositories"
        self.logs = out / "grading"
        self.records = RecordStore(out / "records")
        self.traces = out / "traces"

    def home(self) -> AbstractContextManager[Home]:
        """Checkpoints, records and snapshots. Raises LedgerUnavailableError."""
        return open_home(self.out)

    def spec(self, config: RunConfig, task: Task) -> SandboxSpec:
        """The spec of the sandbox in which the task starts."""
        return task.build_spec(config.sandbox, config.run_id, self.repositories)
