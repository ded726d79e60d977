"""Speed of reading recorded runs and detecting their handoff points, compared with parsing alone.

Every figure is a median over the rounds of one run, on one core, with empty detector caches in each round. Compared
operations alternate within a round.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.figures import Goal, format_count, print_figures, print_progress, run_command
from benchmarks.recorded_runs import RecordedRuns, Traces, open_recorded_runs
from benchmarks.turns import AsJson, Comparison, Operation, Rounds, measure_in_turns
from langgraph_takeover.evals.cli.trace_files import read_traces
from langgraph_takeover.handoff.points import detectors, validation
from langgraph_takeover.handoff.shell import command_effects, syntax, syntax_reader
from langgraph_takeover.handoff.trace import file_kinds

_ACTION_PATTERN = re.compile(
    r"pytest|unittest|runtests|tox|make|npm|cargo|go test|mypy|ruff|sed -i|cat >|\bpatch\b"
)
_FAILURE_PATTERN = re.compile(r"\b(?:FAILED|FAIL|ERROR|Error|Traceback|failed)\b")
_CACHED_FUNCTIONS = (
    command_effects.find_effect,
    syntax.extract_heredocs,
    syntax_reader.read_line,
    validation._list_runs,
    file_kinds.is_code,
    file_kinds.is_generated,
    file_kinds.is_script,
    file_kinds.may_be_source,
)


def _list_operations(runs: RecordedRuns) -> dict[str, Callable[[], object]]:
    events = [event for trace in runs.traces for event in trace.events]
    actions = [event for event in events if event.kind == "action" and event.tool == "shell"]
    commands = [event.arguments.get("command", "") for event in actions]
    contents = [(path, path.read_bytes()) for path in runs.files if path.is_file()]
    documents = [content.splitlines() if path.suffix == ".jsonl" else [content] for path, content in contents]

    def detect() -> None:
        for trace in runs.traces:
            detectors.list_points(trace.events, trace.base_directories, trace.workspace)

    def search_patterns() -> None:
        for event in events:
            (_ACTION_PATTERN if event.kind == "action" else _FAILURE_PATTERN).search(event.text)

    return {
        "detect": detect,
        "read": lambda: list(read_traces(runs.files, "auto")),
        "grammar": lambda: [syntax.parse_syntax_tree(command) for command in commands],
        "parse": lambda: [syntax_reader.parse_command(command) for command in commands],
        "patterns": search_patterns,
        "json": lambda: [_parse_json(line) for document in documents for line in document],
    }


def _parse_json(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _measure_rate(operation: Callable[[], object], events: int) -> Operation:
    """Measure events per second of processor time, with empty caches."""

    def measure(_: int) -> float:
        for cached in _CACHED_FUNCTIONS:
            cached.cache_clear()
        start = time.process_time()
        operation()
        return events / (time.process_time() - start)

    return measure


def main(traces: Traces = None, rounds: Rounds = 7, as_json: AsJson = False) -> None:
    """Measure the speed of reading runs and detecting their handoff points."""
    with open_recorded_runs(traces) as runs:
        print_progress(str(runs))
        rates = {
            name: _measure_rate(operation, runs.events) for name, operation in _list_operations(runs).items()
        }
        for warm_up in rates.values():
            warm_up(0)
        samples = measure_in_turns(rounds, rates)
    detection, unit, goal = "detection of handoff points", "events/s", Goal(50_000, at_least=True)

    figures = samples.compare(
        Comparison(detection, "detect", "parse", "limit: parsing every command line", goal, unit),
        Comparison(
            detection, "detect", "grammar", "limit: the shell grammar on every command line", unit=unit
        ),
        Comparison(detection, "detect", "patterns", "peer: two patterns over the texts", unit=unit),
        Comparison(
            "reading files and inferring edits", "read", "json", "limit: decoding the files' JSON", unit=unit
        ),
    )
    print_figures(f"{runs}; medians of {format_count(rounds, 'round')}, one core", figures, as_json=as_json)


if __name__ == "__main__":
    run_command(main)
