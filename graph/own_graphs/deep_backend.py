"""A backend for `deepagents.create_deep_agent`: its files and commands are in a thread's sandbox."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    SandboxBackendProtocol,
)
from deepagents.backends.sandbox import BaseSandbox

from langgraph_takeover.graph.own_graphs.thread_sandbox import ThreadSandbox
from langgraph_takeover.nodes.session.state_store import BASE_STATE
from langgraph_takeover.nodes.tools.shell_command import list_end_notices
from langgraph_takeover.sandbox.interface import FileAccessError, Sandbox, Snapshot

_OUTPUT_LIMIT = 4 * 1024 * 1024
"""Bytes of a command's output; deepagents writes a long result to a file and shows its ends."""
_FILE_ERRORS = (
    ("no such file", "file_not_found"),
    ("is a directory", "is_directory"),
    ("permission", "permission_denied"),
)
_TIMEOUT_EXIT_CODE = 124


class SandboxBackend(SandboxBackendProtocol):
    """The files and commands of a thread's sandbox, for deepagents' tools.

    Commands share one shell, whose directory and variables persist. The file tools need Python in the sandbox. Give the
    agent a `SandboxFilesystemMiddleware` too: it saves the sandbox's state with the agent's steps.

    Calls outside an agent, such as an upload before it starts, act on the thread's newest state. The agent's next step
    saves what they changed.

    Args:
        work: the sandbox, from `open_sandbox`.
        command_timeout_s: time limit of a command that has none of its own, in seconds.

    Example:
        >>> from langgraph_takeover.deepagents import SandboxBackend
        >>> from langgraph_takeover.integrations import open_sandbox
        >>> with open_sandbox(home, "deep", sandbox=sandbox_spec) as work:
        ...     backend = SandboxBackend(work)
        ...     written = backend.write("/tmp/note.txt", "hello")
        ...     backend.execute("cat /tmp/note.txt").output
        'hello'
    """

    def __init__(self, work: ThreadSandbox, *, command_timeout_s: float = 600.0) -> None:
        self.work = work
        self._timeout_s = command_timeout_s
        self._files = _FileTools(self)
        self._bound: Sandbox | None = None
        self._state: str | None = None
        self._has_unsaved = False
        self._lock = threading.RLock()

    @property
    def id(self) -> str:
        """The name of the thread."""
        return self.work.thread

    # The sandbox and its state

    @contextmanager
    def use(self, *, changes: bool = False) -> Iterator[Sandbox]:
        """Yield the sandbox of the running call, or else in the thread's newest state. One OS thread uses it at a time.

        With `changes`, the caller may change something, which `save` saves.
        """
        with self._lock:
            if self._bound is not None:
                yield self._bound
                return
            sandbox = self.work.enter(self.find_state())
            self._has_unsaved = self._has_unsaved or changes
            yield sandbox

    def find_state(self) -> str:
        """Return the id of the thread's newest state: the last one here, or that of the newest checkpoint."""
        if self._state is None:
            newest = self.work.saver.get_tuple({"configurable": {"thread_id": self.work.thread}})
            values = newest.checkpoint["channel_values"] if newest is not None else {}
            self._state = str(values.get("sandbox_state") or BASE_STATE)
        return self._state

    def start(self) -> str:
        """Save the first state of a new thread, with what calls outside the agent changed; return its id."""
        with self._lock:
            self.accept(self.work.start())
            return self.find_state()

    def accept(self, state: str) -> None:
        """Note the state that an act left, which includes everything before it."""
        self._state, self._has_unsaved = state, False

    def enter(self, state: str) -> None:
        """Make the sandbox match a state of the agent. Changes outside its steps remain if they started from that state."""
        with self._lock:
            if state != self._state:
                self.discard()
            self.work.enter(state)
            self._state = state

    @contextmanager
    def bind(self, sandbox: Sandbox) -> Iterator[None]:
        """Let all calls use this sandbox, whose state the caller saves."""
        self._bound = sandbox
        try:
            yield
        finally:
            self._bound = None

    def save(self, state: str) -> str:
        """Save what calls outside of acts changed since a state; return the state after it."""
        with self._lock:
            if self._has_unsaved:
                name = f"outside {uuid.uuid4().hex}"
                state = self.work.act(name, lambda _: None, state=state, effects="shell").state
            self.accept(state)
            return state

    def discard(self) -> None:
        """Undo what calls outside of acts changed and nothing has saved."""
        with self._lock:
            if self._has_unsaved:
                self.work.session.close_sandbox()
                self._has_unsaved = False

    def snapshot(self) -> Snapshot:
        """Save files and shell of the thread's newest state; the files are in `work.snapshot_directory(snapshot)`."""
        return self.work.snapshot(self.save(self.find_state()))

    def restore(self, snapshot: Snapshot, store: Path) -> str:
        """Bring a snapshot into the thread, and return the id of its state for the agent's input `sandbox_state`.

        `store` is the directory of its files. Raises SnapshotCorruptError and SandboxUnavailableError.
        """
        self.discard()
        self._state = self.work.restore(snapshot, store)
        return self._state

    # deepagents' protocol

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command in the shell; a command that exceeds its time limit is ended, with exit code 124."""
        limit_s = timeout or self._timeout_s
        try:
            with self.use(changes=True) as sandbox:
                result = sandbox.run(command, timeout_s=limit_s, output_limit=_OUTPUT_LIMIT)
        except ValueError as error:
            return ExecuteResponse(output=f"Not run: {error}.", exit_code=2)
        return ExecuteResponse(
            output="\n".join([result.output, *list_end_notices(result, limit_s)]),
            exit_code=_TIMEOUT_EXIT_CODE if result.timed_out else result.exit_code,
            truncated=len(result.output) > _OUTPUT_LIMIT,
        )

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files at absolute paths; an error of one does not stop the others."""
        return [FileUploadResponse(path=path, error=self._write(path, content)) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files at absolute paths; an error of one does not stop the others."""
        return [self._read(path) for path in paths]

    def ls(self, path: str) -> Any:
        return self._files.ls(path)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        return self._files.read(file_path, offset, limit)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, **options: int | None
    ) -> Any:
        return self._files.grep(pattern, path, glob, **options)

    def glob(self, pattern: str, path: str | None = None) -> Any:
        return self._files.glob(pattern, path)

    def write(self, file_path: str, content: str) -> Any:
        with self.use(changes=True):
            return self._files.write(file_path, content)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Any:
        with self.use(changes=True):
            return self._files.edit(file_path, old_string, new_string, replace_all)

    def delete(self, file_path: str) -> Any:
        with self.use(changes=True):
            return self._files.delete(file_path)

    def _write(self, path: str, content: bytes) -> str | None:
        """Write a file; return deepagents' name of the error, if any."""
        if not path.startswith("/"):
            return "invalid_path"
        try:
            with self.use(changes=True) as sandbox:
                sandbox.write_file(path, content)
        except FileAccessError as error:
            return _name_error(error)
        return None

    def _read(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            with self.use() as sandbox:
                return FileDownloadResponse(path=path, content=sandbox.read_file(path))
        except FileAccessError as error:
            return FileDownloadResponse(path=path, error=_name_error(error))


class _FileTools(BaseSandbox):
    """deepagents' own scripts for files, in the runtime's shell: the agent's aliases and options do not affect them."""

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend

    @property
    def id(self) -> str:
        return self._backend.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        with self._backend.use() as sandbox:
            result = sandbox.inspect(command)
        output = result.output.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        return ExecuteResponse(output=output, exit_code=result.exit_code)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return self._backend.upload_files(files)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return self._backend.download_files(paths)


def _name_error(error: FileAccessError) -> str:
    text = str(error).lower()
    return next((name for part, name in _FILE_ERRORS if part in text), str(error))
