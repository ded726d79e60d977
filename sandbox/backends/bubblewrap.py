"""The bubblewrap command that starts a shell in a sandbox of the back end `host`."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.backends import mounted_programs, overlay
from langgraph_takeover.sandbox.backends.overlay import INTERPRETER
from langgraph_takeover.sandbox.backends.processes import PipeChannel, build_environment
from langgraph_takeover.sandbox.changes.change_report import Mount
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxSpec, SandboxUnavailableError
from langgraph_takeover.sandbox.isolation import seccomp
from langgraph_takeover.sandbox.isolation.cgroups import ControlGroup
from langgraph_takeover.sandbox.snapshots.bases import WRITABLE_DIRECTORIES, Base
from langgraph_takeover.sandbox.untrusted_trees import remove_tree

SHELL_PATH_INSIDE = "/dev/bash"
_MAX_PENDING_SIGNALS = 4096
"""Pending signals; the kernel has one budget for all sandboxes of a user."""
_BASH_PATHS = ("usr/bin/bash", "bin/bash")


def prepare_shell_program(base: Base) -> Path | None:
    """Return the copy for sandboxes on a base, made at the first call; None if the base's own bash is behind a link.

    A repository uses this host's bash, a complete system its own.
    """
    if base.is_system:
        found = next((path for name in _BASH_PATHS if (path := _find_regular_file(base.tree, name))), None)
        return found and _copy_program(found, base.tree.parent / "bash")
    host = shutil.which("bash", path=ownership.search_path())
    if host is None:
        return None
    program = Path(host).resolve()
    info = program.stat()
    stamp = repr((str(program), info.st_mtime_ns, info.st_ino, info.st_size))
    return _copy_program(
        program, ownership.ensure_root() / f"bash-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
    )


def _copy_program(program: Path, target: Path) -> Path:
    if target.exists():
        return target
    partial = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
    try:
        with program.open("rb") as source, partial.open("xb") as copy:
            shutil.copyfileobj(source, copy)
            os.fchmod(copy.fileno(), 0o111)
            copy.flush()
            os.fsync(copy.fileno())
        partial.replace(target)
    except OSError as error:
        kind = OutOfDiskError if error.errno in (errno.ENOSPC, errno.EDQUOT) else SandboxUnavailableError
        raise kind(
            f"{program}: cannot be copied to {target}: {error.strerror} (make {target.parent} writable, "
            f"or set {ownership.ROOT_VARIABLE} to another directory)"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return target


def _find_regular_file(tree: Path, name: str) -> Path | None:
    """Open a file of a tree without following a link out of it."""
    path = tree
    for part in name.split("/"):
        path /= part
        if path.is_symlink():
            return None
    return path if path.is_file() else None


HOME = "/home/agent"
"""The home directory inside, around a repository."""
_SYSTEM_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_ETC_FILES = ("alternatives", "group", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "passwd")
# bubblewrap's first process inside keeps descriptors 0 to 2, and any process of the same user can attach to it: it must
# not have the shell's input, from which the mark of the next command's end could be read.
_DETACH_STREAMS, _ATTACH_STREAMS = "8<&0 9>&1 </dev/null >/dev/null", "<&8 >&9 8<&- 9>&-"
# Root inside owns the sandbox's IPC namespace and could lift the limits that the keeper has set there.
_KERNEL_MOUNTS = ("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev")
_SHARED_MEMORY_BYTES = 64 * 1024 * 1024
# The IPC namespace belongs to the keeper, which limits its sizes.
NAMESPACES = (
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


def find_bubblewrap() -> str:
    """Return the absolute path of bubblewrap. Raises SandboxUnavailableError."""
    return ownership.find_program("bwrap", "bubblewrap")


def start_shell(
    spec: SandboxSpec,
    base: Base,
    root: Path,
    *,
    entry_command: Sequence[str],
    group: ControlGroup | None,
    affinity_command: Sequence[str],
) -> PipeChannel:
    """Start a shell inside the namespaces that `entry_command` enters, where the files' root is visible at `root`."""
    program, calls = find_bubblewrap(), seccomp.open_filter_file()
    filtered = [] if calls is None else ["--seccomp", str(calls)]
    moves = "" if group is None else group.entry_script
    # With a control group for memory, address space need not be limited: Node and Bun programs reserve a lot of it.
    has_memory_limit = group is not None and group.has_memory_limit
    address_space = "" if has_memory_limit else f"-v {spec.memory_mb << 10} "
    try:
        return PipeChannel(
            [
                *("sh", "-c", f'{moves}exec "$@" {_DETACH_STREAMS}', "sh"),
                *entry_command,
                *affinity_command,
                *(program, *filtered, *_build_command(spec, base, root)),
            ],
            env=ownership.program_environment(),
            inherited_descriptors=() if calls is None else (calls,),
            limits_command=f"ulimit -u {spec.pids} {address_space}-n {spec.open_files} "
            f"-f {spec.disk_mb << 10} -c 0 -i {_MAX_PENDING_SIGNALS}",
        )
    finally:
        if calls is not None:
            os.close(calls)


