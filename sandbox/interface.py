"""The interface of every sandbox, and its values."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.values import Frozen

BackendName = Literal["docker", "host", "process"]
OWNER_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,99}$"
"""Valid owner names: the run that sandboxes belong to; directories are named after it."""
MAX_SHELL_STATE_CHARS = 8 * 1024 * 1024
"""Characters; of a longer shell state, a snapshot keeps only the directory."""
_NAME_PATTERN = r"^([^/\x00.][^/\x00]*)?$"


class SandboxUnavailableError(TakeoverError):
    """The sandbox itself failed or cannot be started; never a command's own failure."""

    exit_code = 3


class SnapshotCorruptError(SandboxUnavailableError, ValueError):
    """A snapshot is missing or does not match its digest."""


class OutOfDiskError(SandboxUnavailableError, OSError):
    """The disk has no space for a sandbox or a snapshot."""

    exit_code = 4


class FileAccessError(TakeoverError, OSError):
    """A file inside the sandbox could not be read or written, for a reason of its own."""


class FileChange(Frozen):
    """One file whose content or permissions an action changed.

    `path` is relative inside the workspace and absolute outside. `before` and `after` are SHA-256 digests in
    hexadecimal; None means that the file did not exist. The modes are permission bits, present only if they changed.
    `renamed_from` names the file that disappeared with the same content; `generated` means that the file is in a cache
    directory. `too_large` means that the content was not hashed: the digest covers size and time of the last change.

    Example:
        >>> from langgraph_takeover.sandbox import start
        >>> with start(sandbox_spec) as sandbox:
        ...     result = sandbox.run("touch new.txt", timeout_s=10)
        ...     [(change.path, change.before) for change in sandbox.changes()]
        [('new.txt', None)]
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
    """The result of one command; a failing command is a result, not an error.

    `exit_code` is None if the command did not end by itself. `output` is standard output and standard error in order,
    at most the sandbox's limit, with a marked and counted cut. `shell_ended` means that the command ended the shell, and
    that a new one is ready in the same directory, without the old one's variables. `disk_full` means that the sandbox
    exceeded its disk limit, and that the command and everything beside it were ended.

    A time-out kills the command and what it started. Processes of earlier commands, such as a server, keep running; the
    shell's list of jobs is empty afterwards. `killed` names those that were killed too, because the shell did not react,
    or ended and took them along, or because the disk was full: command lines with process ids, at most 20.

    Example:
        >>> from langgraph_takeover.sandbox import start
        >>> with start(sandbox_spec) as sandbox:
        ...     result = sandbox.run("false", timeout_s=10)
        >>> result.exit_code, result.timed_out
        (1, False)
    """

    output: str
    exit_code: int | None
    timed_out: bool = False
    shell_ended: bool = False
    disk_full: bool = False
    killed: tuple[str, ...] = ()
    seconds: float = Field(ge=0)


class ProgramMount(Frozen):
    """A directory of this host with a program, mounted read-only in a sandbox.

    `inside` is a name below `/opt/takeover`. No snapshot contains the program: a restored sandbox has the programs of
    the spec that restores it.

    Example:
        >>> from pathlib import Path
        >>> from langgraph_takeover import SandboxSpec
        >>> from langgraph_takeover.sandbox import ProgramMount
        >>> program = ProgramMount(directory=Path("/usr/lib/git-core"), inside="/opt/takeover/git")
        >>> SandboxSpec(backend="host", directory=Path("repository"), programs=(program,)).programs[0].inside
        '/opt/takeover/git'
    """

    directory: Path
    inside: str = Field(pattern=r"^/opt/takeover/[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")


RestartPolicy = Literal["never", "ask", "always"]
MAX_PROCESSES, MAX_ARGUMENTS, MAX_VARIABLES, MAX_PORTS = 100, 256, 64, 64
MAX_ARGUMENT_CHARS, MAX_VALUE_CHARS, MAX_PATH_CHARS = 32_768, 8_192, 4_096


def _require_no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("the text of a process cannot contain NUL")
    return text


ProcessText = Annotated[
    str, StringConstraints(max_length=MAX_ARGUMENT_CHARS), AfterValidator(_require_no_nul)
]
_EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
_EnvironmentValue = Annotated[
    str, StringConstraints(max_length=MAX_VALUE_CHARS), AfterValidator(_require_no_nul)
]
_ProcessPath = Annotated[
    str, Field(pattern="^(/|$)", max_length=MAX_PATH_CHARS), AfterValidator(_require_no_nul)
]
_Ports = Annotated[tuple[Annotated[int, Field(ge=1, le=65_535)], ...], Field(max_length=MAX_PORTS)]


class BackgroundProcess(Frozen):
    """A process that ran in the background of a sandbox, such as a server: how to start it again, without its memory.

    Its workers belong to it. Bytes that are not UTF-8 are written as in `ShellState`.

    Example:
        >>> from langgraph_takeover.sandbox import BackgroundProcess
        >>> server = BackgroundProcess(argv=("python3", "-m", "http.server"), directory="/testbed", tcp_ports=(8000,))
        >>> server.obstacle
        ''
    """

    argv: tuple[ProcessText, ...] = Field(default=(), max_length=MAX_ARGUMENTS)
    """Its command line; empty for a job of the shell."""
    directory: _ProcessPath
    environment: dict[_EnvironmentName, _EnvironmentValue] = Field(default={}, max_length=MAX_VARIABLES)
    """The variables that differ from those of the agent's shell, without secrets."""
    withheld: tuple[_EnvironmentName, ...] = Field(default=(), max_length=MAX_VARIABLES)
    """Variables whose values are not recorded: secrets, or too long."""
    tcp_ports: _Ports = ()
    """Ports inside on which it, or a worker of it, listened."""
    udp_ports: _Ports = ()
    output: _ProcessPath = ""
    """The file to which it wrote; empty if that was the agent's shell."""
    errors: _ProcessPath = ""
    """The same for its standard error."""
    obstacle: Literal["", "secret", "shell", "unreadable"] = ""
    """Why it cannot be started again: a secret in its command line, a loop, function or list of commands of the shell, or
    a command line that cannot be read or is too long."""

    @model_validator(mode="after")
    def _require_command(self) -> BackgroundProcess:
        if not self.argv and not self.obstacle:
            raise ValueError("a process has a command line")
        if sum(map(len, self.argv)) > MAX_ARGUMENT_CHARS:
            raise ValueError(f"a command line has at most {MAX_ARGUMENT_CHARS:,} characters")
        return self


