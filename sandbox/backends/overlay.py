"""Overlay mounts that need no privilege and leave nothing: a keeper process holds one, and dies with us."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

from langgraph_takeover.sandbox.backends.processes import find_descendants
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError
from langgraph_takeover.sandbox.storage import host_directories, ownership
from langgraph_takeover.sandbox.storage.removal import remove_tree

_PROGRAMS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "taskset": "util-linux",
    "mount": "mount",
}
# `volatile`: an upper directory is never mounted twice, and a snapshot is synced where it is kept. Without `index`
# an old upper directory can be a lower one while the kernel has not let go of it; it says so in its log.
_MOUNT_COMMAND = 'mount -t overlay overlay -o "userxattr,volatile,index=off,lowerdir=$lowers,upperdir=diff,workdir=work" "$2"'
# Sandboxes that root starts share one user of this host, and so its inotify instances: no sandbox may take them all.
# SysV shared memory (in pages) and message queues outlive their processes, so that no limit on these bounds them.
_KERNEL_LIMITS = {"user/max_inotify_instances": 32, "kernel/shmall": 16384, "kernel/msgmni": 32}
_SET_KERNEL_LIMITS = " ".join(f"echo {number} >/proc/sys/{name};" for name, number in _KERNEL_LIMITS.items())
# The kernel mounts an overlay read-only, without an error, where it cannot write to the work directory.
_CHECK_WRITABLE = '{ [ -w "$2" ] || { echo "the work directory cannot be written to" >&2; false; }; }'
# Waits, in its namespaces, for the room to be in and the layers to mount there, if there are any.
_HOLDER_SCRIPT = f"""
{{ {_SET_KERNEL_LIMITS} }} 2>/dev/null; echo ready; IFS= read -r room && IFS= read -r lowers && cd -- "$room" &&
if [ -n "$lowers" ]; then {_MOUNT_COMMAND} && {_CHECK_WRITABLE}; fi && echo mounted && exec cat >/dev/null
"""
_UNSHARE_COMMAND = (
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "--pid",
    "--ipc",
    "--mount-proc",
    "--fork",
    "--kill-child",
)
_BIND_COMMAND = 'mount --bind "$0" "$1"'
INTERPRETER = Path(sys.base_prefix)
"""What runs this program, which machines with this host's own system have as well."""
_CLOSE_DELAY_S = 0.3
MAX_LAYERS = 60
"""Beyond this many, layers are merged into one: the kernel's mount options hold about 4,000 characters."""


