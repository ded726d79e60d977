"""What an external agent did with one reply of its model."""

from __future__ import annotations

from collections.abc import Mapping

from langgraph_takeover.handoff.trace.events import Usage
from langgraph_takeover.sandbox.interface import Frozen


class CallResult(Frozen):
    """One tool call of a reply, in this project's terms, and its result as the agent reported it to its model."""

    call_id: str
    tool: str
    arguments: Mapping[str, str]
    text: str
    exit_code: int | None = None
    refused: bool = False
    timed_out: bool = False


class ExternalTurn(Frozen):
    """The results of a reply's calls, and the agent's next step: another request, or its end."""

    results: tuple[CallResult, ...] = ()
    messages: tuple[str, ...] = ()
    """User messages that the agent added."""
    is_ended: bool = False
    """Whether the agent has ended."""
    is_complete: bool = False
    """Whether it ended by itself and without an error."""
    end_message: str = ""
    session_id: str = ""
    running: tuple[str, ...] = ()
    """Commands that still run in the background, as the agent reported them."""
    side_usages: tuple[Usage, ...] = ()
    """Token usage of subagents and side tasks meanwhile."""
    account: Mapping[str, int] = {}
    """How many events of the earlier work became what in the agent's session, if one was written."""
    refused_requests: Mapping[str, int] = {}
    """Requests that the bridge refused meanwhile, by reason."""