class ProcessStart(Frozen):
    """What became of starting a process again: `problem` says in words why it does not run; empty if it does.

    Example:
        >>> from langgraph_takeover.sandbox import BackgroundProcess, ProcessStart
        >>> server = BackgroundProcess(argv=("./serve",), directory="/testbed")
        >>> ProcessStart(process=server, problem="exited with code 127").problem
        'exited with code 127'
    """

    process: BackgroundProcess
    problem: str = ""


CACHES = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", "node_modules/.cache")
"""Directories that tools fill by themselves: `node_modules/.cache` is the name below one parent only."""


class SandboxSpec(Frozen):
    """The sandbox to start: from an image or from a directory.

    A directory is a repository, with this host's system around it, or (for `host`) the files of a complete system.

    Example:
        >>> from pathlib import Path
        >>> from langgraph_takeover import SandboxSpec
        >>> SandboxSpec(backend="host", directory=Path("repository")).memory_mb
        4096
    """

    backend: BackendName
    """`docker` and `host` (bubblewrap) isolate; `process` runs commands as you."""
    image: str | None = None
    """Docker image to start from."""
    directory: Path | None = None
    """Directory to start from; the sandbox works on a copy."""
    workspace: str = "/testbed"
    """Directory inside where the agent starts, and whose files belong to the work."""
    hidden: tuple[Path, ...] = ()
    """Directories of this host that stay hidden inside, although they are below a visible one."""
    programs: tuple[ProgramMount, ...] = ()
    """Programs of this host that `host` and `docker` mount read-only; `process` refuses them."""
    shell_init: str = ""
    """Commands that run in every new shell before the first command."""
    memory_mb: int = Field(default=4096, gt=0)
    """Memory of all processes together; of each process, for `host` without a control group."""
    pids: int = Field(default=512, gt=0)
    """Maximum number of processes and threads."""
    open_files: int = Field(default=4096, gt=0)
    """Maximum number of open files of a process."""
    cpus: float | None = Field(default=None, gt=0)
    """Processor cores that may be in use. Default: no limit."""
    disk_mb: int = Field(default=10_240, gt=0)
    """Space for files that the sandbox writes."""
    owner: str = Field(default="takeover", pattern=OWNER_PATTERN)
    """Name of the run that the sandbox belongs to; garbage collection finds its resources by it."""
    caches: tuple[str, ...] = CACHES
    """Directories that tools fill by themselves: a step that changes nothing else makes no snapshot."""
    restart_processes: RestartPolicy = "never"
    """What becomes of the background processes that ran at a snapshot when it is restored: `always` starts them again,
    `ask` those that a person chooses, `never` only says which ran. They start inside the sandbox: with `process`, as you."""
    snapshots: Literal["auto", "layer", "commit"] = "auto"
    """How `docker` takes snapshots: `layer`, the writable layer as an archive (local daemon only); `commit`, an image;
    `auto`, by layer if possible."""

    @model_validator(mode="after")
    def _require_base(self) -> SandboxSpec:
        if self.backend == "docker" and not self.image:
            raise ValueError("a docker sandbox needs an image")
        if self.backend == "process" and self.directory is None:
            raise ValueError("a process sandbox needs a directory")
        if self.backend == "host" and (self.directory is None) == (self.image is None):
            raise ValueError("a host sandbox needs a directory or an image")
        if len({program.inside for program in self.programs}) < len(self.programs):
            raise ValueError("two programs have the same path inside")
        return self


