"""How fast recorded runs are read and their handoff points found, beside what parsing alone would take.

Every figure is a median over the rounds of one run, on one core, with every cache of the detectors emptied
before each round; what is compared takes turns within a round.
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

# In this directory a file may have the name of a package.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer

from benchmarks.figures import Figure, Goal, format_count, print_figures, print_progress, run_command
from benchmarks.recorded import HELP, open_recorded_runs
from langgraph_takeover.evals.cli.trace_files import read_traces
from langgraph_takeover.handoff.points import detectors, validation
from langgraph_takeover.handoff.shell import command_effects, command_parser, syntax
from langgraph_takeover.handoff.trace.events import Trace

_GOAL = 50_000
_EPILOG = """Examples:

python benchmarks/detection.py

python benchmarks/detection.py ../shared/trajectories

python benchmarks/detection.py runs/*/traces --rounds 20 --json
"""
_ACTION_PATTERN = re.compile(
    r"pytest|unittest|runtests|tox|make|npm|cargo|go test|mypy|ruff|sed -i|cat >|\bpatch\b"
)
_FAILURE_PATTERN = re.compile(r"\b(?:FAILED|FAIL|ERROR|Error|Traceback|failed)\b")


def _clear_caches() -> None:
    for cached in (command_effects.find_effect, command_parser.parse_command, validation._list_runs):
        cached.cache_clear()


def _detect(traces: Sequence[Trace]) -> None:
    for trace in traces:
        detectors.list_points(trace.events, trace.base_directories, trace.workspace)


def _shell_commands(traces: Sequence[Trace]) -> list[str]:
    shell = (e for trace in traces for e in trace.events if e.kind == "action" and e.tool == "shell")
    return [event.arguments.get("command", "") for event in shell]


def _measure(traces: Sequence[Trace], files: Sequence[Path], rounds: int) -> dict[str, float]:
    """Seconds by name, medians."""
    texts = _shell_commands(traces)
    events = [event for trace in traces for event in trace.events]
    read = [(path, path.read_bytes()) for path in files if path.is_file()]
    raw = [one.splitlines() if path.suffix == ".jsonl" else [one] for path, one in read]

    def search_patterns() -> None:
        for event in events:
            (_ACTION_PATTERN if event.kind == "action" else _FAILURE_PATTERN).search(event.text)

    ways: dict[str, Callable[[], object]] = {
        "detect": lambda: _detect(traces),
        "read": lambda: list(read_traces(files, "auto")),
        "grammar": lambda: [syntax.parse_syntax_tree(text) for text in texts],
        "parse": lambda: [command_parser.parse_command(text) for text in texts],
        "patterns": search_patterns,
        "json": lambda: [_parse_json(line) for one in raw for line in one],
    }
    taken: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        for name, way in ways.items() if number % 2 else reversed(ways.items()):
            _clear_caches()
            began = time.process_time()
            way()
            if number:  # the first round only warms up
                taken[name].append(time.process_time() - began)
    return {name: statistics.median(values) for name, values in taken.items()}


def _parse_json(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _build_figures(rates: dict[str, float]) -> Iterator[Figure]:
    """Every limit and peer beside what of ours does that work among other."""
    found, read = "handoff points found", "files read, edits inferred"
    for what, ours, peer, title, goal in (
        (
            found,
            "detect",
            "parse",
            "limit: every command line parsed, nothing else",
            Goal(_GOAL, at_least=True),
        ),
        (found, "detect", "grammar", "limit: the shell grammar alone on every command line", None),
        (found, "detect", "patterns", "peer: two patterns over the texts", None),
        (read, "read", "json", "limit: the files' JSON decoded", None),
    ):
        yield Figure(what, "events/s", rates[ours], rates[peer], title, goal)


def main(
    traces: Annotated[
        list[str] | None, typer.Argument(help=HELP, metavar="TRACE…", show_default=False)
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to take medians over.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, no table.")] = False,
) -> None:
    """Read runs and find their handoff points, again and again."""
    with open_recorded_runs(traces or ()) as found:
        print_progress(f"{found}, {format_count(rounds, 'round')}")
        taken = _measure(found.traces, found.files, rounds)
    rates = {name: found.events / seconds for name, seconds in taken.items()}
    print_figures(
        f"{found}; medians of {format_count(rounds, 'round')}, one core",
        _build_figures(rates),
        as_json=as_json,
    )


if __name__ == "__main__":
    run_command(main, _EPILOG)
