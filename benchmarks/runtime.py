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
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

# In this directory a file may have the name of a package.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from rich.console import Console
from rich.progress import track
from rich.table import Table

import sandbox
from benchmarks.loops import PeerUnavailable, command, mini, react
from graph import open_home, open_run
from sandbox.machine import SandboxSpec

_LONG, _SHORT, _OBSERVED = 2000, 100, 2048
_LONG_ROUNDS = 3
_LIMITS = {"step_over_mini": 0.7, "db_over_trace_2000": 6.0, "step_2000_over_100": 1.25}
_EPILOG = """Examples:

python benchmarks/runtime.py

python benchmarks/runtime.py --rounds 9 --peer-python ~/mini-swe-agent/bin/python --json

python benchmarks/runtime.py --all-cores

python benchmarks/runtime.py --database postgresql://postgres@127.0.0.1:5432/fresh
"""


class Instant(BaseChatModel):
    """Asks for one and the same command so many times, and notes when it was asked."""

    command: str
    steps: int
    asked: list[float]

    @property
    def _llm_type(self) -> str:
        return "instant"

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        self.asked.append(time.perf_counter())
        done = len(self.asked) > self.steps
        text = "<finish>Done.</finish>" if done else f"```bash\n{self.command}\n```"
        usage: Any = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text, usage_metadata=usage))])


class Undisturbed(Instant):
    """The same without what LangChain does with the conversation on the way."""

    def invoke(self, input: Any, config: Any = None, **_: Any) -> AIMessage:
        reply = self._generate(input).generations[0].message
        return AIMessage(reply.content, usage_metadata=getattr(reply, "usage_metadata", None))


class Taken(NamedTuple):
    """What one run of ours took."""

    steps: list[float]
    """Seconds of each step but the first."""
    trace: int
    """Bytes of what the agent said and saw."""
    database: int
    resumed: float
    """Seconds until the state of a run that ended is there again."""


def ours(
    steps: int, place: Path, asked: str, *, database: str | None = None, kind: type[Instant] = Undisturbed
) -> Taken:
    base = _repository(place / "base")
    model = kind(command=asked, steps=steps, asked=[])
    spec = SandboxSpec(backend=sandbox.default_backend(), directory=base, owner="benchmark")
    before = _size(place, database)
    with open_home(place / "home", database) as home:
        thread = place.name
        with open_run(home, thread, model=model, sandbox=spec, points=(), max_steps=steps + 1) as run:
            done = run.start("benchmark", "Run it.")
        began = time.perf_counter()
        with open_run(home, thread, model=model, sandbox=spec, points=(), max_steps=steps + 1) as run:
            assert run.resume().steps == done.steps == steps + 1
        resumed = time.perf_counter() - began
    trace = sum(len(event["text"].encode()) for event in done.state["events"])
    between = [later - earlier for earlier, later in zip(model.asked[1:], model.asked[2:], strict=False)]
    return Taken(between, trace, _size(place, database) - before, resumed)


