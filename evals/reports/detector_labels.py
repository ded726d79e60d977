"""Labels of handoff points and validations written by people, and the detectors' agreement with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.untrusted_input import describe_error, parse_json, read_untrusted_file
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.points.annotations import AnnotatedStep

POINT_KINDS = ("first_source_edit", "first_validation", "first_post_failure_edit")


class LabelError(TakeoverError, ValueError):
    """An unreadable file of labels."""


class LabelledValidation(Frozen):
    action_index: int
    kind: str
    outcome: str


class Label(Frozen):
    """Labels of one trace by a person."""

    trace: str
    """The end of the trace's path, with `#n` for the n-th run of a file."""
    points: Mapping[str, int | None]
    """Point kind -> action index; null if the point does not occur."""
    validations: tuple[LabelledValidation, ...]
    unclear: tuple[str, ...] = ()
    """Ambiguous labels: point kinds, and `validation N`. They do not count."""
    notes: str = ""


class Tally(NamedTuple):
    """Number of correct detections, ambiguous labels excluded."""

    cases: int = 0
    exact: int = 0
    found: int = 0
    labelled: int = 0
    right: int = 0
    """Number of points detected at the labelled action."""

    def add(self, found: int | None, labelled: int | None) -> Tally:
        return Tally(
            self.cases + 1,
            self.exact + (found == labelled),
            self.found + (found is not None),
            self.labelled + (labelled is not None),
            self.right + (found is not None and found == labelled),
        )


class Score(NamedTuple):
    points: Mapping[str, Tally]
    validations: Tally
    """Cases are labelled validations; exact ones were detected with the labelled outcome."""
    misses: tuple[str, ...]


def read_labels(path: Path) -> tuple[Label, ...]:
    """Read the labels of a file, one per line. Raises LabelError."""
    try:
        lines = read_untrusted_file(path).decode().splitlines()
    except OSError as error:
        raise LabelError(f"{path}: {describe_error(error)}") from error
    except UnicodeDecodeError as error:
        raise LabelError(f"{path}: not UTF-8 text") from error
    labels: list[Label] = []
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            labels.append(Label.model_validate(parse_json(line)))
        except (ValueError, ValidationError) as error:
            detail = (
                error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
            )
            field = ".".join(str(part) for part in detail["loc"]) or "not a JSON object"
            raise LabelError(f"{path}: line {number}: {field}: {detail['msg']}") from error
        first = numbers.setdefault(labels[-1].trace, number)
        if first != number:
            raise LabelError(
                f"{path}: lines {first} and {number} label the same trace, {labels[-1].trace} (remove one of them)"
            )
    if not labels:
        raise LabelError(f"{path}: the file contains no labels")
    return tuple(labels)


def select_labels(labels: Iterable[Label], file: str) -> tuple[Label, ...]:
    """The labels of the runs in a file, by the end of its path."""
    names = {label.trace.partition("#")[0]: label for label in labels}
    return tuple(label for name, label in names.items() if file == name or file.endswith("/" + name))


def find_label(labels: Iterable[Label], trace: str) -> Label | None:
    """The label of a trace, by the end of its path."""
    return next(
        (label for label in labels if trace == label.trace or trace.endswith("/" + label.trace)), None
    )


def score_trace(label: Label, steps: Sequence[AnnotatedStep]) -> Score:
    """Score the detections in one trace against its label."""
    misses: list[str] = []
    points: dict[str, Tally] = {}
    for kind in POINT_KINDS:
        if kind in label.unclear:
            continue
        found = next((s.action_index for s in steps for p in s.points if p.kind == kind), None)
        labelled = label.points.get(kind)
        points[kind] = Tally().add(found, labelled)
        if found != labelled:
            misses.append(
                f"{label.trace}: {kind}: found {_describe_position(found)}, labelled {_describe_position(labelled)}"
            )
    detected = {s.action_index: s.validation for s in steps if s.validation is not None}
    expected = {
        v.action_index: v for v in label.validations if f"validation {v.action_index}" not in label.unclear
    }
    unclear = {w.removeprefix("validation ") for w in label.unclear if w.startswith("validation ")}
    tally = Counter[str]()
    for index, labelled_run in expected.items():
        run = detected.get(index)
        tally["cases"] += 1
        tally["right"] += run is not None
        tally["exact"] += run is not None and run.outcome == labelled_run.outcome
        if run is None or run.outcome != labelled_run.outcome:
            found_outcome = f"{run.kind} {run.outcome}" if run is not None else "no validation"
            misses.append(
                f"{label.trace}: action {index}: found {found_outcome}, labelled {labelled_run.kind} {labelled_run.outcome}"
            )
    extra = [i for i in detected if i not in expected and str(i) not in unclear]
    misses += [
        f"{label.trace}: action {i}: found {_describe_validation(detected[i])}, labelled no validation"
        for i in extra
    ]
    validations = Tally(
        tally["cases"], tally["exact"], tally["right"] + len(extra), tally["cases"], tally["right"]
    )
    return Score(points, validations, tuple(misses))


def _describe_validation(validation: Any) -> str:
    return f"{validation.kind} {validation.outcome}"


def _describe_position(index: int | None) -> str:
    return "nowhere" if index is None else f"action {index}"


def sum_scores(scores: Iterable[Score]) -> Score:
    """The sum of several scores."""
    points: dict[str, Tally] = dict.fromkeys(POINT_KINDS, Tally())
    validations, misses = Tally(), list[str]()
    for score in scores:
        for kind, tally in score.points.items():
            points[kind] = _add_tallies(points[kind], tally)
        validations = _add_tallies(validations, score.validations)
        misses += score.misses
    return Score(points, validations, tuple(misses))


def _add_tallies(one: Tally, other: Tally) -> Tally:
    return Tally(*(a + b for a, b in zip(one, other, strict=True)))
