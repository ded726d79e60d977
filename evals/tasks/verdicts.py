"""What official validation said of a patch, kept by all that it depends on, so that nothing is graded twice."""

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
    """The verdict that is known, else a new one. Raises GradingError or SandboxUnavailableError after some tries.

    Known ones and the grader's logs are below `logs`.
    """
    kept = logs / "verdicts" / f"{_cache_key(task, patch, spec, network)}.json"
    try:
        return Verdict.model_validate_json(kept.read_bytes())
    except (FileNotFoundError, ValidationError):
        pass  # one that is torn or of another version is made anew
    verdict = _grade_with_retries(task, patch, spec, logs, name, network)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_durably(kept, verdict.model_dump_json())
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
    told = [version("swebench"), spec.backend, _image_digest(spec), network, dict(task.instance), patch]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def _image_digest(spec: SandboxSpec) -> str:
    """Of what the grading machine starts from; a directory is what the task's commit says."""
    if spec.image is None:
        return ""
    from langgraph_takeover.sandbox.docker.client import require_image

    return str(require_image(spec.image).id)
