"""Shells that wait for a sandbox: started in advance, in namespaces where its files are mounted later.

Where a sandbox's files will be, a waiting shell has slots: read-only, empty mounts that receive what is mounted on them in
the namespaces around. So the start of a sandbox makes one overlay mount, and no process of its own. A waiting shell has
run nothing of an agent's, and serves one sandbox.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.base.failures import run_all
from langgraph_takeover.sandbox.backends import bubblewrap, file_trees, overlay
from langgraph_takeover.sandbox.backends.processes import PipeChannel, find_descendants
from langgraph_takeover.sandbox.interface import SandboxSpec, SandboxUnavailableError
from langgraph_takeover.sandbox.isolation import cgroups
from langgraph_takeover.sandbox.shell import make_setup
from langgraph_takeover.sandbox.snapshots.bases import Base

MAX_WAITING = 2
"""Shells that wait in one process of ours; each takes 1.4 MB of memory (proportional set size)."""
_DELAY_S = 0.03
"""The first command of a sandbox runs before the next shell is started."""
_START_TIMEOUT_S, _ANSWER_TIMEOUT_S = 30.0, 2.0
_READY = b"ready"
_EXTRA_PROCESSES = 64
"""Extra processes in a control group: the shells, and the processes that lead to them."""


class _Key(NamedTuple):
    """What is fixed once a shell waits: the fields of a spec, and the state of this host that its command depends on."""

    origin: tuple[int, Path]
    workspace: str
    limits: tuple[float | None, ...]
    processors: tuple[int, ...]
    hidden: tuple[tuple[Path, bool], ...]
    path: str


def _make_key(spec: SandboxSpec) -> _Key | None:
    """Return None for a spec whose shells cannot wait: a complete system is mounted as the root itself, and programs
    are compared with this host's at each start.
    """
    if spec.directory is None or spec.programs:
        return None
    return _Key(
        overlay.current_origin(),
        spec.workspace,
        (spec.memory_mb, spec.pids, spec.open_files, spec.disk_mb, spec.cpus),
        tuple(sorted(os.sched_getaffinity(0))),
        tuple((path, path.is_dir()) for path in spec.hidden),
        os.environ.get("PATH", ""),
    )


class WarmShell:
    """A waiting shell in namespaces and a control group of its own. Raises SandboxUnavailableError."""

    def __init__(self, key: _Key, spec: SandboxSpec, base: Base) -> None:
        self.key = key
        self.affinity_command = make_affinity_command(spec)
        self.namespaces = overlay.EmptyNamespaces(has_slots=True)
        self.group: cgroups.ControlGroup | None = None
        self._channel: PipeChannel | None = None
        try:
            self.group = create_group(spec)
            self._channel = bubblewrap.start_shell(
                spec,
                base,
                overlay.slots_directory(),
                entry_command=self.namespaces.entry_command(),
                group=self.group,
                affinity_command=self.affinity_command,
            )
            targets = {inside for _, inside in bubblewrap.list_mounts(spec)}
            mark = secrets.token_hex(16)
            setup = make_setup(mark, self._channel.limits_command)
            self._channel.state_mark = mark
            if not self._answers(setup, _START_TIMEOUT_S) or _list_slots(self._channel) != targets:
                raise SandboxUnavailableError("no shell can wait here: mounts do not reach its namespaces")
        except BaseException as error:
            run_all(self.close, error=error)
            raise

    def is_inside(self, tree: file_trees.FileTree) -> bool:
        """Whether the files of a tree are mounted in the slots."""
        return (
            not tree.base.is_system
            and tree.namespaces is not None
            and tree.namespaces.is_made_of(self.namespaces)
        )

    def attach(self, workspace: str) -> PipeChannel | None:
        """Return the shell, now in the mounted workspace; None if it does not answer: another can be started."""
        channel = self._channel
        assert channel is not None
        # As if the shell had just started.
        if self._answers(f"\\builtin cd -- {shlex.quote(workspace)} && SECONDS=0", _ANSWER_TIMEOUT_S):
            return channel
        channel.end()
        return None

    def is_alive(self) -> bool:
        return self._channel is not None and self._channel.is_alive()

    def close(self) -> None:
        """End everything inside. A sandbox that has taken the namespaces closes them itself."""
        steps: list[Callable[[], object]] = [self.namespaces.close]
        if self._channel is not None:
            steps.append(self._channel.end)
        if self.group is not None:
            steps.append(self.group.remove)
        if (error := run_all(*steps)) is not None:
            raise error

    def _answers(self, command: str, timeout_s: float) -> bool:
        """Whether the shell runs the command and says so."""
        assert self._channel is not None
        deadline, answer = time.monotonic() + timeout_s, b""
        with contextlib.suppress(OSError):
            self._channel.send(f"{command} && \\builtin printf {_READY.decode()}\n".encode())
            while answer != _READY and (left := deadline - time.monotonic()) > 0:
                if (data := self._channel.receive(left)) == b"":
                    return False
                answer += data or b""
        return answer == _READY


def _list_slots(channel: PipeChannel) -> set[str]:
    """List the mount points of a shell's namespaces that receive what is mounted in those around."""
    for process in find_descendants(channel.process.pid)[-1:]:
        lines = Path(f"/proc/{process.pid}/mountinfo").read_text().splitlines()
        return {line.split()[4] for line in lines if " master:" in line.partition(" - ")[0]}
    return set()


