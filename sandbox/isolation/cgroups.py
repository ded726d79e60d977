"""Control groups: stop, kill and limit all processes of a sandbox at once, by the kernel.

Version 1 (one hierarchy per controller) and version 2 (one for all) are supported, also side by side.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.isolation import freezer
from langgraph_takeover.sandbox.untrusted_trees import list_matches

_KILL_ROUND_TIMEOUT_S = 1.0
_REMOVAL_TIMEOUT_S = 1.0
_OWN_SCORE = Path("/proc/self/oom_score_adj")
_OOM_SCORE = 100
"""Added to a process's out-of-memory score, in thousandths of the memory limit: far more than a shell's own score."""
# Ends with the process that holds its input; then it resumes and removes what that process left.
_GUARD_SCRIPT = """
exec 2>/dev/null
trap '' HUP INT TERM
cat
for parent; do
    for group in "$parent/$0"-*; do
        [ ! -e "$group/freezer.state" ] || echo THAWED >"$group/freezer.state"
        [ ! -e "$group/cgroup.kill" ] || echo 1 >"$group/cgroup.kill"
    done
done
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    left=
    for parent; do
        for group in "$parent/$0"-*; do
            [ ! -d "$group" ] || rmdir "$group" || left=1
        done
    done
    [ "$left" ] || exit
    sleep 0.25