def _repository(base: Path) -> Path:
    base.mkdir(parents=True)
    (base / "readme.txt").write_text("A repository.\n")
    git = ["git", "-C", str(base), "-c", "user.name=b", "-c", "user.email=b@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "base"]):
        subprocess.run([*git, *words], check=True)
    return base


def _size(place: Path, database: str | None) -> int:
    if database is None:
        return sum(path.stat().st_size for path in place.glob("home/takeover.sqlite*"))
    from sqlalchemy import create_engine, text

    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        size = int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
    engine.dispose()
    return size


def _measured(
    steps: int, rounds: int, peer_python: str, database: str | None
) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds by name, and the figures of the long run; why what is missing is missing."""

    def step(asked: str, kind: type[Instant] = Undisturbed) -> Callable[[Path], float]:
        return lambda place: statistics.fmean(ours(steps, place, asked, database=database, kind=kind).steps)

    loops: dict[str, Callable[[Path], float]] = {
        "mini": lambda place: mini(steps, place, python=peer_python),
        "ours": step("true"),
        "react": lambda place: react(steps, place),
        "ours_with_langchain": step("true", Instant),
        "ours_with_effect": step("date >> log.txt"),
    }
    taken: dict[str, list[float]] = {name: [] for name in loops}
    reasons: dict[str, str] = {}
    for number in track(range(rounds), "steps", console=Console(stderr=True), transient=True):
        for name, loop in loops.items() if number % 2 == 0 else reversed(loops.items()):
            with tempfile.TemporaryDirectory(prefix="benchmark-", dir="/var/tmp") as place:
                gc.collect()
                try:
                    taken[name].append(loop(Path(place)))
                except PeerUnavailable as error:
                    reasons[name] = str(error)
    found = {name: statistics.median(seconds) for name, seconds in taken.items() if seconds}
    # A machine's speed drifts: what ran side by side is compared first.
    for peer in ("mini", "react"):
        if taken[peer]:
            pairs = zip(taken["ours"], taken[peer], strict=True)
            found[f"step_over_{peer}"] = statistics.median(ours / theirs for ours, theirs in pairs)
    long: list[Taken] = []
    for _ in track(
        range(min(rounds, _LONG_ROUNDS)), f"{_LONG:,} steps", console=Console(stderr=True), transient=True
    ):
        with tempfile.TemporaryDirectory(prefix="benchmark-", dir="/var/tmp") as place:
            gc.collect()
            long.append(ours(_LONG, Path(place), command(_OBSERVED), database=database))
    figures: dict[str, Callable[[Taken], float]] = {
        "early": lambda taken: statistics.median(taken.steps[:_SHORT]),
        "late": lambda taken: statistics.median(taken.steps[-_SHORT:]),
        "trace": lambda taken: taken.trace,
        "database": lambda taken: taken.database,
        "resume": lambda taken: taken.resumed,
    }
    found |= {name: statistics.median(map(figure, long)) for name, figure in figures.items()}
    return found, reasons


def _ratios(found: dict[str, float]) -> dict[str, float]:
    side_by_side = {key: found[key] for key in ("step_over_mini", "step_over_react") if key in found}
    return side_by_side | {
        "db_over_trace_2000": found["database"] / found["trace"],
        "step_2000_over_100": found["late"] / found["early"],
    }


def _table(found: dict[str, float], reasons: dict[str, str], steps: int, cores: int) -> Table:
    ratios = _ratios(found)
    title = f"medians; runs of {steps} steps, `true`, on {cores} core{'s' if cores > 1 else ''}"
    table = Table("measure", "ours", "against", "ratio", "goal", title=title)
    for column in table.columns[1:]:
        column.justify = "right"

    def row(title: str, ours: str, against: str, key: str) -> None:
        limit = _LIMITS.get(key)
        goal = (
            "–"
            if limit is None or key not in ratios
            else f"{'yes' if ratios[key] <= limit else 'no'}, ≤ {limit:g}"
        )
        table.add_row(title, ours, against, f"{ratios[key]:.2f}" if key in ratios else "–", goal)

    def shown(name: str) -> str:
        return f"{found[name] * 1e3:.2f} ms" if name in found else reasons.get(name, "–")

    row("a step / mini-swe-agent, which saves each", shown("ours"), shown("mini"), "step_over_mini")
    row("a step / a bare LangGraph ReAct loop", shown("ours"), shown("react"), "step_over_react")
    table.add_row("  with LangChain's handling of the messages", shown("ours_with_langchain"), "–", "–", "–")
    table.add_row("  with an effect, its machine frozen after", shown("ours_with_effect"), "–", "–", "–")
    row("step 2,000 / step 100, of 2 KB", shown("late"), shown("early"), "step_2000_over_100")
    megabytes = {name: f"{found[name] / 1e6:.1f} MB" for name in ("database", "trace")}
    row("database / raw trace, 2,000 steps", megabytes["database"], megabytes["trace"], "db_over_trace_2000")
    table.add_row("opening a run of 2,000 steps again", shown("resume"), "–", "–", "–")
    return table


def main(
    steps: Annotated[int, typer.Option(min=3, help="Steps of the runs that are compared.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to take medians over.")] = 5,
    peer_python: Annotated[
        str, typer.Option(help="A Python that has mini-swe-agent. [default: this one]", show_default=False)
    ] = sys.executable,
    database: Annotated[
        str | None,
        typer.Option(help="URL of an empty PostgreSQL database. [default: SQLite]", show_default=False),
    ] = None,
    all_cores: Annotated[bool, typer.Option("--all-cores", help="Do not keep to one core.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Time the runtime's own share of a step, and how step and database grow to 2,000 steps."""
    if not all_cores:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    cores = len(os.sched_getaffinity(0))
    found, reasons = _measured(steps, rounds, peer_python, database)
    if as_json:
        told = {"ratios": _ratios(found), "measured": found, "cores": cores, "missing": reasons}
        print(json.dumps(told, indent=1))
        return
    Console(width=None if sys.stdout.isatty() else 120).print(_table(found, reasons, steps, cores))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=_EPILOG)(main)
    app()
