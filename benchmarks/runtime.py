"""What a step of the runtime costs, checkpointed and with its machine kept, beside other agents' loops, and how it grows.

A step is one answer of a model that needs no time and one command, both on disk before the next. Every figure is a
median over rounds in which the loops take turns, the ratios among them; the long run is made three times. All of it
runs on one core unless --all-cores says otherwise: with more, what a step takes differs from minute to minute by more
than the loops do.

The model here is asked without LangChain's own handling of a conversation, which takes about 1.6 µs for each message
there is; the table shows a run with it as well.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

# In this directory a file may have the name of a package.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from benchmarks.figures import Figure, Goal, format_count, print_figures, print_progress, run_command
from benchmarks.loops import PeerUnavailableError, build_command, time_mini_swe_agent, time_react_loop
from benchmarks.testbed import make_testbed
from langgraph_takeover import open_home, open_run, sandbox
from langgraph_takeover.sandbox.interface import SandboxSpec

_COMPARED_STEPS, _OBSERVATION_BYTES = 100, 2048
_LONG_ROUNDS = 3
_EPILOG = """Examples:

python benchmarks/runtime.py

python benchmarks/runtime.py --rounds 9 --peer-python ~/mini-swe-agent/bin/python --json

python benchmarks/runtime.py --all-cores

python benchmarks/runtime.py --database postgresql://postgres@127.0.0.1:5432/fresh
"""


class InstantModel(BaseChatModel):
    """Asks for one and the same command so many times, and notes when it was asked."""

    command: str
    steps: int
    call_times: list[float]

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
    """The same without what LangChain does with the conversation on the way."""

    def invoke(self, input: Any, config: Any = None, **_: Any) -> AIMessage:
        reply = self._generate(input).generations[0].message
        return AIMessage(reply.content, usage_metadata=getattr(reply, "usage_metadata", None))


class RunTiming(NamedTuple):
    """What one run of ours took."""

    steps: list[float]
    """Seconds of each step but the first."""
    trace_bytes: int
    """Bytes of what the agent said and saw."""
    database_bytes: int
    resume_s: float
    """Seconds until the state of a run that ended is there again."""


def time_runtime(
    steps: int,
    place: Path,
    shell_command: str,
    *,
    database: str | None = None,
    kind: type[InstantModel] = DirectModel,
) -> RunTiming:
    model = kind(command=shell_command, steps=steps, call_times=[])
    directory = make_testbed(place / "base", files=1).directory
    spec = SandboxSpec(backend=sandbox.default_backend(), directory=directory, owner="benchmark")
    before = _measure_database_bytes(place, database)
    with open_home(place / "home", database) as home:
        agent: Any = {"model": model, "sandbox": spec, "points": (), "max_steps": steps + 1}
        with open_run(home, place.name, **agent) as run:
            done = run.start("benchmark", "Run it.")
        began = time.perf_counter()
        with open_run(home, place.name, **agent) as run:
            assert run.resume().steps == done.steps == steps + 1
        resumed = time.perf_counter() - began
    trace = sum(len(event["text"].encode()) for event in done.state["events"])
    between = [
        later - earlier for earlier, later in zip(model.call_times[1:], model.call_times[2:], strict=False)
    ]
    return RunTiming(between, trace, _measure_database_bytes(place, database) - before, resumed)


def _measure_database_bytes(place: Path, database: str | None) -> int:
    if database is None:
        return sum(path.stat().st_size for path in place.glob("home/takeover.sqlite*"))
    from sqlalchemy import create_engine, text

    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        size = int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
    engine.dispose()
    return size


def _measure(
    steps: int, long_steps: int, rounds: int, peer_python: str, database: str | None
) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds by name, and the figures of the long run; why what is missing is missing."""

    def time_steps(asked: str, kind: type[InstantModel] = DirectModel) -> Callable[[Path], float]:
        return lambda place: statistics.fmean(
            time_runtime(steps, place, asked, database=database, kind=kind).steps
        )

    loops: dict[str, Callable[[Path], float]] = {
        "mini": lambda place: time_mini_swe_agent(steps, place, python=peer_python),
        "ours": time_steps("true"),
        "react": lambda place: time_react_loop(steps, place),
        "ours_with_langchain": time_steps("true", InstantModel),
        "ours_with_effect": time_steps("date >> log.txt"),
    }
    taken: dict[str, list[float]] = {name: [] for name in loops}
    reasons: dict[str, str] = {}
    for number in range(rounds):
        print_progress(f"round {number + 1} of {rounds}")
        for name, loop in loops.items() if number % 2 == 0 else reversed(loops.items()):
            with tempfile.TemporaryDirectory(prefix="benchmark-", dir="/var/tmp") as place:
                gc.collect()
                try:
                    taken[name].append(loop(Path(place)))
                except PeerUnavailableError as error:
                    reasons[name] = str(error)
    found = {name: statistics.median(seconds) for name, seconds in taken.items() if seconds}
    # A machine's speed drifts: what ran side by side is compared first.
    for peer in ("mini", "react"):
        if len(taken[peer]) == rounds:
            pairs = zip(taken["ours"], taken[peer], strict=True)
            found[f"step_over_{peer}"] = statistics.median(ours / theirs for ours, theirs in pairs)
    long: list[RunTiming] = []
    for number in range(min(rounds, _LONG_ROUNDS)):
        print_progress(f"{long_steps:,} steps, {number + 1} of {min(rounds, _LONG_ROUNDS)}")
        with tempfile.TemporaryDirectory(prefix="benchmark-", dir="/var/tmp") as place:
            gc.collect()
            long.append(
                time_runtime(long_steps, Path(place), build_command(_OBSERVATION_BYTES), database=database)
            )
    found |= {
        "early": statistics.median(statistics.median(each.steps[:_COMPARED_STEPS]) for each in long),
        "late": statistics.median(statistics.median(each.steps[-_COMPARED_STEPS:]) for each in long),
        "trace": statistics.median(each.trace_bytes for each in long),
        "database": statistics.median(each.database_bytes for each in long),
        "resume": statistics.median(each.resume_s for each in long),
    }
    return found, reasons


