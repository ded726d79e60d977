"""A backend and a middleware for deepagents: file and command tools in a sandbox, with effects that happen once."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_type_hints

from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    SandboxBackendProtocol,
)
from deepagents.backends.sandbox import BaseSandbox
from deepagents.middleware.filesystem import FilesystemMiddleware
from langchain_core.messages import ToolCall, ToolMessage, message_to_dict, messages_from_dict
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command
from pydantic import JsonValue, ValidationError

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.graph.own_graphs.agent_middleware import (
    ModelMessages,
    add_notes,
    add_update,
    merge_branches,
)
from langgraph_takeover.graph.own_graphs.call_order import CallOrder, PlacedCall, refuse
from langgraph_takeover.graph.own_graphs.sandboxes import Sandboxes
from langgraph_takeover.graph.own_graphs.thread_sandbox import (
    CHANNEL,
    SandboxState,
    ThreadSandbox,
    load_checkpoint,
)
from langgraph_takeover.graph.usage_errors import (
    ActResultError,
    SandboxStateLostError,
    ThreadExistsError,
    ThreadNotFoundError,
)
from langgraph_takeover.handoff.shell.command_effects import CommandEffect, find_effect
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.nodes.session.graph_tasks import find_checkpointer, find_graph_task
from langgraph_takeover.nodes.session.state_store import BASE_STATE
from langgraph_takeover.nodes.tools.shell_command import list_end_notices
from langgraph_takeover.sandbox.interface import (
    FileAccessError,
    FileChange,
    Sandbox,
    SandboxUnavailableError,
    Snapshot,
)

_OUTPUT_LIMIT = 4 * 1024 * 1024
"""Bytes of a command's output; deepagents writes a long result to a file and shows its ends."""
_FILE_ERRORS = (
    ("no such file", "file_not_found"),
    ("is a directory", "is_directory"),
    ("permission", "permission_denied"),
)
_TIMEOUT_EXIT_CODE = 124
SnapshotT = TypeVar("SnapshotT")
ResultT = TypeVar("ResultT")


class SavedSandbox(Protocol[SnapshotT]):
    """What a sandbox for deepagents can offer beyond `SandboxBackendProtocol`: its state can be saved and forked.

    A state is all files that commands can change, and the shell's directory, variables, functions and options. Processes
    are not part of it.
    """

    def snapshot(self) -> SnapshotT:
        """Save the state; later calls do not change the snapshot."""
        ...

    def restore(self, snapshot: SnapshotT) -> object:
        """Bring the sandbox into a saved state, also of another sandbox with the same base."""
        ...

    def fork(self, name: str) -> AbstractContextManager[SandboxBackendProtocol]:
        """Start a second sandbox in the state of this one, and yield its backend; neither sees the other's changes."""
        ...


