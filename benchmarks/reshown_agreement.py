"""Agreement of the re-shown share of a step with labels made by hand, and both measures of rediscovery on whole runs.

python benchmarks/reshown_agreement.py DIR
python benchmarks/reshown_agreement.py DIR --runs
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from langgraph_takeover.evals.run.measures.rediscovery import (
    REDISCOVERY_KINDS,
    PredecessorText,
    StepText,
    TextTotals,
    classify_events,
    collect_knowledge,
    sum_text,
)
from langgraph_takeover.evals.run.measures.shown_text import split_output
from langgraph_takeover.handoff.points.detectors import compute_state
from langgraph_takeover.handoff.readers import TraceError, read_traces
from langgraph_takeover.handoff.trace.events import Differences, Event, Trace

SOURCES = ("mini-swe-agent-v1", "swe-agent", "openhands-v0", "live", "")
LABELS = Path(__file__).parent.parent / "tests" / "evals" / "run" / "measures" / "reshown" / "labels.jsonl"
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


def measure_labelled_steps(trajectories: Path | None, labels: Path = LABELS) -> Iterator[LabelledStep]:
    """Yield the labelled steps; those of recorded runs only if their directory is given."""
    for line in labels.read_text().splitlines():
        label = json.loads(line)
        root = labels.parent if label["successor"].startswith("live/") else trajectories
        if root is not None:
            yield _measure_step(label, root)


class RunShares(NamedTuple):
    """A successor's steps that are rediscovery, and its text that was shown again."""

    source: str
    steps: int
    rediscovery_steps: int
    text: TextTotals


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


def _load_pair(label: dict[str, Any], root: Path) -> _Pair:
    predecessor, successor = (_load_trace(root, label[name]) for name in ("predecessor", "successor"))
    events = tuple(event for event in predecessor.events if event.index <= label["point_event"])
    own = tuple(e for e in successor.events if successor is not predecessor or e.index > label["point_event"])
    return _Pair(predecessor, events, successor, own)


def _measure_step(label: dict[str, Any], root: Path) -> LabelledStep:
    pair = _load_pair(label, root)
    own = pair.successor_events
    step = next(step for step in pair.measure_steps() if own[step.event_index].index == label["event"])
    labelled = _compute_share(split_output(own[step.event_index].text), label)
    return LabelledStep(label["successor"], label["event"], labelled, step.share)


def measure_runs(trajectories: Path, labels: Path = LABELS) -> Iterator[RunShares]:
    """Yield both measures for each successor of which steps are labelled."""
    seen = set()
    for line in labels.read_text().splitlines():
        label = json.loads(line)
        key = (label["predecessor"], label["point_event"], label["successor"])
        if key in seen:
            continue
        seen.add(key)
        root = labels.parent if label["successor"].startswith("live/") else trajectories
        pair = _load_pair(label, root)
        state = compute_state(pair.events, pair.predecessor.base_directories, pair.predecessor.workspace)
        kinds = classify_events(collect_knowledge(pair.events, state), pair.successor_events)
        actions = [
            kind for event, kind in zip(pair.successor_events, kinds, strict=True) if event.kind == "action"
        ]
        repeated = sum(kind in REDISCOVERY_KINDS for kind in actions)
        # As in a run's rows, verification counts in neither measure.
        verification = max(
            (index for index, kind in enumerate(kinds) if kind == "verification"), default=None
        )
        yield RunShares(
            label["successor"], len(actions), repeated, sum_text(pair.measure_steps(), verification)
        )


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


@lru_cache(maxsize=64)
def _load_trace(root: Path, name: str) -> Trace:
    file, _, number = name.partition("#")
    trace = list(read_traces(root / file))[int(number or 0)]
    if not isinstance(trace, Trace):
        raise trace
    return trace


def _print_runs(runs: list[RunShares]) -> None:
    print(f"{'source':20} runs  rediscovery steps  re-shown text")
    for source in SOURCES:
        chosen = [run for run in runs if run.source.startswith(source)]
        steps, repeated = sum(run.steps for run in chosen), sum(run.rediscovery_steps for run in chosen)
        shown, reshown = (
            sum(getattr(run.text, name) for run in chosen) for name in ("shown_chars", "reshown_chars")
        )
        if steps and shown:
            print(f"{source or 'all':20} {len(chosen):4}  {repeated / steps:17.1%}  {reshown / shown:13.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trajectories", type=Path, help="Directory of the recorded runs.")
    parser.add_argument("--errors", action="store_true", help="List the steps with an error above 0.1.")
    parser.add_argument(
        "--runs", action="store_true", help="Print both measures for the labelled steps' runs."
    )
    options = parser.parse_args()
    try:
        if options.runs:
            _print_runs(list(measure_runs(options.trajectories)))
        else:
            _print_agreement(list(measure_labelled_steps(options.trajectories)), list_errors=options.errors)
    except TraceError as error:
        parser.error(f"{error} (pass the directory that holds {', '.join(SOURCES[:3])})")


def _print_agreement(steps: Sequence[LabelledStep], *, list_errors: bool) -> None:
    print(f"{'source':20} steps  mean absolute error  error <= 0.02")
    for source in SOURCES:
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
    main()
