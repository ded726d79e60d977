"""A sandbox for any LangGraph graph: its state is saved with the thread's checkpoints, and its effects happen once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, NamedTuple, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver
from pydantic import JsonValue, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from langgraph_takeover.graph.errors import ActResultError
from langgraph_takeover.graph.home import Home
from langgraph_takeover.handoff.ledger import leases
from langgraph_takeover.handoff.ledger.effects import EffectKey
from langgraph_takeover.handoff.shell.command_effects import CommandEffect
from langgraph_takeover.nodes.session.openable_context import OpenableContext
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.session.snapshots import BASE_STATE, SnapshotEvery
from langgraph_takeover.nodes.session.stop_signal import AbortableWork
from langgraph_takeover.sandbox.backends.pools import run_in_pool
from langgraph_takeover.sandbox.interface import (
    FileChange,
    Frozen,
    Sandbox,
    SandboxSpec,
    Snapshot,
)

ResultT = TypeVar("ResultT")
TASK_ID = "thread sandbox"
"""In the journal, in the place of LangGraph's task: acts of other nodes must not replace these."""
_JSON: TypeAdapter[Any] = TypeAdapter(JsonValue)


def keep_latest(_: str, new: str) -> str:
    """Reduce the states of the sandbox to the one that the last node of a step wrote."""
    return new


class SandboxState(TypedDict, total=False):
    """The part of a graph's state that belongs to the sandbox: inherit your state from it.

    If several nodes of a step act, their calls must be in order: the state of the last one remains.

    Example:
        >>> from langgraph_takeover.integrations import SandboxState
        >>> class State(SandboxState):
        ...     answer: str
        >>> sorted(State.__annotations__)
        ['answer', 'sandbox_state']
    """

    sandbox_state: Annotated[str, keep_latest]


class Act(NamedTuple):
    """The result of an act, the same in every repetition.

    Example:
        >>> from langgraph_takeover.integrations import open_sandbox
        >>> with open_sandbox(home, "own-graph", sandbox=sandbox_spec) as work:
        ...     act = work.act("read", lambda box: box.directory_listing("galley")[0], state=None, effects="nothing")
        >>> act.value, act.state
        ('__init__.py', 'base')
    """

    value: Any
    """What the function returned: text, a number, a list or a dict."""
    state: str
    """Id of the sandbox's state after it, for the graph's state."""
    changes: tuple[FileChange, ...]
    """The files that it changed."""


class _StoredAct(Frozen):
    value: JsonValue
    changes: tuple[FileChange, ...]
    shell_ended: bool = False


