"""What an external agent did with one reply of its model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.trace.events import Usage


class CallResult(Frozen):
    """One tool call of a reply, in this project's terms, and its result as the agent reported it to its model."""

    call_id: str
    tool: str
    arguments: Mapping[str, str]
    text: str
    exit_code: int | None = None
    refused: bool = False
    timed_out: bool = False


class SideWork(Frozen):
    """Requests beside the main conversation: of subagents, for side tasks, and refused ones."""

    usages: tuple[Usage, ...] = ()
    """Of each request that reached the model; an estimate if its answer came too late to be counted."""
    uncounted_calls: int = 0
    """Requests to the endpoint that it may have billed, with unknown tokens."""
    refused: Mapping[str, int] = {}
    """Requests that the bridge refused, by reason."""

    def __add__(self, other: SideWork) -> SideWork:
        return SideWork(
            usages=self.usages + other.usages,
            uncounted_calls=self.uncounted_calls + other.uncounted_calls,
            refused=dict(Counter(self.refused) + Counter(other.refused)),
        )


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
    side: SideWork = SideWork()
    """Side requests meanwhile."""
    account: Mapping[str, int] = {}
    """How many events of the earlier work became what in the agent's session, if one was written."""
