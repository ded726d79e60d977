"""Changes to a session of an agent that its reader must survive, each with what the trace then says.

To add a rule for all agents, add a row to `CHANGED_SESSIONS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from langgraph_takeover.handoff.trace.events import Trace

INVENTED = "frobnicate"


class WrittenSession(NamedTuple):
    """A session as text: a JSON document, or one JSON value per line."""

    text: str
    tool: str
    """The agent's own name for the shell."""

    @property
    def lines(self) -> list[str]:
        return [line for line in self.text.split("\n") if line.strip()]

    @property
    def has_rows(self) -> bool:
        """Whether each line is a value of its own."""
        return len(self.lines) > 1 and self.lines[0].endswith("}")


class ChangedSession(NamedTuple):
    """A change to a session, and the check of its trace against the trace before."""

    change: Callable[[WrittenSession], str | None]
    """Returns the new text; None if the agent's sessions have no such thing."""
    check: Callable[[Trace, Trace], None]
    """Called with the trace of the unchanged session, and that of the changed one."""


def _rename_tool(session: WrittenSession) -> str | None:
    name, invented = json.dumps(session.tool), json.dumps(INVENTED)
    return session.text.replace(name, invented) if name in session.text else None


def _check_renamed_tool(before: Trace, after: Trace) -> None:
    calls = [event for event in before.events if event.kind == "action" and event.tool == "shell"]
    assert after.unknown_forms == {INVENTED: len(calls)}, "calls of an unknown tool are not counted"
    assert len(after.events) == len(before.events), "calls of an unknown tool are lost"


def _add_item(session: WrittenSession) -> str:
    item = {"type": INVENTED, "input": {}, "call_id": "invented"}
    if session.has_rows:
        row = {**json.loads(session.lines[-1]), **item, "uuid": "invented"}
        return "\n".join([*session.lines, json.dumps(row)])
    document = json.loads(session.text)
    last = document["messages"][-1]
    if isinstance(last, Mapping) and isinstance(last.get("parts"), list):
        last["parts"].append(item)
    else:
        document["messages"].append({"role": INVENTED, "tool_calls": []})
    return json.dumps(document)


def _check_added_item(before: Trace, after: Trace) -> None:
    assert after.unknown_forms == {INVENTED: 1}, "an unknown item is not counted"
    assert [event.arguments for event in after.events] == [event.arguments for event in before.events]


def _break_line(session: WrittenSession) -> str | None:
    lines = session.lines
    return "\n".join([lines[0], '{"type": "half', *lines[1:]]) if session.has_rows else None


def _check_broken_line(before: Trace, after: Trace) -> None:
    assert after.skipped_lines == before.skipped_lines + 1, "a broken line is not counted"
    assert after.events == before.events, "a broken line changes the others"


def _keep(session: WrittenSession) -> str:
    return session.text


def _check_unchanged(before: Trace, after: Trace) -> None:
    assert after.events, "the agent's own reader finds no action in the session"
    assert after.unknown_forms == {}, "known tools and rows are reported as unknown"


def _reuse_id(session: WrittenSession) -> str:
    """Endpoints that count the calls of each reply use the same ids again."""
    return re.sub(r'"call_e\d+"', '"call_1"', session.text)


def _check_reused_id(before: Trace, after: Trace) -> None:
    assert after.events == before.events, "a result went to another call with the same id"


def _open_call(session: WrittenSession) -> str:
    """The session while its last command runs."""
    if session.has_rows:
        return "\n".join(session.lines[:-1])
    document = json.loads(session.text)
    if parts := document["messages"][-1].get("parts"):
        (part,) = (each for each in parts if each["type"] == "tool")
        part["state"] = {"status": "running", "input": part["state"]["input"]}
    else:
        document["messages"].pop()
    return json.dumps(document)


def _check_open_call(before: Trace, after: Trace) -> None:
    assert after.events == before.events[:-1], "an open call changes the others"
    (pending,) = after.pending
    assert before.events[-2].arguments["command"] in pending, "the open call is not named"


def _withdraw_turn(session: WrittenSession) -> str | None:
    """The session with a second turn of the same calls, from which the user went back."""
    if not session.has_rows:
        document = json.loads(session.text)
        if "info" not in document:
            return None
        turn = json.loads(json.dumps(document["messages"]))
        for message in turn:
            message["info"]["id"] += "again"
        document["messages"] += turn
        document["info"]["revert"] = {"messageID": turn[0]["info"]["id"]}
        return json.dumps(document)
    rows = [json.loads(line) for line in session.lines]
    if "uuid" in rows[0]:
        turn = [
            row | {"uuid": f"{row['uuid']} again", "parentUuid": f"{row['parentUuid']} again"} for row in rows
        ]
        turn[0]["parentUuid"] = rows[-1]["uuid"]
        turn.append(rows[0] | {"uuid": "another way", "parentUuid": rows[-1]["uuid"]})
    else:
        back = {"type": "thread_rolled_back", "num_turns": 1}
        turn = [*rows[1:], {**rows[1], "type": "event_msg", "payload": back}]
    return "\n".join(map(json.dumps, [*rows, *turn]))


def _check_withdrawn_turn(before: Trace, after: Trace) -> None:
    assert after.events == before.events, "withdrawn calls are among the others"
    calls = [event for event in before.events if event.kind == "action"]
    assert after.withdrawn_actions == len(calls), "withdrawn calls are not counted"


CHANGED_SESSIONS: Mapping[str, ChangedSession] = {
    "unchanged": ChangedSession(_keep, _check_unchanged),
    "unknown tool": ChangedSession(_rename_tool, _check_renamed_tool),
    "unknown item": ChangedSession(_add_item, _check_added_item),
    "broken line": ChangedSession(_break_line, _check_broken_line),
    "reused ids": ChangedSession(_reuse_id, _check_reused_id),
    "pending call": ChangedSession(_open_call, _check_open_call),
    "branch": ChangedSession(_withdraw_turn, _check_withdrawn_turn),
}
