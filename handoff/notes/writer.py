"""The prompt for notes, and the model's reply: asked once, with limits, and without failing on a bad reply."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.handoff import prompts
from langgraph_takeover.handoff.notes.contradictions import find_missing_path, list_contradictions
from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.notes.observed_fields import describe_file
from langgraph_takeover.handoff.notes.parsing import (
    ParsedReply,
    clean_reply,
    parse_reply,
    remove_repeats,
)
from langgraph_takeover.handoff.notes.structured_note import render_observed_half
from langgraph_takeover.handoff.records.record import HandoffRecord, Notes
from langgraph_takeover.handoff.records.record_facts import find_agent_number, format_left_out, render_chain
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
from langgraph_takeover.handoff.text.note_fields import MAX_STATED_FILES, MODEL_FIELDS, STATED_FIELDS, UNKNOWN
from langgraph_takeover.handoff.text.patch_sections import PatchSection, split_patch
from langgraph_takeover.handoff.trace.conversation import render_trace
from langgraph_takeover.handoff.trace.events import NO_MODEL_CALL, Usage
from langgraph_takeover.handoff.trace.file_kinds import is_source

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


AskModel = Callable[[list[BaseMessage], dict[str, Any] | None], tuple[str, Usage]]
"""Asks the notes model, for a reply in a JSON schema if one is given and the endpoint supports it.

Raises `PromptTooLongError` if the prompt does not fit its context.
"""

OUTPUT_TOKENS = 1600
NOTE_KINDS = ("summary", "structured")
_STATEMENT = {
    "type": "object",
    "properties": {
        "claim": {"type": "string"},
        "events": {"type": "array", "items": {"type": "string", "pattern": "^e[0-9]{1,6}$"}, "maxItems": 4},
    },
    "required": ["claim", "events"],
    "additionalProperties": False,
}
_ANSWER = {"type": "string", "enum": ["yes", "no", "unknown"]}
NOTES_SCHEMA: dict[str, Any] = {
    "title": "notes",
    "type": "object",
    "properties": {
        "changed_files": {"type": "array", "items": {"type": "string"}, "maxItems": MAX_STATED_FILES},
        "validation_passes": _ANSWER,
        "work_done": _ANSWER,
        **{name: {"type": "array", "items": _STATEMENT, "maxItems": 4} for name in MODEL_FIELDS},
    },
    "required": [*STATED_FIELDS, *MODEL_FIELDS],
    "additionalProperties": False,
}
_FIRST_LIMIT = 200_000
_LAST_LIMIT = 8_000
_MAX_REPORTED = 10
_MAX_REPLY_CHARS = 20_000


class PromptTooLongError(TakeoverError):
    """The notes prompt exceeds the model's context window."""


def write_notes(
    record: HandoffRecord, ask: AskModel, model_name: str, kinds: Collection[str] = NOTE_KINDS
) -> Notes:
    """Write these kinds of notes; fields that the model's replies do not give stay absent.

    A summary that is not requested is UNKNOWN; a structured note has no field, and is not malformed.
    """
    evidence = Evidence(record)
    summary, summary_usage = "", NO_MODEL_CALL
    if "summary" in kinds:
        summary, _, summary_usage = _ask_within_window("summary", evidence, ask, None)
    reply, prompt, usage = "", list[BaseMessage](), NO_MODEL_CALL
    if "structured" in kinds:
        reply, prompt, usage = _ask_within_window("structured", evidence, ask, NOTES_SCHEMA)
    parsed, retried = parse_reply(reply), ""
    if prompt and (problem := _describe_problem(parsed, evidence)):
        retried = "contradicted" if parsed.claims else "malformed"
        again = [*prompt, AIMessage(reply[:_MAX_REPLY_CHARS] or "{}"), HumanMessage(problem)]
        with suppress(PromptTooLongError):
            second, more = ask(again, NOTES_SCHEMA)
            usage = _add_usage(usage, more)
            better = parse_reply(second)
            parsed = better if better.claims else parsed
    return Notes(
        model=model_name,
        prompts=prompts.compute_version("handoff"),
        summary=remove_repeats(clean_reply(summary)).strip() or UNKNOWN,
        structured=parsed.claims,
        stated=parsed.stated,
        malformed="structured" in kinds and not parsed.claims,
        retried=retried,
        summary_usage=summary_usage,
        structured_usage=usage,
    )


def _describe_problem(parsed: ParsedReply, evidence: Evidence) -> str:
    """Build the request for a corrected reply; empty if none is needed."""
    if not parsed.claims:
        return prompts.load_prompt("malformed")
    problems = [
        f"- {each.field}: {f'you stated {each.stated[:300]!r}, but ' if each.stated else ''}{each.observed}"
        for each in list_contradictions(parsed.stated, evidence)
    ]
    problems += [
        f"- {name}: {claim.text[:300]!r}: the snapshot has no file {missing}"
        for name, claims in parsed.claims.items()
        for claim in claims
        if (missing := find_missing_path(claim, evidence)) is not None
    ]
    return (
        prompts.load_prompt("contradicted") + "\n" + "\n".join(problems[:_MAX_REPORTED]) if problems else ""
    )


def _ask_within_window(
    kind: str, evidence: Evidence, ask: AskModel, schema: dict[str, Any] | None
) -> tuple[str, list[BaseMessage], Usage]:
    limit = _FIRST_LIMIT
    while True:
        messages = build_prompt(kind, evidence, limit)
        try:
            reply, usage = ask(messages, schema)
        except PromptTooLongError:
            if limit <= _LAST_LIMIT:
                return "", [], Usage()
            limit = max(limit // 2, _LAST_LIMIT)
        else:
            return reply, messages, usage


def _add_usage(one: Usage, other: Usage) -> Usage:
    """Sum the usage of two calls; unknown if one of them is, because a part is no sum."""

    def add(name: str) -> int | None:
        both = (getattr(one, name), getattr(other, name))
        return None if None in both else sum(both)

    # Servers omit the cached tokens of a call that had none.
    cached = [tokens for tokens in (one.cached_tokens, other.cached_tokens) if tokens is not None]
    return Usage(
        prompt_tokens=add("prompt_tokens"),
        cached_tokens=sum(cached) if cached else None,
        completion_tokens=add("completion_tokens"),
        estimated=one.estimated or other.estimated,
    )
