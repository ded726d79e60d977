"""Where the stages of a run are carried out: in this process, or in several."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, Protocol

from evals.journal import Row


class Executor(Protocol):
    """Runs one function over many jobs and yields the rows as they come."""

    def run(self, stage: Callable[..., Row], jobs: Iterable[tuple[Any, ...]]) -> Iterator[Row]: ...


class Inline:
    """One job after another in this process."""

    def run(self, stage: Callable[..., Row], jobs: Iterable[tuple[Any, ...]]) -> Iterator[Row]:
        for job in jobs:
            yield stage(*job)


class Processes:
    """Several processes of this host."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def run(self, stage: Callable[..., Row], jobs: Iterable[tuple[Any, ...]]) -> Iterator[Row]:
        # Forking a process that has threads, as ours has, can deadlock its child.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(self._workers, mp_context=context, initializer=_leave_interrupts_to_parent)
        try:
            futures = [pool.submit(stage, *job) for job in jobs]
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
