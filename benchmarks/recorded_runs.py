"""Recorded runs for benchmarks: given ones, those next to the checkout, or new ones by the built-in model."""

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
HELP = (
    "Recorded runs. Default: shared/trajectories beside the checkout if it exists, else new runs of bundled tasks by the "
    "built-in model."
)


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
    """Open the runs and report unreadable ones; exit if none is readable."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as work:
        if not sources:
            sources = (
                (str(_DEFAULT_DIRECTORY),)
                if _DEFAULT_DIRECTORY.is_dir()
                else (_record_bundled_runs(Path(work)),)
            )
        try:
            files = find_trace_files(sources)
            traces = [trace for _, trace in read_traces(files, "auto")]
        except UnknownTraceError as error:
            refuse(str(error))
        if not traces:
            refuse(f"no readable trace in {', '.join(sources)}")
        yield RecordedRuns(tuple(files), tuple(traces))


def _record_bundled_runs(directory: Path) -> str:
    print_progress("no recorded runs: recording two bundled tasks with the built-in model")
    options = ["--limit", "2", "--sandbox", "process", "--stages", "predecessors", "--view", "trace"]
    done = subprocess.run(
        [sys.executable, "-m", "evals.takeover", "--out", str(directory / "run"), *options],
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        refuse(f"recording runs failed with exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return str(directory / "run" / "traces")
