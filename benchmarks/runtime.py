"""Cost of a step of the runtime, compared with other agent loops, and its growth with the number of steps.

A step is one answer of an instant model and one command, both on disk before the next step. Every figure is a median
over rounds in which the loops alternate; so are the ratios. The long run is made three times, the longest once. All loops
run on one core: on several cores, the time of a step varies more between minutes than between loops. Growth is measured in
processor time of this process. Because that drifts too, the last steps of a long run take turns with the first of a new
one.

The model is called without LangChain's handling of the conversation, which takes about 1.6 µs per message. One figure
includes it.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer
from langchain_core.messages import AIMessage
from pydantic import Field, PrivateAttr

from benchmarks.agent_loops import time_mini_swe_agent, time_react_loop
from benchmarks.figures import Goal, format_count, print_figures, run_command
from benchmarks.models import DirectModel, InstantModel
from benchmarks.testbed import make_spec
from benchmarks.turns import AsJson, Comparison, Operation, Rounds, measure_in_turns, open_work_directory
from langgraph_takeover import open_home, open_run

_COMPARED_STEPS, _LONG_ROUNDS = 100, 3
_LONG_COMMAND = "printf '%02048d' 0"


class AlternatingModel(DirectModel):
    """Takes turns with the model of another run from its call `first` on, and measures these steps."""

    first: int
    begins: bool
    """Whether this run gives the other its first turn."""
    processor: list[float] = Field(default_factory=list)
    """Processor time of each measured step in this process, without commands; in seconds."""
    _turn: threading.Semaphore = PrivateAttr(default_factory=lambda: threading.Semaphore(0))
    _other: AlternatingModel = PrivateAttr()
    _started: float | None = PrivateAttr(default=None)

    def alternate_with(self, other: AlternatingModel) -> None:
        self._other, other._other = other, self

    def leave(self) -> None:
        """Let the other run go on without this one."""
        self._other._turn.release(self._other.steps + 1)

    def invoke(self, input: Any, config: Any = None, **settings: Any) -> AIMessage:
        if len(self.call_times) >= self.first:
            if self._started is not None:
                self.processor.append(time.process_time() - self._started)
            if self._started is not None or self.begins:
                self._other._turn.release()
            self._turn.acquire()
            self._started = time.process_time()
        return super().invoke(input, config, **settings)


class RunTiming(NamedTuple):
    """Costs of one run of this runtime."""

    steps: list[float]
    """Seconds of each step except the first."""
    trace: int
    """Size of the texts of all events in bytes."""
    database: int
    """Size of the database in bytes."""
    resume: float
    """Seconds to load the state of a finished run."""


def time_runtime(model: InstantModel) -> RunTiming:
    """Make a whole run with this model, and reopen it."""
    with open_work_directory() as work:
        spec = make_spec(work / "base", files=1)
        agent: Any = {"model": model, "sandbox": spec, "points": (), "max_steps": model.steps + 1}
        with open_home(work / "home") as home:
            with open_run(home, "run", **agent) as run:
                done = run.start("benchmark", "Run it.")
            start = time.perf_counter()
            with open_run(home, "run", **agent) as run:
                assert run.resume().steps == done.steps == model.steps + 1
            resume = time.perf_counter() - start
        database = sum(path.stat().st_size for path in work.glob("home/takeover.sqlite*"))
    trace = sum(len(event.text.encode()) for event in done.events)
    steps = [later - earlier for earlier, later in pairwise(model.call_times[1:])]
    return RunTiming(steps, trace, database, resume)


def measure_growth(steps: int) -> dict[str, float]:
    """Costs of a long run: of one of its last steps, and of one of the first steps of a new run in turns with them."""
    late = AlternatingModel(command=_LONG_COMMAND, steps=steps, first=steps - _COMPARED_STEPS, begins=True)
    early = AlternatingModel(command=_LONG_COMMAND, steps=_COMPARED_STEPS, first=0, begins=False)
    late.alternate_with(early)

    def time_run(model: AlternatingModel) -> RunTiming:
        try:
            return time_runtime(model)
        finally:
            model.leave()

    with ThreadPoolExecutor() as threads:
        long, _ = threads.map(time_run, (late, early))
    return {
        "late": statistics.median(late.processor),
        "early": statistics.median(early.processor),
        "trace": long.trace,
        "database": long.database,
        "resume": long.resume,
    }


def main(
    steps: Annotated[int, typer.Option(min=3, help="Steps of the compared runs.")] = 100,
    long_steps: Annotated[
        int, typer.Option(min=2 * _COMPARED_STEPS, help="Steps of the long run, for growth.")
    ] = 2000,
    longest_steps: Annotated[
        int, typer.Option(min=2 * _COMPARED_STEPS, help="Steps of the longest run, which is made once.")
    ] = 10_000,
    rounds: Rounds = 5,
    peer_python: Annotated[
        str,
        typer.Option(help="Python interpreter with mini-swe-agent. Default: this one.", show_default=False),
    ] = sys.executable,
    as_json: AsJson = False,
) -> None:
    """Measure the runtime's overhead per step, and its growth with the number of steps."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    def time_step(command: str, kind: type[InstantModel] = DirectModel) -> Operation:
        return lambda _: statistics.fmean(time_runtime(kind(command=command, steps=steps)).steps)

    samples = measure_in_turns(
        rounds,
        {
            "mini": lambda _: time_mini_swe_agent(steps, peer_python),
            "runtime": time_step("true"),
            "react": lambda _: time_react_loop(steps),
            "langchain": time_step("true", InstantModel),
            "effect": time_step("date >> log.txt"),
        },
    )
    measure_in_turns(min(rounds, _LONG_ROUNDS), {"long": lambda _: measure_growth(long_steps)}, samples)
    measure_in_turns(1, {"longest": lambda _: measure_growth(longest_steps)}, samples)
    late, first = (
        f"processor time of a step with 2 KB of output: the last {_COMPARED_STEPS} of",
        f"the first {_COMPARED_STEPS}",
    )
    database = f"database after {long_steps:,} steps"
    mini, react = "mini-swe-agent, saving each step", "a bare LangGraph ReAct loop"
    figures = samples.compare(
        Comparison("step", "runtime", "mini", mini, Goal(0.7, "ratio"), paired=True),
        Comparison("step", "runtime", "react", react, paired=True),
        Comparison("step, with LangChain's handling of messages", "langchain"),
        Comparison("step with a file change, followed by a snapshot", "effect"),
        Comparison(f"reopening a run of {long_steps:,} steps", "long_resume"),
        Comparison(
            f"{late} {long_steps:,}", "long_late", "long_early", first, Goal(1.1, "ratio"), growth=True
        ),
        Comparison(
            f"{late} {longest_steps:,}",
            "longest_late",
            "longest_early",
            first,
            Goal(1.25, "ratio"),
            growth=True,
        ),
        Comparison(database, "long_database", "long_trace", "raw trace", Goal(6, "ratio"), "MB", growth=True),
    )
    title = f"medians of {format_count(rounds, 'round')}; runs of {steps} steps, `true`, on 1 core"
    print_figures(title, figures, as_json=as_json)


if __name__ == "__main__":
    run_command(main)
