"""The back end `host`: bubblewrap's namespaces around layers of files, without Docker."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from langgraph_takeover.base.failures import cache_unless, run_all
from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.backends import bubblewrap, file_trees, mounted_programs, overlay, warm_shells
from langgraph_takeover.sandbox.backends.processes import (
    PipeChannel,
    find_descendants,
    has_mapped_files,
    is_dead,
    kill_until_none,
    pause_processes,
)
from langgraph_takeover.sandbox.changes.change_report import Mount
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.changes.saved_files import SavedFiles
from langgraph_takeover.sandbox.interface import SandboxSpec, SandboxUnavailableError, Snapshot
from langgraph_takeover.sandbox.isolation import namespaces
from langgraph_takeover.sandbox.isolation.freezer import EarlierProcesses
from langgraph_takeover.sandbox.isolation.limits import DiskWatch, MemoryWatch, bytes_unlinked
from langgraph_takeover.sandbox.shell import EXIT_SIGNAL, PROTOCOL_DESCRIPTOR, Channel, RuntimeShell, Shell

_UNSAVED_SCRIPT = "[ $# = 0 ] || timeout 10 find -P \"$1/dev/shm\" -type f ! -name 'sem.*' -printf '/dev/shm/%P\\0' | head -z -n 20"
_SHELL_PID = 2  # in its own namespace, where 1 is bubblewrap's reaper
_SHELL_DESCRIPTORS = (0, 1, 2, PROTOCOL_DESCRIPTOR, 255)
_NAMESPACE_DEPTH = 3  # process namespaces: this host's, the keeper's, bubblewrap's
_KILL_TIMEOUT_S, _KILL_POLL_S = 10.0, 0.001


@cache_unless(bool)
def unavailable_reason() -> str | None:
    """Return why bubblewrap does not work here, in one line; None if it works."""
    try:
        program = bubblewrap.find_bubblewrap()
    except SandboxUnavailableError as error:
        return str(error)
    if (reason := overlay.namespaces_unavailable_reason()) is not None:
        return reason
    nested = [
        *overlay.drop_privileges_prefix(),
        "unshare",
        "--user",
        "--map-root-user",
        program,
        *bubblewrap.NAMESPACES,
        "--ro-bind",
        "/",
        "/",
        "true",
    ]
    done = subprocess.run(
        nested, env=ownership.program_environment(), capture_output=True, text=True, check=False
    )
    return None if done.returncode == 0 else f"{program} does not work here: {done.stderr.strip()[-200:]}"


def describe_file_layers() -> str:
    """Describe how sandboxes get their files here, in one line."""
    reason = overlay.unavailable_reason()
    return "files layered by overlayfs" if reason is None else f"files copied, slowly ({reason})"


class HostBackend:
    """No network, no host files except the read-only system and the interpreter, no capabilities.

    Root inside is an unprivileged user outside, in user namespaces that it cannot nest. The base is either a
    repository, with this host's system read-only around it, or a complete system.
    """

    file_roots: tuple[str, ...] = (bubblewrap.HOME, "/tmp")
    keeps_processes = False  # each shell has namespaces of its own

    def __init__(
        self, spec: SandboxSpec, tree: file_trees.FileTree, warm: warm_shells.WarmShell | None = None
    ) -> None:
        """`warm` is a waiting shell in the namespaces of the tree."""
        self._spec = spec
        self._tree = tree
        self._warm = warm
        self._programs = mounted_programs.MountedPrograms(spec.programs, tree)
        self._channels: list[PipeChannel] = []
        self._observed: dict[psutil.Process, int] = {}
        """What the last look showed, as `_observe` returns it."""
        self.workspace = spec.workspace
        self._affinity_command = warm.affinity_command if warm else warm_shells.make_affinity_command(spec)
        memory = spec.memory_mb << 20
        limits = (self._measure_disk_use, spec.disk_mb << 20, ownership.runs_directory())
        self._group = warm.group if warm else warm_shells.create_group(spec)
        if self._has_memory_limit():
            self.watch = DiskWatch(*limits)
        else:
            self.watch = MemoryWatch(*limits, processes=self._list_busy_processes, memory_limit=memory)
        self.mounts = (Mount("", "/"),) if tree.base.is_system else bubblewrap.list_mounts(spec)

    def layers(self) -> LayerStack:
        return self._tree.layers()

    def saved_layers(self) -> LayerStack:
        return self._tree.saved_layers()

    def open_shell(self) -> PipeChannel:
        warm, self._warm = self._warm, None
        channel = warm.attach(self.workspace) if warm else None
        if channel is None:
            channel = bubblewrap.start_shell(
                self._spec,
                self._tree.base,
                self._programs.mount(),
                entry_command=self._tree.entry_command(),
                group=self._group,
                affinity_command=self._affinity_command,
            )
        self._channels = [*(old for old in self._channels if old.process.poll() is None), channel]
        warm_shells.prepare(self._spec, self._tree)
        return channel

    def list_unsaved_files(self, agent_shell: Shell, runtime_shell: RuntimeShell) -> tuple[str, ...]:
        """The agent's shell has memory of its own, which the runtime's shell does not see."""
        shells = [each.pid for each in self._list_processes([agent_shell.channel])]
        words = [f"/proc/{pid}/root" for pid in shells if _namespace_pid(pid) == _SHELL_PID]
        done = subprocess.run(["sh", "-c", _UNSAVED_SCRIPT, "sh", *words], capture_output=True, check=False)
        return tuple(path.decode("utf-8", "backslashreplace") for path in done.stdout.split(b"\0")[:-1])

    def listen(self, agent_shell: Shell, port: int) -> socket.socket:
        assert self._tree.namespaces is not None
        # The first process of the shell's namespaces is bubblewrap's own, and nothing inside can end it.
        for process in self._list_processes([agent_shell.channel]):
            if _namespace_pid(process.pid) == 1:
                entry = self._tree.namespaces.user_entry_command()
                return namespaces.listen_inside(process, port, entry_command=entry)
        raise SandboxUnavailableError("the sandbox's shell has ended (start or restore the sandbox again)")

    def list_processes(self, agent_shell: Shell, runtime_shell: RuntimeShell) -> Collection[int]:
        if self._group is None:
            return [process.pid for process in self._list_busy_processes()]
        shells = self._list_shell_processes()
        # A reaper whose starter has ended leads to no shell any more.
        return [pid for pid in self._group.process_ids() - shells if _namespace_pid(pid) > _SHELL_PID]

    def pause(
        self, agent_shell: Shell, runtime_shell: RuntimeShell, earlier: EarlierProcesses
    ) -> contextlib.AbstractContextManager[None]:
        return pause_processes(lambda: earlier.filter(self._list_busy_processes()))

    def signal_shell(self, agent_shell: Shell, runtime_shell: RuntimeShell) -> None:
        for process in self._list_processes([agent_shell.channel]):
            if _namespace_pid(process.pid) == _SHELL_PID:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(EXIT_SIGNAL)

    def kill_all(
        self, agent_shell: Shell | None, runtime_shell: RuntimeShell, spared: EarlierProcesses
    ) -> None:
        if self._group is None:
            kill_until_none(self._list_busy_processes, spared)
        else:
            shells = self._list_shell_processes()
            self._group.kill(select_spared=lambda pids: shells | spared.select(pids - shells))

    def is_idle(self) -> bool:
        if not self._tree.is_layered:
            return False
        if self._group is None:
            with self._pause_processes():
                return self._has_only_idle_shells()
        # A process that keeps forking is always in the group, whatever its id.
        return self._has_only_idle_shells() and self._group.process_ids() <= self._select_shells(
            self._observed
        )

    def begin_snapshot(
        self, store: Path, labels: Mapping[str, str], *, is_idle: bool, saved: SavedFiles
    ) -> Callable[[str], Snapshot]:
        inside, namespaces_before = _select_inside(self._observed), self._tree.namespaces
        finish = self._tree.begin_snapshot(
            store,
            is_idle=is_idle,
            pause=self._pause_processes,
            saved=saved,
            has_mapped_files=self._has_mapped_files,
        )

        def finish_replaced() -> file_trees.SavedDigests:
            _kill_namespaces(inside)
            return finish()

        is_replaced = self._tree.namespaces is not namespaces_before
        return file_trees.make_snapshot_builder(
            "host", self.workspace, finish_replaced if is_replaced else finish
        )

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # a failed start leaves nothing behind
            if self._group is not None:
                stack.callback(self._group.remove)
            stack.callback(self._tree.close)
            if self._warm is not None:
                stack.callback(self._warm.close)
            for channel in self._channels:
                stack.callback(channel.end)

    def _has_only_idle_shells(self) -> bool:
        """Whether only waiting shells run inside, as far as one look shows."""
        self._observed = self._observe(self._channels)
        return not any(_is_busy(process, inner_pid) for process, inner_pid in self._observed.items())

    @contextlib.contextmanager
    def _pause_processes(self) -> Iterator[None]:
        """Stop everything inside, verified. Raises SandboxUnavailableError if something keeps running."""
        assert self._tree.namespaces is not None
        if self._group is not None and self._group.can_pause:
            with self._group.pause():
                yield
        else:
            keeper, entrances = self._tree.namespaces, [channel.process.pid for channel in self._channels]
            with namespaces.stop_all(keeper.first_pid, keeper.entry_command(), entrances):
                yield

    def _has_memory_limit(self) -> bool:
        return self._group is not None and self._group.has_memory_limit

    def _measure_disk_use(self) -> int:
        """Return the bytes on disk that the sandbox has written since its start, unnamed files included."""
        if self._group is not None:
            self._group.protect(
                self._list_shell_processes()
            )  # from time to time, because new processes appear
        return self._tree.measure_disk_use() + bytes_unlinked(self._list_process_ids())

    def _has_mapped_files(self) -> bool:
        return any(map(has_mapped_files, self._list_process_ids()))

    def _list_process_ids(self) -> set[int]:
        if self._group is not None:
            return self._group.process_ids()
        return {process.pid for process in self._list_processes(self._channels)}

    def _list_shell_processes(self) -> set[int]:
        """Return the shells, and the processes that lead to them."""
        return self._select_shells(self._observe(self._channels))

    def _select_shells(self, found: Mapping[psutil.Process, int]) -> set[int]:
        shells = {process.pid for process, inner_pid in found.items() if inner_pid <= _SHELL_PID}
        return shells | {channel.process.pid for channel in self._channels}

    def _list_busy_processes(self) -> list[psutil.Process]:
        """Return everything inside except the shells."""
        found = self._observe(self._channels).items()
        return [process for process, inner_pid in found if inner_pid > _SHELL_PID]

    def _list_processes(self, channels: Sequence[Channel]) -> list[psutil.Process]:
        """Return what runs behind these channels, including the reapers."""
        return _select_inside(self._observe(channels))

    def _observe(self, channels: Sequence[Channel]) -> dict[psutil.Process, int]:
        """Return what runs behind these channels, and what leads there, each with its id inside; 0 outside."""
        ours = [channel.process.pid for channel in self._channels if channel in channels]
        found = (process for pid in ours for process in find_descendants(pid))
        return {process: _namespace_pid(process.pid) for process in found}


def _select_inside(found: Mapping[psutil.Process, int]) -> list[psutil.Process]:
    return [process for process, inner_pid in found.items() if inner_pid > 0]


def _namespace_pid(pid: int) -> int:
    """Return a process's id in bubblewrap's namespace; 0 if it is not in there, or has ended."""
    with contextlib.suppress(OSError):
        _, _, rest = Path(f"/proc/{pid}/status").read_bytes().partition(b"\nNSpid:")
        ids = rest.partition(b"\n")[0].split()
        return int(ids[-1]) if len(ids) >= _NAMESPACE_DEPTH else 0
    return 0


def _kill_namespaces(processes: Sequence[psutil.Process]) -> None:
    """Kill process namespaces by their first processes, and wait until they are empty.

    Raises SandboxUnavailableError if one survives 10 s.
    """
    reapers = [process for process in processes if _namespace_pid(process.pid) == 1]
    for process in (*reapers, *processes):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    # The kernel lets a namespace's first process end only after all the others.
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while not all(map(is_dead, reapers)):
        if time.monotonic() > deadline:
            raise SandboxUnavailableError(
                f"the sandbox's processes survived SIGKILL for {_KILL_TIMEOUT_S:.0f} s"
            )
        time.sleep(_KILL_POLL_S)


def _is_busy(process: psutil.Process, inner_pid: int) -> bool:
    """Whether a process inside is more than a waiting shell, or has more open files than a new one."""
    with contextlib.suppress(OSError):
        if inner_pid == _SHELL_PID:
            return any(
                int(each.name) not in _SHELL_DESCRIPTORS for each in os.scandir(f"/proc/{process.pid}/fd")
            )
    return inner_pid > _SHELL_PID


def start(spec: SandboxSpec) -> HostBackend:
    is_layered = overlay.unavailable_reason() is None
    return _create_backend(
        spec,
        lambda prepared: file_trees.start_tree(
            spec, is_layered=is_layered, is_isolated=True, prepared=prepared
        ),
    )


def restore(snapshot: Snapshot, store: Path, spec: SandboxSpec) -> HostBackend:
    return _create_backend(
        spec,
        lambda prepared: file_trees.restore_tree(snapshot, store, spec, is_isolated=True, prepared=prepared),
    )


def _create_backend(
    spec: SandboxSpec, make_tree: Callable[[overlay.EmptyNamespaces | None], file_trees.FileTree]
) -> HostBackend:
    _require_available()
    mounted_programs.require_readable_programs(spec.programs)
    warm = warm_shells.take(spec)
    try:
        tree = make_tree(warm.namespaces if warm else None)
    except BaseException as error:
        run_all(*([warm.close] if warm else []), error=error)
        raise
    if warm is not None and not warm.is_inside(tree):
        warm.close()
        warm = None
    try:
        return HostBackend(spec, tree, warm)
    except BaseException as error:
        run_all(*([warm.close] if warm else []), tree.close, error=error)
        raise


def _require_available() -> None:
    reason = unavailable_reason()
    if reason is not None:
        raise SandboxUnavailableError(f"host sandboxes are not available: {reason}")
