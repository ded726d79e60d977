"""Bash processes of this host: the wire to one, and machines that are a directory of files."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import select
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from sandbox.machine import SandboxUnavailable, Snapshot, SnapshotCorrupt

ARCHIVE = "snapshot.tar"
_CHUNK = 64 * 1024
_KILL_ROUNDS = 20
_PATIENCE_S = 0.3
_END_S = 5.0


class PipeChannel:
    """The wire to a bash that is a child of this process."""

    def __init__(self, argv: list[str], *, env: dict[str, str], cwd: Path | None = None) -> None:
        try:
            self.process = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxUnavailable(f"{argv[0]} could not be started: {error.strerror}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input = self.process.stdin
        self._output = self.process.stdout.fileno()

    def send(self, data: bytes) -> None:
        if self._input.closed:
            raise BrokenPipeError("the shell has been closed")
        self._input.write(data)
        self._input.flush()

    def receive(self, timeout_s: float) -> bytes | None:
        ready, _, _ = select.select([self._output], [], [], timeout_s)
        return os.read(self._output, _CHUNK) if ready else None

    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> int | None:
        code: int | None
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            # Closing its input ends a bash that waits for a command; one that still runs one is killed.
            code = self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            kill(descendants(self.process.pid))
            self.process.kill()
            self.process.wait(_END_S)
            code = None
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code if code is None or code >= 0 else 128 - code


def descendants(pid: int) -> list[psutil.Process]:
    """Every living process below `pid`, parents first."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def inhabitants(tmp: Path) -> list[psutil.Process]:
    """The processes whose environment names `tmp`; a daemon is nobody's descendant, but is known by it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(tmp):
                found.append(process)
    return found


def kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()  # or what is killed last would start more meanwhile
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill_until_none(find: Callable[[], list[psutil.Process]]) -> None:
    """Kill what `find` finds, and what that started meanwhile."""
    for _ in range(_KILL_ROUNDS):
        found = [process for process in find() if not _is_dead(process)]
        if not found:
            return
        kill(found)


def _is_dead(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    """Hold processes still, so that what they write is not torn by a copy."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


class Rooms:
    """The writable directories of one machine on this host: workspace, home and tmp."""

    NAMES = ("workspace", "home", "tmp")

    def __init__(self, owner: str) -> None:
        self.root = Path(tempfile.mkdtemp(prefix=f"takeover-{owner}-"))
        self.workspace, self.home, self.tmp = (self.root / name for name in self.NAMES)

    def fill_from_directory(self, directory: Path) -> None:
        if not directory.is_dir():
            raise SandboxUnavailable(f"{directory}: no such directory to start a sandbox from")
        shutil.copytree(directory, self.workspace, symlinks=True)
        self.home.mkdir()
        self.tmp.mkdir()

    def fill_from_archive(self, archive: Path, digest: str) -> None:
        if not archive.is_file():
            raise SnapshotCorrupt(f"{archive}: the snapshot's archive is gone")
        try:
            _tar("-xpf", str(archive), "-C", str(self.root))
        except SandboxUnavailable as error:
            raise SnapshotCorrupt(f"{archive}: cannot be unpacked: {error}") from error
        found = tree_digest(self.root)
        if found != digest:
            raise SnapshotCorrupt(f"{archive}: holds {found[:12]}…, but the snapshot says {digest[:12]}…")

    def give_to(self, uid: int) -> None:
        for directory, names, files in os.walk(self.root):
            for name in ("", *names, *files):
                path = Path(directory, name)
                mode = path.lstat().st_mode
                os.chown(path, uid, uid, follow_symlinks=False)
                if mode & (stat.S_ISUID | stat.S_ISGID):
                    path.chmod(stat.S_IMODE(mode))  # which the change of owner took away

    @contextlib.contextmanager
    def removed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.remove()
            raise

    def archive(self, archive: Path) -> str:
        """Write everything into `archive`, durably; the content's digest."""
        digest = tree_digest(self.root)
        partial = archive.with_suffix(".partial")
        _tar("--format=posix", "--numeric-owner", "-cf", str(partial), "-C", str(self.root), *self.NAMES)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(archive)
        return digest

    def remove(self) -> None:
        _remove_tree(self.root)


def remove_rooms(owner: str) -> None:
    """Remove the directories of an owner's machines, and the processes that a killed run left in them."""
    for root in Path(tempfile.gettempdir()).glob(f"takeover-{owner}-*"):
        kill_until_none(functools.partial(inhabitants, root / "tmp"))
        _remove_tree(root)


def _remove_tree(root: Path) -> None:
    # An agent may have taken away its own right to look into a directory.
    for directory, names, _ in os.walk(root):
        for name in names:
            path = Path(directory, name)
            if not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(root, ignore_errors=True)


def tree_digest(root: Path) -> str:
    """SHA-256 over the paths, kinds, modes, link targets and bytes below `root`."""
    digest = hashlib.sha256()
    for directory, names, files in os.walk(root):
        names.sort()
        for name in sorted([*files, *names]):
            path = Path(directory, name)
            info = path.lstat()
            if stat.S_ISSOCK(info.st_mode):
                continue  # no archive keeps a socket
            relative = os.fsencode(path.relative_to(root))
            digest.update(b"%d:%s %o\0" % (len(relative), relative, info.st_mode))
            if stat.S_ISLNK(info.st_mode):
                digest.update(os.fsencode(path.readlink()) + b"\0")
            elif stat.S_ISREG(info.st_mode):
                with path.open("rb") as content:
                    digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def freeze_rooms(rooms: Rooms, store: Path, *, backend: str, workspace: str, shell_state: str) -> Snapshot:
    store.mkdir(parents=True, exist_ok=True)
    digest = rooms.archive(store / ARCHIVE)
    return Snapshot.model_validate(
        {
            "backend": backend,
            "base": "directory",
            "location": ARCHIVE,
            "digest": digest,
            "workspace": workspace,
            "shell_state": shell_state,
        }
    )


def _tar(*arguments: str) -> None:
    done = subprocess.run(["tar", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SandboxUnavailable(f"tar failed: {done.stderr.strip()[-300:]}")


def environment(path: str, home: str) -> dict[str, str]:
    """The variables of a sandboxed shell, built from nothing."""
    return {
        "PATH": path,
        "HOME": home,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        # Two edits within one second and of one size would let Python run a stale .pyc.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
