"""How a run is ended from outside the program: after its node, with its machine kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langgraph.runtime import RunControl

_SIGTERM_CODE = 128 + signal.SIGTERM


@contextmanager
def drain_on_sigterm(control: RunControl) -> Iterator[None]:
    """On SIGTERM the run ends after its node, with its machine frozen; then the process is ended as it would be."""
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield  # another's handler, which Python cannot put back, stays
        return
    came: list[int] = []

    def stop(number: int, frame: Any) -> None:
        came.append(number)
        control.request_drain("SIGTERM")

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        # Also where the run failed meanwhile: what was told to end goes on with nothing else.
        if came and callable(before):
            before(signal.SIGTERM, None)
        elif came and before != signal.SIG_IGN:
            raise SystemExit(_SIGTERM_CODE)
