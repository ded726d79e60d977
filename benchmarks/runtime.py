"""Cost of a step of the runtime, compared with other agent loops, and its growth with the number of steps.

A step is one answer of an instant model and one command, both on disk before the next step. Every figure is a median
over rounds in which the loops alternate; so are the ratios. The long run is made three times, the longest once. All loops
run on one core unless --all-cores is given: on several cores, the time of a step varies more between minutes than between
loops. Growth is measured in processor time of this process. Because that drifts too, the last steps of a long run take
turns with the first of a new one.

The model is called without LangChain's handling of the conversation, which takes about 1.6 µs per message. One figure
includes it.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field, PrivateAttr

from benchmarks.agent_loops import PeerUnavailableError, build_command, time_mini_swe_agent, time_react_loop
from benchmarks.figures import Figure, Goal, format_count, print_figures, print_progress, run_command
from benchmarks.testbed import make_testbed
from langgraph_takeover import open_home, open_run, sandbox
from langgraph_takeover.sandbox.interface import SandboxSpec

_COMPARED_STEPS, _OBSERVATION_BYTES = 100, 2048
_LONG_ROUNDS = 3
_LONG_LIMIT, _LONGEST_LIMIT = 1.1, 1.25
"""Goals: the cost of a step late in the long and the longest run, compared with one of the first."""
_EPILOG = """Examples:

python benchmarks/runtime.py

python benchmarks/runtime.py --rounds 9 --peer-python ~/mini-swe-agent/bin/python --json

python benchmarks/runtime.py --all-cores

python benchmarks/runtime.py --database postgresql://postgres@127.0.0.1:5432/fresh
"""


class InstantModel(BaseChatModel):
    """Requests the same command `steps` times, and records the times of its calls."""

    command: str
    steps: int
    call_times: list[float] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "instant"

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        self.call_times.append(time.perf_counter())
        done = len(self.call_times) > self.steps
        text = "<finish>Done.</finish>" if done else f"```bash\n{self.command}\n```"
        usage: Any = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text, usage_metadata=usage))])


class DirectModel(InstantModel):
    """The same model without LangChain's handling of the conversation."""

    def invoke(self, input: Any, config: Any = None, **_: Any) -> AIMessage:
        reply = self._generate(input).generations[0].message
        return AIMessage(reply.content, usage_metadata=getattr(reply, "usage_metadata", None))


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
    trace_bytes: int
    """Size of the texts of all events."""
    database_bytes: int
    resume_s: float
    """Seconds to load the state of a finished run."""


def time_runtime(
    steps: int,
    work: Path,
    shell_command: str,
    *,
    database: str | None = None,
    model: InstantModel | None = None,
) -> RunTiming:
    model = model or DirectModel(command=shell_command, steps=steps)
    directory = make_testbed(work / "base", files=1).directory
    spec = SandboxSpec(
        backend=sandbox.default_backend(allow_process=True), directory=directory, owner="benchmark"
    )
    bytes_before = _measure_database_bytes(work, database)
    with open_home(work / "home", database) as home:
        agent: Any = {"model": model, "sandbox": spec, "points": (), "max_steps": steps + 1}
        with open_run(home, work.name, **agent) as run:
            done = run.start("benchmark", "Run it.")
        start = time.perf_counter()
        with open_run(home, work.name, **agent) as run:
            assert run.resume().steps == done.steps == steps + 1
        resume_s = time.perf_counter() - start
    trace_bytes = sum(len(event.text.encode()) for event in done.events)
    steps_s = [later - earlier for earlier, later in pairwise(model.call_times[1:])]
    database_bytes = _measure_database_bytes(work, database) - bytes_before
    return RunTiming(steps_s, trace_bytes, database_bytes, resume_s)


class Growth(NamedTuple):
    """Costs of a long run, and of a new one that took turns with its last steps."""

    long: RunTiming
    late: float
    """Processor time of one of the last steps of the long run in this process, in seconds; the median."""
    early: float
    """The same of one of the first steps of a new run."""


def measure_growth(steps: int, work: Path, *, database: str | None = None) -> Growth:
    command = build_command(_OBSERVATION_BYTES)
    late = AlternatingModel(command=command, steps=steps, first=steps - _COMPARED_STEPS, begins=True)
    early = AlternatingModel(command=command, steps=_COMPARED_STEPS, first=0, begins=False)
    late.alternate_with(early)

    def time_run(model: AlternatingModel, name: str) -> RunTiming:
        try:
            directory = work / name
            directory.mkdir()
            return time_runtime(model.steps, directory, command, database=database, model=model)
        finally:
            model.leave()

    with ThreadPoolExecutor() as threads:
        runs = [threads.submit(time_run, late, "long"), threads.submit(time_run, early, "new")]
        long, _ = [each.result() for each in runs]
    return Growth(long, statistics.median(late.processor), statistics.median(early.processor))


def _measure_database_bytes(work: Path, database: str | None) -> int:
    if database is None:
        return sum(path.stat().st_size for path in work.glob("home/takeover.sqlite*"))
    from sqlalchemy import create_engine, text

    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        size = int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
    engine.dispose()
    return size


