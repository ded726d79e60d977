"""Overlay mounts that need no privilege and leave nothing: a keeper process holds one, and dies with us."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from pathlib import Path

from sandbox import depot
from sandbox.machine import SandboxUnavailable

_PROGRAMS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "taskset": "util-linux",
    "mount": "mount",
}
# `volatile`: an upper directory is never mounted twice, and a snapshot is synced where it is kept.
_MOUNT = "mount -t overlay overlay -o userxattr,volatile,lowerdir={lowers},upperdir=diff,workdir=work merged"
INTERPRETER = "interpreter"
_BIND = f'mount --bind "$0" {INTERPRETER}'
_KEEP = "echo ready && exec cat >/dev/null"
_START_S = 30.0
MOST_LAYERS = 60
"""Beyond this many, layers are merged into one: the kernel's mount options hold about 4,000 characters."""


class Keeper:
    """User, mount and process namespaces of one machine, alive while this process holds its pipe.

    `room` holds `diff`, `work` and `merged`; all paths in it are as on this host, the merged tree is to be
    seen only from inside. So is `interpreter`, a directory of this host, as `room/interpreter`.
    """

    def __init__(self, room: Path, lowers: tuple[Path, ...], interpreter: Path | None = None) -> None:
        steps = []
        if lowers:
            options = ":".join(os.path.relpath(lower, room) for lower in lowers)
            steps.append(_MOUNT.format(lowers=options))
        before = []
        if interpreter is not None and depot.owner_uid() is None:
            steps.append(_BIND)
        elif interpreter is not None:
            # Before privileges are dropped, since the way there may be closed to the user that machines run as.
            before = ["unshare", "--mount", "sh", "-c", f'{_BIND} && exec "$@"', str(interpreter)]
        argv = [
            *before,
            *_identity(),
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "--pid",
            "--mount-proc",
            "--fork",
            "--kill-child",
        ]
        self._process = subprocess.Popen(
            [*argv, "sh", "-c", " && ".join([*steps, _KEEP]), str(interpreter)],
            cwd=room,
            env={"PATH": os.defpath},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            _, told = self._process.communicate()
            reason = told.decode(errors="replace").strip().partition("\n")[0][:300] or "no reason given"
            raise SandboxUnavailable(
                f"no overlay could be mounted: {reason}; "
                f"set {depot.PLACE_VARIABLE} to a directory on a disk that overlayfs can write to, such as ext4 or xfs"
            )
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        self._first = int(children.read_text().split()[0])

    def entering(self) -> list[str]:
        """The beginning of a command line that runs the rest of it inside the namespaces."""
        # Who is root already becomes the root that lives there; anybody else is that by the map of users.
        credentials = ["--preserve-credentials"] if depot.owner_uid() is None else []
        return ["nsenter", f"--target={self._first}", "--user", "--mount", "--pid", *credentials]

    def close(self) -> None:
        """End every process inside; when this returns, none writes any more. May be called twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._first, 9)
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
        self._process.wait()


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
    done = subprocess.run(
        [*_identity(), "unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else f"no user namespaces here: {done.stderr.strip()[-200:]}"


@functools.cache
def unavailable() -> str | None:
    """Why machines cannot be layered with overlayfs here, in one line; None when they can."""
    if (reason := namespaces_unavailable()) is not None:
        return reason
    try:
        room = new_room(f"probe-{os.getpid()}")
    except SandboxUnavailable as error:
        return str(error)
    try:
        (room / "lower").mkdir()
        Keeper(room, (room / "lower",)).close()
    except SandboxUnavailable as error:
        return str(error)
    finally:
        depot.remove_run(room.parent.name)
    return None


def new_room(owner: str) -> Path:
    """A room with the directories that a keeper needs."""
    room = depot.new_room(owner)
    for name in ("diff", "work", "merged", INTERPRETER):
        (room / name).mkdir()
        depot.own(room / name)
    return room


def _identity() -> list[str]:
    uid = depot.owner_uid()
    return [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
