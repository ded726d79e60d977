"""Conversations of several agents: their transfers, what the user said later, and the work that a view stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from handoff.conversation import steps
from handoff.event import UNREADABLE, Event
from handoff.readers import langchain
from handoff.readers.calls import BadTrace, Call, Result, Told, content_text, fields, trace_of
from handoff.readers.langchain import Message, type_of
from handoff.record import HandoffRecord, RecordRefused, TaskBrief, parsed
from handoff.trace import Trace

KEY = "takeover"
"""Where a message that belongs to a view says so, among its `additional_kwargs`.

`record` is the record's id; the view's first message also has `content`, the record itself as JSON, or `stored`.
"""
LATER = "The user said later:"
_TRANSFER = re.compile(r"(?:transfer(?:_back)?|hand_?off)_to_(.+)", re.DOTALL)
_TRANSFERRED = re.compile(r"Successfully transferred (?:back )?to (.+)", re.DOTALL)

Find = Callable[[str], HandoffRecord]
"""Finds the record that a view was made of. Raises RecordRefused."""


class Conversation(NamedTuple):
    """What a swarm's messages tell."""

    trace: Trace
    earlier: HandoffRecord | None
    """What the messages go on from; its trace is the beginning of this one."""
    speaker: str
    """The agent that spoke last; empty where its messages bear no names."""


def is_swarm(data: Any) -> bool:
    """Whether agents hand over to each other in these messages, or one begins with a view."""
    messages = langchain.listed(data) or []
    if any(_carries(message) for message in messages):
        return True
    spoken = (each for each in langchain.answered(messages))
    return any(_to(call) for message, answers in spoken for call in langchain.calls_of(message, answers))


def read(data: Any, name: str) -> Trace | Told:
    """As a run of one agent, unless it is a swarm's."""
    if not is_swarm(data):
        return langchain.read(data, name)
    try:
        return conversation(data, name, _elsewhere).trace
    except RecordRefused as error:
        raise BadTrace(str(error)) from error


def conversation(data: Any, name: str, find: Find) -> Conversation:
    """All that was done so far, also before the view that the messages begin with. Raises RecordRefused."""
    earlier, messages = _continued(langchain.listed(data) or [], find)
    agents = {str(m["name"]) for m in messages if type_of(m) == "ai" and m.get("name")}
    before = list(_calls_again(earlier)) if earlier else []
    told = Told(
        id=name,
        format="langchain",
        calls=[*before, *_calls(messages, agents)],
        task=_task(earlier, messages, agents),
        model=langchain.model_of(messages),
        workspace=_workspace(earlier.task, before) if earlier else None,
    )
    trace = trace_of(told)
    if earlier is not None:
        trace = _joined(earlier, trace, sum(1 + (call.result is not None) for call in before))
    speaker = next((str(m.get("name") or "") for m in reversed(messages) if type_of(m) == "ai"), "")
    return Conversation(trace, earlier, speaker)


def _elsewhere(record_id: str) -> HandoffRecord:
    raise RecordRefused(
        f"goes on from the record {record_id!r:.80}, which lies in a store; read it with "
        "handoff.swarm.from_swarm(…, records=RecordStore(…))"
    )


def _mark(message: Message) -> Mapping[str, Any]:
    return fields(fields(message.get("additional_kwargs")).get(KEY))


def _carries(message: Message) -> bool:
    mark = _mark(message)
    return isinstance(mark.get("record"), str) and bool({"content", "stored"} & mark.keys())


def _continued(messages: list[Message], find: Find) -> tuple[HandoffRecord | None, list[Message]]:
    """The record that the last view was made of, and the messages that are no part of that view."""
    mark = next((_mark(message) for message in reversed(messages) if _carries(message)), None)
    if mark is None:
        return None, messages
    if isinstance(content := mark.get("content"), str):
        earlier = parsed(content.encode("utf-8", "surrogatepass"), "messages", HandoffRecord)
        earlier.verify()
    else:
        earlier = find(mark["record"])
    return earlier, [message for message in messages if _mark(message).get("record") != mark["record"]]


