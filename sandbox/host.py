"""A machine on this host without Docker: bubblewrap's namespaces around a directory of files."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

from sandbox.local import PipeChannel, Rooms, descendants, environment, freeze_rooms, kill_until_none, stopped
from sandbox.machine import SandboxSpec, SandboxUnavailable, Snapshot
from sandbox.shell import Hand, Shell

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_ETC = (
    "/etc/alternatives",
    "/etc/group",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/passwd",
)
_HOME = "/home/agent"
_SHELL_PID = 2  # in its own namespace, where 1 is bubblewrap's reaper
_UNPRIVILEGED_UIDS = range(0x4000_0000, 0x5000_0000)


@functools.cache
def unavailable() -> str | None:
    """Why no bubblewrap sandbox can be had here, in one line; None when one can."""
    if shutil.which("bwrap") is None:
        return "bwrap is not installed (Debian: apt-get install bubblewrap)"
    done = subprocess.run(
        ["bwrap", *_namespaces(), "--ro-bind", "/", "/", "true"], capture_output=True, text=True, check=False
    )
    return None if done.returncode == 0 else f"bwrap does not work here: {done.stderr.strip()[-200:]}"


class HostEnclosure:
    """No network, no host files but the read-only system and the interpreter, no capabilities.

    Started by root, it runs as a user id of its own, so that the process limit counts this sandbox
    alone and another sandbox's files are another user's. Started by anybody else, it runs in a user
    namespace.
    """

    disk = None
    file_roots: tuple[str, ...] = (_HOME, "/tmp")

    def __init__(self, spec: SandboxSpec, rooms: Rooms) -> None:
        reason = unavailable()
        if reason is not None:
            raise SandboxUnavailable(f"no host sandbox: {reason}")
        self._spec = spec
        self._rooms = rooms
        self._uid = random.choice(_UNPRIVILEGED_UIDS) if os.geteuid() == 0 else None
        self._channels: list[PipeChannel] = []
        self.workspace = spec.workspace
        if self._uid is not None:
            rooms.give_to(self._uid)

    def open_shell(self) -> PipeChannel:
        channel = PipeChannel(self._argv(), env={"PATH": os.defpath})
        self._channels = [*(old for old in self._channels if old.process.poll() is None), channel]
        return channel

    def kill_all(self, hand: Hand, *spared: Shell) -> None:
        kill_until_none(
            lambda: [
                process
                for channel in self._channels
                for process in descendants(channel.process.pid)
                if _pid_inside(process.pid) > _SHELL_PID
            ]
        )

    def freeze(self, store: Path, shell_state: str, labels: Mapping[str, str]) -> Future[Snapshot]:
        everything = [process for channel in self._channels for process in descendants(channel.process.pid)]
        with stopped(everything):
            taken = freeze_rooms(
                self._rooms, store, backend="host", workspace=self.workspace, shell_state=shell_state
            )
        done: Future[Snapshot] = Future()
        done.set_result(taken)
        return done

    def close(self) -> None:
        for channel in self._channels:
            channel.end()
        self._rooms.remove()

    def _argv(self) -> list[str]:
        argv = ["bwrap", *_namespaces(), "--die-with-parent", "--new-session", "--hostname", "sandbox"]
        argv += ["--proc", "/proc", "--dev", "/dev"]
        for path in _SYSTEM:
            if Path(path).is_symlink():
                argv += ["--symlink", str(Path(path).readlink()), path]
            else:
                argv += ["--ro-bind-try", path, path]
        argv += ["--perms", "0755", "--dir", "/etc"]
        for path in _ETC:
            argv += ["--ro-bind-try", path, path]
        interpreter = Path(sys.base_prefix)
        if not interpreter.is_relative_to("/usr"):
            argv += [*_directories(interpreter), "--ro-bind", str(interpreter), str(interpreter)]
        for hidden in self._spec.hidden:
            if hidden.is_dir() and any(hidden.is_relative_to(path) for path in ("/usr", interpreter)):
                argv += ["--tmpfs", str(hidden)]
        for inside, outside in (
            (_HOME, self._rooms.home),
            ("/tmp", self._rooms.tmp),
            (self.workspace, self._rooms.workspace),
        ):
            argv += [*_directories(Path(inside)), "--bind", str(outside), inside]
        argv += ["--chdir", self.workspace, "--clearenv"]
        for name, value in environment(f"{interpreter}/bin:{os.defpath}", _HOME).items():
            argv += ["--setenv", name, value]
        if self._uid is not None:
            identity = ["--reuid", str(self._uid), "--regid", str(self._uid), "--clear-groups"]
            argv += ["setpriv", *identity, "--inh-caps=-all"]
        limits = f"ulimit -u {self._spec.pids} -v {self._spec.memory_mb * 1024} -c 0"
        return [*argv, "bash", "-c", f"{limits}; exec bash --norc --noprofile"]


def _namespaces() -> list[str]:
    if os.geteuid() != 0:
        return ["--unshare-all", "--uid", "0", "--gid", "0", "--cap-drop", "ALL"]
    unshared = [f"--unshare-{name}" for name in ("ipc", "pid", "net", "uts", "cgroup-try")]
    return [*unshared, "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]


def _pid_inside(pid: int) -> int:
    """The process's id in the innermost namespace; 0 when it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


def _directories(path: Path) -> list[str]:
    """Options that make the parents of a mount point, open to every user inside."""
    parents = [str(parent) for parent in reversed(path.parents) if str(parent) not in ("/", "/usr")]
    return [option for parent in parents for option in ("--perms", "0755", "--dir", parent)]


def start(spec: SandboxSpec) -> HostEnclosure:
    rooms = Rooms(spec.owner)
    assert spec.directory is not None
    with rooms.removed_on_failure():
        rooms.fill_from_directory(spec.directory)
        return HostEnclosure(spec, rooms)


def thaw(snapshot: Snapshot, store: Path, spec: SandboxSpec) -> HostEnclosure:
    rooms = Rooms(spec.owner)
    with rooms.removed_on_failure():
        rooms.fill_from_archive(store / snapshot.location, snapshot.digest)
        return HostEnclosure(spec, rooms)
