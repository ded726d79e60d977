"""Continue a record with an external agent in a sandbox."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from langchain_core.language_models import BaseChatModel

from langgraph_takeover.graph.checkpoints.inspection import thread_config
from langgraph_takeover.graph.delivery.recovery import sandbox_spec_for
from langgraph_takeover.graph.home import Home, open_home
from langgraph_takeover.graph.outcome import Outcome, RunStatus
from langgraph_takeover.graph.runs.api import open_run
from langgraph_takeover.graph.runs.run import Run
from langgraph_takeover.handoff.names import ViewName
from langgraph_takeover.handoff.trace.events import HandoffPoint
from langgraph_takeover.nodes.context.agent_program import external_agent
from langgraph_takeover.nodes.context.settings import Progress
from langgraph_takeover.nodes.records import save_record
from langgraph_takeover.nodes.state import ProcessChoice
from langgraph_takeover.sandbox.interface import BackendName, RestartPolicy


class SandboxedContinuation(NamedTuple):
    """What became of a continuation in a sandbox."""

    outcome: Outcome
    record: str
    """Id of the record of its end; that of the continued record before the first step."""


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
    processes: RestartPolicy = "never",
    choose: Callable[[Sequence[str]], tuple[int, ...]] = lambda lines: (),
    show: Callable[[str], None],
) -> SandboxedContinuation:
    """Let an external agent continue a record in a sandbox of this host; `show` gets one line for each step.

    The thread is that of the last continuation of the record by this agent under this view and model, which resumes where it
    stopped or returns its outcome; `is_new` begins another one. With `processes="ask"`, `choose` gets one line for each
    process and returns the numbers of those to start again. Each end has a record: finished, stopped or failed.
    `model_name` is the name of the model in the agent's requests.

    Raises what `take_over` and `resume` raise, UnknownAgentProgramError and AgentProgramError.
    """
    chosen = external_agent(agent, program=program, model_name=model_name)
    if chosen.program.warning:
        show(chosen.program.warning)
    with open_home(home) as opened:
        record = opened.records.load(record_id)
        spec = sandbox_spec_for(record, backend).model_copy(update={"restart_processes": processes})
        # The digest: another record of the same id is other work.
        key = hashlib.sha256(repr((record.digest, view, model_name, backend)).encode()).hexdigest()[:6]
        thread = _choose_thread(opened, f"{record_id[:200]}.{agent}-{key}", is_new=is_new)
        options: Mapping[str, Any] = {"model": model, "sandbox": spec, "agent": chosen, "protocol": "native"}
        has_begun = opened.saver.get_tuple(thread_config(thread)) is not None
        is_finished = has_begun and opened.status(thread) == "finished"
        state = ", which has finished (--new begins anew)" if is_finished else ", which resumes"
        show(f"thread    {thread}{state if has_begun else ''}")
        with open_run(
            opened, thread, **options, on_progress=lambda progress: show(describe_progress(progress))
        ) as run:
            try:
                outcome = (
                    run.resume(go_back=True) if has_begun else run.take_over(record_id, cast(ViewName, view))
                )
                while outcome.processes is not None:
                    numbers = choose(outcome.processes.processes)
                    outcome = run.resume(ProcessChoice(start=numbers).model_dump())
            except BaseException as error:
                is_stopped = not isinstance(error, Exception)
                end = _save_end(run, "stopped by a signal" if is_stopped else f"failed: {error}")
                show(f"record    {end}" if end else "no record: the agent had not begun")
                raise
            end = _save_end(run, _describe_outcome(outcome))
            show(f"record    {end}")
            return SandboxedContinuation(outcome, end)


def _choose_thread(home: Home, name: str, *, is_new: bool) -> str:
    """Return the newest thread with a name, which may have a number, or the next one."""
    known = re.compile(rf"{re.escape(name)}(?:-(\d{{1,9}}))?")
    numbers = [int(found[1] or 1) for each in home.threads() if (found := known.fullmatch(each))]
    number = max(numbers, default=0 if is_new else 1) + is_new
    return name if number == 1 else f"{name}-{number}"


def _describe_outcome(outcome: Outcome) -> str:
    if outcome.status is RunStatus.FINISHED:
        return f"finished: {outcome.answer or ''}"
    return f"{outcome.status.value}: {outcome.stop_reason or 'it can resume'}"


def _save_end(run: Run, detail: str) -> str:
    """Save the record of a run's end, once for each state, and return its id; before the first step, the continued record's."""
    stored, state = run.home.saver.get_tuple(run.config), run.state() or {}
    if stored is None or not state.get("events"):
        return str(state.get("record", ""))
    checkpoint = str(stored.config["configurable"]["checkpoint_id"])
    record_id = f"{run.thread}.end-{checkpoint[-12:]}"
    if record_id in run.home.records.list_ids():
        return record_id
    point = HandoffPoint(
        kind="requested", event_index=len(state["events"]) - 1, detail=" ".join(detail.split())[:200]
    )
    save_record(
        run.session,
        state,
        point,
        record_id=record_id,
        checkpoint=checkpoint,
        predecessor=run.context.display_model,
    )
    return record_id


def describe_progress(progress: Progress) -> str:
    """Describe one progress event in a line."""
    parts = [
        f"step {progress['step']:<4}{progress['event']}",
        progress.get("tool", ""),
        progress.get("kind", ""),
    ]
    text = " ".join(progress.get("text", "").split())
    return "  ".join([*(each for each in parts if each), text[:160]]).rstrip()
