"""One machine, put together from an enclosure and two shells in it: the agent's and the runtime's."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from sandbox import storage
from sandbox.changes import LayerReport, Mount
from sandbox.files import Files, ScanReport
from sandbox.layers import Stack
from sandbox.machine import ExecResult, FileChange, FileRefused, SandboxUnavailable, Snapshot
from sandbox.shell import GRACE_S, Channel, Hand, Shell, shown
from sandbox.shell_state import ShellState, as_directory
from sandbox.watch import DiskWatch

_STATE_TIMEOUT_S = 30.0
_GIVE_WAY_S = 0.02
"""The command that comes right after a freeze goes before the work that the freeze leaves."""
_INSPECT_TIMEOUT_S = 300.0


class Enclosure(Protocol):
    """What tells one backend from another: how a bash is started in it, and how it is frozen."""

    workspace: str
    file_roots: tuple[str, ...]
    """Directories beside the workspace that an agent can write to, as paths inside; the last is for what passes."""
    mounts: tuple[Mount, ...]
    """Where the parts of `layers` are seen inside."""

    def layers(self) -> Stack | None:
        """The machine's files as they lie on this host, the top layer first; None where they do not."""

    def open_shell(self) -> Channel:
        """Start one more bash inside."""

    def kill_all(self, hand: Hand, leaving: Shell | None) -> None:
        """Kill everything that runs inside but shells; `leaving` is sent `LEAVE` before."""

    watch: DiskWatch | None
    """Tells while a command runs whether the machine uses too much; None where nothing can tell."""

    def at_rest(self) -> bool:
        """Whether nothing runs inside but shells that wait, so that a freeze may put new ones in their place."""

    def freeze(self, store: Path, labels: Mapping[str, str], *, at_rest: bool) -> Callable[[str], Snapshot]:
        """Freeze the files as they are; what is returned makes the snapshot last, and may take its time.

        It is called with the state of the agent's shell. A machine at rest may have other layers afterwards,
        which new shells see; the old ones are there, for that state, until what is returned has killed them.
        """

    def close(self) -> None: ...


