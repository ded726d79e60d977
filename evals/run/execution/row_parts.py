"""Parts of the rows of predecessors and takeovers, and their trace files."""

from __future__ import annotations

import json
from collections import Counter

from langchain_core.messages import AIMessage, BaseMessage

from langgraph_takeover import Outcome
from langgraph_takeover.evals.run.measures.rediscovery import (
    REDISCOVERY_KINDS,
    PredecessorText,
    classify_events,
    sum_text,
)
from langgraph_takeover.evals.run.measures.replies import (
    compute_cost_usd,
    count_empty_replies,
    count_tokens,
    describe_empty_replies,
    is_counted,
)
from langgraph_takeover.evals.run.rows import Fields
from langgraph_takeover.evals.run.settings.config import RunConfig, RunPaths
from langgraph_takeover.handoff.names import CONTINUATION
from langgraph_takeover.handoff.records.record import ExternalSession, HandoffRecord, write_durably
from langgraph_takeover.handoff.records.record_facts import MAX_SHOWN
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import Continuation, Event, Trace
from langgraph_takeover.handoff.views import Recipient, find_view, measure_view
from langgraph_takeover.nodes.state import AgentState, get_task
from langgraph_takeover.nodes.state_events import load_events
from langgraph_takeover.sandbox.repository import Patch


def redact_events(state: AgentState) -> list[Event]:
    """Redact a trace as its record is redacted, because arguments of an action may contain a key."""
    return [Event.model_validate(redact(event.model_dump(mode="json"))) for event in load_events(state)]


def save_trace(
    paths: RunPaths,
    name: str,
    state: AgentState,
    model: str,
    events: list[Event],
    continues: Continuation | None = None,
) -> None:
    """Write a run's whole trace where takeover-detect and takeover-export find it."""
    task, external = get_task(state), state.get("external") or {}
    trace = Trace(
        id=name,
        format="takeover",
        events=tuple(events),
        workspace=task.workspace,
        base_directories=task.base_directories,
        task=task.prompt,
        model=model,
        agent=external.get("agent", ""),
        agent_version=external.get("version", ""),
        continues=continues,
    )
    paths.traces.mkdir(exist_ok=True)
    write_durably(paths.traces / f"{name}.json", json.dumps(trace.model_dump(mode="json")))


def measure_rediscovery(record: HandoffRecord, events: list[Event]) -> Fields:
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
) -> Fields:
    spent = count_tokens(events, outcome.uncounted_calls)
    calls = count_model_calls(events)
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
    calls = count_model_calls(events)
    return describe_empty_replies(count_empty_replies(events), calls, model, config.find_reply_limit(model))


def count_model_calls(events: list[Event]) -> int:
    """The number of replies: parallel calls of one reply are several actions."""
    return sum(event.kind == "action" and not event.is_parallel for event in events)


def describe_agent(outcome: Outcome) -> Fields:
    """The external agent of a run: name, version, what became of its view's events, and requests beside its work."""
    if not outcome.state.get("external"):
        return {"agent": None}
    session = ExternalSession.model_validate(outcome.state["external"])
    return {
        "agent": session.agent,
        "agent_version": session.version,
        "session_account": dict(session.account) or None,
        "side_requests": session.side_requests,
        "refused_requests": dict(session.refused_requests),
    }


def measure_first_prompt(record: HandoffRecord, view: str, recipient: Recipient, outcome: Outcome) -> Fields:
    """The size of what a successor was shown first; of a continuation, of the conversation that it resumed.

    `first_request_tokens` are those of the whole first request, with the agent's own instructions, as the endpoint counted
    them.
    """
    messages = list_resumed_messages(outcome) if view == CONTINUATION else find_view(view)(record, recipient)
    first = measure_view(messages)
    is_known = bool(messages)
    usage = outcome.events[0].usage if outcome.events else None
    return {
        "first_request_tokens": usage.prompt_tokens if usage is not None and is_counted(usage) else None,
        "first_prompt_chars": first.characters if is_known else None,
        "first_prompt_tokens": first.tokens if is_known else None,
    }


def list_resumed_messages(outcome: Outcome) -> list[BaseMessage]:
    """The messages before the successor's first own reply."""
    messages = outcome.state["messages"]
    replies = [index for index, each in enumerate(messages) if isinstance(each, AIMessage)]
    first_own = replies[-outcome.steps] if 0 < outcome.steps <= len(replies) else len(messages)
    return list(messages[:first_own])


def describe_left_out(patch: Outcome | Patch) -> Fields:
    """Name the changes that the graded patch lacks, at most 20."""
    named = [redact(f"{each.path[:300]} ({each.reason})") for each in patch.left_out[:MAX_SHOWN]]
    return {"left_out": named, "left_out_count": patch.left_out_count}


def join_details(*details: str | None) -> str:
    return "; ".join(filter(None, details))
