"""Holding signals back, so that what their handlers raise never leaves a transaction half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_HELD_BACK = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM, where a handler is there for them, come when this is over.

    An exception that a handler raises may fall between a lock's taking and the `with` that would give it
    back; the process would then wait for itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, Any]] = []
    handlers = {number: found for number in _HELD_BACK if callable(found := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in reversed(handlers.items()):
            signal.signal(number, handler)
        for late, frame in came:
            handlers[signal.Signals(late)](late, frame)
