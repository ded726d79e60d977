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

from benchmarks.figures import format_count, print_progress, refuse
from langgraph_takeover.evals.cli.trace_files import UnknownTraceError, find_trace_files, read_traces
from langgraph_takeover.handoff.trace.events import Trace

_ROOT = Path(__file__).resolve().parents[1]
_DEFAULT_DIRECTORY = _ROOT.parent / "shared" / "trajectories"
HELP = "Recorded runs. Default: ../shared/trajectories, or else runs of bundled tasks by the built-in model."


class RecordedRuns(NamedTuple):
    files: tuple[Path, ...]
    traces: tuple[Trace, ...]

    @property
    def events(self) -> int:
        return sum(len(trace.events) for trace in self.traces)

    def __str__(self) -> str:
        return f"{format_count(len(self.traces), 'recorded run')} of {format_count(self.events, 'event')}"


@contextmanager
def open_recorded_runs(sources: Sequence[str]) -> Iterator[RecordedRuns]:
    """The runs; what cannot be read is told, and that nothing can ends the program."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as place:
        if not sources:
            sources = (
                (str(_DEFAULT_DIRECTORY),)
                if _DEFAULT_DIRECTORY.is_dir()
                else (_record_bundled_runs(Path(place)),)
            )
        try:
            files = find_trace_files(sources)
            traces = [trace for _, trace in read_traces(files, "auto")]
        except UnknownTraceError as error:
            refuse(str(error))
        if not traces:
            refuse(f"no trace could be read of {', '.join(sources)}")
        yield RecordedRuns(tuple(files), tuple(traces))


def _record_bundled_runs(directory: Path) -> str:
    print_progress("no recorded runs: the built-in model makes some of two bundled tasks")
    asked = ["--limit", "2", "--sandbox", "process", "--stages", "predecessors", "--view", "trace"]
    done = subprocess.run(
        [sys.executable, "-m", "evals.takeover", "--out", str(directory / "run"), *asked],
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        refuse(f"the built-in model's runs ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return str(directory / "run" / "traces")
