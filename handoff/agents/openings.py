"""How an external agent begins: with a message, or with a session that it resumes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from langgraph_takeover.handoff import views
from langgraph_takeover.handoff.agents.adapter import AgentAdapter, Launch, NativeSession
from langgraph_takeover.handoff.agents.native_sessions import list_session_steps
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.views.common import EVENT_FILES, build_event_files


class Opening(NamedTuple):
    """How an agent begins: its first message, after the session that it resumes, if any."""

    message: str
    session: NativeSession | None = None
    call_ids: frozenset[str] = frozenset()
    """The calls of the session, whose results the first request must contain."""
    event_files: Mapping[str, str] = {}
    """Files with the events of the earlier work, for views that point to them."""
    account: Mapping[str, int] = {}
    """How many events of the earlier work became what in the session."""


def build_record_opening(
    record: HandoffRecord,
    view: str,
    adapter: AgentAdapter,
    launch: Launch,
    *,
    event_directory: str = "",
    window_tokens: int | None = None,
) -> Opening:
    """Return how an agent continues a record under a view.

    `event_directory` is where the files of events will be; by default in the agent's home. `window_tokens` is the model's
    context window, if known. Raises UnknownViewError.
    """
    recipient = views.Recipient(protocol="native", has_event_files=True)
    if window_tokens is not None:
        recipient = recipient.model_copy(update={"window_tokens": window_tokens})
    build_history = views.HISTORIES.get(view)
    if build_history is not None:
        history = build_history(record, recipient)
        call_ids = frozenset(step.call_id for step in list_session_steps(history)[0] if step.action)
        session = adapter.write_session(history, launch)
        account = Counter(
            f"{each.outcome}: {each.reason}" if each.reason else each.outcome
            for each in session.account
            if each.event < len(record.trace)
        )
        return Opening(history.closing, session, call_ids, account=account)
    message = "\n\n".join(each.text for each in views.find_view(view)(record, recipient))
    if view not in views.VIEWS_WITH_RECALL:
        return Opening(message)
    directory = event_directory or EVENT_FILES.replace("~", launch.home)
    files = {f"{directory}/{name}": text for name, text in build_event_files(record.trace).items()}
    return Opening(
        message.replace(EVENT_FILES, event_directory) if event_directory else message, event_files=files
    )
