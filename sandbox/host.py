"""A machine on this host without Docker: bubblewrap's namespaces around layers of files."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from sandbox import cgroups, namespaces, overlay, seccomp, storage, trees, unreadable
from sandbox.bases import ROOMS
from sandbox.changes import Mount
from sandbox.layers import Stack
from sandbox.local import PipeChannel, descendants, environment, is_dead, kill_until_none
from sandbox.machine import SandboxSpec, SandboxUnavailable, Snapshot
from sandbox.overlay import INTERPRETER
from sandbox.removal import remove_tree
from sandbox.shell import ASIDE, LEAVE, Channel, Hand, Shell
from sandbox.watch import DiskWatch, MemoryWatch, bytes_unnamed, bytes_used

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_ETC = ("alternatives", "group", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "passwd")
_HOME = "/home/agent"
# bubblewrap's first process inside keeps what it has as descriptors 0 to 2, and any process of the same user can attach
# to it: it must not have the shell's input, from which the next command's mark could be read.
_APART, _TOGETHER = "8<&0 9>&1 </dev/null >/dev/null", "<&8 >&9 8<&- 9>&-"
_MOST_SIGNALS = 4096
"""That wait; the kernel has one budget of them for all sandboxes of a user."""
_SHELL_PID = 2  # in its own namespace, where 1 is bubblewrap's reaper
_SHELLS_FILES = (0, 1, 2, ASIDE, 255)
_DEPTH_INSIDE = 3  # process namespaces: this host's, the keeper's, bubblewrap's
# Root inside owns the sandbox's IPC namespace, and could lift the bounds that the keeper has set there.
_KERNEL = ("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev")
_OWN_PROCESSES = 64
"""Room in a control group for the shells, and for the processes that lead to them."""
_END_S, _END_LOOK_S = 10.0, 0.001
_SHARED_MEMORY_BYTES = 64 * 1024 * 1024
# The IPC namespace is the keeper's, where its sizes are bounded.
_NAMESPACES = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--disable-userns",
    "--uid",
    "0",
    "--gid",
    "0",
    "--cap-drop",
    "ALL",
)


@functools.cache
def unavailable() -> str | None:
    """Why no bubblewrap sandbox can be had here, in one line; None when one can."""
    if shutil.which("bwrap") is None:
        return "bwrap is not installed (Debian: apt-get install bubblewrap)"
    if (reason := overlay.namespaces_unavailable()) is not None:
        return reason
    nested = ["unshare", "--user", "--map-root-user", "bwrap", *_NAMESPACES, "--ro-bind", "/", "/", "true"]
    done = subprocess.run(nested, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"bwrap does not work here: {done.stderr.strip()[-200:]}"


def files_way() -> str:
    """How machines get their files here, in one line."""
    reason = overlay.unavailable()
    return "files layered by overlayfs" if reason is None else f"files copied, slowly ({reason})"


class HostEnclosure:
    """No network, no host files but the read-only system and the interpreter, no capabilities.

    Root inside is an unprivileged user outside, in user namespaces that it cannot nest. The base is
    either a repository, with this host's own system read-only around it, or a whole system.
    """

    file_roots: tuple[str, ...] = (_HOME, "/tmp")

    def __init__(self, spec: SandboxSpec, tree: trees.Tree) -> None:
        self._spec = spec
        self._tree = tree
        self._channels: list[PipeChannel] = []
        self._found: list[psutil.Process] = []
        self.workspace = spec.workspace
        self._processors = _bound_to(spec.cpus)
        memory = spec.memory_mb << 20
        limits = (self._disk_used, spec.disk_mb << 20, storage.runs())
        self._group = cgroups.create(memory, spec.pids + _OWN_PROCESSES)
        if self._limits_memory():
            self.watch = DiskWatch(*limits)
        else:
            self.watch = MemoryWatch(*limits, processes=self._busy, memory_limit=memory)
        if tree.base.whole:
            self.mounts: tuple[Mount, ...] = (Mount("", "/"),)
        else:
            self.mounts = tuple(map(Mount, ROOMS, (spec.workspace, _HOME, "/tmp")))

    def layers(self) -> Stack:
        return self._tree.layers()

    def open_shell(self) -> PipeChannel:
        spec = self._spec
        calls = seccomp.filter_file()
        filtered = [] if calls is None else ["--seccomp", str(calls)]
        moves = "" if self._group is None else self._group.entering_code
        # Where a control group counts memory, address space is free: Node and Bun programs reserve a lot of it.
        address_space = "" if self._limits_memory() else f"-v {spec.memory_mb << 10} "
        try:
            channel = PipeChannel(
                [
                    *("sh", "-c", f'{moves}exec "$@" {_APART}', "sh"),
                    *self._tree.entering(),
                    *self._processors,
                    *("bwrap", *filtered, *self._argv()),
                ],
                env={"PATH": os.defpath},
                inherits=() if calls is None else (calls,),
                limits=f"BASH_ARGV0=bash; ulimit -u {spec.pids} {address_space}-n {spec.open_files} "
                f"-f {spec.disk_mb << 10} -c 0 -i {_MOST_SIGNALS}",
            )
        finally:
            if calls is not None:
                os.close(calls)
        self._channels = [*(old for old in self._channels if old.process.poll() is None), channel]
        overlay.prepare()
        return channel

    def kill_all(self, hand: Hand, leaving: Shell | None) -> None:
        for process in self._inside([leaving.channel] if leaving is not None else []):
            if _pid_inside(process.pid) == _SHELL_PID:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(LEAVE)
        if self._group is None:
            kill_until_none(self._busy)
        else:
            self._group.kill(spared=self._own_processes())

    def at_rest(self) -> bool:
        if not self._tree.layered:
            return False
        if self._group is None:
            with self._stopped():
                return self._waits()
        # A process that forks on and on is a member at every moment, under whatever id.
        return self._waits() and self._group.process_ids() <= self._own_processes()

    def freeze(self, store: Path, labels: Mapping[str, str], *, at_rest: bool) -> Callable[[str], Snapshot]:
        inside = self._found
        finish = self._tree.freeze(store, at_rest=at_rest, stopped=self._stopped)

        def finish_at_rest() -> trees.Kept:
            _end(inside)
            return finish()

        return trees.described("host", self.workspace, finish_at_rest if at_rest else finish)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # what fails leaves nothing of the rest
            if self._group is not None:
                stack.callback(self._group.remove)
            stack.callback(self._tree.close)
            for channel in self._channels:
                stack.callback(channel.end)

    def _waits(self) -> bool:
        """Whether only shells are inside that wait for a command, as far as a look can tell."""
        self._found = self._inside(self._channels)
        return not any(map(_is_at_work, self._found))

    @contextlib.contextmanager
    def _stopped(self) -> Iterator[None]:
        """Hold everything inside still, verified. Raises SandboxUnavailable if it does not stop."""
        assert self._tree.keeper is not None
        if self._group is not None and self._group.can_freeze:
            with self._group.freezing():
                yield
        else:
            keeper, entrances = self._tree.keeper, [channel.process.pid for channel in self._channels]
            with namespaces.stop_all(keeper.first, keeper.entering(), entrances):
                yield

    def _limits_memory(self) -> bool:
        return self._group is not None and self._group.limits_memory

    def _disk_used(self) -> int:
        """Bytes on disk of what the sandbox has written since its start, files that have no name any more included."""
        if self._group is not None:
            self._group.protect(self._own_processes())  # now and then, as new processes come
        return sum(map(bytes_used, self._tree.own_layers())) + bytes_unnamed(self._process_ids())

    def _process_ids(self) -> set[int]:
        if self._group is not None:
            return self._group.process_ids()
        return {process.pid for process in self._inside(self._channels)}

    def _own_processes(self) -> set[int]:
        """The shells, and what leads to them."""
        ours = {channel.process.pid for channel in self._channels}
        return ours | {
            process.pid
            for pid in ours
            for process in descendants(pid)
            if _pid_inside(process.pid) <= _SHELL_PID
        }

    def _busy(self) -> list[psutil.Process]:
        """Everything inside but the shells themselves."""
        return [process for process in self._inside(self._channels) if _pid_inside(process.pid) > _SHELL_PID]

    def _inside(self, channels: Sequence[Channel]) -> list[psutil.Process]:
        """What runs behind these channels, the reapers among it."""
        ours = [channel.process.pid for channel in self._channels if channel in channels]
        found = (process for pid in ours for process in descendants(pid))
        return [process for process in found if _pid_inside(process.pid) > 0]

    def _argv(self) -> list[str]:
        argv = [*_NAMESPACES, "--new-session", "--hostname", "sandbox"]
        argv += self._whole_system() if self._tree.base.whole else self._own_system()
        argv += ["--size", str(_SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]
        program = unreadable.shell_program(self._tree.base)
        if program is not None:
            argv += ["--ro-bind", str(program), unreadable.INSIDE]
        argv += ["--remount-ro", "/dev"]
        argv += ["--chdir", self.workspace, "--clearenv"]
        for name, value in self._environment().items():
            argv += ["--setenv", name, value]
        shell = "bash" if program is None else unreadable.INSIDE
        # In an image `sh` could be the agent's.
        first = shell if self._tree.base.whole else "sh"
        return [*argv, first, "-c", f'exec "$@" {_TOGETHER}', first, shell, "--norc", "--noprofile"]

    def _whole_system(self) -> list[str]:
        return ["--bind", str(self._tree.files), "/", *_KERNEL]

    def _own_system(self) -> list[str]:
        argv = [*_KERNEL]
        for path in _SYSTEM:
            if Path(path).is_symlink():
                argv += ["--symlink", str(Path(path).readlink()), path]
            else:
                argv += ["--ro-bind-try", path, path]
        argv += ["--ro-bind", str(_settings()), "/etc"]
        if not INTERPRETER.is_relative_to("/usr"):
            argv += [*_directories(INTERPRETER), "--ro-bind", str(overlay.interpreter()), str(INTERPRETER)]
        for hidden in self._spec.hidden:
            if hidden.is_dir() and any(hidden.is_relative_to(path) for path in ("/usr", INTERPRETER)):
                argv += ["--tmpfs", str(hidden)]
        for part, inside in self.mounts:
            argv += [*_directories(Path(inside)), "--bind", str(self._tree.files / part), inside]
        return [*argv, "--remount-ro", "/"]

    def _environment(self) -> dict[str, str]:
        if not self._tree.base.whole:
            return environment(f"{INTERPRETER}/bin:{os.defpath}", _HOME)
        image = dict(line.split("=", 1) for line in self._tree.base.environment)
        return environment(os.defpath, "/root") | image | {"HOME": "/root"}


def _pid_inside(pid: int) -> int:
    """A process's id in bubblewrap's namespace; 0 when it is not in there, or gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                ids = line.split()[1:]
                return int(ids[-1]) if len(ids) >= _DEPTH_INSIDE else 0
    return 0


