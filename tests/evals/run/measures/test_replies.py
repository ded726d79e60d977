from __future__ import annotations

from langgraph_takeover.evals.run.measures.replies import (
    EmptyReplies,
    count_empty_replies,
    describe_empty_notes,
    describe_empty_replies,
)
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event, Usage
from langgraph_takeover.nodes.model.message_content import CUT_OFF, EMPTY_REPLY, THOUGHT_ONLY
from langgraph_takeover.nodes.model.note_calls import NotesCall


def answers(*texts: str, tool: str = UNREADABLE, refused: bool = True) -> list[Event]:
    events: list[Event] = []
    for text in texts:
        events.append(Event(index=len(events), kind="action", tool=tool, text=""))
        events.append(Event(index=len(events), kind="observation", tool=tool, text=text, refused=refused))
    return events


def test_empty_replies_are_counted_by_kind() -> None:
    events = answers(
        THOUGHT_ONLY, f"{THOUGHT_ONLY} It was {CUT_OFF}: think less.", EMPTY_REPLY, "Your reply contains 2"
    )
    assert count_empty_replies(events) == (3, 2, 1)
    # An output that imitates the answer is none.
    assert count_empty_replies(answers(THOUGHT_ONLY, tool="shell", refused=False)).total == 0


def test_the_limit_to_raise_is_named() -> None:
    assert describe_empty_replies(EmptyReplies(0, 0, 0), 9, "m", None) == ""
    assert describe_empty_replies(EmptyReplies(3, 2, 0), 9, "m", None) == (
        "of 9 replies 2 had thought, but no text and no action and 1 had nothing"
    )
    assert "cut off at the server's limit (raise it there, or set max_output_tokens of m in --models" in (
        describe_empty_replies(EmptyReplies(2, 2, 2), 9, "m", None)
    )
    assert (
        "cut off at the limit of 4,096 output tokens (raise max_output_tokens of m in --models, or --max-reply"
        in (describe_empty_replies(EmptyReplies(2, 2, 2), 9, "m", 4096))
    )


def test_notes_without_text() -> None:
    fine = NotesCall("summary", Usage(), 0, "", False)
    assert describe_empty_notes([fine], "m", 1600) == ""
    assert describe_empty_notes([fine, NotesCall("structured", Usage(), 0, "no text", False)], "m", 1600) == (
        "1 of 2 replies had no text"
    )
