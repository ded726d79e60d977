"""Processes of this host: the channel to a bash; finding, stopping and killing processes."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import psutil

from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.isolation.freezer import NO_PROCESSES, EarlierProcesses
from langgraph_takeover.sandbox.untrusted_trees import remove_tree

_CHUNK = 64 * 1024
_MAX_ROUNDS = 20
_EXEC_CHECKS, _EXEC_CHECK_S = 20, 0.005
_KERNEL_THREADS = 2
"""The parent of all kernel threads."""
_EXIT_WAIT_S = 0.3
_END_S = 5.0
_MAPPED_FILE = re.compile(rb"^\S+ .w.s \S+ \S+ [1-9]\d*+ *+(?!/dev/|/memfd:|/SYSV)", re.MULTILINE)
"""A line of `maps`: addresses, permissions (shared and writable), offset, device, inode and path."""
_CHILDREN_FILE = Path("/proc/thread-self/children")


class PipeChannel:
    """The channel to a bash that is a child of this process."""

    def __init__(
        self,
        argv: list[str],
        *,
        env: dict[str, str],
        cwd: Path | None = None,
        inherited_descriptors: tuple[int, ...] = (),
        limits_command: str = ":",
    ) -> None:
        self.limits_command = limits_command
        self.state_mark = ""
        try:
            self.process = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=inherited_descriptors,
            )
        except OSError as error:
            raise SandboxUnavailableError(f"{argv[0]} could not be started: {error.strerror}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        self._start_error = b""
        self._input = self.process.stdin
        self._output = self.process.stdout.fileno()

    def send(self, data: bytes) -> None:
        if self._input.closed:
            raise BrokenPipeError("the shell is closed")
        self._input.write(data)
        self._input.flush()

    def receive(self, timeout_s: float) -> bytes | None:
        if (
            self.process.stdout is None or self.process.stdout.closed
        ):  # a call that failed has ended the shell
            return b""
        ready, _, _ = select.select([self._output], [], [], timeout_s)
        return os.read(self._output, _CHUNK) if ready else None

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def start_error(self) -> str:
        """Return why the shell did not start, as its starter reports it."""
        if self.process.stderr is not None and not self.process.stderr.closed:
            self._start_error += self.process.stderr.read(_CHUNK) or b""
        return self._start_error.decode(errors="replace").strip()

    def end(self) -> int | None:
        code: int | None
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            # Closing its input ends a waiting bash; a running one is killed.
            code = self.process.wait(_EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            kill_processes(find_descendants(self.process.pid))
            self._reap_shell()
            self.process.kill()
            self.process.wait(_END_S)
            code = None
        self.start_error()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        return code if code is None or code >= 0 else 128 - code

    def _reap_shell(self) -> None:
        """Let `nsenter` reap its killed child, whose namespaces otherwise remain while the first process of a container,
        such as a server, reaps no orphans.
        """
        self.process.send_signal(signal.SIGCONT)  # it stopped with its child
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_EXIT_WAIT_S)


def find_descendants(pid: int) -> list[psutil.Process]:
    """List every living process below `pid`, parents first."""
    found, waiting = [], [pid]
    while waiting:
        for child in _list_child_pids(waiting.pop(0)):
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(child))
                waiting.append(child)
    return found


def _list_child_pids(pid: int) -> Iterator[int]:
    """Read the children from the kernel, which is faster than asking every process for its parent."""
    if not _CHILDREN_FILE.exists():
        with contextlib.suppress(psutil.NoSuchProcess):
            yield from (child.pid for child in psutil.Process(pid).children())
        return
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                yield from map(int, (thread / "children").read_text().split())


def kill_processes(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()  # or the last ones to be killed would start more meanwhile
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill_until_none(
    find: Callable[[], list[psutil.Process]], spared: EarlierProcesses = NO_PROCESSES
) -> None:
    """Kill the processes that `find` returns, and those that they start meanwhile, except the spared ones."""
    for _ in range(_MAX_ROUNDS):
        found = [process for process in find() if not is_dead(process)]
        kept = set(spared.filter(found))
        found = [process for process in found if process not in kept]
        if not found:
            return
        kill_processes(found)


def is_dead(process: psutil.Process) -> bool:
    """Whether a process no longer runs. One whose first thread has ended may have other threads."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)
    except psutil.NoSuchProcess:
        return True


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return True


def send_signal(processes: Collection[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def has_mapped_files(pid: int) -> bool:
    """Whether a process can write to a file through its memory, which does not always change the file's times.

    Memory that is shared without a file looks the same only if it is below /dev or has no path.
    """
    try:
        return _MAPPED_FILE.search(Path(f"/proc/{pid}/maps").read_bytes()) is not None
    except OSError:  # it has ended, which also ends its mappings
        return False


@contextlib.contextmanager
def pause_processes(
    find: Callable[[], list[psutil.Process]],
    send: Callable[[Collection[psutil.Process], signal.Signals], None] = send_signal,
) -> Iterator[None]:
    """Stop the processes that `find` returns, and those that they start meanwhile, so that a copy of their files is consistent.

    Processes that were stopped before stay stopped.
    """
    held: set[psutil.Process] = set()
    try:
        for _ in range(_MAX_ROUNDS):
            new = {process for process in set(find()) - held if not _is_stopped(process)}
            if not new:
                break
            held |= new
            send(new, signal.SIGSTOP)
        yield
    finally:
        send(held, signal.SIGCONT)


def remove_run(owner: str) -> None:
    """Remove this host's files of a run, and the plain processes that a killed run left."""
    run = ownership.runs_directory() / owner
    if not ownership.is_known(owner) and not os.path.lexists(run):
        return  # nothing has used it since it was removed
    kill_run_processes(run)
    remove_tree(run)
    ownership.release(owner)


def kill_run_processes(run: Path) -> None:
    """Kill the plain processes in a run's directory."""
    kill_until_none(lambda: list(find_run_processes(run, wait=True)))


def find_run_processes(directory: Path, *, wait: bool = False) -> dict[psutil.Process, Path]:
    """List the processes whose TMPDIR is at or below a directory, each with its TMPDIR.

    This also finds daemons, which are not descendants of this process. A process that is just starting another program has no
    environment: with `wait`, it is read again until it has one.
    """
    found = {}
    marker = b"\0TMPDIR=" + os.fsencode(directory)
    for pid in psutil.pids():
        # Few processes match; for the others, psutil would read more files.
        if marker not in b"\0" + _read_environment(pid, wait=wait):
            continue
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            tmp = process.environ().get("TMPDIR", "")
            if f"{tmp}/".startswith(f"{directory}/"):
                found[process] = Path(tmp)
    return found


def _read_environment(pid: int, *, wait: bool) -> bytes:
    """Return a process's environment; with `wait`, wait at most 0.1 s while it has none. Kernel threads never have one."""
    for check in range(_EXEC_CHECKS if wait else 1):
        if check:
            time.sleep(_EXEC_CHECK_S)
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # it has ended, or belongs to another user
            return b""
        if environment or not wait or _is_settled(pid):
            return environment
    return b""


def _is_settled(pid: int) -> bool:
    """Whether a process without an environment will never have one."""
    try:
        process = psutil.Process(pid)
        return process.ppid() in (0, _KERNEL_THREADS) or is_dead(process)
    except psutil.Error:
        return True


def build_environment(path: str, home: str) -> dict[str, str]:
    """Build the environment of a sandboxed shell from nothing."""
    return {
        "PATH": path,
        "HOME": home,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        # Two edits of one size within one second would let Python run a stale .pyc.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
