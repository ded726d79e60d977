"""Executors of jobs: this process, or several processes of this host; Ctrl-C and SIGTERM in them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from langgraph_takeover.base.telemetry import current_traceparent, flush, start_span
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.graph.runs.stop_requests import TERMINATED, announce_wait, resend_lost_signals

if TYPE_CHECKING:
    from langgraph_takeover.evals.run.rows import Row
    from langgraph_takeover.evals.tasks import Task


def exit_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit in this process, once. A running agent completes its current action."""

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(TERMINATED)

    def listen() -> None:
        signal.signal(signal.SIGTERM, end)

    listen()
    resend_lost_signals(listen)


@contextmanager
def handle_sigterm() -> Iterator[None]:
    """The same as a context manager, for a process that we do not own."""
    hook, before = sys.unraisablehook, signal.getsignal(signal.SIGTERM)
    exit_on_sigterm()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        sys.unraisablehook = hook


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Block interrupts, also in processes started meanwhile, until they leave them to their parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _WorkerState:
    """Whether this worker runs a job, and whether it received SIGTERM."""

    is_working = False
    is_terminating = False


def initialize_worker() -> None:
    """Leave interrupts to the parent, and end with the parent, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, _end_job)
    resend_lost_signals(lambda: setattr(_WorkerState, "is_terminating", False))
    threading.Thread(target=_end_with_parent, daemon=True).start()


@contextmanager
def enter_job() -> Iterator[None]:
    """Let SIGTERM end the worker's job meanwhile. No job starts after it."""
    _WorkerState.is_working = True
    try:
        if _WorkerState.is_terminating:
            raise SystemExit(TERMINATED)
        yield
    finally:
        _WorkerState.is_working = False


def _end_job(number: int, frame: object) -> None:
    """End the job, once. The worker stays until its parent ends it, because the pool would break otherwise."""
    before, _WorkerState.is_terminating = _WorkerState.is_terminating, True
    if _WorkerState.is_working and not before:
        raise SystemExit(TERMINATED)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


_JOBS_PER_WORKER = 2
"""Running and waiting jobs per worker."""
_SPAN_FIELDS = {
    "takeover.task": "task_id",
    "takeover.record": "record_id",
    "takeover.view": "view",
    "takeover.outcome": "outcome",
    "takeover.cost": "cost_usd",
}


class Job(NamedTuple):
    """One call of a stage with plain values. Its row is stored under `key`."""

    stage: Callable[..., Row]
    config: RunConfig
    out: Path
    arguments: tuple[Any, ...]
    key: tuple[Any, ...]
    record_id: str | None = None
    """The record that the job needs."""

    def run(self, traceparent: str | None = None) -> Row:
        """Return the row; `traceparent` is the span of the coordinator's process."""
        attributes = {"takeover.operation": self.stage.__name__}
        with start_span("takeover.job", attributes, parent=traceparent) as span:
            row = self.stage(self.config, self.out, *self.arguments)
            span.set(dict(zip(_SPAN_FIELDS, row.read(*_SPAN_FIELDS.values()), strict=True)))
            if row.is_failure:
                span.fail(row.outcome)
        return row


class Executor(Protocol):
    """Runs jobs and yields their rows as they complete."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Row]: ...


class InlineExecutor:
    """Runs one job after another in this process."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Row]:
        for job in jobs:
            yield job.run()


class ProcessExecutor:
    """Several processes of this host, shared by all stages."""

    def __init__(self, pool: ProcessPoolExecutor, workers: int) -> None:
        self._pool = pool
        self._limit = _JOBS_PER_WORKER * workers

    def run(self, jobs: Iterable[Job]) -> Iterator[Row]:
        """Keep few jobs in memory at a time."""
        waiting: set[Future[Row]] = set()
        left = iter(jobs)
        while True:
            chosen = islice(left, self._limit - len(waiting))
            waiting |= {self._pool.submit(_run_job, job, current_traceparent()) for job in chosen}
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


class ExecutorChoice(Protocol):
    """An executor that is not open yet."""

    def check(self, config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
        """Check that the executor can run the jobs. Raises RunUsageError."""

    def open_executor(self) -> AbstractContextManager[Executor]:
        """The open executor. On an interrupt or SystemExit, the agents complete their current action first."""


class LocalExecutor(NamedTuple):
    """Up to `workers` processes of this host."""

    workers: int

    def check(self, config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
        pass

    def open_executor(self) -> AbstractContextManager[Executor]:
        return open_local_executor(self.workers)


def open_local_executor(workers: int) -> AbstractContextManager[Executor]:
    """An executor for that many parallel jobs. On an interrupt or SystemExit, the agents complete their current action."""
    return _open_inline() if workers == 1 else _open_processes(workers)


@contextmanager
def _open_inline() -> Iterator[Executor]:
    yield InlineExecutor()


@contextmanager
def _open_processes(workers: int) -> Iterator[Executor]:
    # Forking a process with threads can deadlock its child.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=initialize_worker)
    try:
        with hold_interrupts():
            for _ in range(workers):
                pool.submit(_warm_up)
        yield ProcessExecutor(pool, workers)
    except (SystemExit, KeyboardInterrupt):
        # A reply in flight is billed, so the agent receives it first. A second signal may arrive at any moment.
        processes = list(pool._processes.values())
        manager: Any = pool._executor_manager_thread
        try:
            announce_wait()
            for process in processes:
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            # Python 3.11 takes a thread for ended whose join was interrupted.
            while manager is not None and manager.is_alive():
                time.sleep(0.05)
        except BaseException:
            for process in processes:
                process.kill()
            raise
        raise
    except BaseException:
        # Rows of jobs that still run are dropped here; --resume continues these jobs.
        for process in list(pool._processes.values()):
            process.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _warm_up() -> None:
    """Import what jobs need, in parallel with the parent."""
    import langgraph_takeover.evals.run.execution.stages  # noqa: F401


def _run_job(job: Job, traceparent: str | None) -> Row:
    with enter_job():
        row = job.run(traceparent)
    flush()  # a worker may be killed
    return row