class SandboxBackend(SandboxBackendProtocol):
    """The files and commands of threads' sandboxes, for deepagents' tools.

    Commands share one shell, whose directory and variables persist. The file tools need Python in the sandbox. Give the
    agent a `SandboxFilesystemMiddleware` too: it saves the sandbox's state with the agent's steps.

    Calls outside an agent, such as an upload before it starts, act on the thread's newest state, inside of
    `with sandboxes.open(thread)`. The agent's next step in this process saves what they changed.

    Args:
        sandboxes: those of all threads; or the sandbox of one, from `open_sandbox`.
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

    def __init__(self, sandboxes: Sandboxes | ThreadSandbox, *, command_timeout_s: float = 600.0) -> None:
        self.sandboxes = sandboxes
        self._timeout_s = command_timeout_s
        self._files = _FileTools(self)

    @property
    def id(self) -> str:
        """The name of the thread."""
        return self.sandboxes.current().thread

    def find_thread(self, work: ThreadSandbox) -> _BackendThread:
        """Return what this backend keeps of a thread; in a call beside others, of its branch."""
        branch = (_branches.get() or {}).get(work)
        return branch or work.keep(self, lambda: _BackendThread(work))

    def find_current(self) -> _BackendThread:
        return self.find_thread(self.sandboxes.current())

    def snapshot(self) -> Snapshot:
        """Save files and shell of the thread's newest state; the files are in `snapshot_directory` of its sandbox."""
        return self.find_current().snapshot()

    def restore(self, snapshot: Snapshot, store: Path | None = None) -> str:
        """Bring a snapshot into the thread, and return the id of its state for the agent's input `sandbox_state`.

        `store` is the directory of its files; needed for a snapshot from another home. Raises SnapshotCorruptError and
        SandboxUnavailableError.
        """
        thread = self.find_current()
        return thread.restore(snapshot, store or thread.work.snapshot_directory(snapshot))

    @contextmanager
    def fork(self, name: str) -> Iterator[SandboxBackend]:
        """Start a new thread with files and shell of this one, by `with`, and yield its backend; the thread remains.

        An agent with that backend begins in the fork's state. Raises ThreadExistsError, ThreadNameError and what `restore`
        raises.

        Example:
            >>> from langgraph_takeover.deepagents import SandboxBackend
            >>> from langgraph_takeover.integrations import open_sandbox
            >>> with open_sandbox(home, "deep-fork", sandbox=sandbox_spec) as work:
            ...     backend = SandboxBackend(work)
            ...     done = backend.execute("export NAME=fork")
            ...     with backend.fork("deep-fork-1") as fork:
            ...         fork.execute("echo $NAME").output
            'fork'
        """
        snapshot = self.snapshot()
        with self.sandboxes.open_beside(name) as work:
            if work.list_states():
                raise ThreadExistsError(f"thread exists: {name!r} (pass a new name, or delete it first)")
            fork = SandboxBackend(work, command_timeout_s=self._timeout_s)
            fork.restore(snapshot)
            yield fork

    # deepagents' protocol

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command in the shell; a command that exceeds its time limit is ended, with exit code 124."""
        limit_s = timeout or self._timeout_s

        def run(sandbox: Sandbox) -> ExecuteResponse:
            try:
                result = sandbox.run(command, timeout_s=limit_s, output_limit=_OUTPUT_LIMIT)
            except ValueError as error:
                return ExecuteResponse(output=f"Not run: {error}.", exit_code=2)
            return ExecuteResponse(
                output="\n".join([result.output, *list_end_notices(result, limit_s)]),
                exit_code=_TIMEOUT_EXIT_CODE if result.timed_out else result.exit_code,
                truncated=len(result.output) > _OUTPUT_LIMIT,
            )

        return self.find_current().change(run)

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
        return self.find_current().change(lambda _: self._files.write(file_path, content))

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Any:
        return self.find_current().change(
            lambda _: self._files.edit(file_path, old_string, new_string, replace_all)
        )

    def delete(self, file_path: str) -> Any:
        return self.find_current().change(lambda _: self._files.delete(file_path))

    def _write(self, path: str, content: bytes) -> str | None:
        """Write a file; return deepagents' name of the error, if any."""
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self.find_current().change(lambda sandbox: sandbox.write_file(path, content))
        except FileAccessError as error:
            return _name_error(error)
        return None

    def _read(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            content = self.find_current().read(lambda sandbox: sandbox.read_file(path))
            return FileDownloadResponse(path=path, content=content)
        except FileAccessError as error:
            return FileDownloadResponse(path=path, error=_name_error(error))


class _BackendThread:
    """One thread of a backend: which state its sandbox is in, and whether calls outside of acts have changed it."""

    def __init__(self, work: ThreadSandbox) -> None:
        self.work = work
        self._state: str | None = None
        self._agent_state: str | None = None
        """The agent's own state; `_state` is another one while a snapshot has saved what calls outside of acts changed."""
        self._saver: BaseCheckpointSaver[Any] | None = None
        self._token = work.session.lease.token
        self._lock = threading.RLock()

    def read(self, function: Callable[[Sandbox], ResultT]) -> ResultT:
        """Call a function with the sandbox of the running call, or else with one in the newest state."""
        bound = _bound.get()
        if bound is not None and bound.work is self.work:
            with bound.lock:  # one OS thread uses it at a time
                return function(bound.sandbox)
        with self._lock:
            return function(self.work.enter(self.find_state()))

    def change(self, function: Callable[[Sandbox], ResultT]) -> ResultT:
        """Like `read`, for a function that may change something. Outside of a call, `save` saves the change."""
        bound = _bound.get()
        if bound is not None and bound.work is self.work:
            return self.read(function)
        with self._lock:
            return self._change_outside(function)

    def _change_outside(self, function: Callable[[Sandbox], ResultT]) -> ResultT:
        sandbox = self.work.enter(self.find_state())
        self.work.session.has_unsaved = True
        return function(sandbox)

    @property
    def has_unsaved(self) -> bool:
        """Whether calls outside of acts changed something that no state of the agent includes."""
        return self.work.session.has_unsaved

    def find_state(self) -> str:
        """Return the id of the thread's newest state: the last one here, or that of the newest checkpoint."""
        token = self.work.session.lease.token
        if self._token != token and not self.work.session.has_unsaved:  # another run may have come between
            self._state = None
        self._token = token
        if self._state is None:
            newest = self._load_newest()
            values = newest.checkpoint["channel_values"] if newest is not None else {}
            self._state = self._agent_state = self.work.resolve_state(str(values.get(CHANNEL) or BASE_STATE))
        return self._state

    def _load_newest(self) -> CheckpointTuple | None:
        saver: BaseCheckpointSaver[Any] | None
        try:
            saver = self.work.saver
        except ThreadNotFoundError as error:  # outside of a graph, or one without a checkpointer
            if self._saver is None and self.work.list_states():
                raise SandboxStateLostError(
                    f"thread {self.work.thread!r}: its newest state is unknown outside of its graph (invoke the agent first, "
                    "or read a state by work.enter)"
                ) from error
            saver = self._saver
        if saver is None:
            return None
        return load_checkpoint(saver, {"configurable": {"thread_id": self.work.thread}})

    def start(self) -> str:
        """Save the first state of a new thread, with what calls outside the agent changed; return its id."""
        with self._lock:
            self._saver = find_checkpointer() or self._saver
            # What calls outside the agent saved or restored is its start, too.
            is_known = self._token == self.work.session.lease.token and self._state not in (None, BASE_STATE)
            self.accept(self.work.start(self.save(self.find_state()) if is_known else None))
            return self.find_state()

    def accept(self, state: str) -> None:
        """Note the state that an act left, which includes everything before it."""
        self._state = self._agent_state = state
        self._token = self.work.session.lease.token
        self.work.session.has_unsaved = False

    def enter(self, state: str) -> None:
        """Make the sandbox match a state of the agent. Changes outside its steps remain if they started from that state."""
        with self._lock:
            self._saver = find_checkpointer() or self._saver
            if state not in (self._state, self._agent_state):
                self.discard()
                self._state = state
            self._agent_state = state
            self.work.enter(self._state)
            self._token = self.work.session.lease.token

    @contextmanager
    def bind(self, sandbox: Sandbox) -> Iterator[None]:
        """Let all calls of the block use this sandbox, whose state the caller saves."""
        token = _bound.set(_Bound(self.work, sandbox))
        try:
            yield
        finally:
            _bound.reset(token)

    def save(self, state: str) -> str:
        """Save what calls outside of acts changed since a state; return the state after it."""
        with self._lock:
            if self.work.session.has_unsaved:
                state = self._act(self.find_state() if state == self._agent_state else state)
            self.accept(state)
            return state

    def flush(self) -> str:
        """Return the newest state, with what calls outside of acts changed; the agent's next step includes it."""
        with self._lock:
            state = self.find_state()
            if self.work.session.has_unsaved:
                state = self._state = self._act(state)
            return state

    def snapshot(self) -> Snapshot:
        """Return the snapshot of the newest state; the agent's next step still includes what is not saved."""
        return self.work.snapshot(self.flush())

    def _act(self, state: str) -> str:
        """Save the sandbox as it is, on top of a state; return the new state."""
        return self.work.act(
            f"outside {uuid.uuid4().hex}", lambda _: None, state=state, effects="shell"
        ).state

    def discard(self) -> None:
        """Undo what calls outside of acts changed and nothing has saved."""
        with self._lock:
            if self.work.session.has_unsaved:
                self.work.session.close_sandbox()

    def restore(self, snapshot: Snapshot, store: Path) -> str:
        """Bring a snapshot into the thread, and return the id of its state."""
        self.discard()
        self.accept(self.work.restore(snapshot, store))
        return self.find_state()


class _BackendBranch(_BackendThread):
    """A branch of a thread: what calls outside of acts change is saved at once, as others use the sandboxes meanwhile."""

    def __init__(self, work: ThreadSandbox, state: str) -> None:
        super().__init__(work)
        self._state = self._agent_state = state
        self._changes = 0

    def find_state(self) -> str:
        return str(self._state)

    def _change_outside(self, function: Callable[[Sandbox], ResultT]) -> ResultT:
        results: list[ResultT] = []

        def operate(sandbox: Sandbox) -> None:
            with self.bind(sandbox):
                results.append(function(sandbox))

        # A kill repeats the tool, or the call of the model, and with it this change: from the state before.
        graph_task, state = find_graph_task(), self.work.resolve_state(self.find_state())
        self._changes += 1
        key = f"outside {graph_task.id if graph_task else uuid.uuid4().hex} {self._changes}"
        self.work.forget_act(key, state)
        self._state = self.work.act(key, operate, state=state).state
        return results[0]

    @property
    def has_unsaved(self) -> bool:
        return self._state != self._agent_state

    def accept(self, state: str) -> None:
        self._state = self._agent_state = state

    def save(self, state: str) -> str:
        with self._lock:
            self.accept(self.find_state() if state == self._agent_state else state)
            return self.find_state()

    def discard(self) -> None:
        self._state = self._agent_state

    def flush(self) -> str:
        return self.find_state()


@contextmanager
def _enter_branch(work: ThreadSandbox, state: str) -> Iterator[_BackendBranch]:
    """Let the calls of the block work in a branch of the thread, which begins in a state."""
    branch = _BackendBranch(work, state)
    token = _branches.set({**(_branches.get() or {}), work: branch})
    try:
        yield branch
    finally:
        _branches.reset(token)


@dataclass(eq=False)
class _Bound:
    """The sandbox of a running call."""

    work: ThreadSandbox
    sandbox: Sandbox
    lock: threading.RLock = field(default_factory=threading.RLock)


_branches: ContextVar[Mapping[ThreadSandbox, _BackendBranch] | None] = ContextVar(
    "deepagents_branches", default=None
)
_bound: ContextVar[_Bound | None] = ContextVar("deepagents_sandbox", default=None)


class _FileTools(BaseSandbox):
    """deepagents' own scripts for files, in the runtime's shell: the agent's aliases and options do not affect them."""

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend

    @property
    def id(self) -> str:
        return self._backend.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        result = self._backend.find_current().read(lambda sandbox: sandbox.inspect(command))
        output = result.output.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        return ExecuteResponse(output=output, exit_code=result.exit_code)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return self._backend.upload_files(files)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return self._backend.download_files(paths)


def _name_error(error: FileAccessError) -> str:
    text = str(error).lower()
    return next((name for part, name in _FILE_ERRORS if part in text), str(error))


ToolResult = ToolMessage | Command[Any]
_READERS = frozenset({"ls", "read_file", "glob", "grep"})
_WRITERS = frozenset({"write_file", "edit_file", "delete", "execute"})
_POLL_S = 0.5
_SUBAGENT = "task"
"""deepagents' tool that runs a subagent; its calls are recorded one by one."""


class _StoredReply(Frozen):
    """The result of a tool call, as the journal stores it."""

    messages: tuple[dict[str, JsonValue], ...]
    update: dict[str, JsonValue]
    changes: tuple[FileChange, ...]
    shell_ended: bool = False


class SandboxFilesystemMiddleware(FilesystemMiddleware):
    """deepagents' file and command tools in the sandbox of their thread: each call takes effect once.

    It replaces deepagents' own `FilesystemMiddleware` in the agent and its general-purpose subagent; add it
    to the `middleware` of each subagent of yours. The state has the channel `sandbox_state`. The agent needs a
    checkpointer: any, or `work.saver` of `open_sandbox`.

    Args:
        backend: the agent's backend.
        options: the options of deepagents' `FilesystemMiddleware`.

    Example:
        >>> from deepagents import create_deep_agent
        >>> from langgraph.checkpoint.memory import InMemorySaver
        >>> from langgraph_takeover.deepagents import SandboxBackend, SandboxFilesystemMiddleware
        >>> from langgraph_takeover.integrations import Sandboxes
        >>> backend = SandboxBackend(Sandboxes(home, sandbox_spec))
        >>> middleware = [SandboxFilesystemMiddleware(backend)]
        >>> agent = create_deep_agent(model, backend=backend, middleware=middleware, checkpointer=InMemorySaver())
    """

    def __init__(self, backend: SandboxBackend, **options: Any) -> None:
        super().__init__(backend=backend, **options)
        self._sandbox_backend, self._sandboxes = backend, backend.sandboxes
        self._messages = ModelMessages()
        schema: Any = vars(self)["state_schema"]
        fields = {
            "__annotations__": get_type_hints(SandboxState, include_extras=True),
            "__module__": __name__,
        }
        self.state_schema = type(schema)("SandboxFilesystemState", (schema,), fields, total=False)

    @property
    def name(self) -> str:
        """deepagents replaces its own middleware by one of the same name."""
        return "FilesystemMiddleware"

    def _find_thread(self, work: ThreadSandbox) -> _BackendThread:
        return self._sandbox_backend.find_thread(work)

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Make the sandbox match the state; save the first state, and changes from outside the agent."""
        return self._begin(self._sandboxes.current(state), state)

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        work = await self._sandboxes.acurrent(state)
        return await work.run_in_own_thread(lambda: self._begin(work, state))

    def _begin(self, work: ThreadSandbox, state: Any) -> dict[str, Any] | None:
        work.session.stop.require_running()
        thread, given = self._find_thread(work), state.get(CHANNEL)
        if not given:
            return {CHANNEL: thread.start()}
        before = work.resolve_state(given)
        thread.enter(before)
        after = thread.save(before)
        return {CHANNEL: after} if after != given else None

    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Save what the agent's last step changed beside its tools."""
        return self._end(self._sandboxes.current(state), state)

    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        work = await self._sandboxes.acurrent(state)
        if not self._find_thread(work).has_unsaved:
            return None
        return await work.run_in_own_thread(lambda: self._end(work, state))

    def _end(self, work: ThreadSandbox, state: Any) -> dict[str, Any] | None:
        thread = self._find_thread(work)
        return {CHANNEL: thread.save(work.resolve_state(state[CHANNEL]))} if thread.has_unsaved else None

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Save what deepagents writes beside the model call, such as a summarized conversation."""
        work = self._sandboxes.current(request.state)
        thread = self._find_thread(work)
        update = _enter(thread, request)
        given, (request, notes) = request.state[CHANNEL], add_notes(request, update)
        with _enter_branch(work, update[CHANNEL]) as branch:
            response = super().wrap_model_call(request, self._call_model(handler))
        thread.accept(branch.find_state())
        return _add_state(response, given, branch.find_state(), notes)

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        work = await self._sandboxes.acurrent(request.state)
        thread = self._find_thread(work)
        update = await work.run_in_own_thread(lambda: _enter(thread, request))
        given, (request, notes) = request.state[CHANNEL], add_notes(request, update)
        with _enter_branch(work, update[CHANNEL]) as branch:
            response = await super().awrap_model_call(request, self._acall_model(handler))
        thread.accept(branch.find_state())
        return _add_state(response, given, branch.find_state(), notes)

    def _call_model(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the handler with messages that strict endpoints accept, and unique ids of calls in its reply."""

        def call(request: Any) -> Any:
            return self._messages.call(request, handler)

        return call

    def _acall_model(self, handler: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        async def call(request: Any) -> Any:
            return await self._messages.acall(request, handler)

        return call

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]
    ) -> ToolResult:
        """Run a call of the sandbox's tools once, after the reply's earlier calls; another tool's in a branch."""
        call: Callable[..., ToolResult] = super().wrap_tool_call
        work = self._sandboxes.current(request.state)
        if not _is_sandbox_call(request.tool_call):
            placed = self._find_call(work, request)
            with _enter_branch(work, before := _find_beginning(placed)):
                result = call(request, handler)
            return _add_left(placed, request, before, result)
        return self._call_in_order(work, request, lambda each: call(each, handler))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        call: Callable[..., Coroutine[Any, Any, ToolResult]] = super().awrap_tool_call
        loop, work = asyncio.get_running_loop(), await self._sandboxes.acurrent(request.state)
        if not _is_sandbox_call(request.tool_call):
            placed = self._find_call(work, request)
            with _enter_branch(work, before := _find_beginning(placed)):
                result = await call(request, handler)
            return await work.run_in_own_thread(lambda: _add_left(placed, request, before, result))

        def call_in_loop(each: ToolCallRequest) -> ToolResult:
            return _wait_for(work, asyncio.run_coroutine_threadsafe(call(each, handler), loop), loop)

        return await work.run_in_own_thread(lambda: self._call_in_order(work, request, call_in_loop))

    def _find_call(self, work: ThreadSandbox, request: ToolCallRequest) -> PlacedCall:
        names = _READERS | _WRITERS | {_SUBAGENT}
        order = work.keep(self, lambda: CallOrder(work, names, subagent=_SUBAGENT))
        return order.find_call(request.state, request.runtime, request.tool_call["id"])

    def _call_in_order(
        self,
        work: ThreadSandbox,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolResult],
    ) -> ToolResult:
        call = self._find_call(work, request)
        order = call.order
        with order.attend(call):
            order.wait_for_earlier(call)
            if call.refusal is not None:
                return refuse(request.tool_call, call.refusal)
            thread, before = self._find_thread(work), order.find_state(call)
            if request.tool_call["name"] == _SUBAGENT:
                if thread.has_unsaved:  # from before this step
                    before = thread.save(before)
                return _call_subagent(work, call, _with_state(request, before), handler)
            thread.enter(before)
            return _call_once(thread, call, request, handler)


