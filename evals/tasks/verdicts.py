"""Verdicts of the official validation, cached by all their inputs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.evals.tasks.grading import (
    GradingError,
    NoResultError,
    Verdict,
    grade,
    make_unresolved,
)
from langgraph_takeover.handoff.records.record import write_durably
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxSpec, SandboxUnavailableError

MAX_TRIES = 3


def get_verdict(
    task: Task, patch: str, spec: SandboxSpec, logs: Path, name: str, *, network: bool = False
) -> Verdict:
    """The cached verdict on a patch, or a new one. The cache and the grader's logs are in `logs`.

    A patch without test results is unresolved only if the same grader reads results of the gold patch; otherwise the
    grader is at fault. Raises GradingError or SandboxUnavailableError after MAX_TRIES attempts.
    """
    cached = logs / "verdicts" / f"{compute_key(task, patch, spec, network)}.json"
    try:
        return Verdict.model_validate_json(cached.read_bytes())
    except (FileNotFoundError, ValidationError):
        pass  # a truncated file, or one of another version, is replaced
    verdict = _grade_with_control(task, patch, spec, logs, name, network)
    cached.parent.mkdir(parents=True, exist_ok=True)
    write_durably(cached, verdict.model_dump_json())
    return verdict


def _grade_with_control(
    task: Task, patch: str, spec: SandboxSpec, logs: Path, name: str, network: bool
) -> Verdict:
    """The verdict on a patch, with the gold patch as control if the tests give no result. Raises GradingError."""
    try:
        verdict = grade_with_retries(task, patch, spec, logs, name, network)
    except NoResultError as error:
        if task.gold_patch is None:
            raise NoResultError(f"{error}, and the task has no gold patch that shows why") from error
        _check_grader(task, spec, logs, name, network, str(error))
        with contextlib.suppress(NoResultError):  # the sandbox may have failed once
            return grade_with_retries(task, patch, spec, logs, name, network)
        return make_unresolved(
            "the tests print no readable result with this patch, but do with the gold patch"
        )
    if not verdict.has_result and patch.strip() and task.gold_patch is not None:
        _check_grader(task, spec, logs, name, network, verdict.detail)
    return verdict


def _check_grader(task: Task, spec: SandboxSpec, logs: Path, name: str, network: bool, trouble: str) -> None:
    """Raise NoResultError if the tests give no result with the gold patch either. Not cached: the host may have changed."""
    try:
        gold = grade_with_retries(task, task.gold_patch, spec, logs, f"{name}.gold", network)
        reason = gold.detail
    except NoResultError as error:
        gold, reason = None, str(error)
    if gold is None or not gold.has_result:
        raise NoResultError(f"{trouble}; the gold patch has no result either, so the grader failed: {reason}")


def _is_transient(error: BaseException) -> bool:
    is_final = isinstance(error, OutOfDiskError) or type(error) is NoResultError
    return isinstance(error, (GradingError, SandboxUnavailableError)) and not is_final


@retry(
    retry=retry_if_exception(_is_transient),
    stop=stop_after_attempt(MAX_TRIES),
    wait=wait_exponential_jitter(multiplier=0.5, max=30),
    reraise=True,
)
def grade_with_retries(
    task: Task, patch: str | None, spec: SandboxSpec, logs: Path, name: str, network: bool
) -> Verdict:
    """What `grade` returns. Repeats a failed grading, but not one whose tests gave no result."""
    return grade(task, patch, spec, logs, name, network=network)


def compute_key(task: Task, patch: str | None, spec: SandboxSpec, network: bool) -> str:
    """The digest of all inputs of a verdict."""
    inputs = [
        version("swebench"),
        spec.backend,
        _digest_start(task, spec),
        network,
        dict(task.instance),
        patch,
    ]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()


def _digest_start(task: Task, spec: SandboxSpec) -> str:
    """The digest of the image, or of the repository's history."""
    if spec.image is None:
        return _digest_file(task.stream, task.stream.stat().st_mtime_ns) if task.stream is not None else ""
    from langgraph_takeover.sandbox.docker_client import require_image

    return str(require_image(spec.image).id)


@functools.lru_cache(maxsize=64)
def _digest_file(path: Path, modified_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
