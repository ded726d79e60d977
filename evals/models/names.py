"""Model names: `openai:NAME`, `replay:FILE` and `builtin:oracle`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.sandbox.interface import TakeoverError

ORACLE = "builtin:oracle"
MODEL_NAME_FORMS = "openai:NAME, replay:FILE or builtin:oracle"
_LLM = "openai:"
_BUILTIN_PATTERN = re.compile(rf"{ORACLE}(?:\+(\d+(?:\.\d+)?)s)?")
"""`builtin:oracle+0.5s` waits 0.5 seconds per reply on average, as an LLM would."""


class ModelNameError(TakeoverError, ValueError):
    """An invalid model name."""


def is_llm(name: str) -> bool:
    return name.startswith(_LLM)


def is_builtin(name: str) -> bool:
    return _BUILTIN_PATTERN.fullmatch(name) is not None


def builtin_latency_s(name: str) -> float:
    """Mean latency per reply of the built-in model of that name."""
    match = _BUILTIN_PATTERN.fullmatch(name)
    return float(match[1] or 0) if match else 0.0


class ModelName(NamedTuple):
    """A parsed model name: its kind, and the text after the first colon."""

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
        """Replays only: index of the run in the file, 0 by default."""
        return int(self._number) if self._number else 0

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
    """Parse a model name. Raises ModelNameError."""
    kind, _, rest = name.partition(":")
    if (
        kind not in ("openai", "replay", "builtin")
        or not rest
        or (kind == "builtin" and not is_builtin(name))
    ):
        raise ModelNameError(f"unknown model {name!r} (use {MODEL_NAME_FORMS})")
    return ModelName(kind, rest)
