"""One machine, put together from an enclosure and two shells in it: the agent's and the runtime's."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from sandbox.changes import LayerReport, Mount
from sandbox.files import Files, ScanReport
from sandbox.layers import Stack
from sandbox.machine import ExecResult, FileChange, SandboxUnavailable, Snapshot
from sandbox.shell import ANSWER_LIMIT, GRACE_S, Channel, Hand, Shell, shown
from sandbox.watch import DiskWatch

# In a subshell, since the agent's traps do not act there; `shopt` first, since it tells how functions are read.
_DUMP_STATE = (
    "(\\unset -f builtin; \\builtin echo {mark}; \\builtin shopt -p; \\builtin declare -p; \\builtin declare -f; "
    "\\builtin alias -p; \\builtin set +o; \\builtin umask -p; "
    "\\builtin printf 'cd -- %q\\n{mark}' \"$PWD\") 2>/dev/null"
)
_STATE_TIMEOUT_S = 30.0
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

    def kill_all(self, hand: Hand, *spared: Shell) -> None:
        """Kill everything that runs inside save these shells themselves and the runtime's hand."""

    disk: DiskWatch | None
    """Tells while a command runs whether the machine uses too much; None where nothing can tell."""

    def freeze(self, store: Path, shell_state: str, labels: Mapping[str, str]) -> Future[Snapshot]:
        """As `Sandbox.freeze`; may end the shells, which are then opened anew."""

    def close(self) -> None: ...


class Box:
    """The machine that all backends share; satisfies `Sandbox`."""

    def __init__(self, enclosure: Enclosure, *, shell_init: str = "", shell_state: str = "") -> None:
        self._enclosure = enclosure
        self.workspace = enclosure.workspace
        self._shell_init = shell_init
        try:
            self._agent = self._new_agent_shell(shell_state, self.workspace)
            self._hand = Hand(enclosure.open_shell)
            self._files = Files(self._hand, self.workspace)
            self._report = self._new_report()
        except BaseException:
            enclosure.close()
            raise

    def run(self, command: str, *, timeout_s: float) -> ExecResult:
        disk = self._enclosure.disk
        if disk is None:
            result = self._agent.run(command, timeout_s=timeout_s)
        else:
            disk.begin()
            result = self._agent.run(command, timeout_s=timeout_s, stopped=disk.over)
        if result.timed_out:
            self._enclosure.kill_all(self._hand, self._agent)
            after = self._agent.settle()
            if not after.timed_out and not after.shell_ended:
                # What bash says of the jobs that were killed is not the next command's output.
                after = self._agent.run("wait", timeout_s=GRACE_S)
            lost = after.timed_out or after.shell_ended
            result = result.model_copy(update={"shell_ended": lost})
            if lost:
                self._enclosure.kill_all(self._hand)
            if disk is not None and disk.tripped:
                result = result.model_copy(update={"timed_out": False, "disk_full": True})
        if result.shell_ended:
            self._agent.close()
            self._agent = self._new_agent_shell("", self._agent.cwd)
        return result

    def inspect(self, command: str) -> ExecResult:
        placed = f"(cd -- {shlex.quote(self.workspace)} && {command}\n)"
        return self._hand.run(placed, timeout_s=_INSPECT_TIMEOUT_S)

    def read_file(self, path: str) -> bytes:
        return self._files.read(path)

    def write_file(self, path: str, content: bytes) -> None:
        self._files.write(path, content)

    def directory_listing(self, path: str) -> tuple[str, ...] | None:
        return self._files.listing(path)

    def changes(self) -> tuple[FileChange, ...]:
        return self._report.changes()

    def sha256(self, path: str) -> str | None:
        return self._report.sha256(path)

    def cwd(self) -> str:
        return shown(self._agent.cwd)

    def freeze(self, store: Path, *, labels: Mapping[str, str] | None = None) -> Future[Snapshot]:
        mark = secrets.token_hex(16)
        told = self._agent.run(
            _DUMP_STATE.format(mark=mark), timeout_s=_STATE_TIMEOUT_S, output_limit=ANSWER_LIMIT
        )
        parts = told.output.split(mark)
        if len(parts) != 3:
            raise SandboxUnavailable("the agent's shell did not tell its state before the freeze")
        state = parts[1].strip()
        self._report.settle()
        before = self._enclosure.layers()
        future = self._enclosure.freeze(store, state, labels or {})
        after = self._enclosure.layers()
        if before is not None and after is not None and after.layers != before.layers:
            self._report.rest_on(after)
            self._agent.close()
            self._hand.close()
            self._agent = self._new_agent_shell(state, self.workspace)
        return future

    def close(self) -> None:
        self._agent.close()
        self._hand.close()
        self._enclosure.close()

    def _new_report(self) -> LayerReport | ScanReport:
        stack = self._enclosure.layers()
        if stack is None:
            return ScanReport(self._hand, self.workspace, self._enclosure.file_roots)
        return LayerReport(stack, self._enclosure.mounts, self.workspace)

    def _new_agent_shell(self, state: str, cwd: str) -> Shell:
        shell = Shell(self._enclosure.open_shell())
        # Read-only variables make some lines of a dump fail; that is expected, and quiet.
        restore = (
            f"eval {shlex.quote(state)} 2>/dev/null" if state else f"cd -- {shlex.quote(cwd)} 2>/dev/null"
        )
        shell.prepare(f"{self._shell_init}\n{restore}\n:")
        return shell
