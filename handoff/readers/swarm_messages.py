"""Reader of conversations of several agents: transfers, later user requests and embedded views."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph_takeover.handoff.readers import langchain
from langgraph_takeover.handoff.readers.langchain import RawMessage, message_type
from langgraph_takeover.handoff.recordings.recorded_run import (
    RecordedCall,
    RecordedResult,
    RecordedRun,
    TraceError,
    build_trace,
    extract_text,
    join_requests,
    to_mapping,
)
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError, TaskBrief, parse_model
from langgraph_takeover.handoff.trace.conversation import list_steps
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event, Trace, count_forms

METADATA_KEY = "takeover"
"""Key in the `additional_kwargs` of a message that belongs to a view.

`record` is the id of the record. The first message of the view also has `content`, the record as JSON, or `stored`.
"""
_TRANSFER_TOOL = re.compile(r"(?:transfer(?:_back)?|hand_?off)_to_(.+)", re.DOTALL)
_TRANSFER_RESULT = re.compile(r"Successfully transferred (?:back )?to (.+)", re.DOTALL)

FindRecord = Callable[[str], HandoffRecord]
"""Finds the record of a view by its id. Raises RecordError."""


class SwarmConversation(NamedTuple):
    """The content of the messages of a swarm."""

    trace: Trace
    earlier_record: HandoffRecord | None
    """The record that the messages continue; `trace` starts with its events."""
    last_agent: str
    """The agent of the last message; empty if messages have no names."""


def is_swarm(data: Any) -> bool:
    """Whether the messages contain a transfer between agents, or a view."""
    messages = langchain.list_messages(data) or []
    if any(_has_record(message) for message in messages):
        return True
    return any(
        _find_transfer_target(call)
        for message, answers in langchain.pair_tool_messages(messages)
        for call in langchain.read_calls(message, answers)
    )


def read(data: Any, name: str) -> Trace | RecordedRun:
    """Read the messages of a swarm or of one agent. Raises TraceError."""
    if not is_swarm(data):
        return langchain.read(data, name)
    try:
        return read_conversation(data, name, _reject_stored_record).trace
    except RecordError as error:
        raise TraceError(str(error)) from error


def read_conversation(data: Any, name: str, find_record: FindRecord) -> SwarmConversation:
    """Read the complete conversation, including the work before an embedded view. Raises RecordError."""
    earlier, messages = _split_at_view(langchain.list_messages(data) or [], find_record)
    agents = {str(m["name"]) for m in messages if message_type(m) == "ai" and m.get("name")}
    earlier_calls = list(_rebuild_calls(earlier)) if earlier else []
    run = RecordedRun(
        id=name,
        format="langchain",
        calls=[*earlier_calls, *_read_calls(messages, agents)],
        task=_build_task(earlier, messages, agents),
        model=langchain.find_model(messages),
        workspace=_find_workspace(earlier.task, earlier_calls) if earlier else None,
        unknown_items=count_forms(langchain.list_unknown(messages)),
    )
    trace = build_trace(run)
    if earlier is not None:
        trace = _join_trace(earlier, trace, sum(1 + (call.result is not None) for call in earlier_calls))
    speaker = next((str(m.get("name") or "") for m in reversed(messages) if message_type(m) == "ai"), "")
    return SwarmConversation(trace, earlier, speaker)


def _reject_stored_record(record_id: str) -> HandoffRecord:
    raise RecordError(
        f"record {record_id!r:.80} is in a record store "
        "(read the messages with handoff.interop.swarm_records.from_swarm(…, records=RecordStore(…)))"
    )


def _read_metadata(message: RawMessage) -> Mapping[str, Any]:
    return to_mapping(to_mapping(message.get("additional_kwargs")).get(METADATA_KEY))


def _has_record(message: RawMessage) -> bool:
    metadata = _read_metadata(message)
    return isinstance(metadata.get("record"), str) and bool({"content", "stored"} & metadata.keys())


def _split_at_view(
    messages: list[RawMessage], find_record: FindRecord
) -> tuple[HandoffRecord | None, list[RawMessage]]:
    """Return the record of the last view, and the messages outside that view."""
    metadata = next((_read_metadata(message) for message in reversed(messages) if _has_record(message)), None)
    if metadata is None:
        return None, messages
    if isinstance(content := metadata.get("content"), str):
        earlier = parse_model(content.encode("utf-8", "surrogatepass"), "messages", HandoffRecord)
        earlier.verify()
    else:
        earlier = find_record(metadata["record"])
    return earlier, [
        message for message in messages if _read_metadata(message).get("record") != metadata["record"]
    ]


def _rebuild_calls(record: HandoffRecord) -> Iterator[RecordedCall]:
    """Convert the events of a record back to calls."""
    has_observed_files = bool(record.task.base_commit)
    for action, observation in list_steps(record.trace):
        result = None
        if observation is not None:
            cwd, changes = (observation.cwd, observation.changes) if has_observed_files else (None, None)
            result = RecordedResult(
                observation.text,
                observation.exit_code,
                observation.refused,
                observation.timed_out,
                cwd,
                changes,
            )
        yield RecordedCall(action.text, action.tool, action.arguments, result)


def _find_workspace(task: TaskBrief, calls: Iterable[RecordedCall]) -> str | None:
    """The path of the repository; None if it was an unconfirmed guess, so that it is guessed again."""
    is_confirmed = any(task.workspace in value for call in calls for value in call.arguments.values())
    return task.workspace or None if task.base_commit or is_confirmed else None


def _join_trace(record: HandoffRecord, trace: Trace, skipped_events: int) -> Trace:
    """Replace the first events of the trace by those of the record."""
    start = len(record.trace)
    later_events = (
        event.model_copy(update={"index": n}) for n, event in enumerate(trace.events[skipped_events:], start)
    )
    base_directories = record.task.base_directories if record.task.base_commit else ()
    return trace.model_copy(
        update={
            "events": (*record.trace, *later_events),
            "base_directories": base_directories or trace.base_directories,
        }
    )


def _read_calls(messages: Sequence[RawMessage], agents: set[str]) -> Iterator[RecordedCall]:
    """Yield every call; a message without calls becomes an unreadable action, answered by the user."""
    replies = langchain.pair_tool_messages(messages)
    for position, message in enumerate(messages):
        text = extract_text(message.get("content"))
        if message_type(message) == "ai":
            calls = [_normalize_handoff(call, message) for call in langchain.read_calls(*next(replies))]
            yield from calls
            if not calls and text:
                following = messages[position + 1 : position + 2]
                answers = [extract_text(m.get("content")) for m in following if _is_from_user(m, agents)]
                yield RecordedCall(text, UNREADABLE, {}, RecordedResult(answers[0]) if answers else None)
        elif message_type(message) == "human" and not _is_from_user(message, agents):
            yield RecordedCall(text, UNREADABLE, {}, None)


def _is_from_user(message: RawMessage, agents: set[str]) -> bool:
    """Whether the user wrote a message; some swarms forward agent messages as human messages with an agent's name."""
    return message_type(message) == "human" and str(message.get("name") or "") not in agents


