"""Overlay mounts that need no privilege and leave nothing behind: a keeper process holds one, and ends with us."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import stat
import subprocess
import sys
import threading
from pathlib import Path

from langgraph_takeover.base.failures import cache_unless
from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.backends.processes import find_descendants
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError
from langgraph_takeover.sandbox.snapshots.bases import WRITABLE_DIRECTORIES
from langgraph_takeover.sandbox.untrusted_trees import remove_tree

_PROBE_LOCK = threading.Lock()
_PROGRAMS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "taskset": "util-linux",
    "mount": "mount",
}
# `volatile`: an upper directory is never mounted twice, and a snapshot is synced where it is stored. Without `index`
# an old upper directory can become a lower one while the kernel still holds it; it logs that.
_OVERLAY_OPTIONS = "nosuid,nodev,userxattr,volatile,index=off,lowerdir={},upperdir=diff,workdir=work"
_TABLE_FILE = "fstab"
# Sandboxes that root starts share one user of this host, and so its inotify instances: no sandbox may use all of them.
# SysV shared memory (in pages) and message queues survive their processes, so process limits do not bound them.
_KERNEL_LIMITS = {"user/max_inotify_instances": 32, "kernel/shmall": 16384, "kernel/msgmni": 32}
_SET_KERNEL_LIMITS = " ".join(f"echo {number} >/proc/sys/{name};" for name, number in _KERNEL_LIMITS.items())
# The kernel mounts an overlay read-only, without an error, if it cannot write to the work directory.
_CHECK_WRITABLE = '{ [ -w "$2" ] || { echo "the work directory cannot be written to" >&2; false; }; }'
# Waits, in its namespaces, for the directory to enter, and mounts what its table lists, if it has one.
_HOLDER_SCRIPT = f"""
{{ {_SET_KERNEL_LIMITS} }} 2>/dev/null; echo ready; IFS= read -r room && cd -- "$room" &&
if [ -e {_TABLE_FILE} ]; then mount --all --fstab ./{_TABLE_FILE} && {_CHECK_WRITABLE}; fi && echo mounted && read -r end
"""
# What is mounted in a slot later appears in the namespaces that were made meanwhile.
_SHARE_SLOTS_COMMAND = 'mount -o bind,ro --make-shared "$3" "$3";'
_ESCAPES = str.maketrans({character: f"\\{ord(character):03o}" for character in " \t\n\\"})
"""Characters that a table of mounts cannot contain otherwise."""
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
"""Programs that this module runs; sandboxes with this host's system have them as well."""
_CLOSE_DELAY_S = 0.3
MAX_LAYERS = 60
"""Beyond this number, layers are merged into one: the kernel's mount options hold about 4,000 characters."""


