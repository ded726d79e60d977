"""Agreement of the re-shown share of a step with labels made by hand, and both measures of rediscovery on whole runs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, NamedTuple

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer

from benchmarks.figures import refuse, run_command
from langgraph_takeover.evals.run.measures.rediscovery import (
    REDISCOVERY_KINDS,
    PredecessorText,
    StepText,
    classify_events,
    collect_knowledge,
    sum_text,
)
from langgraph_takeover.evals.run.measures.shown_text import split_output
from langgraph_takeover.handoff.points.detectors import compute_state
from langgraph_takeover.handoff.readers import TraceError, read_traces
from langgraph_takeover.handoff.trace.events import Differences, Event, Trace

_SOURCES = ("mini-swe-agent-v1", "swe-agent", "openhands-v0", "live", "")
_LABELS = Path(__file__).parents[1] / "tests/evals/run/measures/reshown/labels.jsonl"
_NUMBER_ONLY = re.compile(r"\s*\d+[:\t-]?\s*")


class LabelledStep(NamedTuple):
    """One step with its share of re-shown characters, from 0 to 1, by label and as measured."""

    successor: str
    event: int
    labelled: float
    measured: float

    @property
    def error(self) -> float:
        return abs(self.labelled - self.measured)


class RunShares(NamedTuple):
    """A successor's steps that are rediscovery, and the characters that it was shown again."""

    successor: str
    steps: int
    rediscovery_steps: int
    shown_chars: int
    reshown_chars: int


class _Pair(NamedTuple):
    """A predecessor until its point, and a successor: another run, or the rest of the same."""

    predecessor: Trace
    events: tuple[Event, ...]
    successor: Trace
    successor_events: tuple[Event, ...]

    def measure_steps(self) -> tuple[StepText, ...]:
        known = PredecessorText(self.events, self.predecessor.workspace)
        is_same_run = self.predecessor is self.successor
        # Another recorded run of the task starts from the base commit, a takeover from the predecessor's state.
        differences: Differences | None = None if is_same_run or self.successor.continues else {}
        return known.measure_steps(self.successor_events, self.successor.workspace, differences)


def main(
    trajectories: Annotated[Path, typer.Argument(help="Directory of the recorded runs.", metavar="DIR")],
    errors: Annotated[bool, typer.Option("--errors", help="List the steps with an error above 0.1.")] = False,
    runs: Annotated[
        bool, typer.Option("--runs", help="Print both measures for the labelled steps' runs.")
    ] = False,
) -> None:
    """Compare the re-shown share of steps with labels made by hand."""
    try:
        if runs:
            _print_runs(list(measure_runs(trajectories)))
        else:
            _print_agreement(list(measure_labelled_steps(trajectories)), list_errors=errors)
    except TraceError as error:
        refuse(f"{error} (pass the directory that holds {', '.join(_SOURCES[:3])})")


def measure_labelled_steps(trajectories: Path | None) -> Iterator[LabelledStep]:
    """Yield the labelled steps; those of recorded runs only if their directory is given."""
    for label in _read_labels():
        if trajectories is None and not label["successor"].startswith("live/"):
            continue
        pair = _load_pair(label, trajectories)
        for step in pair.measure_steps():
            event = pair.successor_events[step.event_index]
            if event.index == label["event"]:
                labelled = _compute_share(split_output(event.text), label)
                yield LabelledStep(label["successor"], event.index, labelled, step.share)


def measure_runs(trajectories: Path) -> Iterator[RunShares]:
    """Yield both measures for each successor of which steps are labelled."""
    keys = ("predecessor", "point_event", "successor")
    for label in {tuple(label[key] for key in keys): label for label in _read_labels()}.values():
        pair = _load_pair(label, trajectories)
        state = compute_state(pair.events, pair.predecessor.base_directories, pair.predecessor.workspace)
        kinds = classify_events(collect_knowledge(pair.events, state), pair.successor_events)
        pairs = zip(pair.successor_events, kinds, strict=True)
        actions = [kind for event, kind in pairs if event.kind == "action"]
        # As in a run's rows, verification counts in neither measure.
        verification = max(
            (index for index, kind in enumerate(kinds) if kind == "verification"), default=None
        )
        text = sum_text(pair.measure_steps(), verification)
        repeated = sum(kind in REDISCOVERY_KINDS for kind in actions)
        yield RunShares(label["successor"], len(actions), repeated, text.shown_chars, text.reshown_chars)


def _read_labels() -> list[dict[str, Any]]:
    return [json.loads(line) for line in _LABELS.read_text().splitlines()]


def _load_pair(label: dict[str, Any], trajectories: Path | None) -> _Pair:
    root = _LABELS.parent if label["successor"].startswith("live/") else trajectories
    assert root is not None
    predecessor, successor = (_load_trace(root, label[name]) for name in ("predecessor", "successor"))
    events = tuple(event for event in predecessor.events if event.index <= label["point_event"])
    own = tuple(e for e in successor.events if successor is not predecessor or e.index > label["point_event"])
    return _Pair(predecessor, events, successor, own)


@lru_cache(maxsize=64)
def _load_trace(root: Path, name: str) -> Trace:
    file, _, number = name.partition("#")
    trace = list(read_traces(root / file))[int(number or 0)]
    if not isinstance(trace, Trace):
        raise trace
    return trace


def _compute_share(lines: list[str], label: dict[str, Any]) -> float:
    boilerplate, reshown = _parse_ranges(label["boilerplate"]), _parse_ranges(label["reshown"])
    counted = {
        number: len(line)
        for number, line in enumerate(lines, 1)
        if any(map(str.isalnum, line)) and number not in boilerplate and not _NUMBER_ONLY.fullmatch(line)
    }
    total = sum(counted.values())
    return sum(size for number, size in counted.items() if number in reshown) / total if total else 0.0


def _parse_ranges(text: str) -> set[int]:
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _print_runs(runs: list[RunShares]) -> None:
    print(f"{'source':20} runs  rediscovery steps  re-shown text")
    for source in _SOURCES:
        chosen = [run for run in runs if run.successor.startswith(source)]
        if chosen:
            columns = zip(*(run[1:] for run in chosen), strict=True)
            steps, repeated, shown, reshown = map(sum, columns)
            print(f"{source or 'all':20} {len(chosen):4}  {repeated / steps:17.1%}  {reshown / shown:13.1%}")


def _print_agreement(steps: list[LabelledStep], *, list_errors: bool) -> None:
    print(f"{'source':20} steps  mean absolute error  error <= 0.02")
    for source in _SOURCES:
        errors = [step.error for step in steps if step.successor.startswith(source)]
        if errors:
            exact = sum(error <= 0.02 for error in errors)
            print(f"{source or 'all':20} {len(errors):5}  {mean(errors):19.3f}  {exact:13}")
    for step in sorted(steps, key=lambda step: -step.error) if list_errors else ():
        if step.error > 0.1:
            print(
                f"{step.successor} event {step.event}: labelled {step.labelled:.2f}, measured {step.measured:.2f}"
            )


if __name__ == "__main__":
    run_command(main)
