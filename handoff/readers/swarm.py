"""Conversations of several agents: their transfers, what the user said later, and the work that a view stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph_takeover.handoff.readers import langchain
from langgraph_takeover.handoff.readers.langchain import RawMessage, message_type
from langgraph_takeover.handoff.readers.recorded_run import (
    RecordedCall,
    RecordedResult,
    RecordedRun,
    TraceError,
    build_trace,
    extract_text,
    to_mapping,
)
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError, TaskBrief, parse_model
from langgraph_takeover.handoff.trace.conversation import list_steps
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event, Trace

METADATA_KEY = "takeover"
"""Where a message that belongs to a view says so, among its `additional_kwargs`.

`record` is the record's id; the view's first message also has `content`, the record itself as JSON, or `stored`.
"""
LATER_REQUEST_PREFIX = "The user said later:"
_TRANSFER_TOOL = re.compile(r"(?:transfer(?:_back)?|hand_?off)_to_(.+)", re.DOTALL)
_TRANSFER_RESULT = re.compile(r"Successfully transferred (?:back )?to (.+)", re.DOTALL)

FindRecord = Callable[[str], HandoffRecord]
"""Finds the record that a view was made of. Raises RecordError."""


class SwarmConversation(NamedTuple):
    """What a swarm's messages tell."""

    trace: Trace
    earlier_record: HandoffRecord | None
    """What the messages go on from; its trace is the beginning of this one."""
    last_agent: str
    """The agent that spoke last; empty where its messages bear no names."""


def is_swarm(data: Any) -> bool:
    """Whether agents hand over to each other in these messages, or one begins with a view."""
    messages = langchain.list_messages(data) or []
    if any(_has_record(message) for message in messages):
        return True
    spoken = (each for each in langchain.pair_tool_messages(messages))
    return any(
        _find_transfer_target(call)
        for message, answers in spoken
        for call in langchain.read_calls(message, answers)
    )


def read(data: Any, name: str) -> Trace | RecordedRun:
    """As a run of one agent, unless it is a swarm's."""
    if not is_swarm(data):
        return langchain.read(data, name)
    try:
        return read_conversation(data, name, _reject_stored_record).trace
    except RecordError as error:
        raise TraceError(str(error)) from error


def read_conversation(data: Any, name: str, find_record: FindRecord) -> SwarmConversation:
    """All that was done so far, also before the view that the messages begin with. Raises RecordError."""
    earlier, messages = _split_at_view(langchain.list_messages(data) or [], find_record)
    agents = {str(m["name"]) for m in messages if message_type(m) == "ai" and m.get("name")}
    before = list(_rebuild_calls(earlier)) if earlier else []
    told = RecordedRun(
        id=name,
        format="langchain",
        calls=[*before, *_read_calls(messages, agents)],
        task=_build_task(earlier, messages, agents),
        model=langchain.find_model(messages),
        workspace=_find_workspace(earlier.task, before) if earlier else None,
    )
    trace = build_trace(told)
    if earlier is not None:
        trace = _join_trace(earlier, trace, sum(1 + (call.result is not None) for call in before))
    speaker = next((str(m.get("name") or "") for m in reversed(messages) if message_type(m) == "ai"), "")
    return SwarmConversation(trace, earlier, speaker)


def _reject_stored_record(record_id: str) -> HandoffRecord:
    raise RecordError(
        f"goes on from the record {record_id!r:.80}, which lies in a store; read it with "
        "handoff.interop.swarm.from_swarm(…, records=RecordStore(…))"
    )


def _read_metadata(message: RawMessage) -> Mapping[str, Any]:
    return to_mapping(to_mapping(message.get("additional_kwargs")).get(METADATA_KEY))


def _has_record(message: RawMessage) -> bool:
    mark = _read_metadata(message)
    return isinstance(mark.get("record"), str) and bool({"content", "stored"} & mark.keys())


def _split_at_view(
    messages: list[RawMessage], find_record: FindRecord
) -> tuple[HandoffRecord | None, list[RawMessage]]:
    """The record that the last view was made of, and the messages that are no part of that view."""
    mark = next((_read_metadata(message) for message in reversed(messages) if _has_record(message)), None)
    if mark is None:
        return None, messages
    if isinstance(content := mark.get("content"), str):
        earlier = parse_model(content.encode("utf-8", "surrogatepass"), "messages", HandoffRecord)
        earlier.verify()
    else:
        earlier = find_record(mark["record"])
    return earlier, [
        message for message in messages if _read_metadata(message).get("record") != mark["record"]
    ]


