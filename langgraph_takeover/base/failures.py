"""Clean-up after failures that hides no error, durable names, and observers whose errors never end a run."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar


def sync_directory(directory: Path) -> None:
    """Write the names in a directory to the disk, as after a file was created or replaced."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


ParametersT = ParamSpec("ParametersT")
ResultT = TypeVar("ResultT")


@contextmanager
def clean_up(*steps: Callable[[], object]) -> Iterator[None]:
    """Run all steps after the block, in order. Their errors become notes of the block's error, if it raises one."""
    try:
        yield
    except BaseException as error:
        run_all(*steps, error=error)
        raise
    if (failed := run_all(*steps)) is not None:
        raise failed


def end_block(close: Callable[[], object], *details: object) -> None:
    """Do what `clean_up` does, from a method `__exit__` with its arguments."""
    error = next((each for each in details if isinstance(each, BaseException)), None)
    if (failed := run_all(close, error=error)) is not None and error is None:
        raise failed


def run_all(*steps: Callable[[], object], error: BaseException | None = None) -> BaseException | None:
    """Run all steps after an error, if there was one; return the first error, which has the others as notes."""
    for step in steps:
        try:
            step()
        except Exception as failed:
            if error is None:
                error = failed
            else:
                error.add_note(f"clean-up failed, too: {type(failed).__name__}: {failed}")
    return error


def cache_unless(
    is_temporary: Callable[[Any], bool],
) -> Callable[[Callable[ParametersT, ResultT]], Callable[ParametersT, ResultT]]:
    """Cache results for the life of the process, except temporary ones: what is missing may be installed meanwhile."""

    def decorate(function: Callable[ParametersT, ResultT]) -> Callable[ParametersT, ResultT]:
        lock, kept = threading.RLock(), dict[object, ResultT]()

        @functools.wraps(function)
        def look(*arguments: ParametersT.args, **named: ParametersT.kwargs) -> ResultT:
            key = (arguments, tuple(named.items()))
            with lock:
                if key not in kept:
                    result = function(*arguments, **named)
                    if is_temporary(result):
                        return result
                    kept[key] = result
                return kept[key]

        look.cache_clear = kept.clear  # type: ignore[attr-defined]
        return look

    return decorate


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