def _enter(thread: _BackendThread, request: Any) -> dict[str, Any]:
    """Make the sandbox match the state; return it, with a note for the model about a merge with conflicts."""
    thread.work.session.stop.require_running()
    given = str(request.state[CHANNEL])
    update = {CHANNEL: given, **merge_branches(thread.work, given)}
    thread.enter(update[CHANNEL])
    return {**update, CHANNEL: thread.flush()}


def _wait_for(work: ThreadSandbox, future: Future[ResultT], loop: asyncio.AbstractEventLoop) -> ResultT:
    """Return the result of a tool that runs in the event loop, unless the run stops or the loop ends."""
    stop = work.session.stop
    while True:
        try:
            return future.result(timeout=_POLL_S)
        except TimeoutError:
            if future.done():
                raise
        if stop.is_urgent or loop.is_closed():
            future.cancel()
            stop.require_not_urgent()
            raise SandboxUnavailableError(f"thread {work.thread!r}: its event loop has ended; resume it")


def _call_once(
    thread: _BackendThread,
    call: PlacedCall,
    request: ToolCallRequest,
    handler: Callable[[ToolCallRequest], ToolResult],
) -> ToolResult:
    def operate(sandbox: Sandbox, before: str) -> _StoredReply:
        with thread.bind(sandbox):
            result = handler(_with_state(request, before))
        return _store(thread.work.thread, result, sandbox.changes())

    ran = call.order.run(
        call,
        _describe(request.tool_call),
        operate,
        _StoredReply.model_validate_json,
        _find_effect(request.tool_call),
    )
    if ran is None:
        return refuse(request.tool_call, call.refusal)
    thread.accept(call.order.find_state(call))
    update = {**ran.result.update, CHANNEL: ran.state}
    return Command(update={**update, "messages": messages_from_dict([*ran.result.messages])})