class EmptyNamespaces:
    """User, mount and process namespaces with nothing in them yet except access to the interpreter.

    `has_slots`: shells can start inside before the files are mounted; they see the parts in `slots_directory`.
    """

    def __init__(self, *, has_slots: bool = False) -> None:
        self.origin = current_origin()
        self._has_slots = has_slots
        binding = tuple(
            map(str, (INTERPRETER, interpreter_directory(), merged_directory(), slots_directory()))
        )
        # Before privileges are dropped, because the sandbox's user may be unable to enter its path.
        before, first = (
            ["unshare", "--mount", "sh", "-c", f'{_BIND_COMMAND}; shift 3; exec "$@"', *binding],
            "",
        )
        if ownership.owner_uid() is None:
            before, first = [], f"{_BIND_COMMAND};"
        if has_slots:
            first += _SHARE_SLOTS_COMMAND
        self._process = subprocess.Popen(
            [
                *before,
                *drop_privileges_prefix(),
                *_UNSHARE_COMMAND,
                "sh",
                "-c",
                first + _HOLDER_SCRIPT,
                *binding,
            ],
            env=ownership.program_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    @functools.cached_property
    def first_pid(self) -> int:
        """The first process inside, as this host numbers it, which is not the agent's; 0 if it has ended."""
        assert self._process.stdout is not None
        # An ended `unshare` may leave a child that it has not yet bound to its own end.
        inside = find_descendants(self._process.pid) if self._process.stdout.readline() == b"ready\n" else []
        return inside[0].pid if inside else 0

    def entry_command(self) -> list[str]:
        """Return the start of a command line that runs the rest inside."""
        # Root becomes the root inside explicitly; any other user is mapped to it.
        credentials = ["--preserve-credentials"] if ownership.owner_uid() is None else []
        return ["nsenter", f"--target={self.first_pid}", "--user", "--mount", "--pid", "--ipc", *credentials]

    def mount(
        self, directory: Path, layers: str, parts: tuple[str, ...] = ()
    ) -> tuple[subprocess.Popen[bytes], int]:
        """Turn these namespaces into those of a directory, with its layers mounted, and their parts in the slots.

        Returns the process that holds them, and the first one inside.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        inside = self.first_pid
        if inside:
            if layers:
                _write_mount_table(directory, layers, parts if self._has_slots else ())
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(os.fsencode(f"{directory}\n"))
                process.stdin.flush()
        if not inside or process.stdout.readline() != b"mounted\n":
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.stdin = None
            _, message = process.communicate()
            reason = (
                message.decode(errors="replace").strip().partition("\n")[0][:300] or "`unshare` was ended"
            )
            ownership.require_disk_space(directory)
            if (closed := ownership.find_closed_parent(directory)) is not None:
                mode = stat.S_IMODE(closed.stat().st_mode)
                raise SandboxUnavailableError(
                    f"{closed}: closed to user {ownership.ROOT_UID}, as which sandboxes run (mode {mode:04o}) "
                    f"(set {ownership.ROOT_VARIABLE} to a directory that others can enter, or chmod o+x {closed})"
                )
            raise SandboxUnavailableError(
                f"no overlay could be mounted: {reason} "
                f"(set {ownership.ROOT_VARIABLE} to a directory on a disk that overlayfs can write to, such as ext4 or xfs)"
            )
        return process, inside

    def close(self) -> None:
        """End every process inside; can be called twice, and after `mount`."""
        with contextlib.suppress(OSError, ValueError):
            self._process.communicate()

    def leave(self) -> None:
        """In a forked process: let them end with the process that has made them."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def _write_mount_table(directory: Path, layers: str, parts: tuple[str, ...]) -> None:
    """Write the mounts of a layer's directory as a table: one start of `mount` makes them all."""
    merged, slots = merged_directory(), slots_directory()
    rows = [("overlay", str(merged), "overlay", _OVERLAY_OPTIONS.format(layers))]
    rows += [(str(merged / part), str(slots / part), "none", "bind") for part in parts]
    table = "".join(" ".join(field.translate(_ESCAPES) for field in row) + "\n" for row in rows)
    (directory / _TABLE_FILE).write_bytes(os.fsencode(table))


def current_origin() -> tuple[int, Path]:
    """What prepared namespaces belong to: this process, and its directory at that time."""
    return os.getpid(), ownership.ensure_root()


class _NamespaceCache:
    """One set of namespaces prepared in advance: making them takes half of a sandbox's start."""

    def __init__(self) -> None:
        # Without a lock, which a fork could copy locked; a list gives each of its elements away once.
        self._namespaces: list[EmptyNamespaces] = []

    def take(self) -> EmptyNamespaces | None:
        with contextlib.suppress(IndexError):
            found = self._namespaces.pop()
            return found if found.origin == current_origin() else None
        return None

    def make(self) -> None:
        if not any(each.origin == current_origin() for each in self._namespaces):
            self._namespaces[:] = [EmptyNamespaces()]

    def forget(self) -> None:
        """In a forked process: leave what its parent has, which would otherwise outlive the parent."""
        for each in self._namespaces:
            each.leave()
        self._namespaces.clear()


_namespace_cache = _NamespaceCache()
os.register_at_fork(after_in_child=_namespace_cache.forget)


def prepare_namespaces() -> None:
    """Prepare what the next sandbox or snapshot needs."""
    _namespace_cache.make()


class NamespaceHolder:
    """The namespaces of one sandbox, alive while this process holds its pipe, with its layers mounted in them.

    The directory holds `diff` and `work`; the merged result is `merged`, visible only from inside. `first_pid` is
    the number on this host of the first process inside, which is not the agent's.
    """

    def __init__(
        self,
        directory: Path,
        lowers: tuple[Path, ...],
        *,
        prepared: EmptyNamespaces | None = None,
        parts: tuple[str, ...] = (),
    ) -> None:
        """`parts` of the layers appear in the slots of the prepared namespaces, unless these had to be replaced."""
        layers = ":".join(os.path.relpath(lower, directory) for lower in lowers)
        spare = prepared or _namespace_cache.take()
        self._namespaces = spare or EmptyNamespaces()
        try:
            self._process, self.first_pid = self._namespaces.mount(directory, layers, parts)
        except SandboxUnavailableError:
            if spare is None:
                raise
            # The prepared set may have been ended meanwhile.
            self._namespaces = EmptyNamespaces()
            self._process, self.first_pid = self._namespaces.mount(directory, layers)

    def is_made_of(self, namespaces: EmptyNamespaces) -> bool:
        """Whether the layers are mounted in these namespaces."""
        return self._namespaces is namespaces

    def entry_command(self) -> list[str]:
        """Return the start of a command line that runs the rest inside the namespaces."""
        return self._namespaces.entry_command()

    def user_entry_command(self) -> list[str]:
        """Return the start of a command line with power over nested namespaces, in no other namespace; root needs none."""
        if ownership.owner_uid() is not None:
            return []
        return ["nsenter", f"--target={self.first_pid}", "--user", "--preserve-credentials"]

    def close_later(self) -> None:
        """Close later: the kernel releases a mount slowly, and blocks new mounts meanwhile."""
        closing = threading.Timer(_CLOSE_DELAY_S, self.close)
        closing.daemon = True
        closing.start()

    def close(self) -> None:
        """End every process inside; after the return, none writes any more. Can be called twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.first_pid, 9)
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
        self._process.wait()


def merged_directory() -> Path:
    """Where every sandbox's files are in its namespaces."""
    found = ownership.ensure_root() / "merged"
    found.mkdir(exist_ok=True)
    return found


def slots_directory() -> Path:
    """Where the parts of a sandbox's files appear for shells that were started before them."""
    found = ownership.ensure_root() / "slots"
    for name in WRITABLE_DIRECTORIES:
        ownership.ensure_directory(found / name)
    return found


def interpreter_directory() -> Path:
    """Where the interpreter is in every sandbox's namespaces, even if its path here is not accessible."""
    found = ownership.ensure_root() / "interpreter"
    found.mkdir(exist_ok=True)
    return found


def find_missing_program() -> str | None:
    """Return which required program is not installed, in one line; None if none is missing."""
    for program, package in _PROGRAMS.items():
        try:
            ownership.find_program(program, package)
        except SandboxUnavailableError as error:
            return str(error)
    return None


@cache_unless(bool)
def namespaces_unavailable_reason() -> str | None:
    """Return why user namespaces do not work here, in one line; None if they work."""
    if (reason := find_missing_program()) is not None:
        return reason
    done = subprocess.run(
        [*drop_privileges_prefix(), *_UNSHARE_COMMAND, "true"],
        env=ownership.program_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else f"no user namespaces here: {done.stderr.strip()[-200:]}"


def unavailable_reason() -> str | None:
    """Return why overlayfs does not work here, in one line; None if it works."""
    if (reason := namespaces_unavailable_reason()) is not None:
        return reason
    try:
        with _PROBE_LOCK:  # the probe's directory has the name of the process
            return _unavailable_reason()
    except OutOfDiskError as error:  # this failure may be temporary
        return str(error)


@functools.cache
def _unavailable_reason() -> str | None:
    try:
        directory = create_layer_directory(f"probe-{os.getpid()}")
    except OutOfDiskError:
        raise
    except SandboxUnavailableError as error:
        return str(error)
    try:
        (directory / "lower").mkdir()
        NamespaceHolder(directory, (directory / "lower",)).close()
    except OutOfDiskError:
        raise
    except SandboxUnavailableError as error:
        return str(error)
    finally:
        remove_tree(directory.parent)
        ownership.release(directory.parent.name)
    return None


def create_layer_directory(owner: str) -> Path:
    """Create a directory for one more layer of a run, which this process now holds."""
    run = ownership.runs_directory() / owner
    ownership.hold(owner)  # from now on, garbage collection leaves the run's directory
    ownership.require_disk_space(ownership.ensure_directory(run))
    while True:
        directory = run / secrets.token_hex(4)
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o711)
            break
    ownership.give_to_owner(directory)
    for name in ("diff", "work"):
        (directory / name).mkdir()
        ownership.give_to_owner(directory / name)
    return directory


def drop_privileges_prefix() -> list[str]:
    """Return the start of a command line that runs the rest as the user of the sandboxes."""
    uid = ownership.owner_uid()
    return [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
