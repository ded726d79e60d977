"""How a record and its views look on a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from langchain_core.messages import convert_to_openai_messages
from rich.console import Console
from rich.table import Table
from rich.text import Text

from handoff.record import HandoffRecord
from handoff.views import VIEWS, named
from sandbox.listing import plain

ESTIMATE = "estimated at four characters each"
Message = dict[str, Any]
"""`role` and `content`, and where there are some `tool_calls` or a `tool_call_id`."""


class Size(NamedTuple):
    messages: int
    characters: int

    @property
    def tokens(self) -> int:
        return -(-self.characters // 4)

    def __str__(self) -> str:
        messages = "1 message" if self.messages == 1 else f"{self.messages} messages"
        return f"{messages}, {self.characters:,} characters, about {self.tokens:,} tokens ({ESTIMATE})"


def shown_to_successor(record: HandoffRecord, view: str) -> list[Message]:
    """The messages of one view, as servers take them. Raises NoSuchView."""
    found: list[Message] = convert_to_openai_messages(named(view)(record), text_format="string")
    return found


def size(messages: Sequence[Message]) -> Size:
    return Size(len(messages), sum(len(each["content"]) + sum(map(len, _calls(each))) for each in messages))


def as_text(messages: Sequence[Message]) -> str:
    """One message as it is; of several, or of calls, each below a line that names whose it is."""
    if len(messages) == 1 and not _calls(messages[0]):
        return str(messages[0]["content"])
    blocks = []
    for each in messages:
        answered = f" to {each['tool_call_id']}" if "tool_call_id" in each else ""
        calls = "".join(f"[call {call}]\n" for call in _calls(each))
        text = f"{each['content']}\n" if each["content"] else ""
        blocks.append(f"--- {each['role']}{answered}\n{text}{calls}")
    return "".join(blocks)


def harmless(text: str) -> str:
    """Text of many lines that cannot steer a terminal."""
    return "\n".join("\t".join(str(plain(part)) for part in line.split("\t")) for line in text.split("\n"))


def show_record(console: Console, record: HandoffRecord) -> None:
    """Every view's size, and what the record is."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("view")
    for heading in ("messages", "characters", "tokens"):
        table.add_column(heading, justify="right", no_wrap=True)
    for view in VIEWS:
        found = size(shown_to_successor(record, view))
        table.add_row(view, f"{found.messages:,}", f"{found.characters:,}", f"{found.tokens:,}")
    console.print(table)
    console.print(plain(f"Tokens are {ESTIMATE}. One view itself: --view NAME."), style="dim")
    console.print()
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, fact in _facts(record):
        facts.add_row(name, _cut(plain(fact)))
    console.print(facts)


def as_json(record: HandoffRecord) -> dict[str, Any]:
    """What `show_record` shows."""
    sizes = {view: size(shown_to_successor(record, view)) for view in VIEWS}
    return {
        **dict(_facts(record)),
        "views": {view: {**found._asdict(), "tokens": found.tokens} for view, found in sizes.items()},
    }


def _facts(record: HandoffRecord) -> tuple[tuple[str, str], ...]:
    snapshot, notes, review = record.snapshot, record.notes, record.review
    return (
        ("record", record.id),
        ("task", record.task.id),
        ("predecessor", record.predecessor),
        ("point", f"{record.point.kind}, after event {record.point.event_index}"),
        ("detail", record.point.detail),
        ("snapshot", "none" if snapshot is None else f"{snapshot.backend}, {snapshot.location}"),
        ("made", record.created_at),
        ("notes", "none: the views say UNKNOWN instead" if notes is None else f"by {notes.model}"),
        ("review", "none" if review is None else f"{review.decision}, view {review.view}"),
    )


def _calls(message: Message) -> list[str]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [f"{each['name']} {each['arguments']}" for each in functions]


def _cut(text: Text) -> Text:
    text.truncate(500, overflow="ellipsis")
    return text
