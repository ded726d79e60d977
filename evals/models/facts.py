"""Facts of the bundled tasks that the built-in model uses: the fault, its symptom and its fix."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal

import yaml

from langgraph_takeover.base.values import Frozen

ORACLE_FILE = "oracle.yaml"
_MIN_MARK_LENGTH = 12
Variant = Literal["base", "wrong", "right"]


class Guide(Frozen):
    """The file that explains how to run the tests, and the command in it."""

    path: str
    command: str


class Reproduction(Frozen):
    """A script that reproduces the issue, and the output that shows it."""

    path: str
    content: str
    symptom: str


class WrongAttempt(Frozen):
    """The check that refutes the tempting wrong fix, and its output."""

    refuted_by: str
    check: Literal["suite", "reproduction"]


class CodeRegion(Frozen):
    """Part of a file in its variants: the base, after a tempting wrong fix, and after the right fix."""

    path: str
    search: str | None = None
    base: str
    wrong: str | None = None
    right: str

    def text(self, variant: Variant) -> str:
        return {"base": self.base, "wrong": self.wrong or self.base, "right": self.right}[variant]

    def distinctive_lines(self, variant: Variant) -> tuple[str, ...]:
        """The lines that occur only in this variant."""
        others = {
            line.strip()
            for other in ("base", "wrong", "right")
            if self.text(other) != self.text(variant)
            for line in self.text(other).splitlines()
        }
        lines = (line.strip() for line in self.text(variant).splitlines())
        return tuple(line for line in lines if len(line) >= _MIN_MARK_LENGTH and line not in others)


class TaskFacts(Frozen):
    """Everything that the built-in model knows about one task."""

    task_id: str
    statement: str
    search: str
    guide: Guide
    reproduction: Reproduction
    wrong: WrongAttempt | None = None
    regions: tuple[CodeRegion, ...]


@functools.lru_cache(maxsize=64)
def read_facts(directory: Path) -> TaskFacts:
    """The facts of the bundled task in `directory`, read once per process."""
    facts = yaml.safe_load((directory / ORACLE_FILE).read_text(encoding="utf-8"))
    statement = (directory / "problem_statement.md").read_text(encoding="utf-8").strip()
    return TaskFacts.model_validate({"task_id": directory.name, "statement": statement, **facts})
