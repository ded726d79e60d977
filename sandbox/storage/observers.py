"""Telemetry, progress and logs only observe a run: their errors become a warning and never end it."""

from __future__ import annotations

import logging
from contextlib import ContextDecorator
from typing import Any

_MAX_REPORTS = 100
_MAX_CHARS = 200
_reported: set[tuple[str, str]] = set()
"""Observers and types of errors that were logged: an observer that fails once usually fails at each step."""


class ObserverErrors(ContextDecorator):
    """Log the first error of each type of an observer, as a warning. Interrupts and exits pass.

    A function that it decorates returns None after an error.
    """

    def __init__(self, observer: str) -> None:
        self._observer = observer

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, _: object
    ) -> bool:
        if error_type is None or not issubclass(error_type, Exception):
            return False
        key = (self._observer, error_type.__qualname__)
        if key not in _reported and len(_reported) < _MAX_REPORTS:
            _reported.add(key)
            get_logger(__name__).warning(
                "%s failed; the run continues without it: %s: %s",
                self._observer,
                error_type.__qualname__,
                _describe(error),
            )
        return True


class _ContainedLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose handlers and filters, which belong to the program, cannot end a run."""

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        try:
            super().log(level, msg, *args, **{**options, "stacklevel": options.get("stacklevel", 1) + 1})
        except Exception:  # a warning about the log would meet the same handler
            return


def get_logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return the logger of a module; an error of a handler or filter never reaches the module."""
    return _ContainedLogger(logging.getLogger(name), {})


def _describe(error: BaseException | None) -> str:
    try:
        return " ".join(str(error).split())[:_MAX_CHARS]
    except Exception:  # the error is the observer's own class
        return "no description"
