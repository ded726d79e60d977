"""Old snapshots of a thread are deleted beside its run: no step waits for it, and its failure ends no run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from langgraph_takeover.base.failures import get_logger

_LOGGER = get_logger(__name__)
_SHARE = 10
"""Snapshots are thinned whenever this share of the time has passed for which every step is kept."""


class Thinning:
    """Calls a function in an OS thread of its own from time to time, as long as a run saves states.

    Args:
        thin: deletes the old snapshots.
        keep_every_step_s: how long the snapshot of every step is kept, in seconds.
    """

    def __init__(self, thread: str, thin: Callable[[], object], keep_every_step_s: float) -> None:
        self._thread, self._thin = thread, thin
        self._interval_s = keep_every_step_s / _SHARE
        self._due_at = time.monotonic() + self._interval_s
        self._worker: threading.Thread | None = None

    def begin_if_due(self) -> None:
        """Begin to thin if it is time; called after a step."""
        if time.monotonic() >= self._due_at and (self._worker is None or not self._worker.is_alive()):
            self._worker = threading.Thread(target=self._work, name="thin-snapshots", daemon=True)
            self._worker.start()

    def finish(self) -> None:
        """Wait for what has begun; whoever closes the session calls this."""
        if self._worker is not None:
            self._worker.join()

    def _work(self) -> None:
        try:
            self._thin()
        except Exception as error:
            _LOGGER.warning(
                "thread %r: old snapshots not thinned: %s: %s", self._thread, type(error).__name__, error
            )
        self._due_at = time.monotonic() + self._interval_s
