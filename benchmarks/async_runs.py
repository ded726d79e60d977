"""Runs in one event loop: their time relative to the model's time, their throughput, and the lag of the loop.

Every run has its own sandbox, which is started before the time begins. The model is a stub that waits like an endpoint,
not an LLM. One part makes steps without effects, for which the ideal is the time of the model. Another part changes a
file in each step, which takes a snapshot, with an instant model: once as tasks of a loop, once as synchronous runs in a
pool of threads. The third part cancels all tasks in the middle of their steps.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer

from benchmarks.figures import Goal, format_count, print_figures, run_command
from benchmarks.models import InstantModel
from benchmarks.testbed import make_spec
from benchmarks.turns import AsJson, Comparison, Rounds, Samples, measure_in_turns, open_work_directory
from langgraph_takeover import Run, SandboxSpec, open_home, open_run

_PROBE_S = 0.005
_FILES, _THREADS = 100, 6


class Size(NamedTuple):
    """Number and length of the runs of one measurement."""

    runs: int
    steps: int
    reply_s: float
    command: str


@contextmanager
def _open_runs(spec: SandboxSpec, size: Size) -> Iterator[list[Run]]:
    """Open a home and its runs, each at its first call of the model, in a started sandbox."""
    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        home = stack.enter_context(open_home(stack.enter_context(open_work_directory())))

        def begin(number: int) -> Run:
            # The last reply ends the run.
            model = InstantModel(command=size.command, steps=size.steps - 1, reply_s=size.reply_s)
            settings: Any = {"model": model, "sandbox": spec, "max_steps": 10_000}
            run = stack.enter_context(open_run(home, f"run-{number}", **settings))
            task = {"task": {"id": "t", "prompt": "Work."}}
            run.agent.invoke(task, **_options(run), interrupt_before=["think"])
            return run

        yield list(pool.map(begin, range(size.runs)))


def _options(run: Run) -> Any:
    """Return the options of a graph's call, whose overloads a type checker cannot choose from."""
    return run.options


async def _measure_loop(samples: Samples, lags: str, work: Callable[[], Awaitable[Any]]) -> float:
    """Return the seconds of some work, while a task of the loop adds how late its timers are."""

    async def probe() -> None:
        while True:
            due = time.perf_counter() + _PROBE_S
            await asyncio.sleep(_PROBE_S)
            samples.add(lags, time.perf_counter() - due)
            samples.add("threads", threading.active_count())

    probing = asyncio.create_task(probe())
    started = time.perf_counter()
    await work()
    seconds = time.perf_counter() - started
    probing.cancel()
    return seconds


def _time_tasks(samples: Samples, spec: SandboxSpec, size: Size, lags: str) -> float:
    async def finish_all() -> None:
        _check(await asyncio.gather(*(run.agent.ainvoke(None, **_options(run)) for run in runs)))

    with _open_runs(spec, size) as runs:
        return asyncio.run(_measure_loop(samples, lags, finish_all))


def _time_threads(spec: SandboxSpec, size: Size) -> float:
    with _open_runs(spec, size) as runs, ThreadPoolExecutor(_THREADS) as pool:
        started = time.perf_counter()
        _check(list(pool.map(lambda run: run.agent.invoke(None, **_options(run)), runs)))
        return time.perf_counter() - started


def _check(states: list[Any]) -> None:
    assert {state["stop_reason"] for state in states} == {"finished"}


def _time_cancellation(samples: Samples, spec: SandboxSpec, size: Size) -> float:
    """Return the time until all tasks have ended that are cancelled in the middle of a command."""

    async def cancel_all() -> float:
        tasks = [asyncio.create_task(run.agent.ainvoke(None, **_options(run))) for run in runs]
        await asyncio.sleep(1.5 * size.reply_s + 1)

        async def cancel() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        return await _measure_loop(samples, "lag", cancel)

    with _open_runs(spec, size) as runs:
        return asyncio.run(cancel_all())


def _add_quantiles(samples: Samples, name: str) -> None:
    """Add the quantiles of some samples over all rounds."""
    values = sorted(samples.values[name])
    for quantile, share in (("p50", 0.5), ("p99", 0.99)):
        samples.add(f"{name}_{quantile}", values[min(int(len(values) * share), len(values) - 1)])


def main(
    runs: Annotated[int, typer.Option(min=1, help="Number of concurrent runs.")] = 100,
    steps: Annotated[int, typer.Option(min=3, help="Steps of a run without effects.")] = 10,
    reply_s: Annotated[float, typer.Option(min=0.01, help="Seconds per reply of the model.")] = 1.0,
    rounds: Rounds = 3,
    as_json: AsJson = False,
) -> None:
    """Measure runs in one event loop: time, lag, throughput, cancellation."""
    waiting = Size(runs, steps, reply_s, "ls")
    acting = Size(max(runs // 5, 1), steps, 0.0, "date +%N >> new.txt")
    sleeping, acting_steps, samples = waiting._replace(command="sleep 60"), acting.runs * steps, Samples()
    with open_work_directory() as work:
        spec = make_spec(work / "repository", _FILES)
        measure_in_turns(
            rounds,
            {
                "idle": lambda _: asyncio.run(_measure_loop(samples, "idle_lag", lambda: asyncio.sleep(2))),
                "waiting": lambda _: _time_tasks(samples, spec, waiting, "lag"),
                "acting": lambda _: acting_steps / _time_tasks(samples, spec, acting, "acting_lag"),
                "pool": lambda _: acting_steps / _time_threads(spec, acting),
                "cancelled": lambda _: _time_cancellation(samples, spec, sleeping),
            },
            samples,
        )
    samples.add("model", steps * reply_s)
    samples.add("most_threads", max(samples.values["threads"]))
    for name in ("lag", "idle_lag"):
        _add_quantiles(samples, name)
    quick = f"{runs} runs of {steps} steps without effects"
    effects = f"{acting.runs} runs of {steps} steps with a snapshot"
    end, goal = f"end of {runs} cancelled runs, each in a command", Goal(0.8, "ratio", at_least=True)
    figures = samples.compare(
        Comparison(quick, "waiting", "model", "the model alone", Goal(2.5, "ratio"), "s"),
        Comparison("lag of the loop, p50", "lag_p50", "idle_lag_p50", "idle loop"),
        Comparison("lag of the loop, p99", "lag_p99", "idle_lag_p99", "idle loop", Goal(50)),
        Comparison("maximum number of threads of the process", "most_threads", unit=""),
        Comparison(effects, "acting", "pool", f"{_THREADS} threads", goal, "steps/s", paired=True),
        Comparison(end, "cancelled", unit="s"),
    )
    title = f"medians of {format_count(rounds, 'round')}; {spec.backend} sandboxes, {os.cpu_count()} cores"
    print_figures(title, figures, as_json=as_json)


if __name__ == "__main__":
    run_command(main)