def _find_transfer_target(call: RecordedCall) -> str:
    """The agent that a call transfers to; empty for other calls."""
    if call.result is None or call.result.refused:
        return ""
    named = _TRANSFER_TOOL.fullmatch(call.tool)
    # A tool with another name is a transfer if it has no arguments and its result reports a transfer.
    reported = None if call.arguments and not named else _TRANSFER_RESULT.fullmatch(call.result.text.strip())
    return str((reported or named or ("", ""))[1])


def _normalize_handoff(call: RecordedCall, message: RawMessage) -> RecordedCall:
    """Convert a transfer to a `handoff` call; other calls are unchanged."""
    target = _find_transfer_target(call)
    if not target:
        return call
    original = call.arguments
    message_arguments = {"message": next(iter(original.values()))} if len(original) == 1 else original
    agent = str(message.get("name") or "")
    arguments = {**message_arguments, **({"from": agent} if agent else {}), "to": target}
    return call._replace(tool="handoff", arguments=arguments)


def _build_task(record: HandoffRecord | None, messages: Iterable[RawMessage], agents: set[str]) -> str:
    """Join all user requests; the first stays verbatim, later ones get a prefix."""
    user_texts = [extract_text(m.get("content")) for m in messages if _is_from_user(m, agents)]
    requests = [*([record.task.prompt] if record else []), *user_texts]
    return join_requests(requests)


def list_transfers(events: Iterable[Event]) -> list[Mapping[str, str]]:
    """Arguments of all handoff actions, with `from` and `to` if known."""
    return [event.arguments for event in events if event.kind == "action" and event.tool == "handoff"]
