"""Runs in one event loop: their time relative to the model's time, their throughput, and the lag of the loop.

Every run has its own sandbox, which is started before the time begins. The model is a stub that waits like an endpoint,
not an LLM. One part makes steps without effects, for which the ideal is the time of the model. Another part changes a
file in each step, which takes a snapshot, with an instant model: once as tasks of a loop, once as synchronous runs in a
pool of threads. The third part cancels all tasks in the middle of their steps.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

# Import from the checkout, unless PYTHONPATH names another one to compare with.
sys.path.insert(
    1 if "PYTHONPATH" not in os.environ else len(sys.path), str(Path(__file__).resolve().parents[1])
)

import typer
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from benchmarks.figures import Figure, Goal, format_count, print_figures, print_progress, run_command
from benchmarks.testbed import make_testbed
from langgraph_takeover import Home, Run, open_home, open_run, sandbox
from langgraph_takeover.sandbox.interface import SandboxSpec

_PROBE_S = 0.005
_EPILOG = """Examples:

python benchmarks/async_runs.py

python benchmarks/async_runs.py --runs 20 --rounds 1 --json
"""


class WaitingModel(BaseChatModel):
    """Replies `steps` times, each after `reply_s` seconds: with the same command, at last with the end."""

    command: str
    steps: int
    reply_s: float

    @property
    def _llm_type(self) -> str:
        return "waiting"

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        time.sleep(self.reply_s)
        return self._reply(messages)

    async def _agenerate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        await asyncio.sleep(self.reply_s)
        return self._reply(messages)

    def _reply(self, messages: list[Any]) -> ChatResult:
        is_done = sum(each.type == "ai" for each in messages) + 1 >= self.steps
        text = "<finish>Done.</finish>" if is_done else f"```bash\n{self.command}\n```"
        usage: Any = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text, usage_metadata=usage))])


class Timing(NamedTuple):
    """The time of all runs together, and how late the loop's timers were meanwhile."""

    seconds: float
    lags: list[float]
    threads: int
    """Number of the process's threads at most."""


class Size(NamedTuple):
    """Number and length of the runs of one measurement."""

    runs: int
    steps: int
    reply_s: float
    command: str


@contextmanager
def _open_runs(directory: Path, spec: SandboxSpec, size: Size) -> Iterator[list[Run]]:
    """Open a home and its runs, each at its first call of the model, in a started sandbox."""
    model = WaitingModel(command=size.command, steps=size.steps, reply_s=size.reply_s)
    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        home: Home = stack.enter_context(open_home(directory))

        def begin(number: int) -> Run:
            run = stack.enter_context(
                open_run(home, f"run-{number}", model=model, sandbox=spec, max_steps=10_000)
            )
            task = {"task": {"id": "t", "prompt": "Work."}}
            run.agent.invoke(task, **_options(run), interrupt_before=["think"])
            return run

        yield list(pool.map(begin, range(size.runs)))


def _options(run: Run) -> Any:
    """Return the options of a graph's call, whose overloads a type checker cannot choose from."""
    return run.options


async def _measure_loop(work: Callable[[], Awaitable[Any]]) -> Timing:
    """Return the time of some work, while a task of the loop measures how late its timers are."""
    lags, most_threads = [], 0

    async def probe() -> None:
        nonlocal most_threads
        while True:
            due = time.perf_counter() + _PROBE_S
            await asyncio.sleep(_PROBE_S)
            lags.append(time.perf_counter() - due)
            most_threads = max(most_threads, threading.active_count())

    probing = asyncio.create_task(probe())
    started = time.perf_counter()
    await work()
    seconds = time.perf_counter() - started
    probing.cancel()
    return Timing(seconds, lags, most_threads)


def _time_tasks(directory: Path, spec: SandboxSpec, size: Size) -> Timing:
    async def finish_all() -> None:
        states = await asyncio.gather(*(run.agent.ainvoke(None, **_options(run)) for run in runs))
        assert [state["stop_reason"] for state in states] == ["finished"] * size.runs

    with _open_runs(directory, spec, size) as runs:
        return asyncio.run(_measure_loop(finish_all))


def _time_threads(directory: Path, spec: SandboxSpec, size: Size, threads: int) -> float:
    with _open_runs(directory, spec, size) as runs, ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        states = list(pool.map(lambda run: run.agent.invoke(None, **_options(run)), runs))
        seconds = time.perf_counter() - started
        assert [state["stop_reason"] for state in states] == ["finished"] * size.runs
        return seconds


