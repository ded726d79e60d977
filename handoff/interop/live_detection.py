"""Live detection of handoff points: feed the messages or the events of a running agent, get points as they occur."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic import ValidationError

from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.readers import langchain
from langgraph_takeover.handoff.recordings.recorded_run import (
    EventBuilder,
    RecordedCall,
    TraceError,
    add_evidence,
    list_edits,
    to_id,
)
from langgraph_takeover.handoff.recordings.tool_calls import OpenCalls, match_other_results
from langgraph_takeover.handoff.recordings.workspace import Workspace, WorkspaceEvidence
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint

Message = BaseMessage | Mapping[str, Any]
_MAX_GUESS_CALLS = 200
"""Calls after which the guessed repository no longer changes: each change processes all calls again."""
_EVENT_FIELDS = {"index", "kind", "tool"}
_MESSAGE_FIELDS = ("type", "role", "id", "content", "tool_calls", "tool_call_id")
"""What identifies a message; its metadata may be added later."""


class PointDetector:
    """Finds the handoff points of one running agent.

    Feed it the agent's messages or its events, one at a time or as a list. A list may grow: what the detector has
    already seen is skipped. Without a recording of file changes, they are inferred from the calls, as for traces.

    Args:
        workspace: absolute path of the repository. Default: by the evidence of the calls so far.
        base_directories: top-level directories of the repository at the start, so that new files elsewhere count as
            scratch. Default: none for events; for messages, the directories seen so far.

    Example:
        >>> from langgraph_takeover.detection import PointDetector
        >>> detector = PointDetector(workspace="/testbed", base_directories=("src",))
        >>> call = {"name": "shell", "args": {"command": "sed -i s/a/b/ src/core.py"}, "id": "1"}
        >>> messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
        >>> detector.feed(messages)
        ()
        >>> messages.append({"role": "tool", "tool_call_id": "1", "content": ""})
        >>> [point.kind for point in detector.feed(messages)]
        ['first_source_edit']
        >>> detector.feed(messages)
        ()
    """

    def __init__(
        self, *, workspace: str | None = None, base_directories: Iterable[str] | None = None
    ) -> None:
        self._workspace = workspace
        self._base_directories = None if base_directories is None else tuple(base_directories)
        self._state = detectors.create_state(self._base_directories or (), workspace or "")
        self._points: list[HandoffPoint] = []
        self._last_index = -1
        self._conversation: _Conversation | None = None
        self._calls: list[RecordedCall] = []
        self._evidence = WorkspaceEvidence()
        self._selected = Workspace(workspace or "")
        self._builder = EventBuilder(self._selected.path)

    @property
    def points(self) -> tuple[HandoffPoint, ...]:
        """The points found so far, in order."""
        return tuple(self._points)

    def feed(self, item: Event | Message | Sequence[Event | Message]) -> tuple[HandoffPoint, ...]:
        """Add an event or a complete message, or a list of them; return the new points.

        Messages are LangChain's, or dicts in OpenAI's form; a dict with `messages`, such as a graph's state, counts as a
        list. A tool's answer belongs to the newest assistant message before it. `event_index` of a point counts actions
        and observations. Raises TraceError for anything else, and for events after messages.
        """
        items = _list_items(item)
        before = len(self._points)
        if items and all(map(_is_event, items)):
            if self._conversation is not None:
                raise TraceError("events after messages (use a PointDetector for each)")
            for each in items:
                self._add_event(_parse_event(each))
        elif items:
            if self._last_index >= 0:
                raise TraceError("messages after events (use a PointDetector for each)")
            self._conversation = self._conversation or _Conversation()
            for call in self._conversation.add(items):
                self._add_call(call)
        return tuple(self._points[before:])

    def _add_event(self, event: Event) -> None:
        if event.index > self._last_index:
            self._last_index = event.index
            self._observe(event)

    def _add_call(self, call: RecordedCall) -> None:
        if self._workspace is not None or len(self._calls) >= _MAX_GUESS_CALLS:
            self._process_call(call)
            return
        add_evidence(self._evidence, call)
        self._follow_evidence()
        self._calls.append(call)
        events = self._process_call(call)
        for path, is_new in list_edits(events, self._builder.files.workspace):
            self._evidence.add_edit(path, is_new=is_new)
        self._follow_evidence()

    def _follow_evidence(self) -> None:
        """Process the earlier calls again if the evidence now supports another directory."""
        selected = self._evidence.select()
        if selected._replace(why="") == self._selected:
            return
        self._selected = selected._replace(why="")
        self._builder = EventBuilder(selected.path, start=selected.start)
        self._state = detectors.create_state(self._base_directories or (), selected.path)
        for call in self._calls:
            self._process_call(call)

    def _process_call(self, call: RecordedCall) -> tuple[Event, ...]:
        events = self._builder.add(call)
        files = self._builder.files
        if self._base_directories is None:
            self._state = self._state._replace(base_directories=files.list_base_directories())
        self._state = self._state._replace(workspace=files.workspace)
        for event in events:
            self._observe(event)
        return events

    def _observe(self, event: Event) -> None:
        self._state, points = detectors.observe(self._state, event)
        known = {point.kind for point in self._points}
        self._points += [point for point in points if point.kind not in known]


class _Conversation:
    """A conversation that grows: yields each call once, in order, when its answer or the next reply is there."""

    def __init__(self) -> None:
        self._seen: list[bytes] = []
        self._identified: set[bytes] = set()
        self._reply: langchain.RawMessage = {}
        self._open_calls = OpenCalls()
        self._answers: dict[int, langchain.RawMessage] = {}
        self._rest: list[tuple[str | None, langchain.RawMessage]] = []
        """Answers whose ids no call has."""
        self._ids: set[str | None] = set()
        self._done = 0

    def add(self, items: Sequence[Any]) -> Iterator[RecordedCall]:
        """Yield the calls that messages complete. Raises TraceError."""
        messages = [part for item in items for part in langchain.split_results(_flatten(item))]
        digests = [_digest(message) for message in messages]
        for message, digest in list(zip(messages, digests, strict=True))[self._count_seen(digests) :]:
            if digest in self._identified:
                continue
            if message.get("id"):
                self._identified.add(digest)
            self._seen.append(digest)
            yield from self._add_message(message)

    def _count_seen(self, digests: Sequence[bytes]) -> int:
        """Return how many of the messages come before the first new one: those up to the last one seen."""
        if digests[: len(self._seen)] == self._seen:  # the usual case: the whole conversation, grown
            return len(self._seen)
        # Backwards, each place of the messages counts how many of the last ones seen end there; the first of equal ones wins.
        lengths = _count_matches([*reversed(self._seen), b"", *reversed(digests)])[len(self._seen) + 1 :]
        lengths.reverse()
        longest = max(lengths, default=0)
        return lengths.index(longest) + 1 if longest else 0

    def _add_message(self, message: langchain.RawMessage) -> Iterator[RecordedCall]:
        kind = langchain.message_type(message)
        if kind == "ai":
            yield from self._take_calls(is_complete=True)
            self._reply, self._open_calls, self._answers, self._done = message, OpenCalls(), {}, 0
            self._rest = []
            for number, call_id in enumerate(langchain.list_call_ids(message)):
                self._open_calls.add(call_id, number)
                self._ids.add(call_id)
        elif kind == "tool":
            call_id = to_id(message.get("tool_call_id"))
            position = self._open_calls.close(call_id)
            if position is not None:
                self._answers[position] = message
            elif call_id is None or call_id not in self._ids:
                self._rest.append((call_id, message))
                self._match_rest()
            yield from self._take_calls()

    def _match_rest(self) -> None:
        count = len(langchain.list_call_ids(self._reply)) if self._reply else 0
        found = match_other_results([n for n in range(count) if n not in self._answers], self._rest)
        self._answers |= found
        self._rest = [] if found else self._rest

    def _take_calls(self, *, is_complete: bool = False) -> Iterator[RecordedCall]:
        """Yield the next calls of the reply that have results; all others too if the reply is complete."""
        calls = list(langchain.read_calls(self._reply, self._answers)) if self._reply else []
        for call in calls[self._done :]:
            if call.result is None and not is_complete:
                return
            self._done += 1
            yield call


def _count_matches(values: Sequence[bytes]) -> list[int]:
    """Return how many values from each place on equal the first ones: the Z function, in linear time."""
    found = [0] * len(values)
    start = end = 0
    for place in range(1, len(values)):
        number = min(found[place - start], end - place) if place < end else 0
        while place + number < len(values) and values[number] == values[place + number]:
            number += 1
        found[place] = number
        if place + number > end:
            start, end = place, place + number
    return found


def detect_points(
    items: Iterable[Event | Message],
    *,
    workspace: str | None = None,
    base_directories: Iterable[str] | None = None,
) -> Iterator[HandoffPoint]:
    """Yield the handoff points of a stream of events or messages, each as soon as it occurs; see `PointDetector`.

    Example:
        >>> from langgraph_takeover.detection import detect_points
        >>> call = {"name": "shell", "args": {"command": "sed -i s/a/b/ src/core.py"}, "id": "1"}
        >>> stream = iter([
        ...     {"role": "assistant", "content": "", "tool_calls": [call]},
        ...     {"role": "tool", "tool_call_id": "1", "content": ""},
        ... ])
        >>> [point.kind for point in detect_points(stream, workspace="/testbed")]
        ['first_source_edit']
    """
    detector = PointDetector(workspace=workspace, base_directories=base_directories)
    for item in items:
        yield from detector.feed(item)


def _list_items(item: Any) -> Sequence[Any]:
    if isinstance(item, Mapping) and isinstance(item.get("messages"), Sequence):
        item = item["messages"]
    if isinstance(item, Event | BaseMessage | Mapping):
        return [item]
    if isinstance(item, Sequence) and not isinstance(item, str | bytes):
        return item
    raise TraceError(f"{type(item).__name__} is not an event, message or list (feed one of them)")


def _is_event(item: Any) -> bool:
    return isinstance(item, Event) or (isinstance(item, Mapping) and item.keys() >= _EVENT_FIELDS)


def _parse_event(item: Any) -> Event:
    try:
        return item if isinstance(item, Event) else Event.model_validate(item)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise TraceError(
            f"invalid event: {where}: {first['msg']} (feed events as they were recorded)"
        ) from error


def _flatten(item: Any) -> langchain.RawMessage:
    message = langchain.flatten_message(item)
    if message is None:
        raise TraceError(
            f"{type(item).__name__} is not a message (feed LangChain messages, or dicts with `role` and `content`)"
        )
    return message


def _digest(message: langchain.RawMessage) -> bytes:
    """Identify a message by its content, and by its id if it has one. Raises TraceError."""
    try:
        text = json.dumps({name: message.get(name) for name in _MESSAGE_FIELDS}, sort_keys=True, default=repr)
    except (RecursionError, TypeError, ValueError) as error:
        raise TraceError(f"a message cannot be written as JSON: {error} (feed complete messages)") from error
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
