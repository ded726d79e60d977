"""Programs of this host in a `host` sandbox: mounted read-only in the namespaces around its shells.

They are mounted before any process of the agent sees the files, so the way to a mount point cannot change meanwhile.
A repository's sandbox has an empty, read-only root, in which bubblewrap makes the mount points. A complete system
belongs to the agent, who may have put a symbolic link there; such a system is refused.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from langgraph_takeover.sandbox import ownership, untrusted_trees
from langgraph_takeover.sandbox.backends import overlay
from langgraph_takeover.sandbox.backends.file_trees import FileTree
from langgraph_takeover.sandbox.interface import ProgramMount, SandboxUnavailableError

_READABLE = stat.S_IROTH | stat.S_IXOTH
# Arguments: the files, where they become visible, and the directories below them that must exist.
_MAKE_MOUNT_POINTS_SCRIPT = """
[ "$1" = "$2" ] || mount --bind "$1" "$2" || exit
root=$2; shift 2
for path; do
    cd -- "$root" || exit
    while [ -n "$path" ]; do
        part=${path%%/*}; path=${path#"$part"}; path=${path#/}
        [ ! -L "$part" ] && { [ -d "$part" ] || mkdir -m 755 -- "$part"; } && cd -P -- "$part" || exit
    done
done
"""
# Arguments, for each mount: options, the directory, the mount point. The kernel refuses to bind a directory without the
# file systems below it if these were mounted before the namespaces were made.
_MOUNT_SCRIPT = """
while [ $# -gt 0 ]; do
    mount --bind -o "$1" -- "$2" "$3" 2>/dev/null || mount --rbind -o "$1" -- "$2" "$3" || exit
    shift 3
done
"""
# Arguments: mount points below programs.
_HIDE_SCRIPT = 'for path; do mount -t tmpfs -o ro,size=4k,mode=755 none "$path" || exit; done'


def require_programs(programs: Sequence[ProgramMount]) -> None:
    """Raises SandboxUnavailableError if a program's directory is missing."""
    for program in programs:
        if not program.directory.is_dir():
            raise SandboxUnavailableError(
                f"program directory not found: {program.directory} (for {program.inside}; install the program, "
                "or pass the directory that contains it)"
            )


def require_readable_programs(programs: Sequence[ProgramMount]) -> None:
    """Like `require_programs`. Raises SandboxUnavailableError, too, if the user of sandboxes cannot read a directory."""
    require_programs(programs)
    for program in programs:
        mode = program.directory.stat().st_mode
        if ownership.owner_uid() is not None and mode & _READABLE != _READABLE:
            raise SandboxUnavailableError(
                f"{program.directory}: closed to user {ownership.ROOT_UID}, as which sandboxes run (mode "
                f"{stat.S_IMODE(mode):04o}) (chmod -R o+rX {program.directory})"
            )


class MountedPrograms:
    """The programs of one sandbox; a snapshot may replace the namespaces in which they are mounted."""

    def __init__(self, programs: Sequence[ProgramMount], tree: FileTree) -> None:
        self._programs = programs
        self._tree = tree
        self._root = tree.root
        self._mounted_in: overlay.NamespaceHolder | None = None

    def mount(self) -> Path:
        """Mount the programs where a new shell sees them; return where the tree's root is visible with them.

        Around a repository they are at `program_directory`, from where bubblewrap mounts them. Raises
        SandboxUnavailableError.
        """
        holder = self._tree.namespaces
        if self._programs and holder is not None and holder is not self._mounted_in:
            targets = (
                self._make_mount_points(holder)
                if self._tree.base.is_system
                else list(map(program_directory, self._programs))
            )
            _mount(self._programs, targets, holder)
            self._mounted_in = holder
        return self._root

    def _make_mount_points(self, holder: overlay.NamespaceHolder) -> list[Path]:
        # A copied tree is mounted once more: its snapshots are read where it is, without the programs.
        self._root = overlay.merged_directory()
        paths = [program.inside.lstrip("/") for program in self._programs]
        places = [str(self._tree.root), str(self._root)]
        _run(
            [*holder.entry_command(), "sh", "-c", _MAKE_MOUNT_POINTS_SCRIPT, "sh", *places, *paths],
            "in the sandbox, /opt/takeover is a link, a file or cannot be made: restore another snapshot, or mount no programs",
        )
        return [self._root / path for path in paths]


def _mount(
    programs: Sequence[ProgramMount], targets: Sequence[Path], holder: overlay.NamespaceHolder
) -> None:
    arguments: list[str] = []
    for program, target in zip(programs, targets, strict=True):
        directory = program.directory.resolve()
        arguments += [_mount_options(directory), str(directory), str(target)]
    # Root reads directories on the way that are closed to the user of sandboxes.
    entry = ["nsenter", f"--target={holder.first_pid}", "--mount"]
    if ownership.owner_uid() is None:
        entry = holder.entry_command()
    _run(
        [*entry, "sh", "-c", _MOUNT_SCRIPT, "sh", *arguments],
        "check that the directories can be read; if their file system was mounted only now, try again",
    )
    for program, target in zip(programs, targets, strict=True):
        _verify(program, target, holder.first_pid)
    if below := [each for target in targets for each in _list_mounts_below(target, holder.first_pid)]:
        _run([*entry, "sh", "-c", _HIDE_SCRIPT, "sh", *below], "unmount the file systems below the programs")


def _list_mounts_below(directory: Path, first_pid: int) -> list[str]:
    """List the mount points below a directory, as a process sees them."""
    points = (line.split()[4] for line in Path(f"/proc/{first_pid}/mountinfo").read_bytes().splitlines())
    paths = (re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), each) for each in points)
    return [os.fsdecode(each) for each in paths if each.startswith(os.fsencode(f"{directory}/"))]


def program_directory(program: ProgramMount) -> Path:
    """Where a program is in the namespaces around a repository's shells."""
    name = PurePosixPath(program.inside).name
    return ownership.ensure_directory(ownership.ensure_root() / "programs" / name)


def _mount_options(directory: Path) -> str:
    # A user's namespaces cannot drop an option of the mount that they inherit.
    inherited = os.statvfs(directory).f_flag
    return "ro,nosuid,nodev" + (",noexec" if inherited & os.ST_NOEXEC else "")


def _verify(program: ProgramMount, target: Path, first_pid: int) -> None:
    """Raises SandboxUnavailableError if the mount point shows another directory than the program's."""
    found = None
    with contextlib.suppress(OSError):
        found = untrusted_trees.read_status(Path(f"/proc/{first_pid}/root"), str(target).lstrip("/"))
    if found is None or not os.path.samestat(found, program.directory.stat()):
        raise SandboxUnavailableError(
            f"{program.directory} is not visible at {program.inside} (if its file system was mounted only now, try again)"
        )


def _run(argv: list[str], cure: str) -> None:
    done = subprocess.run(argv, env=ownership.program_environment(), capture_output=True, check=False)
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip().partition("\n")[0][-300:]
        reason = f": {message}" if message else ""
        raise SandboxUnavailableError(f"the programs of the sandbox cannot be mounted{reason} ({cure})")