def _calls_again(earlier: HandoffRecord) -> Iterator[Call]:
    """The calls that a record's events were read from."""
    observed = bool(earlier.task.base_commit)
    for action, seen in steps(earlier.trace):
        result = None
        if seen is not None:
            cwd, changes = (seen.cwd, seen.changes) if observed else (None, None)
            result = Result(seen.text, seen.exit_code, seen.refused, seen.timed_out, cwd, changes)
        yield Call(action.text, action.tool, action.arguments, result)


def _workspace(task: TaskBrief, calls: Iterable[Call]) -> str | None:
    """The repository's path; None where it was a guess that nothing bears out, so that later calls may tell it."""
    said = any(task.workspace in value for call in calls for value in call.arguments.values())
    return task.workspace or None if task.base_commit or said else None


def _joined(earlier: HandoffRecord, trace: Trace, events: int) -> Trace:
    """The trace with its first events as the record has them."""
    begins = len(earlier.trace)
    own = (event.model_copy(update={"index": n}) for n, event in enumerate(trace.events[events:], begins))
    known = earlier.task.base_directories if earlier.task.base_commit else ()
    return trace.model_copy(
        update={
            "events": (*earlier.trace, *own),
            "base_directories": known or trace.base_directories,
        }
    )


def _calls(messages: Sequence[Message], agents: set[str]) -> Iterator[Call]:
    """Every call; what an agent only says is one that is no action, and is answered by the user."""
    spoken = langchain.answered(messages)
    for place, message in enumerate(messages):
        text = content_text(message.get("content"))
        if type_of(message) == "ai":
            calls = [_named(call, message) for call in langchain.calls_of(*next(spoken))]
            yield from calls
            if not calls and text:
                following = messages[place + 1 : place + 2]
                said = [content_text(m.get("content")) for m in following if _of_user(m, agents)]
                yield Call(text, UNREADABLE, {}, Result(said[0]) if said else None)
        elif type_of(message) == "human" and not _of_user(message, agents):
            yield Call(text, UNREADABLE, {}, None)


def _of_user(message: Message, agents: set[str]) -> bool:
    """Some swarms pass what an agent said on as a message of a person; it bears the agent's name then."""
    return type_of(message) == "human" and str(message.get("name") or "") not in agents


def _to(call: Call) -> str:
    """Whom a call hands over to; empty where it does not."""
    if call.result is None or call.result.refused:
        return ""
    name = _TRANSFER.fullmatch(call.tool)
    # A tool of another name is one by what it answers, if it is called as such tools are: without arguments.
    told = None if call.arguments and not name else _TRANSFERRED.fullmatch(call.result.text.strip())
    return str((told or name or ("", ""))[1])


def _named(call: Call, message: Message) -> Call:
    """A call that hands over, as this project calls it."""
    to = _to(call)
    if not to:
        return call
    given = call.arguments
    told = {"message": next(iter(given.values()))} if len(given) == 1 else given
    by = str(message.get("name") or "")
    arguments = {**told, **({"from": by} if by else {}), "to": to}
    return call._replace(tool="handoff", arguments=arguments)


def _task(earlier: HandoffRecord | None, messages: Iterable[Message], agents: set[str]) -> str:
    """All that the user asked for, the first verbatim; an agent that knew less would do something else."""
    asked = [content_text(m.get("content")) for m in messages if _of_user(m, agents)]
    words = [*([earlier.task.prompt] if earlier else []), *asked]
    first, *later = [each for each in words if each.strip()] or [""]
    return "\n\n".join([first, *(f"{LATER}\n\n{each}" for each in later)])


def transfers(events: Iterable[Event]) -> list[Mapping[str, str]]:
    """Who handed over to whom, as far as it is known."""
    return [event.arguments for event in events if event.kind == "action" and event.tool == "handoff"]