def list_mounts(spec: SandboxSpec) -> tuple[Mount, ...]:
    """Where the parts of a repository's tree are visible inside."""
    return tuple(map(Mount, WRITABLE_DIRECTORIES, (spec.workspace, HOME, "/tmp")))


def _build_command(spec: SandboxSpec, base: Base, root: Path) -> list[str]:
    """Return bubblewrap's options and the shell's command line.

    `root` is where the tree's root is visible, with the programs of a complete system. The `sh` that starts bubblewrap
    applies `_DETACH_STREAMS`.
    """
    argv = [*NAMESPACES, "--new-session", "--hostname", "sandbox"]
    argv += _list_system_mounts(root) if base.is_system else _list_host_mounts(spec, root)
    argv += ["--size", str(_SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]
    program = prepare_shell_program(base)
    if program is not None:
        argv += ["--ro-bind", str(program), SHELL_PATH_INSIDE]
    argv += ["--remount-ro", "/dev"]
    argv += ["--chdir", spec.workspace, "--clearenv"]
    for name, value in _build_environment(base).items():
        argv += ["--setenv", name, value]
    shell = "bash" if program is None else SHELL_PATH_INSIDE
    # In an image, the agent could have replaced `sh`.
    first = shell if base.is_system else "sh"
    return [*argv, first, "-c", f'exec "$@" {_ATTACH_STREAMS}', first, shell, "--norc", "--noprofile"]


def _list_system_mounts(root: Path) -> list[str]:
    return ["--bind", str(root), "/", *_KERNEL_MOUNTS]


def _list_host_mounts(spec: SandboxSpec, root: Path) -> list[str]:
    argv = [*_KERNEL_MOUNTS]
    for path in _SYSTEM_DIRECTORIES:
        if Path(path).is_symlink():
            argv += ["--symlink", str(Path(path).readlink()), path]
        else:
            argv += ["--ro-bind-try", path, path]
    argv += ["--ro-bind", str(prepare_etc_directory()), "/etc"]
    if not INTERPRETER.is_relative_to("/usr"):
        argv += _list_parent_directories(INTERPRETER)
        argv += ["--ro-bind", str(overlay.interpreter_directory()), str(INTERPRETER)]
    for hidden in spec.hidden:
        if hidden.is_dir() and any(hidden.is_relative_to(path) for path in ("/usr", INTERPRETER)):
            argv += ["--tmpfs", str(hidden)]
    for program in spec.programs:
        argv += _list_parent_directories(Path(program.inside))
        argv += ["--ro-bind", str(mounted_programs.program_directory(program)), program.inside]
    for part, inside in list_mounts(spec):
        argv += [*_list_parent_directories(Path(inside)), "--bind", str(root / part), inside]
    return [*argv, "--remount-ro", "/"]


def _build_environment(base: Base) -> dict[str, str]:
    if not base.is_system:
        return build_environment(f"{INTERPRETER}/bin:{os.defpath}", HOME)
    image = dict(line.split("=", 1) for line in base.environment)
    return build_environment(os.defpath, "/root") | image | {"HOME": "/root"}


def prepare_etc_directory() -> Path:
    """Return a directory with the few files of this host's /etc that programs need: every mount takes time."""
    present = [path for path in (Path("/etc") / name for name in _ETC_FILES) if path.exists()]
    stamps = repr([(path.name, path.stat().st_mtime_ns, path.stat().st_ino) for path in present])
    made = ownership.ensure_root() / f"etc-{hashlib.sha256(stamps.encode()).hexdigest()[:16]}"
    if not made.exists():
        partial = Path(tempfile.mkdtemp(prefix=".etc-", dir=made.parent))
        subprocess.run(["cp", "-a", *present, partial], check=True)
        partial.chmod(0o755)
        with contextlib.suppress(OSError):  # another process was faster
            partial.rename(made)
        remove_tree(partial)
    return made


def _list_parent_directories(path: Path) -> list[str]:
    """Return options that create the parents of a mount point, accessible to every user inside."""
    parents = [str(parent) for parent in reversed(path.parents) if str(parent) not in ("/", "/usr")]
    return [option for parent in parents for option in ("--perms", "0755", "--dir", parent)]