def _time_cancellation(directory: Path, spec: SandboxSpec, size: Size) -> Timing:
    """Return the time until all tasks have ended that are cancelled in the middle of a command."""

    async def cancel_all() -> Timing:
        tasks = [asyncio.create_task(run.agent.ainvoke(None, **_options(run))) for run in runs]
        await asyncio.sleep(1.5 * size.reply_s + 1)

        async def cancel() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        return await _measure_loop(cancel)

    with _open_runs(directory, spec, size) as runs:
        return asyncio.run(cancel_all())


def _quantile(values: list[float], share: float) -> float:
    """Return a quantile of seconds, in milliseconds."""
    return 1000 * sorted(values)[min(int(len(values) * share), len(values) - 1)]


class Round(NamedTuple):
    """The measurements of one round."""

    idle_lags: list[float]
    waiting: Timing
    acting: Timing
    pool_s: float
    cancelled: Timing


def _measure_round(root: Path, spec: SandboxSpec, waiting: Size, acting: Size, threads: int) -> Round:
    idle = asyncio.run(_measure_loop(lambda: asyncio.sleep(2)))
    sleeping = waiting._replace(command="sleep 60")
    return Round(
        idle_lags=idle.lags,
        waiting=_time_tasks(root / "waiting", spec, waiting),
        acting=_time_tasks(root / "acting", spec, acting),
        pool_s=_time_threads(root / "pool", spec, acting, threads),
        cancelled=_time_cancellation(root / "cancelled", spec, sleeping),
    )


def _build_figures(rounds: list[Round], waiting: Size, acting: Size, threads: int) -> list[Figure]:
    ideal_s = waiting.steps * waiting.reply_s
    lags = [lag for each in rounds for lag in (*each.waiting.lags, *each.cancelled.lags)]
    idle = [lag for each in rounds for lag in each.idle_lags]
    steps = acting.runs * acting.steps
    return [
        Figure(
            f"{waiting.runs} runs of {waiting.steps} steps without effects",
            "s",
            statistics.median(each.waiting.seconds for each in rounds),
            ideal_s,
            "the model alone",
            Goal(2.5, "ratio"),
        ),
        *(
            Figure(
                f"lag of the loop, {name}",
                "ms",
                _quantile(lags, share),
                _quantile(idle, share),
                "idle loop",
                goal,
            )
            for name, share, goal in (("p50", 0.5, None), ("p99", 0.99, Goal(50)))
        ),
        Figure("maximum number of threads of the process", "", max(each.waiting.threads for each in rounds)),
        Figure(
            f"{acting.runs} runs of {acting.steps} steps with a snapshot",
            "steps/s",
            statistics.median(steps / each.acting.seconds for each in rounds),
            statistics.median(steps / each.pool_s for each in rounds),
            f"{threads} threads",
            Goal(0.8, "ratio", at_least=True),
            paired=statistics.median(each.pool_s / each.acting.seconds for each in rounds),
        ),
        Figure(
            f"end of {waiting.runs} cancelled runs, each in a command",
            "s",
            statistics.median(each.cancelled.seconds for each in rounds),
        ),
    ]


def main(
    runs: Annotated[int, typer.Option(min=1, help="Number of concurrent runs.")] = 100,
    steps: Annotated[int, typer.Option(min=3, help="Steps of a run without effects.")] = 10,
    reply_s: Annotated[float, typer.Option(min=0.01, help="Seconds per reply of the model.")] = 1.0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the synchronous runs.")] = 6,
    files: Annotated[int, typer.Option(min=1, help="Files of the repository.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds; figures are medians.")] = 3,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure runs in one event loop: time, lag, throughput, cancellation."""
    waiting = Size(runs, steps, reply_s, "ls")
    acting = Size(max(runs // 5, 1), steps, 0.0, "date +%N >> new.txt")
    measured = []
    with tempfile.TemporaryDirectory() as temporary:
        bed = make_testbed(Path(temporary) / "repository", files)
        spec = SandboxSpec(
            backend=sandbox.default_backend(allow_process=True), directory=bed.directory, owner="benchmark"
        )
        for number in range(rounds):
            print_progress(f"round {number + 1} of {rounds}")
            root = Path(temporary) / f"round-{number}"
            measured.append(_measure_round(root, spec, waiting, acting, threads))
    title = f"medians of {format_count(rounds, 'round')}; {spec.backend} sandboxes, {os.cpu_count()} cores"
    print_figures(title, _build_figures(measured, waiting, acting, threads), as_json=as_json)


if __name__ == "__main__":
    run_command(main, _EPILOG)
