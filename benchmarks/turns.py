"""Measure operations in turns and compare their medians, as all benchmarks do."""

from __future__ import annotations

import contextlib
import gc
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import truediv
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from benchmarks.figures import Figure, Goal, print_progress

Rounds = Annotated[int, typer.Option(min=1, help="Number of rounds; figures are medians.")]
Files = Annotated[int, typer.Option(min=100, help="Number of files in the repository.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Operation = Callable[[int], float | Mapping[str, float] | None]
"""Measures something in the round of this number; returns one value or several by name."""
_NOT_MEASURED = "not measured"
_FACTORS = {"ms": 1e3, "µs": 1e6, "kB": 1e-3, "MB": 1e-6}


class UnavailableError(RuntimeError):
    """A program that this host lacks, or that does not work here."""


class Comparison(NamedTuple):
    """A figure to build: the median of the samples `value`, compared with that of the samples `reference`."""

    name: str
    value: str
    reference: str = ""
    reference_name: str = ""
    goal: Goal | None = None
    unit: str = "ms"
    growth: bool = False
    paired: bool = False
    """Whether the ratio is the median of the ratios per round, because the speed of a host drifts."""


class Samples:
    """Samples by name, in seconds or bytes, and the reasons for missing ones by the first part of their names."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = defaultdict(list)
        self.reasons: dict[str, str] = {}

    def add(self, name: str, value: float | Mapping[str, float] | None) -> None:
        if isinstance(value, Mapping):
            for part, each in value.items():
                self.values[f"{name}_{part}"].append(each)
        elif value is not None:
            self.values[name].append(value)

    def median(self, name: str) -> float | None:
        return statistics.median(self.values[name]) if self.values.get(name) else None

    @contextlib.contextmanager
    def measure_time(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - start)

    @contextlib.contextmanager
    def record_reason(self, name: str) -> Iterator[None]:
        """Record why the samples whose names begin like this cannot be measured."""
        try:
            yield
        except UnavailableError as error:
            self.reasons[name] = str(error)

    def compare(self, *comparisons: Comparison) -> Iterator[Figure]:
        """The measured figures, and the reason for missing ones, once unless they have a goal."""
        reported: set[str] = set()
        for each in comparisons:
            medians = {name: self.median(name) for name in (each.value, each.reference) if name}
            reason = next((self._find_reason(name) for name, value in medians.items() if value is None), "")
            if reason == _NOT_MEASURED or (reason and each.growth):
                continue
            if medians[each.value] is not None:
                if not reason or each.goal or reason not in reported:
                    yield self._build_figure(each, reason)
            elif reason not in reported:
                yield Figure(each.value.partition("_")[0], "", None, missing=reason)
            reported.add(reason)

    def _build_figure(self, comparison: Comparison, reason: str) -> Figure:
        factor = _FACTORS.get(comparison.unit, 1.0)
        value, reference = (
            None if median is None else median * factor
            for median in (self.median(comparison.value), self.median(comparison.reference))
        )
        values, references = self.values[comparison.value], self.values[comparison.reference]
        paired = None
        if comparison.paired and len(values) == len(references):
            paired = statistics.median(map(truediv, values, references))
        fields = comparison._asdict() | {"value": value, "reference": reference, "paired": paired}
        return Figure(**fields, missing=reason)

    def _find_reason(self, name: str) -> str:
        """The reason of the longest prefix of the name."""
        prefixes = [prefix for prefix in self.reasons if name.startswith(prefix)]
        return self.reasons[max(prefixes, key=len)] if prefixes else _NOT_MEASURED


def measure_in_turns(
    rounds: int, operations: Mapping[str, Operation], samples: Samples | None = None
) -> Samples:
    """Run each operation once per round, in the reverse order every second round; add its values to the samples.

    An operation that raises UnavailableError is left out from then on.
    """
    samples = samples or Samples()

    def measure(name: str, number: int) -> None:
        with samples.record_reason(name):
            samples.add(name, operations[name](number))

    for number in range(rounds):
        print_progress(f"round {number + 1} of {rounds}")
        available = [name for name in operations if name not in samples.reasons]
        take_turns(number, *(partial(measure, name, number) for name in available))
    return samples


def take_turns(number: int, *actions: Callable[[], object]) -> None:
    """Alternate the order between rounds, so that no side always benefits from warm caches."""
    for each in actions if number % 2 == 0 else reversed(actions):
        each()


@contextlib.contextmanager
def open_work_directory() -> Iterator[Path]:
    """A temporary directory on disk, after a collection of Python's garbage."""
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir="/var/tmp") as name:
        gc.collect()
        yield Path(name)
