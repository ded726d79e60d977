"""Every error that a public function raises. All derive from `TakeoverError` and from the builtin that they are."""

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.evals.models.entries import ModelsFileError
from langgraph_takeover.evals.models.model_names import ModelNameError
from langgraph_takeover.graph.usage_errors import (
    ActResultError,
    CaptureError,
    CheckpointCorruptError,
    ContinuationError,
    EarlierCallError,
    ForeignThreadError,
    HandoffError,
    NotWaitingError,
    RecordNotTakenError,
    RollbackError,
    SandboxStateLostError,
    ThreadAdvancedError,
    ThreadExistsError,
    ThreadNotFoundError,
    ThreadNotHeldError,
    UnstorableValueError,
    UnsupportedSaverError,
    WaitingError,
)
from langgraph_takeover.handoff.agents.adapter import UnknownAgentProgramError
from langgraph_takeover.handoff.agents.session_files import SessionError
from langgraph_takeover.handoff.delegation_request import DelegationError
from langgraph_takeover.handoff.ledger import (
    FencedError,
    HandedOverError,
    LedgerUnavailableError,
    ThreadHeldError,
    ThreadNameError,
)
from langgraph_takeover.handoff.ledger.database import ConnectionLostError, LedgerVersionError
from langgraph_takeover.handoff.ledger.handoffs import (
    HandoffNotFoundError,
    IllegalTransitionError,
    KeyReusedError,
)
from langgraph_takeover.handoff.ledger.leases import RunStoppedError
from langgraph_takeover.handoff.recordings.recorded_run import TraceError
from langgraph_takeover.handoff.records.archive import RecordExistsError
from langgraph_takeover.handoff.records.record import RecordError
from langgraph_takeover.handoff.views import UnknownViewError
from langgraph_takeover.nodes.context.agent_program import AgentProgramError, ExternalAgentError
from langgraph_takeover.nodes.context.settings import MissingContextError, SettingsError
from langgraph_takeover.nodes.context.team_members import UnknownAgentError
from langgraph_takeover.nodes.model.model_errors import (
    ContextWindowError,
    ModelError,
    PermanentModelError,
    ReplyTimeoutError,
    ReplyTooLargeError,
    WaitTooLongError,
)
from langgraph_takeover.nodes.session.graph_tasks import ActConflictError
from langgraph_takeover.nodes.session.merged_states import MergeConflictError
from langgraph_takeover.nodes.session.state_store import SnapshotNotFoundError
from langgraph_takeover.nodes.state import InputError
from langgraph_takeover.sandbox.interface import (
    FileAccessError,
    OutOfDiskError,
    SandboxUnavailableError,
    SnapshotCorruptError,
)
from langgraph_takeover.sandbox.repository import RepositoryError
from langgraph_takeover.sandbox.shell import ShellNotStartedError

__all__ = [
    "ActConflictError",
    "ActResultError",
    "AgentProgramError",
    "CaptureError",
    "CheckpointCorruptError",
    "ConnectionLostError",
    "ContextWindowError",
    "ContinuationError",
    "DelegationError",
    "EarlierCallError",
    "ExternalAgentError",
    "FencedError",
    "FileAccessError",
    "ForeignThreadError",
    "HandedOverError",
    "HandoffError",
    "HandoffNotFoundError",
    "IllegalTransitionError",
    "InputError",
    "KeyReusedError",
    "LedgerUnavailableError",
    "LedgerVersionError",
    "MergeConflictError",
    "MissingContextError",
    "ModelError",
    "ModelNameError",
    "ModelsFileError",
    "NotWaitingError",
    "OutOfDiskError",
    "PermanentModelError",
    "RecordError",
    "RecordExistsError",
    "RecordNotTakenError",
    "ReplyTimeoutError",
    "ReplyTooLargeError",
    "RepositoryError",
    "RollbackError",
    "RunStoppedError",
    "SandboxStateLostError",
    "SandboxUnavailableError",
    "SessionError",
    "SettingsError",
    "ShellNotStartedError",
    "SnapshotCorruptError",
    "SnapshotNotFoundError",
    "TakeoverError",
    "ThreadAdvancedError",
    "ThreadExistsError",
    "ThreadHeldError",
    "ThreadNameError",
    "ThreadNotFoundError",
    "ThreadNotHeldError",
    "TraceError",
    "UnknownAgentError",
    "UnknownAgentProgramError",
    "UnknownViewError",
    "UnstorableValueError",
    "UnsupportedSaverError",
    "WaitTooLongError",
    "WaitingError",
]
