"""Recorded runs to measure with: those that are named, else those beside the checkout, else some that are made now."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.figures import counted, print_progress, refuse
from evals.trace_files import UnknownTrace, readable, trace_files
from handoff.trace import Trace

_ROOT = Path(__file__).resolve().parents[1]
_BESIDE = _ROOT.parent / "shared" / "trajectories"
HELP = "Recorded runs. Default: ../shared/trajectories, or else runs of bundled tasks by the built-in model."


class Recorded(NamedTuple):
    files: tuple[Path, ...]
    traces: tuple[Trace, ...]

    @property
    def events(self) -> int:
        return sum(len(trace.events) for trace in self.traces)

    def __str__(self) -> str:
        return f"{counted(len(self.traces), 'recorded run')} of {counted(self.events, 'event')}"


@contextmanager
def open_recorded(given: Sequence[str]) -> Iterator[Recorded]:
    """The runs; what cannot be read is told, and that nothing can ends the program."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as place:
        if not given:
            given = (str(_BESIDE),) if _BESIDE.is_dir() else (_record_bundled_runs(Path(place)),)
        try:
            files = trace_files(given)
            traces = [trace for _, trace in readable(files, "auto")]
        except UnknownTrace as error:
            refuse(str(error))
        if not traces:
            refuse(f"no trace could be read of {', '.join(given)}")
        yield Recorded(tuple(files), tuple(traces))


def _record_bundled_runs(place: Path) -> str:
    print_progress("no recorded runs: the built-in model makes some of two bundled tasks")
    asked = ["--limit", "2", "--sandbox", "process", "--stages", "predecessors", "--view", "trace"]
    done = subprocess.run(
        [sys.executable, "-m", "evals.takeover", "--out", str(place / "run"), *asked],
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        refuse(f"the built-in model's runs ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return str(place / "run" / "traces")
