"""Speed of reading recorded runs and detecting their handoff points, compared with parsing alone.

Every figure is a median over the rounds of one run, on one core, with empty detector caches in each round. Compared
operations alternate within a round.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer

from benchmarks.figures import Figure, Goal, format_count, print_figures, print_progress, run_command
from benchmarks.recorded_runs import HELP, open_recorded_runs
from langgraph_takeover.evals.cli.trace_files import read_traces
from langgraph_takeover.handoff.points import detectors, validation
from langgraph_takeover.handoff.shell import command_effects, syntax, syntax_reader
from langgraph_takeover.handoff.trace.events import Trace

_GOAL = 50_000
_EPILOG = """Examples:

python benchmarks/detection.py

python benchmarks/detection.py DIR

python benchmarks/detection.py runs/*/traces --rounds 20 --json
"""
_ACTION_PATTERN = re.compile(
    r"pytest|unittest|runtests|tox|make|npm|cargo|go test|mypy|ruff|sed -i|cat >|\bpatch\b"
)
_FAILURE_PATTERN = re.compile(r"\b(?:FAILED|FAIL|ERROR|Error|Traceback|failed)\b")


def _clear_caches() -> None:
    for cached in (command_effects.find_effect, syntax_reader.read_line, validation._list_runs):
        cached.cache_clear()


def _detect(traces: Sequence[Trace]) -> None:
    for trace in traces:
        detectors.list_points(trace.events, trace.base_directories, trace.workspace)


def _shell_commands(traces: Sequence[Trace]) -> list[str]:
    shell = (e for trace in traces for e in trace.events if e.kind == "action" and e.tool == "shell")
    return [event.arguments.get("command", "") for event in shell]


def _measure(traces: Sequence[Trace], files: Sequence[Path], rounds: int) -> dict[str, float]:
    """Median seconds by name."""
    texts = _shell_commands(traces)
    events = [event for trace in traces for event in trace.events]
    contents = [(path, path.read_bytes()) for path in files if path.is_file()]
    documents = [content.splitlines() if path.suffix == ".jsonl" else [content] for path, content in contents]

    def search_patterns() -> None:
        for event in events:
            (_ACTION_PATTERN if event.kind == "action" else _FAILURE_PATTERN).search(event.text)

    operations: dict[str, Callable[[], object]] = {
        "detect": lambda: _detect(traces),
        "read": lambda: list(read_traces(files, "auto")),
        "grammar": lambda: [syntax.parse_syntax_tree(text) for text in texts],
        "parse": lambda: [syntax_reader.parse_command(text) for text in texts],
        "patterns": search_patterns,
        "json": lambda: [_parse_json(line) for document in documents for line in document],
    }
    durations: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        for name, operation in operations.items() if number % 2 else reversed(operations.items()):
            _clear_caches()
            start = time.process_time()
            operation()
            if number:  # the first round is a warm-up
                durations[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in durations.items()}


def _parse_json(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _build_figures(rates: dict[str, float]) -> Iterator[Figure]:
    """Each operation, compared with a limit or peer that does part of its work."""
    detection, reading = "detection of handoff points", "reading files and inferring edits"
    for name, operation, reference, reference_name, goal in (
        (
            detection,
            "detect",
            "parse",
            "limit: parsing every command line",
            Goal(_GOAL, at_least=True),
        ),
        (detection, "detect", "grammar", "limit: the shell grammar on every command line", None),
        (detection, "detect", "patterns", "peer: two patterns over the texts", None),
        (reading, "read", "json", "limit: decoding the files' JSON", None),
    ):
        yield Figure(name, "events/s", rates[operation], rates[reference], reference_name, goal)


def main(
    traces: Annotated[
        list[str] | None, typer.Argument(help=HELP, metavar="TRACE…", show_default=False)
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds; figures are medians.")] = 7,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure the speed of reading runs and detecting their handoff points."""
    with open_recorded_runs(traces or ()) as runs:
        print_progress(f"{runs}, {format_count(rounds, 'round')}")
        durations = _measure(runs.traces, runs.files, rounds)
    rates = {name: runs.events / seconds for name, seconds in durations.items()}
    print_figures(
        f"{runs}; medians of {format_count(rounds, 'round')}, one core",
        _build_figures(rates),
        as_json=as_json,
    )


if __name__ == "__main__":
    run_command(main, _EPILOG)