def _end(processes: Sequence[psutil.Process]) -> None:
    """Kill process namespaces by their first processes, and wait until nothing in them is left.

    Raises SandboxUnavailable if one outlives 10 s.
    """
    reapers = [process for process in processes if _pid_inside(process.pid) == 1]
    for process in (*reapers, *processes):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    # The kernel lets a namespace's first process end only after all the others.
    deadline = time.monotonic() + _END_S
    while not all(map(is_dead, reapers)):
        if time.monotonic() > deadline:
            raise SandboxUnavailable(f"the sandbox's processes outlived SIGKILL by {_END_S:.0f} s")
        time.sleep(_END_LOOK_S)


def _is_at_work(process: psutil.Process) -> bool:
    """Whether a process inside is more than a shell that waits, or has more open than a new one would."""
    place = _pid_inside(process.pid)
    with contextlib.suppress(OSError):
        if place == _SHELL_PID:
            return any(
                int(entry.name) not in _SHELLS_FILES for entry in os.scandir(f"/proc/{process.pid}/fd")
            )
    return place > _SHELL_PID


@functools.cache
def _settings() -> Path:
    """The little of this host's /etc that programs need, as one directory: each mount takes its time."""
    present = [path for path in (Path("/etc") / name for name in _ETC) if path.exists()]
    stamps = repr([(path.name, path.stat().st_mtime_ns, path.stat().st_ino) for path in present])
    made = storage.place() / f"etc-{hashlib.sha256(stamps.encode()).hexdigest()[:16]}"
    if not made.exists():
        partial = Path(tempfile.mkdtemp(prefix=".etc-", dir=made.parent))
        subprocess.run(["cp", "-a", *present, partial], check=True)
        partial.chmod(0o755)
        with contextlib.suppress(OSError):  # another process was faster
            partial.rename(made)
        remove_tree(partial)
    return made