done
"""
_HINT = "run as root, or below a delegated group: systemd-run --user --scope --property=Delegate=yes"


class ControlGroup:
    """One control group for one sandbox, spread over several directories where version 1 is mounted."""

    def __init__(self, directories: Mapping[str, Path]) -> None:
        """`directories`: by controller; those of one hierarchy are the same."""
        self._directories = tuple(dict.fromkeys(directories.values()))
        self._freezer = directories.get("freezer")
        self._memory = directories.get("memory")
        self._lock = threading.Lock()
        self._holders = set[object]()
        self.can_pause = self._freezer is not None
        self.has_memory_limit = self._memory is not None
        self.has_pids_limit = "pids" in directories

    @property
    def entry_command(self) -> list[str]:
        """The beginning of a command line that runs the rest of it inside the group."""
        return ["sh", "-c", f'{self.entry_script}exec "$@"', "sh"]

    @property
    def entry_script(self) -> str:
        """Code for `sh` that moves it into the group; another command can follow."""
        # A version 1 `tasks` file moves one thread, which is all that `sh` has, and waits for no other; any
        # `cgroup.procs` waits until all processors have passed a quiescent state, 5 ms on an idle host.
        files = (
            directory / ("tasks" if (directory / "tasks").exists() else "cgroup.procs")
            for directory in self._directories
        )
        moves = "".join(f"echo 0 >{shlex.quote(str(file))} && " for file in files)
        # The protection of a runtime from the kernel's out-of-memory killer is not its sandboxes'.
        exposed = f"echo 0 >{_OWN_SCORE} && " if int(_OWN_SCORE.read_text()) < 0 else ""
        return moves + exposed

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Stop all processes, verified. Raises SandboxUnavailableError if they do not stop within 10 s."""
        if self._freezer is None:
            raise SandboxUnavailableError("no freezer: this host's control groups cannot stop processes")
        holder = object()
        try:
            with self._lock:
                self._holders.add(holder)
                freezer.stop_processes(self._freezer, freezer.TIMEOUT_S)
            yield
        finally:
            freezer.run_to_completion(lambda: self._release(holder))

    def kill(self, *, select_spared: Callable[[set[int]], Collection[int]] | None = None) -> None:
        """Kill all processes except those that `select_spared` returns, verified.

        Not inside `pause` if some are spared: on version 1 nothing dies before it is resumed.
        Raises SandboxUnavailableError if one survives 10 s.
        """
        deadline = time.monotonic() + freezer.TIMEOUT_S
        for pause in freezer.poll_intervals():
            left = self._select_victims(select_spared)
            if not left:
                return
            if time.monotonic() > deadline:
                raise SandboxUnavailableError(
                    f"processes {sorted(left)[:5]} survived SIGKILL for {freezer.TIMEOUT_S:.0f} s"
                )
            self._kill_once(select_spared)
            time.sleep(pause)

    def process_ids(self) -> set[int]:
        """All processes inside, as this process's namespace numbers them."""
        try:
            listed = (self._directories[0] / "cgroup.procs").read_text().split()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # ENODEV: it was removed after the open
                raise
            return set()
        return {int(pid) for pid in listed} - {0}

    def protect(self, protected_pids: Collection[int]) -> None:
        """Make the kernel kill all other present processes first when the memory limit is reached.

        By default it starts with the largest, and a process that holds memory by a file may be smaller than a shell.
        """
        for pid in self.process_ids().difference(protected_pids):
            with contextlib.suppress(OSError), self._open_process(pid) as process:
                freezer.write_control_file(Path(f"/proc/self/fd/{process}/oom_score_adj"), _OOM_SCORE)

    def remove(self) -> None:
        """Remove the group, whose processes have ended; may be called twice.

        A group that stays occupied for a second is left to the end of this process.
        """
        deadline = time.monotonic() + _REMOVAL_TIMEOUT_S
        for directory in self._directories:
            for pause in freezer.poll_intervals():
                try:
                    directory.rmdir()
                except FileNotFoundError:
                    break
                except OSError as error:
                    if error.errno != errno.EBUSY or time.monotonic() > deadline:
                        break
                    time.sleep(pause)
                else:
                    break

    def _set_limits(self, memory_bytes: int, pids: int) -> None:
        """Set the limits. Raises OSError where the kernel refuses the memory or process limit."""
        if self._memory is not None:
            if (self._memory / "memory.max").exists():
                freezer.write_control_file(self._memory / "memory.max", memory_bytes)
                freezer.try_write_control_file(self._memory / "memory.swap.max", 0)
                freezer.try_write_control_file(self._memory / "memory.oom.group", 0)
            else:
                freezer.write_control_file(self._memory / "memory.limit_in_bytes", memory_bytes)
                # The limit of memory and swap together, where the kernel counts swap at all.
                if not freezer.try_write_control_file(
                    self._memory / "memory.memsw.limit_in_bytes", memory_bytes
                ):
                    freezer.try_write_control_file(self._memory / "memory.swappiness", 0)
                # Version 1 counts what TCP holds apart from all else.
                freezer.try_write_control_file(self._memory / "memory.kmem.tcp.limit_in_bytes", memory_bytes)
        if self.has_pids_limit:
            for directory in self._directories:
                if (directory / "pids.max").exists():
                    freezer.write_control_file(directory / "pids.max", pids)

    def _select_victims(self, select_spared: Callable[[set[int]], Collection[int]] | None) -> set[int]:
        pids = self.process_ids()
        return pids.difference(select_spared(pids)) if select_spared is not None else pids

    def _kill_once(self, select_spared: Callable[[set[int]], Collection[int]] | None) -> None:
        if select_spared is None:
            for directory in self._directories:
                if freezer.try_write_control_file(directory / "cgroup.kill", 1):
                    return
        if self._freezer is None:
            self._kill_each(self._select_victims(select_spared))
            return
        holder = object()
        try:
            with self._lock:
                self._holders.add(holder)
                # A process that does not stop in time is killed all the same; the next round finds its children.
                with contextlib.suppress(SandboxUnavailableError):
                    freezer.stop_processes(self._freezer, _KILL_ROUND_TIMEOUT_S)
            self._kill_each(self._select_victims(select_spared))
            if select_spared is None:
                freezer.resume_processes(
                    self._freezer
                )  # even while another thread stops the group: no process runs anything more
        finally:
            freezer.run_to_completion(lambda: self._release(holder))

    def _kill_each(self, pids: Collection[int]) -> None:
        for pid in pids:
            with contextlib.suppress(OSError), self._open_process(pid) as process:
                signal.pidfd_send_signal(process, signal.SIGKILL)

    @contextlib.contextmanager
    def _open_process(self, pid: int) -> Iterator[int]:
        """A descriptor of a process's directory. Raises OSError if it has ended and another has its id."""
        process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)
        try:
            if not self._contains(Path(f"/proc/self/fd/{process}")):
                raise ProcessLookupError(pid)
            yield process
        finally:
            os.close(process)

    def _contains(self, process: Path) -> bool:
        """Whether one of a process's threads is inside. The first may have ended, and then be nowhere."""
        for file in [process / "cgroup", *list_matches(process, "task/*/cgroup")]:
            with contextlib.suppress(OSError):
                if self._directories[0].name in file.read_text():
                    return True
        return False

    def _release(self, holder: object) -> None:
        with self._lock:
            self._holders.discard(holder)
            if not self._holders and self._freezer is not None:
                freezer.resume_processes(self._freezer)


