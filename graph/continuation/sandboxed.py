"""Continue a record with an external agent in a sandbox, through the bridge."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple, cast

from langchain_core.language_models import BaseChatModel

from langgraph_takeover.graph.delivery.rollback import sandbox_spec_for
from langgraph_takeover.graph.home import Home, open_home
from langgraph_takeover.graph.outcome import Outcome
from langgraph_takeover.graph.runs.api import open_run
from langgraph_takeover.graph.runs.run import Run
from langgraph_takeover.graph.runs.validation import check_takeover
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.trace.events import HandoffPoint
from langgraph_takeover.handoff.views.names import ViewName
from langgraph_takeover.nodes.context.external_agent import external_agent
from langgraph_takeover.nodes.context.progress import Progress
from langgraph_takeover.nodes.records import save_record
from langgraph_takeover.sandbox.interface import BackendName, TakeoverError


class SandboxedContinuation(NamedTuple):
    """The result of one call that continued a record in a sandbox."""

    outcome: Outcome
    record: str
    """Id of the record of the thread's end; the continued record itself before the first step."""


def continue_in_sandbox(
    home: Path,
    record_id: str,
    *,
    agent: str,
    model: BaseChatModel,
    model_name: str,
    view: str = "structured",
    program: Path | None = None,
    backend: BackendName = "host",
    is_new: bool = False,
    show: Callable[[str], None],
) -> SandboxedContinuation:
    """Let an external agent continue a record in a sandbox of this host; `show` gets one line for each step.

    The same arguments continue the thread that an earlier call started, from its last step; `is_new` starts another one.
    However the call ends, the thread's work up to its last step becomes a record. `model_name` is the name of the model in
    the agent's requests. Raises what `take_over` raises, UnknownAgentProgramError and AgentProgramError.
    """
    chosen = external_agent(agent, program=program, model_name=model_name)
    with open_home(home) as opened:
        check_takeover(opened, record_id, cast(ViewName, view))
        record = opened.records.load(record_id)
        # The digest: another record of the same id is other work.
        parts = "\0".join((record.digest, agent, view, model_name, backend))
        name = f"{record_id[:200]}.{agent}-{hashlib.sha256(parts.encode()).hexdigest()[:6]}"
        thread, exists = _choose_thread(opened, name, is_new=is_new)
        show(f"thread    {thread}{', continued from its last step (--new starts again)' if exists else ''}")
        with (
            open_run(
                opened,
                thread,
                model=model,
                sandbox=sandbox_spec_for(record, backend),
                agent=chosen,
                protocol="native",
                on_progress=lambda progress: show(describe_progress(progress)),
            ) as run,
            _save_end_on_failure(run, show),
        ):
            begun = run.state() is not None
            outcome = run.resume(go_back=True) if begun else run.take_over(record_id, cast(ViewName, view))
            return SandboxedContinuation(outcome, _save_end(run, outcome.stop_reason or "stopped"))


def _choose_thread(home: Home, name: str, *, is_new: bool) -> tuple[str, bool]:
    """Return the newest thread of that name, or with `is_new` an unused one; and whether it has begun."""
    known = set(home.threads())
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    last = None
    for each in names:
        if each not in known or home.status(each) == "empty":
            return (each, False) if last is None or is_new else (last, True)
        last = each
    raise AssertionError("unreachable")


@contextmanager
def _save_end_on_failure(run: Run, show: Callable[[str], None]) -> Iterator[None]:
    """Save the record of the thread's end also if the block fails or is interrupted, and show its id."""
    try:
        yield
    except (TakeoverError, KeyboardInterrupt) as error:
        try:
            show(f"record    {_save_end(run, 'interrupted' if isinstance(error, KeyboardInterrupt) else 'failed')}")
        except TakeoverError as problem:
            show(f"no record of the thread's end: {problem}")
        raise


def _save_end(run: Run, reason: str) -> str:
    """Save the record of a thread's last step, unless there is one; return its id."""
    state = run.state() or {}
    events = len(state.get("events", ()))
    if not events:
        return str(state.get("record", ""))
    home, checkpoint = run.home, run.home.history(run.thread)[0].checkpoint
    record_id = f"{run.thread}.end-{checkpoint[-12:]}"
    if record_id in home.records.list_ids():
        return home.records.load(record_id).id
    point = HandoffPoint(kind="requested", event_index=events - 1, detail=f"the run ended: {reason}")
    saved: HandoffRecord = save_record(
        run.session,
        state,
        point,
        record_id=record_id,
        checkpoint=checkpoint,
        predecessor=run.context.display_model,
    )
    return saved.id


def describe_progress(progress: Progress) -> str:
    """Describe one progress event in a line."""
    parts = [
        f"step {progress['step']:<4}{progress['event']}",
        progress.get("tool", ""),
        progress.get("kind", ""),
    ]
    text = " ".join(progress.get("text", "").split())
    return "  ".join([*(each for each in parts if each), text[:160]]).rstrip()