def _measure(
    steps: int, long_steps: int, longest_steps: int, rounds: int, peer_python: str, database: str | None
) -> tuple[dict[str, float], dict[str, str]]:
    """Measure seconds by name and the sizes of the long run; also return the reasons for missing peers."""

    def time_steps(command: str, kind: type[InstantModel] = DirectModel) -> Callable[[Path], float]:
        return lambda work: statistics.fmean(
            time_runtime(
                steps, work, command, database=database, model=kind(command=command, steps=steps)
            ).steps
        )

    loops: dict[str, Callable[[Path], float]] = {
        "mini": lambda work: time_mini_swe_agent(steps, work, python=peer_python),
        "runtime": time_steps("true"),
        "react": lambda work: time_react_loop(steps, work),
        "runtime_with_langchain": time_steps("true", InstantModel),
        "runtime_with_effect": time_steps("date >> log.txt"),
    }
    samples: dict[str, list[float]] = {name: [] for name in loops}
    reasons: dict[str, str] = {}
    for number in range(rounds):
        print_progress(f"round {number + 1} of {rounds}")
        for name, loop in loops.items() if number % 2 == 0 else reversed(loops.items()):
            with tempfile.TemporaryDirectory(prefix="benchmark-", dir="/var/tmp") as work:
                gc.collect()
                try:
                    samples[name].append(loop(Path(work)))
                except PeerUnavailableError as error:
                    reasons[name] = str(error)
    medians = {name: statistics.median(seconds) for name, seconds in samples.items() if seconds}
    # The speed of a host drifts, so compute ratios per round.
    for peer in ("mini", "react"):
        if len(samples[peer]) == rounds:
            pairs = zip(samples["runtime"], samples[peer], strict=True)
            medians[f"step_over_{peer}"] = statistics.median(own / other for own, other in pairs)
    long_runs = [long_steps] * min(rounds, _LONG_ROUNDS) + [longest_steps]
    growth: dict[int, list[Growth]] = {}
    for number, length in enumerate(long_runs, 1):
        print_progress(f"long run {number} of {len(long_runs)}: {length:,} steps")
        with tempfile.TemporaryDirectory(prefix="benchmark-", dir="/var/tmp") as work:
            gc.collect()
            growth.setdefault(length, []).append(measure_growth(length, Path(work), database=database))
    long, (longest,) = growth[long_steps], growth[longest_steps]
    medians |= {
        "early": statistics.median(each.early for each in long),
        "late": statistics.median(each.late for each in long),
        "earliest": longest.early,
        "latest": longest.late,
        "trace": statistics.median(each.long.trace_bytes for each in long),
        "database": statistics.median(each.long.database_bytes for each in long),
        "resume": statistics.median(each.long.resume_s for each in long),
    }
    return medians, reasons


def _build_figures(
    medians: dict[str, float], reasons: dict[str, str], long_steps: int, longest_steps: int
) -> Iterator[Figure]:
    ms = {name: seconds * 1e3 for name, seconds in medians.items()}
    for peer, title, goal in (
        ("mini", "mini-swe-agent, saving each step", Goal(0.7, "ratio")),
        ("react", "a bare LangGraph ReAct loop", None),
    ):
        paired, missing = medians.get(f"step_over_{peer}"), reasons.get(peer, "")
        yield Figure("step", "ms", ms["runtime"], ms.get(peer), title, goal, paired=paired, missing=missing)
    yield Figure("step, with LangChain's handling of messages", "ms", ms["runtime_with_langchain"])
    yield Figure("step with a file change, followed by a snapshot", "ms", ms["runtime_with_effect"])
    yield Figure(f"reopening a run of {long_steps:,} steps", "ms", ms["resume"])
    for late, early, length, limit in (
        ("late", "early", long_steps, _LONG_LIMIT),
        ("latest", "earliest", longest_steps, _LONGEST_LIMIT),
    ):
        yield Figure(
            f"processor time of a step with 2 KB of output: the last {_COMPARED_STEPS} of {length:,}",
            "ms",
            ms[late],
            ms[early],
            f"the first {_COMPARED_STEPS}",
            Goal(limit, "ratio"),
            growth=True,
        )
    yield Figure(
        f"database after {long_steps:,} steps",
        "MB",
        medians["database"] / 1e6,
        medians["trace"] / 1e6,
        "raw trace",
        Goal(6, "ratio"),
        growth=True,
    )


def main(
    steps: Annotated[int, typer.Option(min=3, help="Steps of the compared runs.")] = 100,
    long_steps: Annotated[
        int, typer.Option(min=2 * _COMPARED_STEPS, help="Steps of the long run, for growth.")
    ] = 2000,
    longest_steps: Annotated[
        int, typer.Option(min=2 * _COMPARED_STEPS, help="Steps of the longest run, which is made once.")
    ] = 10_000,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds; figures are medians.")] = 5,
    peer_python: Annotated[
        str,
        typer.Option(help="Python interpreter with mini-swe-agent. Default: this one.", show_default=False),
    ] = sys.executable,
    database: Annotated[
        str | None,
        typer.Option(help="URL of an empty PostgreSQL database. Default: SQLite.", show_default=False),
    ] = None,
    all_cores: Annotated[bool, typer.Option("--all-cores", help="Use all cores instead of one.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure the runtime's overhead per step, and its growth with the number of steps."""
    if not all_cores:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    cores = len(os.sched_getaffinity(0))
    medians, reasons = _measure(steps, long_steps, longest_steps, rounds, peer_python, database)
    title = f"medians of {format_count(rounds, 'round')}; runs of {steps} steps, `true`, on {format_count(cores, 'core')}"
    print_figures(title, _build_figures(medians, reasons, long_steps, longest_steps), as_json=as_json)


if __name__ == "__main__":
    run_command(main, _EPILOG)
