"""Where the stages of a run are carried out: in this process, or in several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from evals.run.config import RunConfig

if TYPE_CHECKING:
    from evals.run.journal import Row

TERMINATED = 128 + signal.SIGTERM
_AHEAD = 2
"""Jobs a worker that are under way or wait for one."""


class Job(NamedTuple):
    """One call of a stage with plain values: its row is journaled under `key`."""

    stage: Callable[..., Row]
    config: RunConfig
    out: Path
    arguments: tuple[Any, ...]
    key: tuple[Any, ...]
    record: str | None = None
    """The record that it needs."""

    def carried_out(self) -> Row:
        return self.stage(self.config, self.out, *self.arguments)


class Executor(Protocol):
    """Carries out many jobs and yields their rows as they come."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Row]: ...


class Inline:
    """One job after another in this process."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Row]:
        for job in jobs:
            yield job.carried_out()


class Processes:
    """Several processes of this host, kept for all stages."""

    def __init__(self, pool: ProcessPoolExecutor, workers: int) -> None:
        self._pool = pool
        self._most = _AHEAD * workers

    def run(self, jobs: Iterable[Job]) -> Iterator[Row]:
        """Takes up few jobs at a time, so that many of them cost no memory."""
        waiting: set[Future[Row]] = set()
        left = iter(jobs)
        while True:
            waiting |= {self._pool.submit(_work, job) for job in islice(left, self._most - len(waiting))}
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def executor(workers: int) -> AbstractContextManager[Executor]:
    """An executor for so many jobs at once; an interrupt ends the jobs that have begun.

    SystemExit, as `end_on_sigterm` raises it, lets their agents end the action they are at.
    """
    return _inline() if workers == 1 else _processes(workers)


@contextmanager
def _inline() -> Iterator[Executor]:
    yield Inline()


@contextmanager
def _processes(workers: int) -> Iterator[Executor]:
    # Forking a process that has threads, as ours has, can deadlock its child.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_serve_one_parent)
    try:
        with _interrupts_held():
            for _ in range(workers):
                pool.submit(_get_ready)
        yield Processes(pool, workers)
    except SystemExit:
        # An agent that waits for a reply has it paid for: it takes it up first.
        for process in list(pool._processes.values()):
            process.terminate()
        raise
    except BaseException:
        # Nobody takes the rows of the jobs that still run; --resume goes on with them.
        for process in list(pool._processes.values()):
            process.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold interrupts back, also in the processes that begin meanwhile, until these leave them to their parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_on_sigterm() -> None:
    """Let SIGTERM end this process by SystemExit, once; an agent that runs in it ends after what it is at."""

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(TERMINATED)

    signal.signal(signal.SIGTERM, end)


class _Ending:
    """Whether a worker is at a job, and whether it was told to end."""

    working = False
    told = False


def _get_ready() -> None:
    """Import what jobs need, while the parent does the same."""
    import evals.run.stages  # noqa: F401


def _work(job: Job) -> Row:
    _Ending.working = True
    try:
        if _Ending.told:
            raise SystemExit(TERMINATED)
        return job.carried_out()
    finally:
        _Ending.working = False


def _end_job(number: int, frame: object) -> None:
    """End the job, once; the worker itself ends when its parent lets it, or the pool would be broken."""
    before, _Ending.told = _Ending.told, True
    if _Ending.working and not before:
        raise SystemExit(TERMINATED)


def _serve_one_parent() -> None:
    """Leave interrupts to the parent, and end when it does, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, _end_job)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
