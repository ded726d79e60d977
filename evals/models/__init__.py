"""Model names as a person writes them, and the chat models that they stand for."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from langgraph_takeover.evals.models.facts import ORACLE_FILE, read_facts
from langgraph_takeover.sandbox.interface import TakeoverError

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from langgraph_takeover.evals.tasks import Task
    from langgraph_takeover.handoff.records.record import HandoffRecord

ORACLE = "builtin:oracle"
_LLM = "openai:"
_LISTING_TIMEOUT_S = 5.0
MODEL_NAME_FORMS = "openai:NAME, replay:FILE or builtin:oracle"
_BUILTIN_PATTERN = re.compile(rf"{ORACLE}(?:\+(\d+(?:\.\d+)?)s)?")
"""It may wait as an LLM would, so many seconds a reply on average: builtin:oracle+0.5s."""


def is_llm(name: str) -> bool:
    return name.startswith(_LLM)


def is_builtin(name: str) -> bool:
    return _BUILTIN_PATTERN.fullmatch(name) is not None


class ModelNameError(TakeoverError, ValueError):
    """A model name that stands for nothing; the text says what would."""


class ModelName(NamedTuple):
    """A model name taken apart: its kind, and what follows the first colon."""

    kind: str
    rest: str

    @property
    def is_llm(self) -> bool:
        return is_llm(f"{self.kind}:{self.rest}")

    @property
    def file(self) -> Path:
        return Path(self._file_and_number.rpartition("#")[0] if self._number else self._file_and_number)

    @property
    def number(self) -> int:
        """Replays only: which run of the file to play, where the name says."""
        return int(self._number) if self._number else 0

    @property
    def _file_and_number(self) -> str:
        return self.rest.rpartition("@")[0] if self._start else self.rest

    @property
    def _number(self) -> str:
        before, _, digits = self._file_and_number.rpartition("#")
        return digits if before and digits.isdigit() else ""

    @property
    def _start(self) -> str:
        before, _, digits = self.rest.rpartition("@")
        return digits if before and digits.isdigit() else ""

    @property
    def start(self) -> int | None:
        """Replays only: the index of the first action to play, where the name gives one."""
        return int(self._start) if self._start else None


def parse_model_name(name: str) -> ModelName:
    """Raises ModelNameError."""
    kind, _, rest = name.partition(":")
    if (
        kind not in ("openai", "replay", "builtin")
        or not rest
        or (kind == "builtin" and not is_builtin(name))
    ):
        raise ModelNameError(f"there is no model {name!r}; give {MODEL_NAME_FORMS}")
    return ModelName(kind, rest)


def check_model(name: str, tasks: tuple[Task, ...], base_url: str | None) -> None:
    """Find out before a run what would make every one of its model calls fail. Raises ModelNameError."""
    model = parse_model_name(name)
    if model.kind == "openai" and not base_url and not os.environ.get("OPENAI_API_KEY"):
        raise ModelNameError(f"{name}: OPENAI_API_KEY is not set; set it, or name your server by --base-url")
    if model.kind == "replay":
        from langgraph_takeover.evals.models.replay import TrajectoryError, read_trajectory

        try:
            turns = read_trajectory(model.file, model.number)
        except TrajectoryError as error:
            raise ModelNameError(f"{name}: {error}") from error
        if model.start is not None and model.start >= len(turns):
            raise ModelNameError(
                f"{name}: the recording has {len(turns)} actions to play; there is none at @{model.start}"
            )
        if len(tasks) > 1:
            raise ModelNameError(
                f"{name}: one trajectory plays one task, but {len(tasks)} are chosen; use --task-ids"
            )
    if model.kind == "builtin":
        strangers = [task.id for task in tasks if not _has_facts(task)]
        if strangers:
            raise ModelNameError(
                f"{name} knows the bundled tasks only, not {strangers[0]}; give --model openai:NAME"
            )


def describe_ambiguous_models(names: Collection[str], base_url: str | None) -> str | None:
    """What must be said where an endpoint may answer for several of these models with one and the same.

    None where there is nothing to say, or where the endpoint does not list what it serves.
    """
    asked = [parse_model_name(name).rest for name in dict.fromkeys(names) if parse_model_name(name).is_llm]
    if base_url is None or len(asked) < 2:
        return None
    from openai import OpenAI, OpenAIError

    from langgraph_takeover.nodes.model.exchange import DeadlineExceededError, Exchange

    exchange = Exchange(_LISTING_TIMEOUT_S)

    def list_models() -> set[str]:
        key = os.environ.get("OPENAI_API_KEY") or "none"
        with_bounds = exchange.attach_client()
        client = OpenAI(
            base_url=base_url, api_key=key, timeout=_LISTING_TIMEOUT_S, max_retries=0, http_client=with_bounds
        )
        return {model.id for model in client.models.list()}

    try:
        served = exchange.run(list_models)
    except (OpenAIError, DeadlineExceededError, ValueError, TypeError, AttributeError):
        return None
    strangers = [name for name in asked if name not in served]
    if not served or not strangers:
        return None
    return (
        f"{base_url} serves {', '.join(sorted(served)[:5])}, but not {', '.join(strangers)}: what it answers for these may "
        "be one and the same model's"
    )


def build_model(
    name: str,
    *,
    task: Task,
    base_url: str | None,
    record: HandoffRecord | None = None,
    workspace: str = "",
    max_reply_tokens: int | None = None,
    temperature: float | None = None,
) -> BaseChatModel:
    """The chat model of that name; a replay that takes over its own run goes on where the record ends."""
    model = parse_model_name(name)
    if model.is_llm:
        return build_llm(name, base_url=base_url, max_reply_tokens=max_reply_tokens, temperature=temperature)
    if model.kind == "replay":
        from langgraph_takeover.evals.models.replay import ReplayModel, read_trajectory

        turns = read_trajectory(model.file, model.number, workspace)
        return ReplayModel(turns=turns, start=_find_first_action(model, record))
    from langgraph_takeover.evals.models.oracle import OracleModel

    assert task.directory is not None
    waits = _BUILTIN_PATTERN.fullmatch(name)
    return OracleModel(facts=(read_facts(task.directory),), latency_s=float(waits[1] or 0) if waits else 0.0)


def _find_first_action(model: ModelName, record: HandoffRecord | None) -> int:
    """The action that a replay begins with: where the record ends, if it plays the record's own trajectory."""
    predecessor = parse_model_name(record.predecessor) if record is not None else None
    if record is not None and predecessor is not None and predecessor.kind == "replay":
        same_file = model.file.resolve() == predecessor.file.resolve() and model.number == predecessor.number
        if same_file and model.start in (None, predecessor.start):
            taken = sum(event.kind == "action" for event in record.trace)
            return (predecessor.start or 0) + taken
    return model.start or 0


def _has_facts(task: Task) -> bool:
    return task.directory is not None and (task.directory / ORACLE_FILE).is_file()


def build_llm(
    name: str,
    *,
    base_url: str | None,
    max_reply_tokens: int | None = None,
    temperature: float | None = None,
) -> BaseChatModel:
    """The chat model behind a name that is an LLM's."""
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    # A server of one's own often wants no key, but the client wants something to send.
    key = os.environ.get("OPENAI_API_KEY") or "none"
    return ChatOpenAI(
        model=parse_model_name(name).rest,
        base_url=base_url,
        api_key=SecretStr(key),
        max_retries=2,
        timeout=300,
        max_completion_tokens=max_reply_tokens,
        temperature=temperature,
    )
