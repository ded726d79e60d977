"""Defer signals, so that their handlers' exceptions never interrupt a transaction."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

_DEFERRED_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_Handler = Callable[[int, Any], Any]


class defer_signals:  # noqa: N801  used as a statement
    """Deliver Ctrl-C and SIGTERM, if Python handles them, at the end of the block.

    A handler's exception may come between taking a lock and the `with` that would release it; the process would then
    wait for itself. Blocking signals in this thread would not help: another thread receives them, and the handler still
    runs here.
    """

    def __init__(self) -> None:
        self._handlers: list[tuple[int, _Handler]] = []
        self._pending: list[tuple[_Handler, int, Any]] = []

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        found = [(number, signal.getsignal(number)) for number in _DEFERRED_SIGNALS]
        self._handlers = [(number, handler) for number, handler in found if callable(handler)]
        try:
            for number, handler in self._handlers:
                signal.signal(number, self._make_recorder(handler))
        except BaseException:  # one arrived before it was deferred
            _restore_handlers(self._handlers)
            raise

    def __exit__(self, *_: object) -> None:
        _restore_handlers(self._handlers)
        _deliver(self._pending)

    def _make_recorder(self, handler: _Handler) -> _Handler:
        return lambda number, frame: self._pending.append((handler, number, frame))


def _restore_handlers(handlers: list[tuple[int, _Handler]]) -> None:
    """Restore all handlers, even if one that is already restored raises."""
    if handlers:
        (number, handler), *others = handlers
        try:
            signal.signal(number, handler)
        finally:
            _restore_handlers(others)


def _deliver(pending: list[tuple[_Handler, int, Any]]) -> None:
    """Run the handler of every signal, even if an earlier one raises."""
    if pending:
        (handler, number, frame), *others = pending
        try:
            handler(number, frame)
        finally:
            _deliver(others)
