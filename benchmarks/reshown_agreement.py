"""Agreement of the re-shown share of a step with labels made by hand.

python benchmarks/reshown_agreement.py ../shared/trajectories
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from langgraph_takeover.evals.run.measures.reshown import PredecessorText
from langgraph_takeover.evals.run.measures.shown_text import split_output
from langgraph_takeover.handoff.readers import read_traces
from langgraph_takeover.handoff.trace.events import Differences, Trace

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


def _measure_step(label: dict[str, Any], root: Path) -> LabelledStep:
    predecessor, successor = (_load_trace(root, label[name]) for name in ("predecessor", "successor"))
    events = [event for event in predecessor.events if event.index <= label["point_event"]]
    known = PredecessorText(events, predecessor.workspace)
    is_same_run = label["predecessor"] == label["successor"]
    own = [e for e in successor.events if not is_same_run or e.index > label["point_event"]]
    # Another recorded run of the task starts from the base commit, a takeover from the predecessor's state.
    differences: Differences | None = None if is_same_run or successor.continues else {}
    steps = known.measure_steps(own, successor.workspace, differences)
    step = next(step for step in steps if own[step.event_index].index == label["event"])
    labelled = _compute_share(split_output(own[step.event_index].text), label)
    return LabelledStep(label["successor"], label["event"], labelled, step.share)


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trajectories", type=Path, help="Directory of the recorded runs.")
    parser.add_argument("--errors", action="store_true", help="List the steps with an error above 0.1.")
    options = parser.parse_args()
    steps = list(measure_labelled_steps(options.trajectories))
    print(f"{'source':20} steps  mean absolute error  error <= 0.02")
    for source in ("mini-swe-agent-v1", "swe-agent", "openhands-v0", "live", ""):
        errors = [step.error for step in steps if step.successor.startswith(source)]
        if errors:
            exact = sum(error <= 0.02 for error in errors)
            print(f"{source or 'all':20} {len(errors):5}  {mean(errors):19.3f}  {exact:13}")
    for step in sorted(steps, key=lambda step: -step.error) if options.errors else ():
        if step.error > 0.1:
            print(
                f"{step.successor} event {step.event}: labelled {step.labelled:.2f}, measured {step.measured:.2f}"
            )


if __name__ == "__main__":
    main()
