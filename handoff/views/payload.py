"""The view that is a delegation: results to start with, in the successor's own history."""

from __future__ import annotations

from collections.abc import Iterable

from langchain_core.messages import BaseMessage, HumanMessage

from handoff.conversation import Step, as_messages, joined, steps
from handoff.event import Event
from handoff.fence import code, entry, fenced, neutral, quoted, ticked
from handoff.payload import DeadEnd, Payload, RanCommand, ReadFile
from handoff.prompts import prompt_text
from handoff.record import HandoffRecord
from handoff.selection import payload_of
from handoff.views.frame import ANY, Recipient, closing, opening

_STALE = "\n[stale: files have changed since this was run]"


def payload(record: HandoffRecord, recipient: Recipient = ANY) -> list[BaseMessage]:
    """Files read and commands run as tool results that need no second run, then what not to try again."""
    given = record.payload or payload_of(record, recipient.window_tokens)
    said = {each.event: _STALE if each.stale else "" for each in (*given.probe_results, *given.ran_commands)}
    said |= {file.event: "" for file in given.read_files if not file.stale}
    taken = [
        Step(action, seen.model_copy(update={"text": seen.text + said[seen.index]}))
        for action, seen in steps(record.trace)
        if seen is not None and seen.index in said
    ]
    read = [file for file in given.read_files if file.event is None and file.content is not None]
    taken += [_viewed(file, len(record.trace) + number) for number, file in enumerate(read)]
    parts = [opening(), prompt_text("payload")]
    if record.payload is not None:
        parts.insert(1, prompt_text(f"delegated_{given.mode}"))
    return joined(
        [
            HumanMessage("\n".join(parts)),
            *as_messages(taken, recipient.protocol, thoughts=False),
            HumanMessage(f"{fenced(_told(given))}\n{closing(record)}"),
        ]
    )


def _viewed(file: ReadFile, index: int) -> Step:
    """A file that was read for the successor, as its editor shows it."""
    lines = (file.content or "").removesuffix("\n").split("\n")
    numbered = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, 1))
    text = f"{file.path}, lines 1 to {len(lines)} of {len(lines)}:\n{numbered}"
    arguments = {"command": "view", "path": file.path}
    return Step(
        Event(index=index, kind="action", tool="editor", text="", arguments=arguments),
        Event(
            index=index,
            kind="observation",
            tool="editor",
            text=text if file.content else f"{file.path} is empty.",
        ),
    )


def _told(given: Payload) -> str:
    stale = [f"- {_bounded(entry(file.path))}" for file in given.read_files if file.stale]
    parts = [
        "Files that were read and have changed since, so that what was seen of them is stale:\n"
        + _list(stale),
        "Dead ends, not to be tried again as they stand:\n"
        + _list(_dead(end) for end in given.dead_ends if end.proven),
    ]
    if doubtful := [_dead(end) for end in given.dead_ends if not end.proven]:
        parts.append(
            "Dead ends as the earlier agent tells of them. Its record does not show that they failed, so they are no "
            "reason to leave anything out:\n" + _list(doubtful)
        )
    if told := [each for each in (*given.probe_results, *given.ran_commands) if each.event is None]:
        parts.append(
            "Commands as the earlier agent tells of them; its record does not show that they were run:\n"
            + _list(map(_ran, told))
        )
    return "\n\n".join(parts)


def _list(lines: Iterable[str]) -> str:
    return "\n".join(lines) or "none"


def _dead(end: DeadEnd) -> str:
    shown = f" [{end.shown}{f', e{end.event}' if end.event is not None else ''}]" if end.shown else ""
    why = f": {_bounded(entry(end.why))}" if end.why else ""
    return f"- {ticked(_bounded(' '.join(neutral(end.what).split())))}{why}{shown}"


def _ran(told: RanCommand) -> str:
    how = "nobody knows how it ended" if told.rc is None else f"exit code {told.rc}"
    tail = code(quoted(told.tail)) if told.tail.strip() else ""
    return f"- {ticked(' '.join(neutral(told.cmd).split()))}: {how}{tail}"


def _bounded(line: str) -> str:
    return line if len(line) <= 300 else f"{line[:300]}…"