class Snapshot(Frozen):
    """The saved state of a sandbox, as a value that can be stored and restored any number of times.

    `backend` is the back end that took it; the caller's spec alone decides where it is restored. `base` is the digest of
    the sandbox's starting point, `digest` that of its changes (paths, kinds, modes, link targets, bytes). `location` is
    an image id or the name of an archive in the store. None of these is a path: a record may come from anybody.

    Example:
        >>> record.snapshot.backend == sandbox_spec.backend
        True
    """

    backend: BackendName
    base: str = Field(pattern=_NAME_PATTERN, max_length=200)
    location: str = Field(pattern=_NAME_PATTERN, max_length=200)
    digest: str = Field(pattern=_NAME_PATTERN, max_length=200)
    workspace: str
    shell_state: str = Field(max_length=MAX_SHELL_STATE_CHARS)
    """The `ShellState` of the agent's shell as JSON: data that no shell evaluates."""
    processes: Annotated[tuple[BackgroundProcess, ...], Field(max_length=MAX_PROCESSES + 1)] | None = ()
    """What ran in the background, oldest first; None if it could not be listed from the host."""


class Sandbox(Protocol):
    """A sandbox with one persistent shell for the agent, and a second one for the runtime.

    Example:
        >>> from langgraph_takeover.sandbox import Sandbox, start
        >>> sandbox: Sandbox
        >>> with start(sandbox_spec) as sandbox:
        ...     result = sandbox.run("x=1", timeout_s=10)
        ...     sandbox.run("echo $x", timeout_s=10).output
        '1\\n'
    """

    workspace: str
    """Absolute path of the repository inside."""

    def run(self, command: str, *, timeout_s: float, output_limit: int | None = None) -> ExecResult:
        """Run `command` in the agent's shell, whose directory and variables persist.

        `output_limit` is how many bytes of output are kept. Default: the sandbox's limit, 64 KiB.
        Raises ValueError for a command that no shell can run (with a NUL byte), and SandboxUnavailableError if the
        sandbox is gone.
        """

    def inspect(self, command: str) -> ExecResult:
        """Run a command of the runtime in the workspace, invisible to the agent's shell."""

    def read_file(self, path: str) -> bytes:
        """Return the content of a file; relative paths start at the workspace. Raises FileAccessError."""

    def write_file(self, path: str, content: bytes) -> None:
        """Write a file, creating its directories. Raises FileAccessError."""

    def directory_listing(self, path: str) -> tuple[str, ...] | None:
        """List the names in a directory, sorted, directories with a final slash; None if it is not a directory."""

    def changes(self) -> tuple[FileChange, ...]:
        """List what changed since the last call or the start, whatever program changed it; sorted by path."""

    def has_unsaved_changes(self) -> bool:
        """Whether a file may have changed since the last snapshot or the start, except in `caches`.

        Unlike `changes`, this includes `.git`. If the files cannot be examined from this host, the answer is yes.
        """

    def sha256(self, path: str) -> str | None:
        """Return the digest of a file's content at the last `changes`; None if there was no file."""

    def cwd(self) -> str:
        """Return the current directory of the agent's shell."""

    def shell_state(self) -> str:
        """Return the `ShellState` of the agent's shell as JSON, as a snapshot stores it."""

    earlier_processes: tuple[BackgroundProcess, ...] | None
    """What ran in the background at the snapshot that was restored; None if that is unknown."""

    def processes(self) -> tuple[BackgroundProcess, ...] | None:
        """List what runs in the background, oldest first; None if it cannot be listed from this host."""

    def start_processes(
        self, processes: Sequence[BackgroundProcess], *, timeout_s: float = 10.0
    ) -> tuple[ProcessStart, ...]:
        """Start processes one after another in the background of the agent's shell, each in its directory.

        Each must listen on its TCP ports before the next one starts; `timeout_s` is the time for all together. A process that
        does not start, or ends at once, is a result, not an error.
        """

    def listen(self, port: int) -> socket.socket:
        """Listen on 127.0.0.1 inside, in the network of the agent's shell; the caller accepts and closes.

        Only programs of that shell can connect. On `host` each shell has a network of its own: listen again after
        `run` reports `shell_ended` or `disk_full`, and after a snapshot of many changes that was taken while no
        program ran.
        On `process` the network is this host's.
        Raises ValueError for an invalid port, and SandboxUnavailableError if a program inside holds the port or if
        the back end cannot enter the sandbox's network.
        """

    def snapshot(
        self, store: Path, *, labels: Mapping[str, str] | None = None, in_background: bool = False
    ) -> Future[Snapshot]:
        """Take a snapshot; the sandbox continues when this returns.

        The future holds the snapshot once its files are durable in `store`. It raises OutOfDiskError or
        SandboxUnavailableError otherwise. An image that is created carries `labels`, such as its thread. With
        `in_background` this returns at once, and the caller waits for the future before it uses the sandbox again.
        """

    def close(self) -> None:
        """End everything that runs in the sandbox and remove it; can be called twice."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None:
        """Close the sandbox."""