class _EmptyNamespaces:
    """User, mount and process namespaces with nothing in them yet but a way to the interpreter."""

    def __init__(self) -> None:
        self.origin = (os.getpid(), host_directories.ensure_root())
        binding = (str(INTERPRETER), str(interpreter_directory()), str(merged_directory()))
        # Before privileges are dropped, since the way there may be closed to the user that machines run as.
        before, first = (
            ["unshare", "--mount", "sh", "-c", f'{_BIND_COMMAND}; shift 2; exec "$@"', *binding],
            "",
        )
        if host_directories.owner_uid() is None:
            before, first = [], f"{_BIND_COMMAND};"
        self._process = subprocess.Popen(
            [
                *before,
                *_drop_privileges_prefix(),
                *_UNSHARE_COMMAND,
                "sh",
                "-c",
                first + _HOLDER_SCRIPT,
                *binding,
            ],
            env={"PATH": os.defpath},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def mount(self, directory: Path, layers: str) -> tuple[subprocess.Popen[bytes], int]:
        """Make these the namespaces of a room, with its layers mounted.

        The process that holds them, and the first one inside, as this host numbers it.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        # An ended `unshare` may leave a child that it has not yet bound to its own end.
        inside = find_descendants(process.pid) if process.stdout.readline() == b"ready\n" else []
        if inside:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(os.fsencode(f"{directory}\n{layers}\n"))
                process.stdin.flush()
        if not inside or process.stdout.readline() != b"mounted\n":
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.stdin = None
            _, told = process.communicate()
            reason = told.decode(errors="replace").strip().partition("\n")[0][:300] or "`unshare` was ended"
            host_directories.require_disk_space(directory)
            if (closed := host_directories.find_closed_parent(directory)) is not None:
                mode = stat.S_IMODE(closed.stat().st_mode)
                raise SandboxUnavailableError(
                    f"{closed}: closed to user {host_directories.ROOT_UID}, as which sandboxes run (mode {mode:04o}); "
                    f"set {host_directories.ROOT_VARIABLE} to a directory that others can enter, or chmod o+x {closed}"
                )
            raise SandboxUnavailableError(
                f"no overlay could be mounted: {reason}; "
                f"set {host_directories.ROOT_VARIABLE} to a directory on a disk that overlayfs can write to, such as ext4 or xfs"
            )
        return process, inside[0].pid

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


class _NamespaceCache:
    """One set of namespaces made ahead, since making them is half of what a machine's start takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._namespaces: _EmptyNamespaces | None = None

    def take(self) -> _EmptyNamespaces | None:
        with self._lock:
            found, self._namespaces = self._namespaces, None
        return (
            found
            if found is not None and found.origin == (os.getpid(), host_directories.ensure_root())
            else None
        )

    def make(self) -> None:
        with self._lock:
            if self._namespaces is None or self._namespaces.origin != (
                os.getpid(),
                host_directories.ensure_root(),
            ):
                self._namespaces = _EmptyNamespaces()


_namespace_cache = _NamespaceCache()


def prepare_namespaces() -> None:
    """Make ahead, while others work, what the next machine or freeze needs."""
    _namespace_cache.make()


class NamespaceHolder:
    """The namespaces of one machine, alive while this process holds its pipe, and its layers mounted in them.

    `room` holds `diff` and `work`; what they and the lower layers come to is `merged`, seen only from inside.
    `first` is the first process inside, as this host numbers it; not the agent's.
    """

    def __init__(self, directory: Path, lowers: tuple[Path, ...]) -> None:
        layers = ":".join(os.path.relpath(lower, directory) for lower in lowers)
        spare = _namespace_cache.take()
        try:
            self._process, self.first_pid = (spare or _EmptyNamespaces()).mount(directory, layers)
        except SandboxUnavailableError:
            if spare is None:
                raise
            # Something may have ended the one made ahead.
            self._process, self.first_pid = _EmptyNamespaces().mount(directory, layers)

    def entry_command(self) -> list[str]:
        """The beginning of a command line that runs the rest of it inside the namespaces."""
        # Who is root already becomes the root that lives there; anybody else is that by the map of users.
        credentials = ["--preserve-credentials"] if host_directories.owner_uid() is None else []
        return ["nsenter", f"--target={self.first_pid}", "--user", "--mount", "--pid", "--ipc", *credentials]

    def close_later(self) -> None:
        """Close later: the kernel takes its time to let go of a mount, and holds up who makes one meanwhile."""
        closing = threading.Timer(_CLOSE_DELAY_S, self.close)
        closing.daemon = True
        closing.start()

    def close(self) -> None:
        """End every process inside; when this returns, none writes any more. May be called twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.first_pid, 9)
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
        self._process.wait()


def merged_directory() -> Path:
    """Where every machine's files are found in its namespaces."""
    found = host_directories.ensure_root() / "merged"
    found.mkdir(exist_ok=True)
    return found


def interpreter_directory() -> Path:
    """Where the interpreter is found in every machine's namespaces, whoever may not go the way to it here."""
    found = host_directories.ensure_root() / "interpreter"
    found.mkdir(exist_ok=True)
    return found


def find_missing_program() -> str | None:
    """Which program is not installed that a keeper needs, in one line."""
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt-get install {package})"
    return None


@functools.cache
def namespaces_unavailable_reason() -> str | None:
    """Why no user namespace can be had here, in one line; None when one can."""
    if (reason := find_missing_program()) is not None:
        return reason
    done = subprocess.run(
        [*_drop_privileges_prefix(), *_UNSHARE_COMMAND, "true"], capture_output=True, text=True, check=False
    )
    return None if done.returncode == 0 else f"no user namespaces here: {done.stderr.strip()[-200:]}"


def unavailable_reason() -> str | None:
    """Why machines cannot be layered with overlayfs here, in one line; None when they can."""
    try:
        return _unavailable_reason()
    except OutOfDiskError as error:  # which may pass
        return str(error)


@functools.cache
def _unavailable_reason() -> str | None:
    if (reason := namespaces_unavailable_reason()) is not None:
        return reason
    try:
        room = create_layer_directory(f"probe-{os.getpid()}")
    except OutOfDiskError:
        raise
    except SandboxUnavailableError as error:
        return str(error)
    try:
        (room / "lower").mkdir()
        NamespaceHolder(room, (room / "lower",)).close()
    except OutOfDiskError:
        raise
    except SandboxUnavailableError as error:
        return str(error)
    finally:
        remove_tree(room.parent)
        ownership.release(room.parent.name)
    return None


def create_layer_directory(owner: str) -> Path:
    """A directory for one more layer of a run, with those that a keeper needs; this process now holds the run."""
    run = host_directories.runs_directory() / owner
    while True:
        host_directories.require_disk_space(host_directories.ensure_directory(run))
        ownership.hold(owner)
        room = run / secrets.token_hex(4)
        # A collector may have removed the run's directory before this process held it.
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            room.mkdir(mode=0o711)
            break
    host_directories.give_to_owner(room)
    for name in ("diff", "work"):
        (room / name).mkdir()
        host_directories.give_to_owner(room / name)
    return room


def _drop_privileges_prefix() -> list[str]:
    uid = host_directories.owner_uid()
    return [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
