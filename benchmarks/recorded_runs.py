"""Recorded runs for benchmarks: given ones, those next to the checkout, or new ones by the built-in model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from benchmarks.figures import format_count, print_progress, refuse
from benchmarks.host import ROOT, run_python
from langgraph_takeover.evals.cli.trace_files import UnknownTraceError, find_trace_files, read_traces
from langgraph_takeover.handoff.trace.events import Trace

_DEFAULT_DIRECTORY = ROOT.parent / "shared" / "trajectories"
HELP = (
    "Recorded runs. Default: shared/trajectories beside the checkout if it exists, else new runs of bundled tasks by the "
    "built-in model."
)
Traces = Annotated[list[str] | None, typer.Argument(help=HELP, metavar="TRACE…", show_default=False)]


class RecordedRuns(NamedTuple):
    files: tuple[Path, ...]
    traces: tuple[Trace, ...]

    @property
    def events(self) -> int:
        return sum(len(trace.events) for trace in self.traces)

    def __str__(self) -> str:
        return f"{format_count(len(self.traces), 'recorded run')} of {format_count(self.events, 'event')}"


@contextmanager
def open_recorded_runs(sources: Sequence[str] | None) -> Iterator[RecordedRuns]:
    """Open the runs and report unreadable ones; exit if none is readable."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as work:
        if not sources and _DEFAULT_DIRECTORY.is_dir():
            sources = [str(_DEFAULT_DIRECTORY)]
        elif not sources:
            print_progress("no recorded runs: recording two bundled tasks with the built-in model")
            options = ["--limit", "2", "--sandbox", "process", "--stages", "predecessors", "--view", "trace"]
            run_python("-m", "evals.takeover", "--out", f"{work}/run", *options)
            sources = [f"{work}/run/traces"]
        try:
            files = find_trace_files(sources)
            traces = [trace for _, trace in read_traces(files, "auto")]
        except UnknownTraceError as error:
            refuse(str(error))
        if not traces:
            refuse(f"no readable trace in {', '.join(sources)}")
        yield RecordedRuns(tuple(files), tuple(traces))
