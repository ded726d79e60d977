"""Holding signals back, so that what their handlers raise never leaves a transaction half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

_HELD_BACK = (signal.SIGINT, signal.SIGTERM)
_Handler = Callable[[int, Any], Any]


class undisturbed:  # noqa: N801  used as a statement
    """Ctrl-C and SIGTERM, where Python has a handler for them, come when the block is over.

    An exception that a handler raises may fall between a lock's taking and the `with` that would give it
    back; the process would then wait for itself. Blocking signals in this thread would not do: another takes
    them, and the handler still runs here.
    """

    def __init__(self) -> None:
        self._handlers: list[tuple[int, _Handler]] = []
        self._came: list[tuple[_Handler, int, Any]] = []

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        found = [(number, signal.getsignal(number)) for number in _HELD_BACK]
        self._handlers = [(number, handler) for number, handler in found if callable(handler)]
        try:
            for number, handler in self._handlers:
                signal.signal(number, self._keeping(handler))
        except BaseException:  # one came before it was held back
            _put_back(self._handlers)
            raise

    def __exit__(self, *_: object) -> None:
        _put_back(self._handlers)
        _tell(self._came)

    def _keeping(self, handler: _Handler) -> _Handler:
        return lambda number, frame: self._came.append((handler, number, frame))


def _put_back(handlers: list[tuple[int, _Handler]]) -> None:
    """All of them, although one that is back already may raise."""
    if handlers:
        (number, handler), *others = handlers
        try:
            signal.signal(number, handler)
        finally:
            _put_back(others)


def _tell(came: list[tuple[_Handler, int, Any]]) -> None:
    """Let every signal have its handler, although the one before may raise."""
    if came:
        (handler, number, frame), *others = came
        try:
            handler(number, frame)
        finally:
            _tell(others)