def create_group(memory_bytes: int, pids: int) -> ControlGroup | None:
    """Create a control group with limits; None if `unavailable_reason` says why not."""
    if unavailable_reason() is not None:
        return None
    return _make_group(freezer.find_parent_groups(os.getpid()), memory_bytes, pids)


def unavailable_reason() -> str | None:
    """Why no control group can be made here, in one line; None when one can."""
    return _compute_unavailable_reason(os.getpid())


def available_controllers() -> frozenset[str]:
    """Controllers of a control group created here: some of "freezer", "memory" and "pids"."""
    return frozenset(freezer.find_parent_groups(os.getpid()) if unavailable_reason() is None else ())


def remove_stale_groups(parents: Iterable[Path]) -> None:
    """Kill and remove groups whose owner process has died, in these groups and their siblings."""
    boot = ownership.current_process_identity().partition("/")[0]
    stale: dict[str, dict[str, Path]] = {}
    for parent in dict.fromkeys(parents):
        for directory in (*list_matches(parent, "takeover-*"), *list_matches(parent.parent, "*/takeover-*")):
            match = freezer.GROUP_NAME.fullmatch(directory.name)
            if match is None:
                continue
            maker = f"{boot}/{match[1].replace('-', '/')}"
            if ownership.process_state(maker) == "dead":
                stale.setdefault(directory.name, {})[_hierarchy_kind(directory)] = directory
    for directories in stale.values():
        group = ControlGroup(directories)
        with contextlib.suppress(SandboxUnavailableError, OSError):
            group.kill()
        group.remove()


@functools.lru_cache(maxsize=1)
def _compute_unavailable_reason(pid: int) -> str | None:
    """For the process `pid`, which is this one: a fork looks for itself."""
    parents = freezer.find_parent_groups(pid)
    if not parents:
        return f"{freezer.describe_obstacle()} ({_HINT})"
    remove_stale_groups(parents.values())
    try:
        group = _make_group(parents, 1 << 30, 64)
    except SandboxUnavailableError as error:
        return str(error)
    try:
        done = subprocess.run([*group.entry_command, "true"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"processes cannot be moved into a group: {done.stderr.strip()[-200:]} ({_HINT})"
    finally:
        group.remove()
    _start_guard(pid)
    return None


def _make_group(parents: Mapping[str, Path], memory_bytes: int, pids: int) -> ControlGroup:
    name = freezer.make_group_name()
    group = ControlGroup({controller: parent / name for controller, parent in parents.items()})
    try:
        for directory in dict.fromkeys(parents.values()):
            (directory / name).mkdir()
        group._set_limits(memory_bytes, pids)
    except OSError as error:
        group.remove()
        raise SandboxUnavailableError(
            f"no control group could be made: {error.filename or name}: {error.strerror}"
        ) from error
    return group


@functools.lru_cache(maxsize=1)
def _start_guard(pid: int) -> subprocess.Popen[bytes]:
    """A process that resumes and removes what this one leaves when it is killed."""
    parents = map(str, dict.fromkeys(freezer.find_parent_groups(pid).values()))
    return subprocess.Popen(
        ["sh", "-c", _GUARD_SCRIPT, freezer.group_name_prefix(), *parents],
        env=ownership.program_environment(),
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _hierarchy_kind(directory: Path) -> str:
    """A controller of the group's hierarchy."""
    if freezer.can_pause(directory):
        return "freezer"
    return "memory" if (directory / "memory.limit_in_bytes").exists() else "pids"
