"""What the record contradicts in a model's notes: stated fields, and paths that do not exist.

The model states what can be checked as fields, so its prose is not interpreted. Where the record itself does not know,
nothing is contradicted.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple

from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.records.record import Claim, Notes, StatedFields
from langgraph_takeover.handoff.text.note_fields import MAX_STATED_FILES
from langgraph_takeover.handoff.trace.file_kinds import is_code

_PATH = re.compile(r"(?<![\w/\\.@:~+-])(?:/|\./)?(?:[\w.+-]++/)++[\w.+-]++")
_TEXT_EXTENSIONS = (".cfg", ".ini", ".json", ".md", ".rst", ".toml", ".txt", ".yaml", ".yml")
_QUOTED_NAME = re.compile(r"`([\w.+-]{1,200}\.(?:py|pyi|js|jsx|tsx|java|kt|cpp|rb|php|rst|toml|ya?ml))`")
"""A name without a directory, ending like nothing but a file: `x.h` may be an attribute."""
_ABSENCE_WORDS = re.compile(
    r"\b(?:creat|add|writ|new|delet|remov|renam|mov|missing|absent|no such|not? (?:\w+ )?exist)",
    re.IGNORECASE,
)
"""Words of a statement that may name a file because the snapshot lacks it."""
_MAX_TEXT_CHARS = 20_000
_DRIVE = re.compile(r"[A-Za-z]:/")


class Contradiction(NamedTuple):
    """A stated value that differs from the record's."""

    field: str
    """The name of the stated field."""
    stated: str
    """The value that the model stated; empty for a changed file that it did not state."""
    observed: str
    """What the record shows instead."""


def list_contradictions(stated: StatedFields, evidence: Evidence) -> tuple[Contradiction, ...]:
    """Compare each stated field with the record; `unknown` contradicts nothing."""
    return (
        *_compare_changed_files(stated.changed_files, evidence),
        *_compare_validation(stated, evidence),
        *_compare_done(stated, evidence),
    )


def _compare_changed_files(paths: tuple[str, ...] | None, evidence: Evidence) -> Iterator[Contradiction]:
    """Find stated files that do not differ from the base commit, and source files that differ and are not stated.

    Other files that differ may be stated or not.
    """
    if paths is None:
        return
    located = {path: _locate(path, evidence.record.task.workspace) for path in paths}
    for path, place in located.items():
        if place and not _is_absolute(place) and not _may_differ(place, evidence):
            yield Contradiction("changed_files", path, "it does not differ from the base commit")
    if len(paths) < MAX_STATED_FILES:
        for source in evidence.current_sources:
            if not any(place and _may_mean(place, source) for place in located.values()):
                yield Contradiction("changed_files", "", f"{source} differs from the base commit")


def _locate(path: str, workspace: str) -> str:
    """Spell a stated path as changes do: relative to the repository, absolute outside; empty if it cannot be compared."""
    path = path.partition(" (")[0].strip(" `\"'").replace("\\", "/")
    root = workspace.replace("\\", "/").rstrip("/") + "/"
    if len(root) > 1:
        path = path.removeprefix(root)
    path = posixpath.normpath(path) if path else "."
    return "" if path.startswith(("..", "~")) or path == "." else path


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or _DRIVE.match(path) is not None


def _may_mean(stated: str, path: str) -> bool:
    """Whether a stated path may mean this one: by its end, from another root, or as a directory around it."""
    return (
        f"/{path}".endswith(f"/{stated}")
        or (_is_absolute(stated) and stated.endswith(f"/{path}"))
        or path.startswith(f"{stated}/")
        or stated.startswith(f"{path}/")
    )


def _may_differ(path: str, evidence: Evidence) -> bool:
    """Whether a file differs from the base commit, as far as the record knows.

    The changes of a recorded run are inferred: a file that an action names may have changed without a trace.
    """
    if evidence.unknown_calls or any(_may_mean(path, other) for other in evidence.differing_files):
        return True
    return evidence.record.snapshot is None and any(
        path.rpartition("/")[2] in value
        for event in evidence.record.trace
        for value in event.arguments.values()
    )


def _compare_validation(stated: StatedFields, evidence: Evidence) -> Iterator[Contradiction]:
    result = evidence.current_result
    if stated.validation_passes == "yes" and result == "failed":
        yield Contradiction("validation_passes", "yes", "the latest validation of the current code failed")
    elif stated.validation_passes == "yes" and result is None:
        yield Contradiction("validation_passes", "yes", "no validation of the current code has a result")
    elif stated.validation_passes == "no" and result == "passed" and not evidence.open_failures:
        yield Contradiction("validation_passes", "no", "the latest validation of the current code passed")


def _compare_done(stated: StatedFields, evidence: Evidence) -> Iterator[Contradiction]:
    """Whether work is done has no counterpart, except where no file differs or the latest validation failed."""
    if stated.work_done != "yes":
        return
    if evidence.current_result == "failed":
        yield Contradiction("work_done", "yes", "the latest validation of the current code failed")
    elif not evidence.differing_files and not evidence.unknown_calls:
        yield Contradiction("work_done", "yes", "no file differs from the base commit")


def find_missing_path(claim: Claim, evidence: Evidence) -> str | None:
    """Return the first path in a statement that the snapshot does not have; None if all exist or the files are unknown.

    A path has a directory part or is quoted as code, and ends like a file. Addresses, places outside the repository, names
    that a file elsewhere has, and statements that may speak of an absent file are not checked.
    """
    names = evidence.file_names
    text = claim.text[:_MAX_TEXT_CHARS]
    if names is None or "://" in text or _ABSENCE_WORDS.search(text):
        return None
    for found in (*_PATH.findall(text), *_QUOTED_NAME.findall(text)):
        path = _locate(found.rstrip(".+-"), evidence.record.task.workspace)
        name = path.rpartition("/")[2]
        is_file = "." in name and (is_code(path) or name.endswith(_TEXT_EXTENSIONS))
        is_known = path in names or path in evidence.changed_paths or name in evidence.basenames
        if is_file and not is_known and not _is_absolute(path):
            return path
    return None


class Soundness(NamedTuple):
    """Numbers of what a model's notes state, and of what the record contradicts."""

    stated: int
    """Stated fields with a value other than unknown, of three."""
    contradicted: int
    """Those of them that differ from the record."""
    claims: int
    """Statements in prose."""
    missing_paths: int
    """Statements in prose that name a path that does not exist."""


def measure_soundness(notes: Notes, evidence: Evidence) -> Soundness:
    """Count the problems of a model's notes; each field and each statement counts once at most."""
    stated = notes.stated
    values = (
        stated.changed_files is not None,
        stated.validation_passes != "unknown",
        stated.work_done != "unknown",
    )
    claims = [claim for field_claims in notes.structured.values() for claim in field_claims]
    return Soundness(
        stated=sum(values),
        contradicted=len({each.field for each in list_contradictions(stated, evidence)}),
        claims=len(claims),
        missing_paths=sum(find_missing_path(claim, evidence) is not None for claim in claims),
    )