def _rebuild_calls(record: HandoffRecord) -> Iterator[RecordedCall]:
    """The calls that a record's events were read from."""
    observed = bool(record.task.base_commit)
    for action, seen in list_steps(record.trace):
        result = None
        if seen is not None:
            cwd, changes = (seen.cwd, seen.changes) if observed else (None, None)
            result = RecordedResult(seen.text, seen.exit_code, seen.refused, seen.timed_out, cwd, changes)
        yield RecordedCall(action.text, action.tool, action.arguments, result)


def _find_workspace(task: TaskBrief, calls: Iterable[RecordedCall]) -> str | None:
    """The repository's path; None where it was a guess that nothing bears out, so that later calls may tell it."""
    said = any(task.workspace in value for call in calls for value in call.arguments.values())
    return task.workspace or None if task.base_commit or said else None


def _join_trace(record: HandoffRecord, trace: Trace, skipped_events: int) -> Trace:
    """The trace with its first events as the record has them."""
    begins = len(record.trace)
    own = (
        event.model_copy(update={"index": n}) for n, event in enumerate(trace.events[skipped_events:], begins)
    )
    known = record.task.base_directories if record.task.base_commit else ()
    return trace.model_copy(
        update={
            "events": (*record.trace, *own),
            "base_directories": known or trace.base_directories,
        }
    )


def _read_calls(messages: Sequence[RawMessage], agents: set[str]) -> Iterator[RecordedCall]:
    """Every call; what an agent only says is one that is no action, and is answered by the user."""
    spoken = langchain.pair_tool_messages(messages)
    for place, message in enumerate(messages):
        text = extract_text(message.get("content"))
        if message_type(message) == "ai":
            calls = [_normalize_handoff(call, message) for call in langchain.read_calls(*next(spoken))]
            yield from calls
            if not calls and text:
                following = messages[place + 1 : place + 2]
                said = [extract_text(m.get("content")) for m in following if _is_from_user(m, agents)]
                yield RecordedCall(text, UNREADABLE, {}, RecordedResult(said[0]) if said else None)
        elif message_type(message) == "human" and not _is_from_user(message, agents):
            yield RecordedCall(text, UNREADABLE, {}, None)


def _is_from_user(message: RawMessage, agents: set[str]) -> bool:
    """Some swarms pass what an agent said on as a message of a person; it bears the agent's name then."""
    return message_type(message) == "human" and str(message.get("name") or "") not in agents


def _find_transfer_target(call: RecordedCall) -> str:
    """Whom a call hands over to; empty where it does not."""
    if call.result is None or call.result.refused:
        return ""
    name = _TRANSFER_TOOL.fullmatch(call.tool)
    # A tool of another name is one by what it answers, if it is called as such tools are: without arguments.
    told = None if call.arguments and not name else _TRANSFER_RESULT.fullmatch(call.result.text.strip())
    return str((told or name or ("", ""))[1])


def _normalize_handoff(call: RecordedCall, message: RawMessage) -> RecordedCall:
    """A call that hands over, as this project calls it."""
    to = _find_transfer_target(call)
    if not to:
        return call
    given = call.arguments
    told = {"message": next(iter(given.values()))} if len(given) == 1 else given
    by = str(message.get("name") or "")
    arguments = {**told, **({"from": by} if by else {}), "to": to}
    return call._replace(tool="handoff", arguments=arguments)


def _build_task(record: HandoffRecord | None, messages: Iterable[RawMessage], agents: set[str]) -> str:
    """All that the user asked for, the first verbatim; an agent that knew less would do something else."""
    asked = [extract_text(m.get("content")) for m in messages if _is_from_user(m, agents)]
    words = [*([record.task.prompt] if record else []), *asked]
    first, *later = [each for each in words if each.strip()] or [""]
    return "\n\n".join([first, *(f"{LATER_REQUEST_PREFIX}\n\n{each}" for each in later)])


def list_transfers(events: Iterable[Event]) -> list[Mapping[str, str]]:
    """Who handed over to whom, as far as it is known."""
    return [event.arguments for event in events if event.kind == "action" and event.tool == "handoff"]
