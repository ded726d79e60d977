"""One awaited path for two kinds of caller: an event loop, and a thread that has none."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

_ResultT = TypeVar("_ResultT")


def run_without_loop(work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
    """Return the result of a coroutine that never suspends, because all that it awaits blocks the thread.

    Raises RuntimeError if it suspends, and whatever the coroutine raises.

    Example:
        >>> async def measure(read):
        ...     return len(await resolve(read()))
        >>> run_without_loop(measure(lambda: "text"))
        4
    """
    try:
        work.send(None)
    except StopIteration as end:
        result: _ResultT = end.value
        return result
    finally:
        work.close()
    raise RuntimeError("the coroutine waits for an event loop")


async def resolve(value: Any) -> Any:
    """Return what a driver's call returned, awaited if it is awaitable."""
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def enter(manager: Any) -> AsyncIterator[Any]:
    """Enter a context manager of either kind, such as a `threading.Lock` or an `asyncio.Lock`."""
    if hasattr(manager, "__aenter__"):
        async with manager as entered:
            yield entered
    else:
        with manager as entered:
            yield entered
