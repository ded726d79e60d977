"""What the built-in model knows of each bundled task: where the fault is, how it shows, how it is mended."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

ORACLE_FILE = "oracle.yaml"
_MIN_MARK_LENGTH = 12
Variant = Literal["base", "wrong", "right"]


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Guide(_Facts):
    path: str
    command: str


class Reproduction(_Facts):
    path: str
    content: str
    symptom: str


class WrongAttempt(_Facts):
    refuted_by: str
    check: Literal["suite", "reproduction"]


class CodeRegion(_Facts):
    """One stretch of a file, as it is at the base, after a tempting wrong fix, and after the right one."""

    path: str
    search: str | None = None
    base: str
    wrong: str | None = None
    right: str

    def text(self, variant: Variant) -> str:
        return {"base": self.base, "wrong": self.wrong or self.base, "right": self.right}[variant]

    def distinctive_lines(self, variant: Variant) -> tuple[str, ...]:
        """The lines by which this variant can be told from the others, wherever they are shown."""
        others = {
            line.strip()
            for other in ("base", "wrong", "right")
            if self.text(other) != self.text(variant)
            for line in self.text(other).splitlines()
        }
        lines = (line.strip() for line in self.text(variant).splitlines())
        return tuple(line for line in lines if len(line) >= _MIN_MARK_LENGTH and line not in others)


class TaskFacts(_Facts):
    """All that the built-in model knows of one task."""

    task_id: str
    statement: str
    search: str
    guide: Guide
    reproduction: Reproduction
    wrong: WrongAttempt | None = None
    places: tuple[CodeRegion, ...]


@functools.lru_cache(maxsize=64)
def read_facts(directory: Path) -> TaskFacts:
    """The facts of the bundled task in `directory`, read once a process."""
    facts = yaml.safe_load((directory / ORACLE_FILE).read_text(encoding="utf-8"))
    statement = (directory / "problem_statement.md").read_text(encoding="utf-8").strip()
    return TaskFacts.model_validate({"task_id": directory.name, "statement": statement, **facts})
