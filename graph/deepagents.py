"""A backend for `deepagents.create_deep_agent`: its files and commands are in a sandbox that can be saved and restored."""

from __future__ import annotations

from pathlib import Path

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from langgraph_takeover.sandbox.interface import (
    FileAccessError,
    Sandbox,
    SandboxSpec,
    Snapshot,
)

_TIMEOUT_S = 600.0
_FILE_ERRORS = (
    ("no such file", "file_not_found"),
    ("is a directory", "is_directory"),
    ("permission", "permission_denied"),
)


class SandboxBackend(BaseSandbox):
    """The files and commands of a sandbox, for deepagents' tools ls, read, write, edit, glob, grep and execute.

    Commands share one shell, whose directory and variables persist. All file tools need Python inside.

    Args:
        spec: the sandbox to start.
        sandbox: an open sandbox to use instead of a new one; the backend closes it.

    Example:
        >>> from langgraph_takeover.deepagents import SandboxBackend
        >>> with SandboxBackend(sandbox_spec) as backend:
        ...     result = backend.write("/tmp/note.txt", "hello")
        ...     backend.execute("cat /tmp/note.txt").output
        'hello'
    """

    def __init__(self, spec: SandboxSpec, sandbox: Sandbox | None = None) -> None:
        from langgraph_takeover.sandbox import start

        self._spec = spec
        self._sandbox = sandbox or start(spec)

    @classmethod
    def restore(cls, snapshot: Snapshot, store: Path, spec: SandboxSpec) -> SandboxBackend:
        """Start a backend with the files and the shell of a snapshot. Raises SnapshotCorruptError."""
        from langgraph_takeover.sandbox import restore

        return cls(spec, restore(snapshot, store, spec))

    def snapshot(self, store: Path) -> Snapshot:
        """Save files and shell durably in a directory, which can hold any number of snapshots."""
        return self._sandbox.snapshot(store).result()

    @property
    def id(self) -> str:
        return f"{self._spec.backend}:{self._spec.owner}"

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox behind it."""
        return self._sandbox

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command in the shell. Its output is limited; a cut is marked."""
        try:
            result = self._sandbox.run(command, timeout_s=timeout or _TIMEOUT_S)
        except ValueError as error:
            return ExecuteResponse(output=f"Not run: {error}.", exit_code=2)
        notice = f"\n[stopped after {timeout or _TIMEOUT_S:.0f} s]" if result.timed_out else ""
        exit_code = 124 if result.timed_out else result.exit_code
        return ExecuteResponse(output=f"{result.output}{notice}", exit_code=exit_code)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files at absolute paths; an error of one does not keep the others."""
        return [FileUploadResponse(path=path, error=self._write(path, content)) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files at absolute paths; an error of one does not keep the others."""
        return [self._read(path) for path in paths]

    def _write(self, path: str, content: bytes) -> str | None:
        """Write a file; return deepagents' name of the error, if any."""
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self._sandbox.write_file(path, content)
        except FileAccessError as error:
            return _name_error(error)
        return None

    def _read(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            return FileDownloadResponse(path=path, content=self._sandbox.read_file(path))
        except FileAccessError as error:
            return FileDownloadResponse(path=path, error=_name_error(error))

    def close(self) -> None:
        """End everything inside."""
        self._sandbox.close()

    def __enter__(self) -> SandboxBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _name_error(error: FileAccessError) -> str:
    text = str(error).lower()
    return next((name for part, name in _FILE_ERRORS if part in text), str(error))
