"""Durable writes, failures that must not hide the caller's error, and reasons that must not be remembered."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
