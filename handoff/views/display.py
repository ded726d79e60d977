"""A record and its views as terminal text and as JSON."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import BaseMessage, convert_to_openai_messages
from rich.console import Console
from rich.table import Table
from rich.text import Text

from langgraph_takeover.base.texts import escape_unprintable
from langgraph_takeover.handoff.records.process_facts import list_process_lines
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.records.record_facts import format_left_out
from langgraph_takeover.handoff.trace.events import describe_unknown_forms
from langgraph_takeover.handoff.views import VIEWS, Recipient, measure_view
from langgraph_takeover.sandbox.cli.terminal import to_plain_text

ESTIMATE_NOTE = "estimated at four characters each"
Message = dict[str, Any]
"""`role` and `content`, and if present `tool_calls` or `tool_call_id`."""


def describe_size(messages: list[BaseMessage]) -> str:
    """Describe a view's size in one line."""
    found, number = measure_view(messages), len(messages)
    counted = "1 message" if number == 1 else f"{number} messages"
    return f"{counted}, {found.characters:,} characters, about {found.tokens:,} tokens ({ESTIMATE_NOTE})"


def warn_about_size(view: str, tokens: int, window_tokens: int) -> str:
    """Return a warning if a view exceeds a context window; empty otherwise."""
    if tokens <= window_tokens:
        return ""
    return (
        f"warning: --view {view} has about {tokens:,} tokens, more than a context window of {window_tokens:,} (bounded are: "
        "--view structured, payload and transcript)"
    )


def to_openai_messages(messages: list[BaseMessage]) -> list[Message]:
    """Convert messages to the form that servers accept."""
    found: list[Message] = convert_to_openai_messages(messages, text_format="string")
    return found


def format_messages(messages: list[BaseMessage]) -> str:
    """Render one message unchanged; several, or calls, each below a line that names its role."""
    sent = to_openai_messages(messages)
    if len(sent) == 1 and not _list_calls(sent[0]):
        return str(sent[0]["content"])
    blocks = []
    for each in sent:
        answered = f" to {each['tool_call_id']}" if "tool_call_id" in each else ""
        calls = "".join(f"[call {call}]\n" for call in _list_calls(each))
        text = f"{each['content']}\n" if each["content"] else ""
        blocks.append(f"--- {each['role']}{answered}\n{text}{calls}")
    return "".join(blocks)


def escape_control_chars(text: str) -> str:
    """Escape text so that it cannot control a terminal."""
    return "\n".join(
        "\t".join(escape_unprintable(part) for part in line.split("\t")) for line in text.split("\n")
    )


def print_record(console: Console, record: HandoffRecord, recipient: Recipient) -> None:
    """Describe a record, and the size of every view."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("view")
    for heading in ("messages", "characters", "tokens"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, view in VIEWS.items():
        messages = view(record, recipient)
        found = measure_view(messages)
        table.add_row(name, f"{len(messages):,}", f"{found.characters:,}", f"{found.tokens:,}")
    console.print(table)
    console.print(to_plain_text(f"Tokens are {ESTIMATE_NOTE}. To print a view: --view NAME."), style="dim")
    console.print()
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, fact in _list_facts(record):
        facts.add_row(name, _truncate(to_plain_text(fact)))
    for line in format_left_out(record.left_out, record.left_out_count, label=""):
        facts.add_row("not in the patch", _truncate(to_plain_text(line)))
    console.print(facts)


def record_to_dict(record: HandoffRecord, recipient: Recipient) -> dict[str, Any]:
    """Return the data that `print_record` shows, for JSON."""
    made = {name: view(record, recipient) for name, view in VIEWS.items()}
    return {
        **dict(_list_facts(record)),
        "left_out": format_left_out(record.left_out, record.left_out_count, label=""),
        "views": {
            name: {"messages": len(messages), **measure_view(messages)._asdict()}
            for name, messages in made.items()
        },
    }


def _list_facts(record: HandoffRecord) -> tuple[tuple[str, str], ...]:
    snapshot, notes, review = record.snapshot, record.notes, record.review
    return (
        ("record", record.id),
        ("task", record.task.id),
        ("predecessor", record.predecessor),
        ("point", f"{record.point.kind}, after event {record.point.event_index}"),
        ("detail", record.point.detail),
        ("snapshot", "none" if snapshot is None else f"{snapshot.backend}, {snapshot.location}"),
        *((("processes", "; ".join(lines)),) if (lines := _list_processes(record)) else ()),
        ("patch", _describe_patch(record)),
        ("made", record.created_at),
        ("notes", "none: the views say UNKNOWN" if notes is None else f"by {notes.model}"),
        *(
            (("open", "; ".join(record.external.pending)),)
            if record.external and record.external.pending
            else ()
        ),
        *((("not understood", unknown),) if (unknown := _describe_unknown(record)) else ()),
        ("review", "none" if review is None else f"{review.decision}, view {review.view}"),
    )


def _describe_unknown(record: HandoffRecord) -> str:
    return describe_unknown_forms(record.external.unknown_forms) if record.external else ""


def _list_processes(record: HandoffRecord) -> tuple[str, ...]:
    return list_process_lines(record.snapshot.processes) if record.snapshot is not None else ()


def _describe_patch(record: HandoffRecord) -> str:
    if record.patch_error:
        return f"none: {record.patch_error}"
    return f"{len(record.patch):,} characters"


def _list_calls(message: Message) -> list[str]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [f"{each['name']} {each['arguments']}" for each in functions]


def _truncate(text: Text) -> Text:
    text.truncate(500, overflow="ellipsis")
    return text
