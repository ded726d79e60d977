"""Grading of a run's patches: as submitted, and without scratch files."""

from __future__ import annotations

from langgraph_takeover import Outcome
from langgraph_takeover.evals.run.measures.final_patch import clean_patch
from langgraph_takeover.evals.run.paths import RunPaths
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.evals.tasks.grading import GradingError, Verdict
from langgraph_takeover.evals.tasks.verdicts import get_verdict
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError
from langgraph_takeover.sandbox.repository.patches import RepositoryError


def require_patch(outcome: Outcome) -> None:
    """Raise RepositoryError if a run has no patch although it started: nothing can be graded."""
    if outcome.patch_error and not outcome.diff_from_base and "sandbox_state" in outcome.state:
        raise RepositoryError(outcome.patch_error)


def grade_patch(config: RunConfig, task: Task, paths: RunPaths, patch: str, name: str) -> Verdict:
    spec = paths.spec(config, task)
    return get_verdict(task, patch, spec, paths.logs, name, network=config.grading_network)


def grade_predecessor(
    config: RunConfig, task: Task, paths: RunPaths, outcome: Outcome, name: str
) -> tuple[bool | None, str]:
    """Whether a run that ended by itself solved the task, and a description of a failed grading."""
    if outcome.stop_reason != "finished" or not outcome.records:
        return None, ""
    return _try_grading(config, task, paths, outcome.diff_from_base, f"predecessor.{name}", "final patch")


def grade_cleaned(
    config: RunConfig, task: Task, paths: RunPaths, patch: str, record: HandoffRecord, name: str
) -> tuple[bool | None, str]:
    """Whether the patch without scratch and build files solves the task; None and a description if grading failed."""
    cleaned = clean_patch(patch, record.task.base_directories)
    return _try_grading(config, task, paths, cleaned, f"{name}.cleaned", "patch without scratch files")


def _try_grading(
    config: RunConfig, task: Task, paths: RunPaths, patch: str, name: str, label: str
) -> tuple[bool | None, str]:
    """Whether a patch solves the task; a row is valid without this verdict, so a failure is only described."""
    try:
        return grade_patch(config, task, paths, patch, name).resolved, ""
    except OutOfDiskError:
        raise  # every other job would fail too
    except (GradingError, SandboxUnavailableError) as error:
        return None, f"{label} not graded: {redact(str(error))[:300]}"
