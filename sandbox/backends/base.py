"""The part that all back ends share: a sandbox made of a back end and two shells, the agent's and the runtime's."""

from __future__ import annotations

import contextlib
import math
import shlex
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, Self

from langgraph_takeover.base.failures import ObserverErrors, clean_up, end_block, run_all
from langgraph_takeover.base.telemetry import ActiveSpan, start_span
from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.backends import host
from langgraph_takeover.sandbox.background_processes import ProcessStarter, record_background_processes
from langgraph_takeover.sandbox.changes.change_report import (
    FileVersion,
    LayerChangeTracker,
    Mount,
    read_layer_files,
)
from langgraph_takeover.sandbox.changes.file_access import SandboxFiles, ScanChangeTracker
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.changes.saved_files import MAX_NAMES_AT_REST, SavedFiles
from langgraph_takeover.sandbox.interface import (
    BackendName,
    BackgroundProcess,
    ExecResult,
    FileAccessError,
    FileChange,
    ProcessStart,
    SandboxSpec,
    SandboxUnavailableError,
    Snapshot,
)
from langgraph_takeover.sandbox.isolation.freezer import (
    NO_PROCESSES,
    EarlierProcesses,
    describe_processes,
    record_processes,
)
from langgraph_takeover.sandbox.isolation.limits import DiskWatch
from langgraph_takeover.sandbox.shell import GRACE_S, Channel, RuntimeShell, Shell, escape_non_utf8
from langgraph_takeover.sandbox.shell_state import ShellState, parse_directory
from langgraph_takeover.sandbox.snapshots.archive_parts import SizeOfSnapshot, measure_archive
from langgraph_takeover.sandbox.snapshots.bases import (
    COPY_PREFIX,
    EMPTY_DIGEST,
    WRITABLE_DIRECTORIES,
    Base,
    check_workspace,
    prepare_empty_base,
)


@ObserverErrors("telemetry")
def describe_snapshot(span: ActiveSpan, snapshot: Snapshot, store: Path) -> None:
    """Set the snapshot's back end, digest and size, which is unknown for an image, and the bytes that it added."""
    if not span.is_recording:
        return
    size = _measure_archive(store / snapshot.location)
    span.set(
        {
            "takeover.backend": snapshot.backend,
            "takeover.snapshot.digest": snapshot.digest,
            "takeover.snapshot.bytes": size.total if size is not None else None,
            "takeover.snapshot.written_bytes": size.written if size is not None else None,
        }
    )


def _measure_archive(archive: Path) -> SizeOfSnapshot | None:
    try:
        return measure_archive(archive)
    except (OSError, ValueError):
        return None


_STATE_TIMEOUT_S = 30.0
_SNAPSHOT_DELAY_S = 0.02
"""The first command after a snapshot runs before the rest of the snapshot's work."""
_INSPECT_TIMEOUT_S = 300.0
_INTERRUPTED = ExecResult(output="", exit_code=None, timed_out=True, seconds=0)
_UNLISTED = ("whatever earlier commands had started, which cannot be listed from this host",)


