"""Let a model write the notes of a handoff point: once, with limits, and without failing on a bad reply."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from langgraph_takeover.handoff import prompts
from langgraph_takeover.handoff.notes.contradictions import find_contradiction
from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.notes.parsing import parse_fields, remove_repeats, remove_thoughts
from langgraph_takeover.handoff.notes.prompt import build_prompt
from langgraph_takeover.handoff.records.record import Claim, HandoffRecord, Notes
from langgraph_takeover.handoff.text.note_fields import MODEL_FIELDS, UNKNOWN
from langgraph_takeover.handoff.trace.events import NO_MODEL_CALL, Usage
from langgraph_takeover.sandbox.interface import TakeoverError

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
NOTES_SCHEMA: dict[str, Any] = {
    "title": "notes",
    "type": "object",
    "properties": {name: {"type": "array", "items": _STATEMENT, "maxItems": 4} for name in MODEL_FIELDS},
    "required": list(MODEL_FIELDS),
    "additionalProperties": False,
}
_FIRST_LIMIT = 200_000
_LAST_LIMIT = 8_000
_MAX_REPORTED = 10
_MAX_REPLY_CHARS = 20_000
FieldClaims = dict[str, tuple[Claim, ...]]


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
    fields = parse_fields(reply)
    wrong = _describe_problem(fields, evidence) if prompt else ""
    if wrong and prompt:
        again = [*prompt, AIMessage(reply[:_MAX_REPLY_CHARS] or "{}"), HumanMessage(wrong)]
        second = ""
        with suppress(PromptTooLongError):
            second, more = ask(again, NOTES_SCHEMA)
            usage = _add_usage(usage, more)
        better = parse_fields(second)
        retried = "contradicted" if fields else "malformed"
        fields = better or fields
    else:
        retried = ""
    return Notes(
        model=model_name,
        prompts=prompts.compute_version("handoff"),
        summary=remove_repeats(remove_thoughts(summary)).strip() or UNKNOWN,
        structured=fields,
        malformed="structured" in kinds and not fields,
        retried=retried,
        summary_usage=summary_usage,
        structured_usage=usage,
    )


def _describe_problem(fields: FieldClaims, evidence: Evidence) -> str:
    """Build the request for a corrected reply; empty if none is needed."""
    if not fields:
        return prompts.load_prompt("malformed")
    denied = [
        f"- {name}: {claim.text[:300]!r}: {against}"
        for name, claims in fields.items()
        for claim in claims
        if (against := find_contradiction(name, claim, evidence)) is not None
    ]
    return prompts.load_prompt("contradicted") + "\n" + "\n".join(denied[:_MAX_REPORTED]) if denied else ""


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
