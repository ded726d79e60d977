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

from sandbox import ownership, storage
from sandbox.local import descendants
from sandbox.machine import OutOfDisk, SandboxUnavailable
from sandbox.removal import remove_tree

_PROGRAMS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "taskset": "util-linux",
    "mount": "mount",
}
# `volatile`: an upper directory is never mounted twice, and a snapshot is synced where it is kept. Without `index`
# an old upper directory can be a lower one while the kernel has not let go of it; it says so in its log.
_MOUNT = 'mount -t overlay overlay -o "userxattr,volatile,index=off,lowerdir=$lowers,upperdir=diff,workdir=work" "$2"'
# Sandboxes that root starts share one user of this host, and so its inotify instances: no sandbox may take them all.
# SysV shared memory (in pages) and message queues outlive their processes, so that no limit on these bounds them.
_SHARES = {"user/max_inotify_instances": 32, "kernel/shmall": 16384, "kernel/msgmni": 32}
_SHARE = " ".join(f"echo {number} >/proc/sys/{name};" for name, number in _SHARES.items())
# The kernel mounts an overlay read-only, without an error, where it cannot write to the work directory.
_WRITABLE = '{ [ -w "$2" ] || { echo "the work directory cannot be written to" >&2; false; }; }'
# Waits, in its namespaces, for the room to be in and the layers to mount there, if there are any.
_KEEP = f"""
{{ {_SHARE} }} 2>/dev/null; echo ready; IFS= read -r room && IFS= read -r lowers && cd -- "$room" &&
if [ -n "$lowers" ]; then {_MOUNT} && {_WRITABLE}; fi && echo mounted && exec cat >/dev/null
"""
_UNSHARE = (
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
_BIND = 'mount --bind "$0" "$1"'
INTERPRETER = Path(sys.base_prefix)
"""What runs this program, which machines with this host's own system have as well."""
_LATER_S = 0.3
MOST_LAYERS = 60
"""Beyond this many, layers are merged into one: the kernel's mount options hold about 4,000 characters."""


class _Namespaces:
    """User, mount and process namespaces with nothing in them yet but a way to the interpreter."""

    def __init__(self) -> None:
        self.origin = (os.getpid(), storage.place())
        binding = (str(INTERPRETER), str(interpreter()), str(merged()))
        # Before privileges are dropped, since the way there may be closed to the user that machines run as.
        before, first = ["unshare", "--mount", "sh", "-c", f'{_BIND}; shift 2; exec "$@"', *binding], ""
        if storage.owner_uid() is None:
            before, first = [], f"{_BIND};"
        self._process = subprocess.Popen(
            [*before, *_identity(), *_UNSHARE, "sh", "-c", first + _KEEP, *binding],
            env={"PATH": os.defpath},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def take(self, room: Path, layers: str) -> tuple[subprocess.Popen[bytes], int]:
        """Make these the namespaces of a room, with its layers mounted.

        The process that holds them, and the first one inside, as this host numbers it.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        # An ended `unshare` may leave a child that it has not yet bound to its own end.
        inside = descendants(process.pid) if process.stdout.readline() == b"ready\n" else []
        if inside:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(os.fsencode(f"{room}\n{layers}\n"))
                process.stdin.flush()
        if not inside or process.stdout.readline() != b"mounted\n":
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.stdin = None
            _, told = process.communicate()
            reason = told.decode(errors="replace").strip().partition("\n")[0][:300] or "`unshare` was ended"
            storage.require_room(room)
            if (closed := storage.closed_parent(room)) is not None:
                mode = stat.S_IMODE(closed.stat().st_mode)
                raise SandboxUnavailable(
                    f"{closed}: closed to user {storage.ROOT_UID}, as which sandboxes run (mode {mode:04o}); "
                    f"set {storage.PLACE_VARIABLE} to a directory that others can enter, or chmod o+x {closed}"
                )
            raise SandboxUnavailable(
                f"no overlay could be mounted: {reason}; "
                f"set {storage.PLACE_VARIABLE} to a directory on a disk that overlayfs can write to, such as ext4 or xfs"
            )
        return process, inside[0].pid

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


class _Spare:
    """One set of namespaces made ahead, since making them is half of what a machine's start takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: _Namespaces | None = None

    def take(self) -> _Namespaces | None:
        with self._lock:
            found, self._made = self._made, None
        return found if found is not None and found.origin == (os.getpid(), storage.place()) else None

    def make(self) -> None:
        with self._lock:
            if self._made is None or self._made.origin != (os.getpid(), storage.place()):
                self._made = _Namespaces()


_spare = _Spare()


def prepare() -> None:
    """Make ahead, while others work, what the next machine or freeze needs."""
    _spare.make()


class Keeper:
    """The namespaces of one machine, alive while this process holds its pipe, and its layers mounted in them.

    `room` holds `diff` and `work`; what they and the lower layers come to is `merged`, seen only from inside.
    `first` is the first process inside, as this host numbers it; not the agent's.
    """

    def __init__(self, room: Path, lowers: tuple[Path, ...]) -> None:
        layers = ":".join(os.path.relpath(lower, room) for lower in lowers)
        spare = _spare.take()
        try:
            self._process, self.first = (spare or _Namespaces()).take(room, layers)
        except SandboxUnavailable:
            if spare is None:
                raise
            # Something may have ended the one made ahead.
            self._process, self.first = _Namespaces().take(room, layers)

    def entering(self) -> list[str]:
        """The beginning of a command line that runs the rest of it inside the namespaces."""
        # Who is root already becomes the root that lives there; anybody else is that by the map of users.
        credentials = ["--preserve-credentials"] if storage.owner_uid() is None else []
        return ["nsenter", f"--target={self.first}", "--user", "--mount", "--pid", "--ipc", *credentials]

    def abandon(self) -> None:
        """Close later: the kernel takes its time to let go of a mount, and holds up who makes one meanwhile."""
        closing = threading.Timer(_LATER_S, self.close)
        closing.daemon = True
        closing.start()

    def close(self) -> None:
        """End every process inside; when this returns, none writes any more. May be called twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.first, 9)
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
        self._process.wait()


def merged() -> Path:
    """Where every machine's files are found in its namespaces."""
    found = storage.place() / "merged"
    found.mkdir(exist_ok=True)
    return found


def interpreter() -> Path:
    """Where the interpreter is found in every machine's namespaces, whoever may not go the way to it here."""
    found = storage.place() / "interpreter"
    found.mkdir(exist_ok=True)
    return found


def missing_programs() -> str | None:
    """Which program is not installed that a keeper needs, in one line."""
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt-get install {package})"
    return None


@functools.cache
def namespaces_unavailable() -> str | None:
    """Why no user namespace can be had here, in one line; None when one can."""
    if (reason := missing_programs()) is not None:
        return reason
    done = subprocess.run([*_identity(), *_UNSHARE, "true"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"no user namespaces here: {done.stderr.strip()[-200:]}"


def unavailable() -> str | None:
    """Why machines cannot be layered with overlayfs here, in one line; None when they can."""
    try:
        return _unavailable()
    except OutOfDisk as error:  # which may pass
        return str(error)


@functools.cache
def _unavailable() -> str | None:
    if (reason := namespaces_unavailable()) is not None:
        return reason
    try:
        room = new_room(f"probe-{os.getpid()}")
    except OutOfDisk:
        raise
    except SandboxUnavailable as error:
        return str(error)
    try:
        (room / "lower").mkdir()
        Keeper(room, (room / "lower",)).close()
    except OutOfDisk:
        raise
    except SandboxUnavailable as error:
        return str(error)
    finally:
        remove_tree(room.parent)
        ownership.release(room.parent.name)
    return None


def new_room(owner: str) -> Path:
    """A directory for one more layer of a run, with those that a keeper needs; this process now holds the run."""
    run = storage.runs() / owner
    while True:
        storage.require_room(storage.open_directory(run))
        ownership.hold(owner)
        room = run / secrets.token_hex(4)
        # A collector may have removed the run's directory before this process held it.
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            room.mkdir(mode=0o711)
            break
    storage.own(room)
    for name in ("diff", "work"):
        (room / name).mkdir()
        storage.own(room / name)
    return room


def _identity() -> list[str]:
    uid = storage.owner_uid()
    return [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
