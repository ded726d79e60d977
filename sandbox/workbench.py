"""The one machine that a run works on: started, thawed and ended in one place."""

from __future__ import annotations

from pathlib import Path

import sandbox
from sandbox.machine import Sandbox, SandboxSpec, Snapshot


class Workbench:
    """Holds at most one machine at a time, so that none is ever left over."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self._machine: Sandbox | None = None

    def machine(self) -> Sandbox:
        """The machine as it is; started from its base at the first call."""
        if self._machine is None:
            self._machine = sandbox.start(self.spec)
        return self._machine

    def thaw(self, snapshot: Snapshot, store: Path) -> Sandbox:
        """Put a thawed machine in the place of the one there is."""
        self.close()
        self._machine = sandbox.thaw(snapshot, store, self.spec)
        return self._machine

    def close(self) -> None:
        if self._machine is not None:
            self._machine.close()
            self._machine = None

    def __enter__(self) -> Workbench:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