class Backend(Protocol):
    """The back end's part of a sandbox: starting a bash and saving files."""

    workspace: str
    file_roots: tuple[str, ...]
    """Directories besides the workspace that an agent can write to, as paths inside; the last one is temporary."""
    mounts: tuple[Mount, ...]
    """Where the parts of `layers` are visible inside."""

    def list_unsaved_files(self, agent_shell: Shell, runtime_shell: RuntimeShell) -> tuple[str, ...]:
        """List files that no snapshot has, as paths inside; at most 20."""

    def layers(self) -> LayerStack | None:
        """The sandbox's files as directories of this host, the top layer first; None if they are not."""

    def saved_layers(self) -> LayerStack | None:
        """The same for the last snapshot, or for the start; None if they are not."""

    def open_shell(self) -> Channel:
        """Start one more bash inside."""

    def listen(self, agent_shell: Shell, port: int) -> socket.socket:
        """Listen on the loopback that programs of the agent's shell reach."""

    keeps_processes: bool
    """Whether processes in the background can still be reached when their shell has ended."""

    def list_processes(self, agent_shell: Shell, runtime_shell: RuntimeShell) -> Collection[int] | None:
        """List everything inside except shells, as this host numbers it; None if it cannot be listed from here."""

    def pause(
        self, agent_shell: Shell, runtime_shell: RuntimeShell, earlier: EarlierProcesses
    ) -> contextlib.AbstractContextManager[None]:
        """Stop the earlier processes; those that were stopped before stay stopped."""

    def signal_shell(self, agent_shell: Shell, runtime_shell: RuntimeShell) -> None:
        """Send the agent's shell `EXIT_SIGNAL`."""

    def kill_all(
        self, agent_shell: Shell | None, runtime_shell: RuntimeShell, spared: EarlierProcesses
    ) -> None:
        """Kill everything inside except shells and the spared processes; None: the agent's shell is closed."""

    watch: DiskWatch | None
    """Reports, while a command runs, whether the sandbox exceeds a limit; None if the back end has no such check."""

    def is_idle(self) -> bool:
        """Whether only waiting shells run inside, so that a snapshot may replace them."""

    def begin_snapshot(
        self, store: Path, labels: Mapping[str, str], *, is_idle: bool, saved: SavedFiles
    ) -> Callable[[str], Snapshot]:
        """Save the files as they are; the returned function makes the snapshot durable and may take its time.

        It is called with the state of the agent's shell. `saved` has just remembered the files; a back end that stops
        what runs inside lets it remember them again. An idle sandbox may have other layers afterwards, which new shells
        see. The old shells remain, for their state, until the returned function has killed them.
        """

    def close(self) -> None: ...