def _bound_to(cpus: float | None) -> list[str]:
    """The beginning of a command line that binds the rest to so many of this host's processors, rounded up."""
    ours = sorted(os.sched_getaffinity(0))
    if cpus is None or cpus >= len(ours):
        return []
    return ["taskset", "--cpu-list", ",".join(map(str, random.sample(ours, math.ceil(cpus))))]


def _directories(path: Path) -> list[str]:
    """Options that make the parents of a mount point, open to every user inside."""
    parents = [str(parent) for parent in reversed(path.parents) if str(parent) not in ("/", "/usr")]
    return [option for parent in parents for option in ("--perms", "0755", "--dir", parent)]


def start(spec: SandboxSpec) -> HostEnclosure:
    _require()
    return _enclosed(spec, trees.started(spec, layered=overlay.unavailable() is None, enclosed=True))


def thaw(snapshot: Snapshot, store: Path, spec: SandboxSpec) -> HostEnclosure:
    _require()
    return _enclosed(spec, trees.thawed(snapshot, store, spec, enclosed=True))


def _enclosed(spec: SandboxSpec, tree: trees.Tree) -> HostEnclosure:
    try:
        return HostEnclosure(spec, tree)
    except BaseException:
        tree.close()
        raise


def _require() -> None:
    reason = unavailable()
    if reason is not None:
        raise SandboxUnavailable(f"no host sandbox: {reason}")
