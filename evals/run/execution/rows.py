"""Parts of the rows of predecessors and takeovers."""

from __future__ import annotations

from collections import Counter

from langgraph_takeover import Outcome
from langgraph_takeover.evals.run.journal import Row
from langgraph_takeover.evals.run.measures.costs import (
    compute_cost_usd,
    count_tokens,
)
from langgraph_takeover.evals.run.measures.rediscovery import REDISCOVERY_KINDS, classify_events
from langgraph_takeover.evals.run.measures.replies import (
    count_empty_replies,
    describe_empty_replies,
)
from langgraph_takeover.evals.run.measures.reshown import PredecessorText, sum_text
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.trace.events import Event


def measure_rediscovery(record: HandoffRecord, events: list[Event]) -> Row:
    """Repetition of the predecessor's work: by characters shown again, and by events."""
    kinds = classify_events(record, events)
    found = Counter(kinds)
    verification = max((index for index, kind in enumerate(kinds) if kind == "verification"), default=None)
    steps = PredecessorText(record.trace, record.task.workspace).measure_steps(events)
    return {
        **sum_text(steps, verification)._asdict(),
        "rediscovery_events": sum(found[kind] for kind in REDISCOVERY_KINDS),
        "rediscovery": {kind: found[kind] for kind in REDISCOVERY_KINDS},
        "verification_events": found["verification"],
    }


def measure_costs(
    config: RunConfig, model: str, events: list[Event], outcome: Outcome, seconds: float
) -> Row:
    spent = count_tokens(events, outcome.uncounted_calls)
    calls = sum(event.kind == "action" for event in events)
    return {
        "events": len(events),
        "steps": outcome.steps,
        "llm_calls": calls,
        "prompt_tokens": spent.prompt,
        "cached_tokens": spent.cached,
        "completion_tokens": spent.completion,
        "uncounted_calls": spent.uncounted_calls,
        "cost_usd": compute_cost_usd(config.find_price(model), spent, calls),
        "empty_replies": count_empty_replies(events).total,
        "condensed": outcome.state.get("condensed", 0),
        "seconds": round(seconds, 3),
    }


def describe_empty_calls(config: RunConfig, model: str, events: list[Event]) -> str:
    calls = sum(event.kind == "action" for event in events)
    return describe_empty_replies(count_empty_replies(events), calls, model, config.find_reply_limit(model))


def join_details(*details: str | None) -> str:
    return "; ".join(filter(None, details))
