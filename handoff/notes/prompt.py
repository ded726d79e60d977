"""The prompt for a model that writes notes: everything that the record knows, as data, then the question."""

from __future__ import annotations

from functools import partial

from langchain_core.messages import BaseMessage, HumanMessage

from langgraph_takeover.handoff import prompts
from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.notes.observed_fields import describe_file
from langgraph_takeover.handoff.notes.structured_note import render_observed_half
from langgraph_takeover.handoff.records.chain import find_agent_number, render_chain
from langgraph_takeover.handoff.records.left_out import format_left_out
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.fence import (
    CHANGED_FILES,
    PATCH,
    TASK,
    TRACE,
    cut_middle,
    format_code_block,
    format_entry,
    neutralize,
    quote_text,
    wrap_in_fence,
)
from langgraph_takeover.handoff.text.patch_sections import PatchSection, split_patch
from langgraph_takeover.handoff.trace.file_kinds import is_source
from langgraph_takeover.handoff.trace.rendering import render_trace

_EVENT_CHARS = 4_000
_MAX_PATCH_CHARS, _MAX_FILES_CHARS, _MAX_OBSERVED_CHARS = 24_000, 6_000, 8_000


def build_prompt(kind: str, evidence: Evidence, limit: int) -> list[BaseMessage]:
    """Build the prompt for one kind of notes, `summary` or `structured`; `limit` bounds the trace, in characters.

    What follows the trace has at most half of that. Both kinds share everything before the question, so that an endpoint
    reads it once.
    """
    record = evidence.record
    data = "\n\n".join(
        (
            f"{TRACE}\n\n{render_chain(record)}{_render_trace(record, limit)}",
            f"{PATCH}\n{_render_patch(record, min(_MAX_PATCH_CHARS, limit // 4))}",
            f"{CHANGED_FILES}\n\n{_render_files(evidence, min(_MAX_FILES_CHARS, limit // 8))}",
            _render_observed(evidence, min(_MAX_OBSERVED_CHARS, limit // 8)),
        )
    )
    task = f"{TASK}\n\n{neutralize(record.task.prompt)}"
    return [HumanMessage(f"{wrap_in_fence(data)}\n{task}\n\n# Notes\n\n{prompts.load_prompt(kind)}")]


def _render_trace(record: HandoffRecord, limit: int) -> str:
    """Shorten a trace: the middle of long events and, if that is not enough, its own middle."""
    per_event = max(min(_EVENT_CHARS, limit // 8), 400)
    number = partial(find_agent_number, record)
    return cut_middle(render_trace(record.trace, max_event_chars=per_event, find_agent_number=number), limit)


def _render_patch(record: HandoffRecord, limit: int) -> str:
    """Render the patch, source files first; a long section loses its middle, so that every file is seen."""
    sections = split_patch(record.patch)
    missing = "".join(f"\n{line}" for line in format_left_out(record.left_out, record.left_out_count))
    if record.patch_error:
        return f"\nThe record has no patch: {format_entry(record.patch_error)}"
    if not sections:
        empty = "The record has no patch." if record.snapshot is None else "Nothing differs."
        return missing or f"\n{empty}"
    directories = record.task.base_directories

    def is_other(section: PatchSection) -> bool:
        return not is_source(section.path, not section.is_new, directories)

    per_file = max(limit // len(sections), limit // 4)
    shortened = (cut_middle(section.text, per_file) for section in sorted(sections, key=is_other))
    return format_code_block(quote_text(cut_middle("".join(shortened), limit))) + missing


def _render_files(evidence: Evidence, limit: int) -> str:
    """List the changed files, source first, each with its kind."""
    paths = [*evidence.source_files, *evidence.other_files]
    lines = [f"- {format_entry(path)} ({describe_file(path, evidence)})" for path in paths]
    return cut_middle("\n".join(lines), limit) or "none"


def _render_observed(evidence: Evidence, limit: int) -> str:
    return cut_middle(render_observed_half(evidence, max_chars=limit), limit)
