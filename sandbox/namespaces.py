"""All processes of a PID namespace, stopped by signals: for hosts without control groups.

`first` is the namespace's first process, as this host numbers it; `entering` is the beginning of a command
line that runs the rest as root inside. Neither the first process nor its mount namespace is the agent's.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sandbox.freezer import complete
from sandbox.machine import SandboxUnavailable

_TIMEOUT_S = 10.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02
_FOLLOW_S = 1.0
_LONGEST_FILE = 1 << 16
_WAITS_FOR_CHILD = "vfork"
_STILL = frozenset("ZXTt") | {_WAITS_FOR_CHILD}
# `clone`, `vfork`, `clone3`: a parent waits there for the child that borrows its memory, and touches no file.
_CREATING = {"x86_64": {"56", "58", "435"}, "aarch64": {"220", "435"}}.get(platform.machine(), {"435"})
# Starts no program, so that the last process id of the namespace changes only when others start one.
_HELPER = 'while read -r line; do eval "$line"; read -r _ _ _ _ last </proc/loadavg; echo "$$ $last"; done'

# `nsenter` stops with its child. Resumed here, it goes on even if the runtime is killed meanwhile, or its
# namespace would wait for it for ever.
_HELD = '"$@"; kill -s CONT $0 2>/dev/null'


class _Thread(NamedTuple):
    state: str
    switches: tuple[str, ...]
    """How often it gave up the processor: unchanged, it has not run since."""


_Look = dict[tuple[int, int], _Thread]
"""By process and thread id inside."""


@contextlib.contextmanager
def stop_all(first: int, entering: Sequence[str], entrances: Sequence[int] = ()) -> Iterator[None]:
    """Hold every process of the namespace still but its first, nested namespaces included, verified.

    `entrances` are the `nsenter` processes on this host whose children are inside: each stops with its child.
    Afterwards all go on but those that the agent had stopped before.
    Raises SandboxUnavailable if they do not stop within 10 s.
    """
    with _Inside(first, entering, entrances) as inside:
        stopped_before = {pid for (pid, _), thread in inside.look().items() if thread.state == "T"}
        try:
            inside.stop()
            yield
        finally:
            complete(lambda: _resume(inside, stopped_before, entrances))


class _Inside:
    """A helper process in the namespace, and a view of the namespace's own procfs."""

    def __init__(self, first: int, entering: Sequence[str], entrances: Sequence[int] = ()) -> None:
        try:
            self._proc = os.open(f"/proc/{first}/root/proc", os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise SandboxUnavailable(f"the sandbox's processes cannot be listed: {error.strerror}") from error
        try:
            self._helper = subprocess.Popen(
                ["sh", "-c", _HELD, " ".join(map(str, entrances)), *entering, "sh", "-c", _HELPER],
                env={"PATH": os.defpath},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._proc)
            raise SandboxUnavailable(
                f"the sandbox's processes cannot be stopped: {error.strerror}"
            ) from error
        self._pid = 0

    def __enter__(self) -> _Inside:
        try:
            self.run(":")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._proc)
        with contextlib.suppress(OSError):
            self._helper.communicate()

    def run(self, line: str) -> int:
        """Run builtin commands of the shell inside; the last process id that the namespace gave out then."""
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._helper.stdin.write(f"{line}\n".encode())
            self._helper.stdin.flush()
        answer = self._helper.stdout.readline().split()
        if len(answer) != 2:
            raise SandboxUnavailable("no process can be started in the sandbox's namespaces")
        self._pid = int(answer[0])
        return int(answer[1])

    def stop(self) -> None:
        """Send SIGSTOP to all until they stand still. Raises SandboxUnavailable after 10 s."""
        deadline, pause = time.monotonic() + _TIMEOUT_S, _PAUSE_S
        while not self._stands_still(self.run("kill -s STOP -- -1 2>/dev/null")):
            if time.monotonic() > deadline:
                raise SandboxUnavailable(
                    f"the sandbox's processes withstood SIGSTOP for {_TIMEOUT_S:.0f} s, so its files are not read"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_S)

    def _stands_still(self, last_pid: int) -> bool:
        """Whether no process executed anything between two looks, and none was made.

        A thread that was stopped in both looks, and was never scheduled between them, was stopped when the first
        look ended; if that holds for all, none is left that could resume another.
        """
        first = self.look()
        if any(thread.state not in _STILL for thread in first.values()):
            return False
        return self.look() == first and self.run(":") == last_pid

    def look(self) -> _Look:
        """Every thread inside but those of the first process and of the helper."""
        found: _Look = {}
        with os.scandir(self._proc) as entries:
            pids = {int(entry.name) for entry in entries if entry.name.isdigit()}
        for pid in pids - {1, self._pid}:
            found |= self._threads(pid)
        return found

    def _threads(self, pid: int) -> _Look:
        found: _Look = {}
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            tasks = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
            try:
                with os.scandir(tasks) as entries:
                    names = [entry.name for entry in entries]
                for name in names:
                    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                        found[pid, int(name)] = _thread(name, tasks)
            finally:
                os.close(tasks)
        return found


def _thread(name: str, tasks: int) -> _Thread:
    lines = _read(f"{name}/status", tasks).splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    state = fields["State"][0]
    if state == "D":
        with contextlib.suppress(OSError):
            if _read(f"{name}/syscall", tasks).partition(" ")[0] in _CREATING:
                state = _WAITS_FOR_CHILD
    return _Thread(state, (fields["voluntary_ctxt_switches"], fields["nonvoluntary_ctxt_switches"]))


def _read(path: str, directory: int) -> str:
    descriptor = os.open(path, os.O_RDONLY, dir_fd=directory)
    try:
        return os.read(descriptor, _LONGEST_FILE).decode(errors="replace")
    finally:
        os.close(descriptor)


def _resume(inside: _Inside, stopped_before: set[int], entrances: Sequence[int]) -> None:
    """Resume all but those that were stopped before."""
    # `nsenter` stops itself some time after its child; resumed earlier, it would stay stopped for ever.
    deadline = time.monotonic() + _FOLLOW_S
    while any(_is_running(pid) for pid in entrances) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    # Children first: a parent that looks then finds none stopped.
    stopped = sorted({pid for pid, _ in inside.look()} - stopped_before, reverse=True)
    if stopped:
        inside.run(f"kill -s CONT {' '.join(map(str, stopped))} 2>/dev/null")


def _is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in _STILL
    return False