class BackendSandbox:
    """The sandbox of all back ends; implements `Sandbox`."""

    def __init__(
        self,
        backend: Backend,
        *,
        shell_init: str = "",
        shell_state: ShellState | None = None,
        directories: Sequence[str] = (),
        caches: Sequence[str] = (),
        earlier_processes: tuple[BackgroundProcess, ...] | None = (),
    ) -> None:
        """`directories` are made if they are missing; changes in `caches` alone are not worth a snapshot."""
        self.earlier_processes = earlier_processes
        self._backend = backend
        self.workspace = backend.workspace
        self._shell_init = shell_init
        self._is_running = self._is_ended = self._is_closed = False
        self._before_running: EarlierProcesses | None = None
        self._opening, self._beginning = threading.Lock(), threading.Lock()
        self._snapshot_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshot")
        self._runtime_shell = RuntimeShell(self._open_shell)
        self._files = SandboxFiles(self._runtime_shell, self.workspace)
        try:
            if directories:
                self._runtime_shell.run(f"mkdir -p -- {shlex.join(directories)}", timeout_s=_STATE_TIMEOUT_S)
            self._agent_shell = self._start_agent_shell(shell_state, self.workspace)
            self._change_tracker = self._make_change_tracker()
            stack = backend.layers()
            self._saved_files = SavedFiles(caches)
            if stack is not None and len(stack.layers) > 1:  # the lower ones are what it starts from
                self._saved_files.remember(stack)
            # Later layers are on the same disk.
            self._first_layer_directory = stack.layers[0] if stack is not None else None
        except BaseException as error:
            run_all(backend.close, error=error)
            raise

    def run(self, command: str, *, timeout_s: float, output_limit: int | None = None) -> ExecResult:
        ended = _INTERRUPTED
        if self._before_running is not None:  # Ctrl-C interrupted the last call, whose command may still run
            ended = self._stop_command(_INTERRUPTED, self._before_running)
            self._replace_ended_shell(ended)
        result = self._run(command, timeout_s, output_limit)
        self._before_running = None
        is_shell_ended = ended.shell_ended or result.shell_ended
        return result.model_copy(
            update={"shell_ended": is_shell_ended, "killed": ended.killed + result.killed}
        )

    def _run(self, command: str, timeout_s: float, output_limit: int | None) -> ExecResult:
        watch = self._backend.watch
        is_over_limit: Callable[[], bool] = watch.is_over_limit if watch else bool
        if watch is not None:
            watch.begin()
        earlier = self._before_running = record_processes()
        self._is_ended, self._is_running = False, True
        try:
            result = self._agent_shell.run(
                command,
                timeout_s=timeout_s,
                output_limit=output_limit,
                should_stop=lambda: self._is_ended or is_over_limit(),
            )
        except ValueError:  # nothing was sent
            self._before_running = None
            raise
        finally:
            self._is_running = False
        full = watch is not None and (watch.is_tripped if result.timed_out else watch.was_over_limit())
        if watch is not None and full:
            return self._stop_for_full_disk(result, watch, earlier)
        if result.timed_out:
            result = self._stop_command(result, earlier)
        elif result.shell_ended and not self._backend.keeps_processes:
            result = result.model_copy(update={"killed": self._describe(record_processes())})
            self._stop_everything()
        self._require_disk_space()
        self._replace_ended_shell(result)
        return result

    def _replace_ended_shell(self, result: ExecResult) -> None:
        if result.shell_ended:
            self._agent_shell.close()
            self._agent_shell = self._start_agent_shell(None, self._agent_shell.cwd)

    def end_command(self) -> None:
        """End the command of `run`, if one runs, from another thread: it ends as after a time-out."""
        self._is_ended = self._is_running

    def _require_disk_space(self) -> None:
        """Raises OutOfDiskError if the host's disk is full: then a failed write is not the command's fault."""
        if self._first_layer_directory is not None:
            ownership.require_disk_space(self._first_layer_directory)

    def _interrupt(self, spared: EarlierProcesses) -> ShellState | None:
        """End the running command; return the state of the agent's shell if the shell reported it."""
        self._backend.signal_shell(self._agent_shell, self._runtime_shell)
        self._backend.kill_all(self._agent_shell, self._runtime_shell, spared)
        return self._agent_shell.read_exit_state()

    def _stop_command(self, result: ExecResult, earlier: EarlierProcesses) -> ExecResult:
        """End the running command and its descendants; if the agent's shell does not react, everything inside."""
        names = self._describe(earlier)  # before a shell ends that may take them along
        # What they write would mix with the state that the shell prints.
        with self._backend.pause(self._agent_shell, self._runtime_shell, earlier):
            state = self._interrupt(earlier)
            if state is not None:
                # A trap of the agent's may have started more while the shell ended.
                self._backend.kill_all(self._agent_shell, self._runtime_shell, earlier)
                if self._agent_shell.restart(state, timeout_s=_STATE_TIMEOUT_S):
                    return result.model_copy(update={"killed": names if names is _UNLISTED else ()})
        self._stop_everything()
        return result.model_copy(update={"shell_ended": True, "killed": names})

    def _stop_everything(self) -> None:
        self._agent_shell.close()
        self._backend.kill_all(None, self._runtime_shell, NO_PROCESSES)

    def _describe(self, earlier: EarlierProcesses) -> tuple[str, ...]:
        found = self._backend.list_processes(self._agent_shell, self._runtime_shell)
        return _UNLISTED if found is None else describe_processes(earlier.select(found))

    def _stop_for_full_disk(
        self, result: ExecResult, watch: DiskWatch, earlier: EarlierProcesses
    ) -> ExecResult:
        """End everything inside, and accept the disk space used by then; the agent's next shell has the state of this one."""
        killed, state = self._describe(earlier), None
        if not result.shell_ended:
            state = (
                self._interrupt(NO_PROCESSES)
                if result.timed_out
                else self._agent_shell.request_state()(GRACE_S)
            )
        self._stop_everything()
        watch.accept_usage()
        self._agent_shell = self._start_agent_shell(state, self._agent_shell.cwd)
        return result.model_copy(
            update={
                "exit_code": None,
                "timed_out": False,
                "disk_full": True,
                "shell_ended": state is None,
                "killed": killed,
            }
        )

    def inspect(self, command: str) -> ExecResult:
        placed = f"(cd -- {shlex.quote(self.workspace)} && {command}\n)"
        watch = self._backend.watch
        if watch is None:
            return self._runtime_shell.run(placed, timeout_s=_INSPECT_TIMEOUT_S)
        watch.begin()
        earlier = record_processes()
        result = self._runtime_shell.run(
            placed, timeout_s=_INSPECT_TIMEOUT_S, should_stop=watch.is_over_limit
        )
        if not watch.is_tripped:
            return result
        return self._stop_for_full_disk(result.model_copy(update={"timed_out": False}), watch, earlier)

    def read_file(self, path: str) -> bytes:
        return self._files.read(path)

    def write_file(self, path: str, content: bytes) -> None:
        try:
            self._files.write(path, content)
        except FileAccessError:
            self._require_disk_space()
            raise

    def directory_listing(self, path: str) -> tuple[str, ...] | None:
        return self._files.list_directory(path)

    def changes(self) -> tuple[FileChange, ...]:
        return self._change_tracker.changes()

    def has_unsaved_changes(self) -> bool:
        return self._saved_files.have_changed(self._backend.layers())

    def sha256(self, path: str) -> str | None:
        return self._change_tracker.sha256(path)

    def read_layers(
        self, paths: Sequence[str], max_bytes: int, *, earlier: bool = False
    ) -> dict[str, FileVersion]:
        """Return files as they are in the layers; with `earlier`, as the last snapshot has them. Empty without layers."""
        stack = self._backend.saved_layers() if earlier else self._backend.layers()
        if stack is None or not stack.layers:
            return {}
        return read_layer_files(stack, self._backend.mounts, self.workspace, paths, max_bytes)

    def list_unsaved_files(self) -> tuple[str, ...]:
        """List files that no snapshot has: those in memory, and those that Docker mounts for a container; at most 20."""
        return self._backend.list_unsaved_files(self._agent_shell, self._runtime_shell)

    def cwd(self) -> str:
        return escape_non_utf8(self._agent_shell.cwd)

    def shell_state(self) -> str:
        return (
            self._agent_shell.request_state()(_STATE_TIMEOUT_S)
            or _make_minimal_shell_state(self._agent_shell.cwd)
        ).to_json()

    def processes(self) -> tuple[BackgroundProcess, ...] | None:
        pids = self._list_pids()
        if not pids:
            return None if pids is None else ()
        state = self._agent_shell.request_state()(_STATE_TIMEOUT_S)
        return record_background_processes(pids, state or ShellState())

    def start_processes(
        self, processes: Sequence[BackgroundProcess], *, timeout_s: float = 10.0
    ) -> tuple[ProcessStart, ...]:
        starter = ProcessStarter(
            lambda command: self.run(command, timeout_s=_STATE_TIMEOUT_S), self._list_pids
        )
        return starter.start_all(processes, timeout_s=timeout_s)

    def _list_pids(self) -> Collection[int] | None:
        return self._backend.list_processes(self._agent_shell, self._runtime_shell)

    def listen(self, port: int) -> socket.socket:
        return self._backend.listen(self._agent_shell, port)

    def snapshot(
        self, store: Path, *, labels: Mapping[str, str] | None = None, in_background: bool = False
    ) -> Future[Snapshot]:
        labels = labels or {}
        attributes = {"takeover.operation": "snapshot", "takeover.thread": labels.get("thread")}
        with contextlib.ExitStack() as stack:
            # Durability is a part of the operation, so that the span ends in the other thread.
            span = stack.enter_context(start_span("takeover.snapshot", attributes, is_current=False))
            finish = None if in_background else self._begin_snapshot(store, labels)
            rest = stack.pop_all()

        def finish_span() -> Snapshot:
            with rest:
                if finish is None:
                    with self._beginning:
                        begun = self._begin_snapshot(store, labels)
                    snapshot = begun()
                else:
                    time.sleep(_SNAPSHOT_DELAY_S)
                    snapshot = finish()
                describe_snapshot(span, snapshot, store)
                return snapshot

        return self._snapshot_executor.submit(finish_span)

    def _begin_snapshot(self, store: Path, labels: Mapping[str, str]) -> Callable[[], Snapshot]:
        """Save the state as it is; the returned function makes the snapshot durable."""
        # A shell that the agent broke loses its state; the snapshot is taken all the same. A trap of the agent's may
        # start programs while the shell prints its state.
        state = self._agent_shell.request_state()(_STATE_TIMEOUT_S)
        shell_state = state or _make_minimal_shell_state(self._agent_shell.cwd)
        before, at_rest = self._backend.layers(), self._backend.is_idle()
        pids = () if at_rest else self._list_pids()
        processes = None if pids is None else record_background_processes(pids, shell_state)
        self._saved_files.remember(
            before, waits=at_rest, max_names=MAX_NAMES_AT_REST if at_rest else math.inf
        )
        try:
            with ownership.translate_disk_errors():
                keep = self._backend.begin_snapshot(store, labels, is_idle=at_rest, saved=self._saved_files)
            after = self._backend.layers()
            moved = before is not None and after is not None and after.layers != before.layers
            if moved:
                self._saved_files.remember(after)
            successor = self._prepare_shell() if moved else None
        except BaseException:
            self._saved_files.forget()
            raise
        old: tuple[Shell | RuntimeShell, ...] = ()
        if successor is not None and after is not None:
            old = (self._agent_shell, self._runtime_shell)
            self._change_tracker.switch_layers(after)
            self._runtime_shell = RuntimeShell(self._open_shell)
            self._files.switch_shell(self._runtime_shell)
            self._agent_shell = self._restore_shell(successor, shell_state, self._agent_shell.cwd)

        def finish() -> Snapshot:
            try:
                with ownership.translate_disk_errors():
                    return keep(shell_state.to_json()).model_copy(update={"processes": processes})
            except BaseException:
                self._saved_files.forget()
                raise
            finally:
                for shell in old:
                    shell.close()

        return finish

    def close(self) -> None:
        """Wait for the snapshots in progress; each has its own future for the result."""
        with self._beginning, self._opening:
            self._is_closed = True
        with clean_up(self._agent_shell.close, self._runtime_shell.close, self._backend.close):
            self._snapshot_executor.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        end_block(self.close, *details)

    def _make_change_tracker(self) -> LayerChangeTracker | ScanChangeTracker:
        stack = self._backend.layers()
        if stack is None:
            return ScanChangeTracker(self._runtime_shell, self.workspace, self._backend.file_roots)
        return LayerChangeTracker(stack, self._backend.mounts, self.workspace)

    def _start_agent_shell(self, state: ShellState | None, cwd: str) -> Shell:
        """Start a new shell for the agent, with the old one's state, or at least in its directory."""
        return self._restore_shell(self._prepare_shell(), state, cwd)

    def _open_shell(self) -> Channel:
        # Another thread may close the sandbox during a command, which then must not start the shell anew.
        with self._opening:
            if self._is_closed:
                raise SandboxUnavailableError("the sandbox is closed")
            return self._backend.open_shell()

    def _prepare_shell(self) -> Shell:
        shell = Shell(self._open_shell())
        shell.prepare(f"{self._shell_init}\n:")
        return shell

    def _restore_shell(self, shell: Shell, state: ShellState | None, cwd: str) -> Shell:
        if shell.restore(state or _make_minimal_shell_state(cwd), timeout_s=_STATE_TIMEOUT_S):
            return shell
        shell.close()
        if state is None:
            raise SandboxUnavailableError("the sandbox's shell ended while it was started")
        return self._start_agent_shell(None, cwd)