def _build_figures(found: dict[str, float], reasons: dict[str, str], long_steps: int) -> Iterator[Figure]:
    ms = {name: seconds * 1e3 for name, seconds in found.items()}
    for peer, title, goal in (
        ("mini", "mini-swe-agent, which saves each", Goal(0.7, "ratio")),
        ("react", "a bare LangGraph ReAct loop", None),
    ):
        paired, missing = found.get(f"step_over_{peer}"), reasons.get(peer, "")
        yield Figure("a step", "ms", ms["ours"], ms.get(peer), title, goal, paired=paired, missing=missing)
    yield Figure("a step with LangChain's handling of the messages", "ms", ms["ours_with_langchain"])
    yield Figure("a step with an effect, its machine frozen after", "ms", ms["ours_with_effect"])
    yield Figure(f"opening a run of {long_steps:,} steps again", "ms", ms["resume"])
    what, title = (
        f"a step: the last {_COMPARED_STEPS} of {long_steps:,}, of 2 KB",
        f"the first {_COMPARED_STEPS}",
    )
    yield Figure(what, "ms", ms["late"], ms["early"], title, Goal(1.25, "ratio"), growth=True)
    what, ours_mb, trace_mb = (
        f"database after {long_steps:,} steps",
        found["database"] / 1e6,
        found["trace"] / 1e6,
    )
    yield Figure(what, "MB", ours_mb, trace_mb, "raw trace", Goal(6, "ratio"), growth=True)


def main(
    steps: Annotated[int, typer.Option(min=3, help="Steps of the runs that are compared.")] = 100,
    long_steps: Annotated[
        int, typer.Option(min=2 * _COMPARED_STEPS, help="Steps of the run whose growth is measured.")
    ] = 2000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to take medians over.")] = 5,
    peer_python: Annotated[
        str, typer.Option(help="A Python that has mini-swe-agent. Default: this one.", show_default=False)
    ] = sys.executable,
    database: Annotated[
        str | None,
        typer.Option(help="URL of an empty PostgreSQL database. Default: SQLite.", show_default=False),
    ] = None,
    all_cores: Annotated[bool, typer.Option("--all-cores", help="Do not keep to one core.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, no table.")] = False,
) -> None:
    """Time the runtime's own share of a step, and how step and database grow with the steps."""
    if not all_cores:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    cores = len(os.sched_getaffinity(0))
    found, reasons = _measure(steps, long_steps, rounds, peer_python, database)
    title = f"medians of {format_count(rounds, 'round')}; runs of {steps} steps, `true`, on {format_count(cores, 'core')}"
    print_figures(title, _build_figures(found, reasons, long_steps), as_json=as_json)


if __name__ == "__main__":
    run_command(main, _EPILOG)
