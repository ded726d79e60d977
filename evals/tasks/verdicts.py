"""Verdicts of the official validation, cached by all their inputs."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.evals.tasks.grading import GradingError, Verdict, grade
from langgraph_takeover.handoff.records.record import write_durably
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxSpec, SandboxUnavailableError

MAX_TRIES = 3


def get_verdict(
    task: Task, patch: str, spec: SandboxSpec, logs: Path, name: str, *, network: bool = False
) -> Verdict:
    """The cached verdict on a patch, or a new one. The cache and the grader's logs are in `logs`.

    Raises GradingError or SandboxUnavailableError after MAX_TRIES attempts.
    """
    cached = logs / "verdicts" / f"{_cache_key(task, patch, spec, network)}.json"
    try:
        return Verdict.model_validate_json(cached.read_bytes())
    except (FileNotFoundError, ValidationError):
        pass  # a truncated file, or one of another version, is replaced
    verdict = _grade_with_retries(task, patch, spec, logs, name, network)
    cached.parent.mkdir(parents=True, exist_ok=True)
    write_durably(cached, verdict.model_dump_json())
    return verdict


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, (GradingError, SandboxUnavailableError)) and not isinstance(
        error, OutOfDiskError
    )


@retry(
    retry=retry_if_exception(_is_transient),
    stop=stop_after_attempt(MAX_TRIES),
    wait=wait_exponential_jitter(multiplier=0.5, max=30),
    reraise=True,
)
def _grade_with_retries(
    task: Task, patch: str, spec: SandboxSpec, logs: Path, name: str, network: bool
) -> Verdict:
    return grade(task, patch, spec, logs, name, network=network)


def _cache_key(task: Task, patch: str, spec: SandboxSpec, network: bool) -> str:
    inputs = [version("swebench"), spec.backend, _image_digest(spec), network, dict(task.instance), patch]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()


def _image_digest(spec: SandboxSpec) -> str:
    """The digest of the image; empty for a directory, whose content the task's commit determines."""
    if spec.image is None:
        return ""
    from langgraph_takeover.sandbox.docker.client import require_image

    return str(require_image(spec.image).id)
