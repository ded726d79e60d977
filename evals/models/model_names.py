"""Model names: `openai:NAME`, `openai:NAME@URL`, `replay:FILE`, `builtin:oracle`, and entries of a models file.

`AGENT:MODEL`, such as `codex:openai:gpt-5`, runs an external agent with that model. `AGENT:native:NAME` passes its requests
on to the vendor's own endpoint.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.handoff.names import AGENT_NAMES

ORACLE = "builtin:oracle"
MODEL_NAME_FORMS = "openai:NAME, replay:FILE or builtin:oracle"
NATIVE = "native"
"""The kind of a model at the endpoint of an external agent's vendor."""
_KINDS = ("openai", "replay", "builtin", NATIVE)
"""Prefixes of models; the last one needs an external agent."""
ENTRY = "entry"
"""The kind of a name without a prefix, which a models file defines."""
_SERVER_AND_URL = re.compile(r"(.+?)@(https?://.+)", re.DOTALL)
_BUILTIN_PATTERN = re.compile(rf"{ORACLE}(?:\+(\d+(?:\.\d+)?)s)?")
"""`builtin:oracle+0.5s` waits 0.5 seconds per reply on average, as an LLM would."""


class ModelNameError(TakeoverError, ValueError):
    """An invalid model name."""


def is_llm(name: str) -> bool:
    """Whether a name is that of an LLM at an endpoint: `openai:…`, `native:…`, or an entry of a models file."""
    model = split_agent(name)[1]
    return model.startswith(("openai:", f"{NATIVE}:")) or (model != "" and ":" not in model)


def is_builtin(name: str) -> bool:
    return _BUILTIN_PATTERN.fullmatch(split_agent(name)[1]) is not None


def split_agent(name: str) -> tuple[str, str]:
    """The external agent of a name, empty for the built-in one, and the model that works for it."""
    agent, _, model = name.partition(":")
    return (agent, model) if agent in AGENT_NAMES and model else ("", name)


def drop_agent(name: str) -> str:
    """The model of a name without the external agent; a model at the agent's vendor keeps it, because it tells the vendor."""
    model = split_agent(name)[1]
    return name if model.startswith(f"{NATIVE}:") else model


def builtin_latency_s(name: str) -> float:
    """Mean latency per reply of the built-in model of that name."""
    match = _BUILTIN_PATTERN.fullmatch(split_agent(name)[1])
    return float(match[1] or 0) if match else 0.0


class ModelName(NamedTuple):
    """A parsed model name: its kind, and the text after the first colon; of an entry, its whole name."""

    kind: str
    rest: str
    agent: str = ""
    """The external agent; empty for the built-in one."""

    @property
    def is_llm(self) -> bool:
        return self.kind in ("openai", NATIVE, ENTRY)

    @property
    def server_name(self) -> str:
        """`openai:` only: the model's name at the server."""
        return found[1] if (found := _SERVER_AND_URL.fullmatch(self.rest)) else self.rest

    @property
    def wire_name(self) -> str:
        """The model name that an external agent sends with its requests."""
        return self.rest if self.kind in (NATIVE, ENTRY) else self.server_name if self.is_llm else "takeover"

    @property
    def url(self) -> str | None:
        """`openai:` only: the address of the server, if the name contains one."""
        return found[2] if (found := _SERVER_AND_URL.fullmatch(self.rest)) else None

    @property
    def file(self) -> Path:
        return Path(self._file_and_number.rpartition("#")[0] if self._number else self._file_and_number)

    @property
    def number(self) -> int:
        """Replays only: index of the run in the file, 0 by default."""
        return int(self._number) if self._number else 0

    @property
    def has_number(self) -> bool:
        """Replays only: whether the name contains the index of a run."""
        return bool(self._number)

    @property
    def start(self) -> int | None:
        """Replays only: index of the first action to play, if the name contains one."""
        return int(self._start) if self._start else None

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


def parse_model_name(name: str) -> ModelName:
    """Parse a model name; `find_endpoint` checks that a models file has the entry. Raises ModelNameError."""
    agent, model = split_agent(name)
    if model and ":" not in model and model not in AGENT_NAMES:
        return ModelName(ENTRY, model, agent)
    kind, _, rest = model.partition(":")
    kinds = _KINDS if agent else _KINDS[:-1]
    if kind not in kinds or not rest or (kind == "builtin" and not is_builtin(model)):
        raise unknown_model_error(name)
    return ModelName(kind, rest, agent)


def require_entry(name: str, entries: Collection[str]) -> None:
    """Raises ModelNameError if the name is that of an entry which does not exist."""
    parsed = parse_model_name(name)
    if parsed.kind == ENTRY and parsed.rest not in entries:
        raise unknown_model_error(name, entries)


def unknown_model_error(name: str, entries: Collection[str] = ()) -> ModelNameError:
    agent, _, model = name.partition(":")
    if agent in AGENT_NAMES and not split_agent(name)[0]:
        return ModelNameError(f"{agent}: name the model that works for it, such as {agent}:openai:NAME")
    if agent not in (*AGENT_NAMES, *_KINDS) and model.startswith(tuple(f"{kind}:" for kind in _KINDS)):
        return ModelNameError(f"{name}: unknown agent {agent!r} (use {', '.join(AGENT_NAMES)})")
    if agent in AGENT_NAMES and model.partition(":")[0] == NATIVE:
        return ModelNameError(f"unknown model {name!r} (name the vendor's model: {agent}:{NATIVE}:NAME)")
    if agent == NATIVE:
        return ModelNameError(f"{name}: name the agent whose vendor has the model, such as codex:{name}")
    known = (
        f"an entry of --models: {', '.join(entries)}" if entries else "an entry of a models file (--models)"
    )
    return ModelNameError(f"unknown model {name!r} (use {MODEL_NAME_FORMS}, or {known})")