def _call_subagent(
    work: ThreadSandbox,
    call: PlacedCall,
    request: ToolCallRequest,
    handler: Callable[[ToolCallRequest], ToolResult],
) -> ToolResult:
    """Run a subagent, whose own state has the state of the sandbox, in a branch."""
    before = request.state[CHANNEL]
    with _enter_branch(work, before):
        result = handler(request)
    update = dict(result.update) if isinstance(result, Command) and isinstance(result.update, dict) else {}
    left = update.get(CHANNEL) or work.find_left_state(before, request.tool_call["name"]) or before
    after = work.resolve_state(left)
    call.order.record(call, _describe(request.tool_call), before, after)
    messages = [result] if isinstance(result, ToolMessage) else update["messages"]
    return Command(update={**update, "messages": messages, CHANNEL: after})


def _find_beginning(call: PlacedCall) -> str:
    """Return the state in which a call of another tool begins: the reply's, or that of an earlier attempt."""
    return str(call.updates[0][CHANNEL]) if call.updates else call.step.state_before


def _add_left(call: PlacedCall, request: ToolCallRequest, before: str, result: ToolResult) -> ToolResult:
    """Return the result of another tool's call with the state that its acts, or an agent that it called, left."""
    left = call.order.work.find_left_state(before, request.tool_call["name"])
    if left is not None:
        call.updates[0] = {CHANNEL: left}
    elif call.updates:
        left = before
    else:
        return result
    if isinstance(result, ToolMessage):
        return Command(update={"messages": [result], CHANNEL: left})
    if isinstance(result, Command) and (result.update is None or isinstance(result.update, dict)):
        return replace(result, update={CHANNEL: left, **(result.update or {})})
    return result


