"""Where the stages of a run are carried out: in this process, or in several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from evals.journal import Row

TERMINATED = 128 + signal.SIGTERM


class Executor(Protocol):
    """Runs one function over many jobs and yields the rows as they come."""

    def run(self, stage: Callable[..., Row], jobs: Iterable[tuple[Any, ...]]) -> Iterator[Row]: ...


class Inline:
    """One job after another in this process."""

    def run(self, stage: Callable[..., Row], jobs: Iterable[tuple[Any, ...]]) -> Iterator[Row]:
        for job in jobs:
            yield stage(*job)


class Processes:
    """Several processes of this host, kept for all stages."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(self, stage: Callable[..., Row], jobs: Iterable[tuple[Any, ...]]) -> Iterator[Row]:
        for future in as_completed([self._pool.submit(_work, stage, *job) for job in jobs]):
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
        yield Processes(pool)
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


def _work(stage: Callable[..., Row], *job: Any) -> Row:
    _Ending.working = True
    try:
        if _Ending.told:
            raise SystemExit(TERMINATED)
        return stage(*job)
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
    signal.signal(signal.SIGTERM, _end_job)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
