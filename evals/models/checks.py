"""Checks of model names before a run starts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING

from langgraph_takeover.evals.models.endpoints import Endpoint, check_client, check_key, find_endpoint
from langgraph_takeover.evals.models.entries import Models
from langgraph_takeover.evals.models.facts import ORACLE_FILE
from langgraph_takeover.evals.models.names import NATIVE, ModelNameError, parse_model_name

if TYPE_CHECKING:
    from langgraph_takeover.evals.tasks import Task

_LISTING_TIMEOUT_S = 5.0


def check_model(
    name: str, tasks: tuple[Task, ...], base_url: str | None, models: Models | None = None
) -> None:
    """Detect settings with which every call of the model would fail. Raises ModelNameError."""
    model = parse_model_name(name)
    if model.is_llm:
        check_key(name, find_endpoint(name, models or {}, base_url))
        if model.kind != NATIVE:
            check_client(name)
    if model.kind == "replay":
        from langgraph_takeover.evals.models.replay import assign_recordings

        for recording in assign_recordings(name, tasks).values() if tasks else (name,):
            check_recording(recording)
    if model.kind == "builtin":
        unsupported = [task.id for task in tasks if not _has_facts(task)]
        if unsupported:
            raise ModelNameError(
                f"{name} supports only the bundled tasks, not {unsupported[0]} (use --model openai:NAME)"
            )


def check_recording(name: str) -> None:
    """Check that the recording of a replay can be played. Raises ModelNameError."""
    from langgraph_takeover.evals.models.replay import TrajectoryError, read_trajectory

    model = parse_model_name(name)
    try:
        turns = read_trajectory(model.file, model.number)
    except TrajectoryError as error:
        raise ModelNameError(f"{name}: {error}") from error
    if model.start is not None and model.start >= len(turns):
        raise ModelNameError(
            f"{name}: the recording has only {len(turns)} actions (use a number below {len(turns)} after '@')"
        )


def describe_ambiguous_models(
    names: Collection[str], base_url: str | None, models: Models | None = None
) -> str | None:
    """A warning if an endpoint may answer for several of these models with the same one.

    None if no warning is needed, or if the endpoints do not list their models.
    """
    by_server: dict[str, dict[str, Endpoint]] = defaultdict(dict)
    for name in dict.fromkeys(names):
        if parse_model_name(name).is_llm:
            endpoint = find_endpoint(name, models or {}, base_url)
            if endpoint.entry.base_url is not None:
                by_server[endpoint.entry.base_url].setdefault(endpoint.entry.model, endpoint)
    for url, requested in by_server.items():
        served = _list_served_models(next(iter(requested.values()))) if len(requested) > 1 else set()
        missing = [model for model in requested if model not in served]
        if served and missing:
            return (
                f"{url} serves {', '.join(sorted(served)[:5])}, but not {', '.join(missing)}: "
                "it may answer for several of these names with the same model"
            )
    return None


def _list_served_models(endpoint: Endpoint) -> set[str]:
    """Names of the models that the endpoint lists; empty if it lists none."""
    from openai import OpenAI, OpenAIError

    from langgraph_takeover.nodes.model.deadlines import DeadlineExceededError
    from langgraph_takeover.nodes.model.exchange import Exchange

    exchange = Exchange(_LISTING_TIMEOUT_S)

    def list_models() -> set[str]:
        http_client = exchange.attach_client()
        client = OpenAI(
            base_url=endpoint.base_url,
            api_key=endpoint.api_key,
            default_headers=endpoint.build_headers(),
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
