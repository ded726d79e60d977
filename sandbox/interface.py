"""What every machine can do, and the values that go in and out of it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, model_validator

BackendName = Literal["docker", "host", "process"]
OWNER_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,99}$"
"""What a run may be called to whom machines belong: directories are named so."""
MAX_SHELL_STATE_CHARS = 8 * 1024 * 1024
"""Characters; of a shell that has more to say, a snapshot keeps the directory alone."""
_NAME_PATTERN = r"^([^/\x00.][^/\x00]*)?$"


class Frozen(BaseModel):
    """A value: immutable, and strict about the fields it is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TakeoverError(Exception):
    """Base class of every error that this project raises on purpose."""


class SandboxUnavailableError(TakeoverError):
    """The machine itself failed or is not to be had; never a command's own failure."""


class SnapshotCorruptError(SandboxUnavailableError, ValueError):
    """A snapshot is missing or is not what its digest says."""


class OutOfDiskError(SandboxUnavailableError, OSError):
    """There was no room left on the disk for what a machine or a snapshot needs."""


class FileAccessError(TakeoverError, OSError):
    """A file could not be read or written inside the machine, for a reason of the file's own."""


class FileChange(Frozen):
    """One file whose content or permissions an action changed.

    `path` is relative to the workspace inside it and absolute outside it. `before` and `after` are
    SHA-256 digests in hexadecimal; None means that the file did not exist. The modes are permission
    bits, given only where they changed. `renamed_from` names the file that went away with the same
    content; `generated` says that the file lies in a cache that a tool makes by itself. `too_large` says that
    the content was too large to hash: a digest then stands for the size and the time of the last change.
    """

    path: str
    before: str | None
    after: str | None
    before_mode: int | None = None
    after_mode: int | None = None
    renamed_from: str | None = None
    generated: bool = False
    too_large: bool = False


class ExecResult(Frozen):
    """What one command came to; a failing command is a result, not an error.

    `exit_code` is None when the command did not end by itself. `output` is standard output and
    standard error as they came, at most the machine's limit, with the cut marked and counted.
    `shell_ended` says that the command ended or lost the shell, and that a new one, in the same
    directory and without the old one's variables, stands ready. `disk_full` says that the machine had
    come to use more disk than it may, and that the command, if it still ran, and all beside it were ended.
    """

    output: str
    exit_code: int | None
    timed_out: bool = False
    shell_ended: bool = False
    disk_full: bool = False
    seconds: float = Field(ge=0)


class SandboxSpec(Frozen):
    """Which machine to start: from an image, or from a directory.

    A directory is a repository, with this host's own system around it, or (for `host`) a whole system's
    files, of which an image can be made as well.

    `shell_init` is run in every new shell before the first command. `owner` names the run that the
    machine belongs to; what it leaves behind is found by it.
    """

    backend: BackendName
    image: str | None = None
    directory: Path | None = None
    workspace: str = "/testbed"
    hidden: tuple[Path, ...] = ()
    """Directories of this host that must not be seen inside, although they lie below one that may."""
    shell_init: str = ""
    memory_mb: int = Field(default=4096, gt=0)
    pids: int = Field(default=512, gt=0)
    open_files: int = Field(default=4096, gt=0)
    cpus: float | None = Field(default=None, gt=0)
    disk_mb: int = Field(default=10_240, gt=0)
    owner: str = Field(default="takeover", pattern=OWNER_PATTERN)
    snapshots: Literal["auto", "layer", "commit"] = "auto"
    """How `docker` freezes: its writable layer as an archive, which takes a local daemon, or an image by
    commit, which works with any; `auto` is the first where it can be had."""

    @model_validator(mode="after")
    def _require_base(self) -> SandboxSpec:
        if self.backend == "docker" and not self.image:
            raise ValueError("a docker sandbox needs an image")
        if self.backend == "process" and self.directory is None:
            raise ValueError("a process sandbox needs a directory")
        if self.backend == "host" and (self.directory is None) == (self.image is None):
            raise ValueError("a host sandbox needs a directory or an image")
        return self


class Snapshot(Frozen):
    """A machine frozen at one moment, as a value that can be kept and thawed any number of times.

    `backend` says what kind of machine it was. Which kind it is restored in, the caller's spec says alone.
    `base` is the digest of what the machine started from, `digest` that of what it changed there
    (paths, kinds, modes, link targets, bytes). `location` is an image id or the name of an archive,
    which lies where `freeze` was told to put it. None of them is a path: a record may come from anybody.
    """

    backend: BackendName
    base: str = Field(pattern=_NAME_PATTERN, max_length=200)
    location: str = Field(pattern=_NAME_PATTERN, max_length=200)
    digest: str = Field(pattern=_NAME_PATTERN, max_length=200)
    workspace: str
    shell_state: str = Field(max_length=MAX_SHELL_STATE_CHARS)
    """The `ShellState` of the agent's shell as JSON; data, which no shell ever evaluates."""


class Sandbox(Protocol):
    """One machine with one persistent shell for the agent, and a second hand for the runtime."""

    workspace: str
    """Absolute path of the repository as commands inside see it."""

    def run(self, command: str, *, timeout_s: float) -> ExecResult:
        """Run `command` in the agent's shell, whose directory and variables last.

        Raises ValueError for a command that no shell can take (a NUL byte) and SandboxUnavailableError
        when the machine is gone.
        """

    def inspect(self, command: str) -> ExecResult:
        """Run a command of the runtime's own, in the workspace, unseen by the agent's shell."""

    def read_file(self, path: str) -> bytes:
        """The content of the file; relative paths start at the workspace. Raises FileAccessError."""

    def write_file(self, path: str, content: bytes) -> None:
        """Write the file, making its directories. Raises FileAccessError."""

    def directory_listing(self, path: str) -> tuple[str, ...] | None:
        """The names in a directory, sorted, directories with a final slash; None if it is none."""

    def changes(self) -> tuple[FileChange, ...]:
        """What changed since the last call or the start, whatever changed it; sorted by path."""

    def sha256(self, path: str) -> str | None:
        """The digest of a file's content as the last `changes` found it; None where there is none."""

    def cwd(self) -> str:
        """The directory that the agent's shell stands in."""

    def shell_state(self) -> str:
        """The `ShellState` of the agent's shell as JSON, as a snapshot keeps it beside the files."""

    def snapshot(self, store: Path, *, labels: Mapping[str, str] | None = None) -> Future[Snapshot]:
        """Freeze the whole machine, which goes on when this returns.

        The snapshot counts when the future has it: then the files that it needs lie in `store`, durably.
        The future raises OutOfDiskError or SandboxUnavailableError when they do not. An image that is made carries
        `labels`, such as its thread and checkpoint.
        """

    def close(self) -> None:
        """End everything that runs in the machine and remove it; may be called twice."""
