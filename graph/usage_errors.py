"""Errors of the graph layer: user-correctable, one line each."""

from __future__ import annotations

from langgraph_takeover.base.takeover_error import LedgerUnavailableError, TakeoverError


class ThreadNotFoundError(TakeoverError, LookupError):
    """Nothing has run on the thread, or it has no such checkpoint."""

    def __str__(self) -> str:
        return str(self.args[0])


class ThreadExistsError(TakeoverError, ValueError):
    """The thread already holds a run, of this task or of another."""


class ForeignThreadError(TakeoverError, ValueError):
    """The thread belongs to a graph of another kind than the call works on."""


class WaitingError(TakeoverError, ValueError):
    """The thread waits for a person, and the call would lose the question."""


class NotWaitingError(TakeoverError, ValueError):
    """The thread does not wait for an answer."""


class HandoffError(TakeoverError, ValueError):
    """The handoff is impossible: no target, or the source itself."""


class RollbackError(TakeoverError, ValueError):
    """Checkpoint and snapshot cannot both be restored, or do not belong together."""

    exit_code = 3


class RecordNotTakenError(TakeoverError, LookupError):
    """The person has not taken the record."""

    def __str__(self) -> str:
        return str(self.args[0])


class UnstorableValueError(TakeoverError, TypeError):
    """A value in the graph's state that a checkpoint cannot hold."""


class CheckpointCorruptError(LedgerUnavailableError, ValueError):
    """A stored checkpoint does not match its checksum."""


class ServedRunError(TakeoverError, RuntimeError):
    """A run in LangGraph's server failed. The server shows the text of few other errors."""


class CaptureError(TakeoverError, ValueError):
    """A session or a repository cannot be captured."""


class ContinuationError(TakeoverError, ValueError):
    """A record cannot be continued as asked, or a continuation cannot be undone."""


class ServerAddressError(TakeoverError, OSError):
    """A server cannot listen on the requested address."""


class ActResultError(TakeoverError, TypeError):
    """An act in a thread's sandbox returned a value that cannot be stored."""


class EarlierCallError(TakeoverError, RuntimeError):
    """A call was not made, because an earlier call of the same reply failed or does not end."""


class SandboxStateLostError(TakeoverError, ValueError):
    """The state of the sandbox cannot reach the next agent of the graph."""


class ThreadAdvancedError(TakeoverError):
    """Another run has saved checkpoints on the thread since this run began."""


class UnsupportedSaverError(TakeoverError, TypeError):
    """A saver whose writes cannot be fenced."""


class ThreadNotHeldError(TakeoverError, ValueError):
    """A write to a thread that this saver does not hold."""

    def __init__(self, thread: str, held: str | None) -> None:
        super().__init__(
            f"thread {thread!r:.60} is not held: "
            + (
                "this saver only reads (write with that of open_sandbox or open_run)"
                if held is None
                else f"this saver writes to thread {held!r} (give that name as the graph's thread_id, or hold the other thread "
                "too, and use its saver)"
            )
        )
