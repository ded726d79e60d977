"""Markers of a resumed conversation, in the forms that real agents send them."""

from __future__ import annotations

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langgraph_takeover.handoff.agents.adapter import RESUME_MESSAGE
from langgraph_takeover.handoff.agents.claude_code import ClaudeCode
from langgraph_takeover.handoff.agents.native_sessions import has_same_steps, strip_resume_markers

CONTEXT = "<system-reminder>\nToday is Monday.\n</system-reminder>\n"
TASK = HumanMessage(f"{CONTEXT}\nFix it.")
CALL = AIMessage("One.", tool_calls=[{"name": "Bash", "args": {"command": "ls"}, "id": "call_1"}])
RESULT = ToolMessage("a.py", tool_call_id="call_1")
MARKER = HumanMessage(RESUME_MESSAGE)
REPLY = AIMessage("No response requested.")


def test_claude_code_resumed_after_a_result() -> None:
    """Seen with Claude Code 2.1.197: it adds its own marker and reply, then ours."""
    resumed = [TASK, CALL, RESULT, MARKER, REPLY, MARKER]
    assert ClaudeCode().strip_markers(resumed) == [TASK, CALL, RESULT]


def test_claude_code_resumed_at_its_first_request() -> None:
    """The task and its own marker are parts of one message there."""
    resumed = [HumanMessage(f"{TASK.text}\n{RESUME_MESSAGE}"), REPLY, MARKER]
    assert ClaudeCode().strip_markers(resumed) == [TASK]


def test_markers_of_earlier_resumptions_are_stripped_too() -> None:
    again = AIMessage("Two.", tool_calls=[{"name": "Bash", "args": {}, "id": "call_2"}])
    result = ToolMessage("b", tool_call_id="call_2")
    resumed = [TASK, CALL, RESULT, MARKER, REPLY, MARKER, again, result, MARKER, REPLY, MARKER]
    assert ClaudeCode().strip_markers(resumed) == [TASK, CALL, RESULT, again, result]


def test_qwen_codes_reminder_of_the_date_is_stripped_with_its_marker() -> None:
    """Seen with Qwen Code 0.24.4."""
    resumed = [TASK, CALL, RESULT, HumanMessage(f"{CONTEXT}{RESUME_MESSAGE}\n\n")]
    assert strip_resume_markers(resumed) == [TASK, CALL, RESULT]


def test_the_reply_is_kept_for_other_agents_and_beside_a_call() -> None:
    conversation: list[BaseMessage] = [TASK, REPLY]
    assert strip_resume_markers(conversation) == conversation
    with_call = AIMessage("No response requested.", tool_calls=CALL.tool_calls)
    assert ClaudeCode().strip_markers([TASK, with_call]) == [TASK, with_call]


def test_the_closing_message_stays() -> None:
    closing = HumanMessage("Go on.\n\n")
    assert ClaudeCode().strip_markers([TASK, CALL, RESULT, MARKER, REPLY, closing]) == [
        TASK,
        CALL,
        RESULT,
        closing,
    ]


def test_conversations_are_compared_from_the_first_call_on() -> None:
    pending = [TASK, CALL, RESULT]
    other_day = HumanMessage(TASK.text.replace("Monday", "Tuesday"))
    assert has_same_steps(pending, [TASK, CALL, RESULT])
    assert not has_same_steps(pending, [TASK, CALL])
    assert not has_same_steps(pending, [TASK, CALL, ToolMessage("b.py", tool_call_id="call_1")])
    assert not has_same_steps(pending, [CALL, RESULT])
    assert not has_same_steps(pending, [TASK, CALL, RESULT, AIMessage("More.")])
    # Reminders are the agent's own context: Qwen Code 0.24 leaves that of the date out when it resumes.
    assert has_same_steps(pending, [other_day, CALL, RESULT])
    assert not has_same_steps(pending, [HumanMessage(f"{CONTEXT}\nFix that."), CALL, RESULT])
    context = [HumanMessage("Monday"), AIMessage("Got it."), HumanMessage("Fix it.\n\n"), CALL, RESULT]
    assert has_same_steps(context, [HumanMessage("Tuesday"), *context[1:]])
