"""The endpoint behind a model's name, and checks of names before a run starts."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from langgraph_takeover.evals.models.entries import ModelEntry, Models, describe_url_problem
from langgraph_takeover.evals.models.facts import ORACLE_FILE
from langgraph_takeover.evals.models.model_names import (
    NATIVE,
    ModelName,
    ModelNameError,
    parse_model_name,
    require_entry,
)
from langgraph_takeover.handoff.text.redaction import redact

if TYPE_CHECKING:
    from langgraph_takeover.evals.tasks import Task

OPENAI_KEY = "OPENAI_API_KEY"
OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_KEY = "ANTHROPIC_API_KEY"
ANTHROPIC_URL = "https://api.anthropic.com"
_NO_KEY = "none"
"""Local servers often need no key, but the client requires one."""


class Endpoint(NamedTuple):
    """An LLM as its client is built: its entry, with the defaults of the run filled in."""

    entry: ModelEntry
    is_key_required: bool

    @property
    def api_key(self) -> str:
        variable = self.entry.api_key_env
        return (os.environ.get(variable) if variable else None) or _NO_KEY

    @property
    def base_url(self) -> str:
        return self.entry.base_url or OPENAI_URL

    def build_headers(self) -> dict[str, Any]:
        """Headers of each request; without them, the client library takes those in OPENAI_* variables.

        Organization, project and custom headers in the environment accompany OPENAI_API_KEY only.
        """
        from openai import Omit

        key = {"authorization": f"Bearer {self.api_key}"}
        if self.entry.api_key_env == OPENAI_KEY:
            return key
        lines = os.environ.get("OPENAI_CUSTOM_HEADERS", "").split("\n")
        custom = (line.partition(":")[0].strip().lower() for line in lines)
        return {name: Omit() for name in ("OpenAI-Organization", "OpenAI-Project", *custom)} | key


def find_endpoint(name: str, models: Models, base_url: str | None) -> Endpoint:
    """The endpoint of an LLM's name. Raises ModelNameError.

    The server of `base_url`, and the key in OPENAI_API_KEY, are those of names and entries without their own address.
    """
    parsed = parse_model_name(name)
    if parsed.kind == "openai":
        if parsed.url is not None and (problem := describe_url_problem(parsed.url)):
            raise ModelNameError(f"openai:{parsed.server_name}@URL: {problem}")
        entry = ModelEntry.model_construct(model=parsed.server_name, base_url=parsed.url or base_url)
        return Endpoint(entry.model_copy(update={"api_key_env": OPENAI_KEY}), entry.base_url is None)
    if parsed.kind == NATIVE:
        return _find_vendor_endpoint(parsed)
    require_entry(name, models)
    return find_entry_endpoint(models[parsed.rest], base_url)


def _find_vendor_endpoint(model: ModelName) -> Endpoint:
    """The endpoint of an external agent's own vendor; the usual variables name another server and the key."""
    is_anthropic = model.agent == "claude-code"
    url_variable = "ANTHROPIC_BASE_URL" if is_anthropic else "OPENAI_BASE_URL"
    url = os.environ.get(url_variable) or (ANTHROPIC_URL if is_anthropic else OPENAI_URL)
    if problem := describe_url_problem(url):
        raise ModelNameError(f"{url_variable}: {problem}")
    key = ANTHROPIC_KEY if is_anthropic else OPENAI_KEY
    return Endpoint(ModelEntry.model_construct(model=model.rest, base_url=url, api_key_env=key), True)


def find_entry_endpoint(entry: ModelEntry, base_url: str | None) -> Endpoint:
    """The endpoint of an entry. Without its own address and key, it is that of `base_url` and OPENAI_API_KEY."""
    if entry.api_key_env is not None:
        return Endpoint(entry.model_copy(update={"base_url": entry.base_url or base_url}), True)
    if entry.base_url is not None:
        return Endpoint(entry, False)
    return Endpoint(
        entry.model_copy(update={"base_url": base_url, "api_key_env": OPENAI_KEY}), base_url is None
    )


def check_client(name: str) -> None:
    """Raises ModelNameError if the client of OpenAI-compatible servers is not installed."""
    if find_spec("langchain_openai") is None:
        raise ModelNameError(
            f"{name}: the client of OpenAI-compatible servers is not installed "
            "(pip install 'langgraph-takeover[openai]')"
        )


def check_key(name: str, endpoint: Endpoint) -> None:
    """Raises ModelNameError if the variable with a required key is not set."""
    variable = endpoint.entry.api_key_env
    if not endpoint.is_key_required or variable is None or os.environ.get(variable, "").strip():
        return
    cure = (
        "set it, or set OPENAI_BASE_URL to your server"
        if variable == OPENAI_KEY
        else "its api_key_env in --models; set the variable before the run"
    )
    raise ModelNameError(f"{name}: {redact(variable)} is not set ({cure})")


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
