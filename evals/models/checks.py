"""Checks of model names before a run starts."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from langgraph_takeover.evals.models.facts import ORACLE_FILE
from langgraph_takeover.evals.models.names import ModelNameError, parse_model_name

if TYPE_CHECKING:
    from langgraph_takeover.evals.tasks import Task

_LISTING_TIMEOUT_S = 5.0


def check_model(name: str, tasks: tuple[Task, ...], base_url: str | None) -> None:
    """Detect settings with which every call of the model would fail. Raises ModelNameError."""
    model = parse_model_name(name)
    if model.kind == "openai" and not base_url and not os.environ.get("OPENAI_API_KEY"):
        raise ModelNameError(f"{name}: OPENAI_API_KEY is not set (set it, or pass your server as --base-url)")
    if model.kind == "replay":
        from langgraph_takeover.evals.models.replay import TrajectoryError, read_trajectory

        try:
            turns = read_trajectory(model.file, model.number)
        except TrajectoryError as error:
            raise ModelNameError(f"{name}: {error}") from error
        if model.start is not None and model.start >= len(turns):
            raise ModelNameError(
                f"{name}: the recording has only {len(turns)} actions (use a number below {len(turns)} after '@')"
            )
        if len(tasks) > 1:
            raise ModelNameError(
                f"{name}: a trajectory replays one task, but {len(tasks)} are selected (select one by --task-ids)"
            )
    if model.kind == "builtin":
        unsupported = [task.id for task in tasks if not _has_facts(task)]
        if unsupported:
            raise ModelNameError(
                f"{name} supports only the bundled tasks, not {unsupported[0]} (use --model openai:NAME)"
            )


def describe_ambiguous_models(names: Collection[str], base_url: str | None) -> str | None:
    """A warning if an endpoint may answer for several of these models with the same one.

    None if no warning is needed, or if the endpoint does not list its models.
    """
    requested = [
        parse_model_name(name).rest for name in dict.fromkeys(names) if parse_model_name(name).is_llm
    ]
    if base_url is None or len(requested) < 2:
        return None
    served = _list_served_models(base_url)
    missing = [name for name in requested if name not in served]
    if not served or not missing:
        return None
    return (
        f"{base_url} serves {', '.join(sorted(served)[:5])}, but not {', '.join(missing)}: "
        "it may answer for several of these names with the same model"
    )


def _list_served_models(base_url: str) -> set[str]:
    """Names of the models that the endpoint lists; empty if it lists none."""
    from openai import OpenAI, OpenAIError

    from langgraph_takeover.nodes.model.exchange import DeadlineExceededError, Exchange

    exchange = Exchange(_LISTING_TIMEOUT_S)

    def list_models() -> set[str]:
        key = os.environ.get("OPENAI_API_KEY") or "none"
        http_client = exchange.attach_client()
        client = OpenAI(
            base_url=base_url,
            api_key=key,
            timeout=_LISTING_TIMEOUT_S,
            max_retries=0,
            http_client=http_client,
        )
        return {model.id for model in client.models.list()}

    try:
        return exchange.run(list_models)
    except (OpenAIError, DeadlineExceededError, ValueError, TypeError, AttributeError):
        return set()


def _has_facts(task: Task) -> bool:
    return task.directory is not None and (task.directory / ORACLE_FILE).is_file()
