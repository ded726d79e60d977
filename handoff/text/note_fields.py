"""The fields of a note with their descriptions, and the two words for missing content."""

from __future__ import annotations

import ast
import inspect
import itertools
from typing import NamedTuple


def read_field_docs(owner: type) -> dict[str, str]:
    """Return the docstring of each field that has one, including those of base classes of this package."""
    package = __name__.partition(".")[0]
    found: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        if base.__module__.partition(".")[0] == package:
            found |= _read_own_docs(base)
    return found


def _read_own_docs(owner: type) -> dict[str, str]:
    (definition,) = ast.parse(inspect.getsource(owner)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, below in itertools.pairwise(definition.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = inspect.cleandoc(text)
    return found


UNKNOWN = "UNKNOWN"
"""No evidence."""
NONE_OBSERVED = "NONE OBSERVED"
"""Nothing of the kind occurred."""
MODEL_FIELDS = (
    "problem_understanding",
    "work_completed",
    "evidence_observed",
    "observed_failures",
    "remaining_uncertainty",
    "rollback_notes",
    "recommended_next_action",
)
STATED_FIELDS = ("changed_files", "validation_passes", "work_done")
"""What the model states about the work in a form that the record can check."""
MAX_STATED_FILES = 20
"""More would use up the output tokens of the notes."""
OBSERVED_FIELDS = (
    "Repository change state",
    "Changed source files",
    "Latest source change",
    "Non-source artifacts",
    "Validation outcome after the latest source change",
    "Latest validation command",
    "Latest validation evidence",
    "Continuation state",
    "Commands already tried",
    "Files already read",
    "Background processes",
    "Open at the capture",
    "Calls not understood",
)
"""Titles of the fields that need no model."""


class NoteField(NamedTuple):
    """One field of a note: its entries, the latest last."""

    title: str
    entries: tuple[str, ...]
    is_list: bool = False
    """Shown as a list even with one entry."""
    empty: str = NONE_OBSERVED
    min_entries: int = 1
    """Number of entries that even the tightest budget leaves."""
    omitted: int = 0
    remark: str = ""
    """A remark on the whole field, shown in parentheses after its title or its only entry."""

    @property
    def text(self) -> str:
        """The text after the title."""
        remark = f"({self.remark})" if self.remark else ""
        if not self.entries or (len(self.entries) == 1 and not self.is_list and not self.omitted):
            return " ".join(filter(None, ((*self.entries, self.empty)[0], remark)))
        left_out = [f"\n- ({self.omitted} more left out)"] if self.omitted else []
        return "".join([remark, *left_out, *(f"\n- {entry}" for entry in self.entries)])


def format_title(name: str) -> str:
    return name.replace("_", " ").capitalize()