class Box:
    """The machine that all backends share; satisfies `Sandbox`."""

    def __init__(
        self, enclosure: Enclosure, *, shell_init: str = "", shell_state: ShellState | None = None
    ) -> None:
        self._enclosure = enclosure
        self.workspace = enclosure.workspace
        self._shell_init = shell_init
        self._keeping = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshot")
        self._hand = Hand(enclosure.open_shell)
        self._files = Files(self._hand, self.workspace)
        try:
            self._agent = self._new_agent_shell(shell_state, self.workspace)
            self._report = self._new_report()
            stack = enclosure.layers()
            # Later layers lie on the same disk.
            self._first_layer = stack.layers[0] if stack is not None else None
        except BaseException:
            enclosure.close()
            raise

    def run(self, command: str, *, timeout_s: float) -> ExecResult:
        watch = self._enclosure.watch
        if watch is None:
            result = self._agent.run(command, timeout_s=timeout_s)
        else:
            watch.begin()
            result = self._agent.run(command, timeout_s=timeout_s, stopped=watch.over)
        full = watch is not None and (watch.tripped if result.timed_out else watch.over())
        if not result.timed_out and not result.shell_ended:
            if watch is not None and full:
                return self._end_for_disk(result, watch)
            self._require_room()
            return result
        state = self._end_all() if result.timed_out else None
        if watch is not None and full:
            if result.shell_ended:
                self._enclosure.kill_all(self._hand, None)
            watch.accept()
        else:
            self._require_room()
        self._agent.close()
        self._agent = self._new_agent_shell(state, self._agent.cwd)
        return result.model_copy(
            update={
                "timed_out": result.timed_out and not full,
                "shell_ended": state is None,
                "disk_full": full,
            }
        )

    def _require_room(self) -> None:
        """Raises OutOfDisk where the host's disk is full: then what a command could not write says nothing of it."""
        if self._first_layer is not None:
            storage.require_room(self._first_layer)

    def _end_all(self) -> ShellState | None:
        """End the command that runs, and all that runs beside it; the agent's shell's state, if it told it."""
        self._enclosure.kill_all(self._hand, self._agent)
        state = self._agent.last_words()
        if state is None:
            self._agent.close()
            self._enclosure.kill_all(self._hand, None)
        return state

    def _end_for_disk(self, result: ExecResult, watch: DiskWatch) -> ExecResult:
        """End everything inside but the agent's shell, which waits, and accept the disk that is used by then."""
        state = self._agent.begin_state()(GRACE_S)
        self._agent.close()
        self._enclosure.kill_all(self._hand, None)
        watch.accept()
        self._agent = self._new_agent_shell(state, self._agent.cwd)
        return result.model_copy(update={"exit_code": None, "timed_out": False, "disk_full": True})

    def inspect(self, command: str) -> ExecResult:
        placed = f"(cd -- {shlex.quote(self.workspace)} && {command}\n)"
        watch = self._enclosure.watch
        if watch is None:
            return self._hand.run(placed, timeout_s=_INSPECT_TIMEOUT_S)
        watch.begin()
        result = self._hand.run(placed, timeout_s=_INSPECT_TIMEOUT_S, stopped=watch.over)
        return self._end_for_disk(result, watch) if watch.tripped else result

    def read_file(self, path: str) -> bytes:
        return self._files.read(path)

    def write_file(self, path: str, content: bytes) -> None:
        try:
            self._files.write(path, content)
        except FileRefused:
            self._require_room()
            raise

    def directory_listing(self, path: str) -> tuple[str, ...] | None:
        return self._files.listing(path)

    def changes(self) -> tuple[FileChange, ...]:
        return self._report.changes()

    def sha256(self, path: str) -> str | None:
        return self._report.sha256(path)

    def cwd(self) -> str:
        return shown(self._agent.cwd)

    def shell_state(self) -> str:
        return (self._agent.begin_state()(_STATE_TIMEOUT_S) or _standing(self._agent.cwd)).as_json()

    def freeze(self, store: Path, *, labels: Mapping[str, str] | None = None) -> Future[Snapshot]:
        before = self._enclosure.layers()
        at_rest = self._enclosure.at_rest()
        state = self._agent.begin_state()
        try:
            with storage.disk_errors():
                keep = self._enclosure.freeze(store, labels or {}, at_rest=at_rest)
            after = self._enclosure.layers()
            moved = before is not None and after is not None and after.layers != before.layers
            successor = self._prepared_shell() if moved else None
        finally:
            # A shell that the agent broke loses what it held, and the snapshot is taken all the same.
            told = state(_STATE_TIMEOUT_S) or _standing(self._agent.cwd)
        old: tuple[Shell | Hand, ...] = ()
        if successor is not None and after is not None:
            old = (self._agent, self._hand)
            self._report.rest_on(after)
            self._hand = Hand(self._enclosure.open_shell)
            self._files.use(self._hand)
            self._agent = self._standing_shell(successor, told, self._agent.cwd)

        def finish() -> Snapshot:
            time.sleep(_GIVE_WAY_S)
            try:
                with storage.disk_errors():
                    return keep(told.as_json())
            finally:
                for shell in old:
                    shell.close()

        return self._keeping.submit(finish)

    def close(self) -> None:
        """Waits for the freezes that are under way; each has its own future to tell how it ended."""
        self._keeping.shutdown()
        self._agent.close()
        self._hand.close()
        self._enclosure.close()

    def _new_report(self) -> LayerReport | ScanReport:
        stack = self._enclosure.layers()
        if stack is None:
            return ScanReport(self._hand, self.workspace, self._enclosure.file_roots)
        return LayerReport(stack, self._enclosure.mounts, self.workspace)

    def _new_agent_shell(self, state: ShellState | None, cwd: str) -> Shell:
        """A new shell for the agent, with the old one's state, or else in its directory."""
        return self._standing_shell(self._prepared_shell(), state, cwd)

    def _prepared_shell(self) -> Shell:
        shell = Shell(self._enclosure.open_shell())
        shell.prepare(f"{self._shell_init}\n:")
        return shell

    def _standing_shell(self, shell: Shell, state: ShellState | None, cwd: str) -> Shell:
        if shell.restore(state or _standing(cwd), timeout_s=_STATE_TIMEOUT_S):
            return shell
        shell.close()
        if state is None:
            raise SandboxUnavailable("the sandbox's shell ended while it was started")
        return self._new_agent_shell(None, cwd)


def _standing(directory: str) -> ShellState:
    """The state of a shell of which nothing but its directory is known."""
    return ShellState(directory=as_directory(directory))
