"""Runs in one event loop: their time relative to the model's time, their throughput, and the lag of the loop.

Every run has its own sandbox, which is started before the time begins. The model waits for its reply like an endpoint; it is
no LLM. One part makes steps without effects, for which the ideal is the time of the model. Another part changes a file in
each step, which takes a snapshot, with an instant model: once as tasks of a loop, once as synchronous runs in a pool of
threads. The third part cancels all tasks in the middle of their steps.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

if __package__ in (None, ""):
    # Import from the checkout, unless PYTHONPATH names another one.
    sys.path.append(str(Path(__file__).resolve().parents[1]))

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from benchmarks.figures import Figure, print_progress
from benchmarks.testbed import make_testbed
from langgraph_takeover import Home, Run, open_home, open_run, sandbox
from langgraph_takeover.sandbox.interface import SandboxSpec

_PROBE_S = 0.005
_EPILOG = """Examples:

python benchmarks/async_runs.py

python benchmarks/async_runs.py --runs 20 --rounds 1 --json
"""


class WaitingModel(BaseChatModel):
    """Requests the same command in each of `steps` replies, after `reply_s` seconds."""

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
        is_done = sum(each.type == "ai" for each in messages) >= self.steps
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
    """What one measurement runs."""

    runs: int
    steps: int
    reply_s: float
    command: str


@contextmanager
def _open_runs(directory: Path, spec: SandboxSpec, size: Size) -> Any:
    """Open a home and its runs, each at its first call of the model, in a started sandbox."""
    model = WaitingModel(command=size.command, steps=size.steps, reply_s=size.reply_s)
    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        home: Home = stack.enter_context(open_home(directory))

        def begin(number: int) -> Run:
            run = stack.enter_context(
                open_run(home, f"run-{number}", model=model, sandbox=spec, max_steps=10_000)
            )
            task = {"task": {"id": "t", "prompt": "Work."}}
            run.agent.invoke(task, **run.options, interrupt_before=["think"])
            return run

        yield list(pool.map(begin, range(size.runs)))


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
    open("/tmp/w/async-tmp/go", "w").close()
    cpu = time.process_time()
    await work()
    print("cpu", time.process_time() - cpu)
    seconds = time.perf_counter() - started
    probing.cancel()
    return Timing(seconds, lags, most_threads)


def _time_tasks(directory: Path, spec: SandboxSpec, size: Size) -> Timing:
    async def finish_all() -> None:
        states = await asyncio.gather(*(run.agent.ainvoke(None, **run.options) for run in runs))
        assert [state["stop_reason"] for state in states] == ["finished"] * size.runs

    with _open_runs(directory, spec, size) as runs:
        return asyncio.run(_measure_loop(finish_all))


def _time_threads(directory: Path, spec: SandboxSpec, size: Size, threads: int) -> float:
    with _open_runs(directory, spec, size) as runs, ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        states = list(pool.map(lambda run: run.agent.invoke(None, **run.options), runs))
        seconds = time.perf_counter() - started
        assert [state["stop_reason"] for state in states] == ["finished"] * size.runs
        return seconds


def _time_cancellation(directory: Path, spec: SandboxSpec, size: Size) -> Timing:
    """Return the time in which all tasks end that are cancelled in the middle of a command."""

    async def cancel_all() -> Timing:
        tasks = [asyncio.create_task(run.agent.ainvoke(None, **run.options)) for run in runs]
        await asyncio.sleep(2.5 * size.reply_s)

        async def cancel() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        return await _measure_loop(cancel)

    with _open_runs(directory, spec, size) as runs:
        return asyncio.run(cancel_all())


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else 0.0


def measure(
    rounds: int, waiting: Size, acting: Size, threads: int, spec: SandboxSpec, root: Path
) -> list[Figure]:
    """Return the figures of all parts, medians over the rounds."""
    loops, effects, pools, cancelled = [], [], [], []
    for number in range(rounds):
        print_progress(f"round {number + 1} of {rounds}")
        loops.append(_time_tasks(root / f"waiting{number}", spec, waiting))
        effects.append(_time_tasks(root / f"acting{number}", spec, acting).seconds)
        pools.append(_time_threads(root / f"pool{number}", spec, acting, threads))
        cancelled.append(_time_cancellation(root / f"cancel{number}", spec, waiting))
    ideal = (waiting.steps + 1) * waiting.reply_s
    seconds = statistics.median(each.seconds for each in loops)
    lags = [lag for each in (*loops, *cancelled) for lag in each.lags]
    ratio = statistics.median(task / pool for task, pool in zip(effects, pools, strict=True))
    steps = acting.runs * acting.steps
    name = f"{waiting.runs} runs of {waiting.steps} steps without effects"
    return [
        Figure(name, seconds, "s"),
        Figure("its ratio to the model's own time", seconds / ideal, "x"),
        Figure("threads meanwhile, at most", max(each.threads for each in loops), ""),
        Figure("lag of the loop, p50, cancellation included", 1000 * _quantile(lags, 0.5), "ms"),
        Figure("lag of the loop, p99, cancellation included", 1000 * _quantile(lags, 0.99), "ms"),
        Figure("steps with a snapshot, in the loop", steps / statistics.median(effects), "/s"),
        Figure(f"steps with a snapshot, in {threads} threads", steps / statistics.median(pools), "/s"),
        Figure("time in the loop, relative to the threads", ratio, "x"),
        Figure("cancellation of all runs", statistics.median(each.seconds for each in cancelled), "s"),
    ]


if __name__ == "__main__":
    root = Path(tempfile.mkdtemp())
    bed = make_testbed(root / "repo", 100)
    spec = SandboxSpec(backend=sandbox.default_backend(allow_process=True), directory=bed.directory)
    mode = sys.argv[1]
    n = int(sys.argv[2])
    if mode == "wait":
        t = _time_tasks(root / "h", spec, Size(n, 10, 1.0, "ls"))
        print(
            t.seconds,
            "p50",
            _quantile(t.lags, 0.5),
            "p99",
            _quantile(t.lags, 0.99),
            max(t.lags),
            len(t.lags),
            "threads",
            t.threads,
        )
    elif mode == "act":
        t = _time_tasks(root / "h", spec, Size(n, 5, 0.0, "date +%N >> new.txt"))
        print(t.seconds, "p99", _quantile(t.lags, 0.99), "threads", t.threads)
    elif mode == "pool":
        print(_time_threads(root / "h", spec, Size(n, 5, 0.0, "date +%N >> new.txt"), int(sys.argv[3])))
    elif mode == "cancel":
        t = _time_cancellation(root / "h", spec, Size(n, 10, 1.0, "sleep 30"))
        print(t.seconds, "p99", _quantile(t.lags, 0.99), max(t.lags), len(t.lags))
