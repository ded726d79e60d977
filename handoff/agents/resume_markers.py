"""What agents add when they resume a session, and whether a resumed conversation is the pending one."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from langgraph_takeover.handoff.agents.adapter import RESUME_MESSAGE
from langgraph_takeover.handoff.readers.external.sessions import strip_reminders


def strip_resume_markers(messages: Sequence[BaseMessage], reply: str = "") -> list[BaseMessage]:
    """Return a conversation without `RESUME_MESSAGE`, as a message or as the end of one.

    Args:
        reply: text of a reply that the agent writes itself after an interrupted turn.
    """
    kept: list[BaseMessage] = []
    for message in messages:
        if isinstance(message, AIMessage) and not message.tool_calls and reply == message.text.strip() != "":
            continue
        text = message.text.rstrip() if isinstance(message, HumanMessage) else ""
        if text != RESUME_MESSAGE and not text.endswith(f"\n{RESUME_MESSAGE}"):
            kept.append(message)
        # Qwen Code puts a reminder with the date before it.
        elif strip_reminders(rest := text.removesuffix(RESUME_MESSAGE).removesuffix("\n")):
            kept.append(HumanMessage(rest))
    return kept


def has_same_steps(pending: Sequence[BaseMessage], resumed: Sequence[BaseMessage]) -> bool:
    """Return whether two stripped conversations agree from the first reply with a call on.

    What precedes it is the agent's own context, such as the date and a list of files, which may change; there, the
    resumed conversation must contain the last message of the pending one.
    """
    before, after = _skip_context(pending), _skip_context(resumed)
    if [_describe(each) for each in before] != [_describe(each) for each in after]:
        return False
    task = [strip_reminders(each.text) for each in pending[: len(pending) - len(before)]][-1:]
    return all(any(text in each.text for each in resumed) for text in task)


def _skip_context(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage) and message.tool_calls:
            return list(messages[index:])
    return []


def _describe(message: BaseMessage) -> tuple[object, ...]:
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return message.type, message.text.strip(), [(each["name"], each["args"], each["id"]) for each in calls]