def _with_state(request: ToolCallRequest, state: str) -> ToolCallRequest:
    return request.override(state={**request.state, CHANNEL: state})


def _describe(call: ToolCall) -> list[Any]:
    return [call["name"], call["args"]]


def _is_sandbox_call(call: ToolCall) -> bool:
    return call["name"] in _READERS or call["name"] in _WRITERS or call["name"] == _SUBAGENT


def _find_effect(call: ToolCall) -> CommandEffect:
    """Return what a call may change; never nothing, because the next call of the reply looks in the journal."""
    is_read = call["name"] in _READERS
    command = call["args"].get("command") if call["name"] == "execute" else None
    is_read = is_read or (isinstance(command, str) and find_effect(command) != "anything")
    return "shell" if is_read else "anything"


def _store(thread: str, result: ToolResult, changes: tuple[FileChange, ...]) -> _StoredReply:
    """Return a tool's result as JSON. Raises ActResultError."""
    update = {} if isinstance(result, ToolMessage) else dict(result.update or {})
    messages = [result] if isinstance(result, ToolMessage) else update.pop("messages", [])
    try:
        stored = redact([message_to_dict(each) for each in messages])
        return _StoredReply(messages=tuple(stored), update=redact(update), changes=changes)
    except ValidationError as error:
        raise ActResultError(
            f"thread {thread!r}: a tool's result cannot be stored (return text, numbers, lists or dicts)"
        ) from error


def _add_state(response: Any, before: str, after: str, notes: list[Any]) -> Any:
    """Add a new state of the sandbox, and notes for the model, to the result of a model call."""
    return add_update(response, {CHANNEL: after} if after != before else {}, notes)