class _Pool:
    """Waiting shells for the kind of sandbox that was opened last."""

    def __init__(self) -> None:
        # Without a lock, which a fork could copy locked; a list gives each of its elements away once.
        self._waiting: list[WarmShell] = []
        self._wanted: tuple[_Key, SandboxSpec, Base] | None = None
        self._filler: threading.Thread | None = None
        self._impossible: set[_Key] = set()

    def take(self, key: _Key) -> WarmShell | None:
        for found in tuple(self._waiting):
            if found.key == key:
                with contextlib.suppress(ValueError):  # another thread was faster
                    self._waiting.remove(found)
                    if found.is_alive():
                        return found
                    found.close()
        return None

    def fill(self, wanted: tuple[_Key, SandboxSpec, Base] | None) -> None:
        """Start in the background what a sandbox of this kind needs next; None: only namespaces."""
        self._wanted = wanted
        if self._filler is None or not self._filler.is_alive():
            self._filler = threading.Thread(target=self._fill, name="warm-shells", daemon=True)
            self._filler.start()

    def _fill(self) -> None:
        # What fails here fails again, with its reason, when a sandbox is started without a waiting shell.
        with contextlib.suppress(OSError, SandboxUnavailableError):
            time.sleep(_DELAY_S)
            overlay.prepare_namespaces()
            while (wanted := self._wanted) is not None:
                self._close_others(wanted[0])
                if len(self._waiting) >= MAX_WAITING or wanted[0] in self._impossible:
                    return
                self._impossible.add(wanted[0])
                self._waiting.append(WarmShell(*wanted))
                self._impossible.discard(wanted[0])

    def _close_others(self, key: _Key) -> None:
        for other in tuple(self._waiting):
            if other.key != key or not other.is_alive():
                with contextlib.suppress(ValueError):
                    self._waiting.remove(other)
                    other.close()

    def finish(self) -> None:
        if self._filler is not None:
            self._filler.join()

    def clear(self) -> None:
        self._wanted = None
        self.finish()
        while self._waiting:
            self._waiting.pop().close()

    def forget(self) -> None:
        """Like `overlay._NamespaceCache.forget`."""
        for other in self._waiting:
            other.namespaces.leave()
        self._waiting.clear()


_pool = _Pool()
os.register_at_fork(after_in_child=_pool.forget)


def take(spec: SandboxSpec) -> WarmShell | None:
    """Take a waiting shell for a sandbox, if there is one; its taker must close it."""
    key = _make_key(spec)
    return None if key is None else _pool.take(key)


def prepare(spec: SandboxSpec, tree: file_trees.FileTree) -> None:
    """Start in the background what the next sandbox of this kind needs."""
    key = _make_key(spec) if tree.is_layered and not tree.base.is_system else None
    _pool.fill(None if key is None else (key, spec, tree.base))


def finish_preparing() -> None:
    """Wait until the shells wait that `prepare` starts in the background."""
    _pool.finish()


def close_waiting() -> None:
    """End the shells that wait in this process; the next sandbox starts others."""
    _pool.clear()


def create_group(spec: SandboxSpec) -> cgroups.ControlGroup | None:
    """Create the control group of one sandbox; None if this host has none."""
    return cgroups.create_group(spec.memory_mb << 20, spec.pids + _EXTRA_PROCESSES)


def make_affinity_command(spec: SandboxSpec) -> Sequence[str]:
    """Return the start of a command line that binds the rest to that many processors of this host, rounded up."""
    ours = sorted(os.sched_getaffinity(0))
    if spec.cpus is None or spec.cpus >= len(ours):
        return ()
    return ("taskset", "--cpu-list", ",".join(map(str, random.sample(ours, math.ceil(spec.cpus)))))