class ThreadSandbox:
    """The sandbox of one thread, which this process holds until the end of `open_sandbox`.

    A state is an id that a checkpoint keeps, by default in the channel `sandbox_state`. Every method that takes one
    first makes the sandbox match it, so that a resumed, forked or rewound thread finds its files and shell variables.
    Without an id, it is the base of the spec.

    Example:
        >>> from langgraph_takeover.integrations import open_sandbox
        >>> with open_sandbox(home, "own-graph", sandbox=sandbox_spec) as work:
        ...     first = work.act("one", lambda box: box.run("x=1; pwd", timeout_s=10).exit_code, state=None)
        ...     work.enter(first.state).run("echo $x", timeout_s=10).output
        '1\\n'
    """

    def __init__(self, session: Session, saver: BaseCheckpointSaver[str]) -> None:
        self.thread = session.thread
        self.saver = saver
        """The checkpointer to compile the graph with. It writes only to this thread, and only while this process holds it."""
        self.session = session
        """The session behind it, for the integrations of this package."""
        self.last_messages: set[str] = set()
        """Ids of the messages with which agents of this process ended their turns in the sandbox."""

    def enter(self, state: str | None = None) -> Sandbox:
        """Return the sandbox in a state, for reading: what changes it belongs in `act`.

        Raises SnapshotNotFoundError, SnapshotCorruptError and SandboxUnavailableError.
        """
        return self.session.enter_state(state or BASE_STATE)

    def act(
        self,
        key: str,
        function: Callable[[Sandbox], Any],
        *,
        state: str | None,
        effects: CommandEffect = "anything",
    ) -> Act:
        """Call a function with the sandbox once, and return its result with the state after it.

        Args:
            key: name of the act among those that begin in `state`, equal when the node runs again: the id of a tool
                call, or the name of the node.
            function: must do all its work in the sandbox, and return JSON-like data.
            effects: `nothing` for a function that only reads: it is repeated instead of recorded.

        If the process dies in the middle, the next run of the node restores the sandbox as it was before and calls the
        function again. If it dies later, the recorded result is returned. Raises what the function raises,
        ActResultError, FencedError and what `enter` raises.
        """
        before = state or BASE_STATE
        self.session.stop.require_running()

        def operate(sandbox: Sandbox) -> _StoredAct:
            value = function(sandbox)
            changes = sandbox.changes()
            try:
                return _StoredAct(value=_JSON.validate_python(value), changes=changes)
            except ValidationError as error:
                raise ActResultError(
                    f"thread {self.thread!r}: act {key!r:.60} returned {type(value).__name__}, which cannot be stored "
                    "(return text, numbers, lists or dicts)"
                ) from error

        stored, after = self.session.run_once(
            self.make_key(before, key), before, operate, _StoredAct.model_validate_json, effects
        )
        return Act(stored.value, after, stored.changes)

    async def aact(
        self,
        key: str,
        function: Callable[[Sandbox], Any],
        *,
        state: str | None,
        effects: CommandEffect = "anything",
    ) -> Act:
        """Like `act`, for nodes in an event loop: the function is called in a thread of the home.

        If the task is cancelled, the running command is ended, and the act is undone when the node runs again.

        Example:
            >>> import asyncio
            >>> async def read_note():
            ...     async with open_sandbox(home, "own-graph", sandbox=sandbox_spec) as work:
            ...         return await work.aact("read", lambda box: box.cwd(), state=None, effects="nothing")
            >>> asyncio.run(read_note()).state
            'base'
        """
        return await self.run_blocking(lambda: self.act(key, function, state=state, effects=effects))

    async def run_blocking(self, work: Callable[[], ResultT]) -> ResultT:
        """Return what the work returns in a thread of the home; a cancelled task ends the command that it runs."""
        abortable = AbortableWork(self.session.stop, work)
        return await self.session.workers.run("command", abortable.run, abortable.abort)

    async def run_in_own_thread(self, work: Callable[[], ResultT]) -> ResultT:
        """Like `run_blocking`, in a new thread: in the home's, calls that wait could block the call that they wait for."""
        abortable = AbortableWork(self.session.stop, work)
        pool = ThreadPoolExecutor(1, thread_name_prefix="own-graph")
        try:
            return await run_in_pool(
                pool, abortable.run, end=lambda: Thread(target=abortable.abort, daemon=True).start()
            )
        finally:
            pool.shutdown(wait=False)

    def make_key(self, state: str, key: str) -> EffectKey:
        """Return the key of an act in the journal; a fork with another state of the sandbox has another one."""
        return EffectKey(self.thread, TASK_ID, f"{state}:{key}")

    def snapshot(self, state: str | None = None) -> Snapshot:
        """Return the snapshot of a state; its files are in `snapshot_directory`. Raises SnapshotNotFoundError."""
        return self.session.save_snapshot(state or BASE_STATE)

    def snapshot_directory(self, snapshot: Snapshot) -> Path:
        """Return the directory with the files of a snapshot."""
        return self.session.snapshot_directory(snapshot)

    def restore(self, snapshot: Snapshot, store: Path) -> str:
        """Bring a snapshot from elsewhere, such as a record's, into the thread; return the id of its state.

        `store` is the directory of its files. Raises SnapshotCorruptError and SandboxUnavailableError.
        """
        state = self.session.adopt_snapshot(snapshot, store)
        self.session.enter_state(state)
        return state


def open_sandbox(
    home: Home,
    thread: str,
    *,
    sandbox: SandboxSpec,
    snapshot_every: SnapshotEvery = "step",
    lease_s: float = leases.TTL_S,
) -> OpenableContext[ThreadSandbox]:
    """Hold a thread, by `with` or `async with`, and yield its sandbox for the nodes of any graph; it ends with the block.

    With `snapshot_every="step"`, the default, every act that may have changed something is saved. `lease_s` is how long
    others wait for a holder on another host that no longer renews its lease. Raises ThreadHeldError, which names the
    holder, ThreadNameError and LedgerUnavailableError.

    Example:
        >>> from langgraph_takeover.integrations import open_sandbox
        >>> with open_sandbox(home, "own-graph", sandbox=sandbox_spec) as work:
        ...     done = work.act("note", lambda box: box.run("echo 1 > new.txt", timeout_s=10).exit_code, state=None)
        ...     print(done.value, [change.path for change in done.changes], work.enter(done.state).read_file("new.txt"))
        0 ['new.txt'] b'1\\n'
    """
    return OpenableContext(_open_sandbox(home, thread, sandbox, snapshot_every, lease_s), home.workers)


@contextmanager
def _open_sandbox(
    home: Home, thread: str, sandbox: SandboxSpec, snapshot_every: SnapshotEvery, lease_s: float
) -> Iterator[ThreadSandbox]:
    with home.open_session(thread, sandbox, snapshot_every=snapshot_every, lease_s=lease_s) as (
        session,
        saver,
    ):
        yield ThreadSandbox(session, saver)
