"""Continue a record with an external agent in a sandbox, through the bridge."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import FrameType
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
    is_interrupted: bool


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
    However the call ends, the thread's work up to its last step becomes a record. Ctrl-C stops the agent and saves this
    record too; a second one ends the process at once, as a kill does, and the same arguments continue. `model_name` is the
    name of the model in the agent's requests. Raises what `take_over` raises, UnknownAgentProgramError and
    AgentProgramError.
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
        interruption = _Interruption(opened, thread, show)
        with (
            interruption.handle(),
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
            with interruption.stop_run():
                outcome = (
                    run.resume(go_back=True) if begun else run.take_over(record_id, cast(ViewName, view))
                )
            end = _save_end(run, outcome.stop_reason or "stopped")
        return SandboxedContinuation(outcome, end, interruption.count > 0)


class _Interruption:
    """Ctrl-C while a thread runs: the first stops the run, because an exception inside the graph would break its executor."""

    def __init__(self, home: Home, thread: str, show: Callable[[str], None]) -> None:
        self._home, self._thread, self._show = home, thread, show
        self._is_running = self._has_run = False
        self.count = 0

    @contextmanager
    def handle(self) -> Iterator[None]:
        """Handle Ctrl-C inside the block, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._receive)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before or signal.default_int_handler)

    @contextmanager
    def stop_run(self) -> Iterator[None]:
        """Stop the run inside the block at Ctrl-C."""
        self._is_running = self._has_run = True
        try:
            yield
        finally:
            self._is_running = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self._has_run:
            raise KeyboardInterrupt
        self.count += 1
        if self.count > 1:
            os._exit(128 + number)  # like a kill: nothing but the call in flight is lost
        if self._is_running:
            self._show("stopping, and saving the record of the last step (Ctrl-C again: stop without)")
            # A handler must not wait for the database.
            threading.Thread(target=self._stop, daemon=True).start()

    def _stop(self) -> None:
        with suppress(TakeoverError):
            self._home.stop(self._thread, now=True)


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
    """Save the record of the thread's end also if the block fails, and show its id."""
    try:
        yield
    except Exception:
        try:
            show(f"record    {_save_end(run, 'failed')}")
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