def _make_minimal_shell_state(directory: str) -> ShellState:
    """Return the state of a shell of which only the directory is known."""
    return ShellState(directory=parse_directory(directory))


def make_restore_spec(
    snapshot: Snapshot, backend: BackendName | None = None, owner: str = "takeover"
) -> SandboxSpec:
    """Build a spec that can restore a snapshot from what this host has of its base.

    Default back end: `host`, whatever the snapshot says. Raises SandboxUnavailableError if a directory's base is not on
    this host, or if the back end is not available or cannot start from the base.
    """
    check_workspace(snapshot)
    if backend is None:
        backend = require_isolated_backend()
    digest = snapshot.base.removeprefix(COPY_PREFIX)
    if digest.startswith("sha256:"):
        if backend == "process":
            raise SandboxUnavailableError(
                "the snapshot's sandbox started from an image (restore it with --sandbox host or --sandbox docker)"
            )
        return SandboxSpec(backend=backend, image=digest, workspace=snapshot.workspace, owner=owner)
    if backend == "docker":
        raise SandboxUnavailableError(
            "the snapshot's sandbox started from a directory (restore it with --sandbox host)"
        )
    base = prepare_empty_base() if digest == EMPTY_DIGEST else Base(digest=digest, is_system=False)
    for directory in (base.tree / WRITABLE_DIRECTORIES[0], base.tree):
        if directory.is_dir():
            return SandboxSpec(backend=backend, directory=directory, owner=owner)
    raise SandboxUnavailableError(
        f"the snapshot's base {digest[:19]} is not on this host (pass the repository that the run started with)"
    )


def require_isolated_backend() -> BackendName:
    """Return the back end for snapshots of unknown origin: `host`. Raises SandboxUnavailableError if it does not work here."""
    if reason := host.unavailable_reason():
        raise SandboxUnavailableError(
            f"no isolated sandbox: {reason} (or use --sandbox docker, or --sandbox process --allow-unisolated)"
        )
    return "host"
