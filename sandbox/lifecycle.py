"""The one sandbox that a run works on: started, restored and ended in one place."""

from __future__ import annotations

from pathlib import Path

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.interface import Sandbox, SandboxSpec, Snapshot
from langgraph_takeover.sandbox.storage.failures import end_block


class SandboxManager:
    """Holds at most one sandbox at a time, so that none is left over."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self._sandbox: Sandbox | None = None
        self.was_started = False
        """Whether there has been a sandbox."""

    def sandbox(self) -> Sandbox:
        """Return the current sandbox; start it from its base at the first call."""
        if self._sandbox is None:
            self._sandbox = sandbox.start(self.spec)
            self.was_started = True
        return self._sandbox

    @property
    def current(self) -> Sandbox | None:
        """The current sandbox, if there is one."""
        return self._sandbox

    def restore(self, snapshot: Snapshot, store: Path) -> Sandbox:
        """Replace the current sandbox by a restored one."""
        self.close()
        self._sandbox = sandbox.restore(snapshot, store, self.spec)
        self.was_started = True
        return self._sandbox

    def close(self) -> None:
        """Close the current sandbox. Another thread may call this while the sandbox works."""
        closed, self._sandbox = self._sandbox, None
        if closed is not None:
            closed.close()

    def __enter__(self) -> SandboxManager:
        return self

    def __exit__(self, *details: object) -> None:
        end_block(self.close, *details)
