"""Run child agents: each takes over on its own thread, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from pydantic import BaseModel, ConfigDict, Field

from langgraph_takeover.base.telemetry import bind_context
from langgraph_takeover.graph.outcome import Outcome
from langgraph_takeover.graph.runs.run import Run
from langgraph_takeover.graph.usage_errors import ThreadExistsError
from langgraph_takeover.handoff.ledger.leases import StopMode
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import compute_differences
from langgraph_takeover.handoff.views import Recipient
from langgraph_takeover.nodes.context.settings import (
    AgentConfig,
    Assignment,
    Budget,
    ChildResult,
    Prices,
    Progress,
    ProgressCallback,
    SettingsError,
)
from langgraph_takeover.nodes.model.exchange import event_loop
from langgraph_takeover.sandbox.interface import SandboxSpec
from langgraph_takeover.sandbox.repository import LeftOut

_POLL_S = 0.2
_INHERITED_SETTINGS = (
    "protocol", "prices", "model_timeout_s", "model_tries", "command_timeout_s", "observation_chars",
    "window_tokens", "condense", "tools", "model", "model_name", "parallel_tool_calls",
)  # fmt: skip
_OpenRun = Callable[..., AbstractContextManager[Run]]


class Delegation(BaseModel):
    """Settings of delegation. A child takes each setting without a value here from its parent.

    Example:
        >>> from langgraph_takeover import Delegation
        >>> Delegation(max_depth=1, max_tokens=200_000).max_parallel
        2
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    model: BaseChatModel | None = None
    """The children's chat model."""
    model_name: str | None = None
    """Name of the children's model in records."""
    prices: Prices | None = None
    """Prices of the children's model."""
    window_tokens: int | None = Field(default=None, ge=1000)
    """Context window of the children's model."""
    tools: tuple[BaseTool, ...] | None = None
    """The children's tools besides shell and editor."""
    sandbox: SandboxSpec | None = None
    """The children's sandbox; it must have the same base as the parent's."""
    max_depth: int = Field(default=2, ge=1)
    """Depth of delegation; with 1, children cannot delegate."""
    max_parallel: int = Field(default=2, ge=1)
    """Maximum number of children at work at the same time."""
    max_tasks: int = Field(default=8, ge=1)
    """Maximum number of tasks in one call."""
    max_steps: int | None = Field(default=None, gt=0)
    """Maximum number of steps of one child. A child also never gets more than its parent has left."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Prompt and completion tokens of one child."""
    max_cost: float | None = Field(default=None, gt=0)
    """Cost of one child, in the currency of `prices`."""
    max_seconds: float | None = Field(default=None, gt=0)
    """Working time of one child."""
    depth: int = Field(default=0, ge=0)
    """Depth of the delegating agent itself."""


class ChildRunner:
    """Runs the children of one agent; implements `DelegationRunner`."""

    def __init__(
        self,
        delegation: Delegation,
        parent: AgentConfig,
        open_run: _OpenRun,
        sandbox: SandboxSpec,
        on_progress: ProgressCallback | None,
    ) -> None:
        self.depth, self.max_depth = delegation.depth, delegation.max_depth
        self.max_parallel, self.max_tasks = delegation.max_parallel, delegation.max_tasks
        self._delegation = delegation
        self._open_run = open_run
        self._settings = _child_settings(delegation, parent)
        if delegation.max_cost is not None and self._settings["prices"] is None:
            raise SettingsError(
                "delegation: max_cost needs prices (pass prices=Prices(prompt=…, completion=…))"
            )
        self._sandbox = delegation.sandbox or sandbox
        if self._sandbox.restart_processes == "ask":  # nobody can answer a child
            self._sandbox = self._sandbox.model_copy(update={"restart_processes": "never"})
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._active_runs: set[Run] = set()
        self._is_stopped = False

    @property
    def window_tokens(self) -> int:
        known = (self._settings["model"].profile or {}).get("max_input_tokens")
        return int(self._settings["window_tokens"] or known or Recipient().window_tokens)

    def limit_budget(self, budget: Budget) -> Budget:
        own = self._delegation
        limits = {name: getattr(own, name) for name in ("max_steps", "max_tokens", "max_cost", "max_seconds")}
        smaller = {
            name: limit if (left := getattr(budget, name)) is None else min(limit, left)
            for name, limit in limits.items()
            if limit is not None
        }
        return budget.model_copy(update=smaller)

    def run(
        self,
        assignments: Sequence[Assignment],
        *,
        find_stop: Callable[[], StopMode | None],
        report: Callable[..., Any],
    ) -> tuple[ChildResult, ...]:
        self._is_stopped = False
        with ThreadPoolExecutor(
            self.max_parallel, "child", initializer=event_loop.set, initargs=(event_loop.get(),)
        ) as pool:
            run_child = bind_context(self._run_child)
            running = [pool.submit(run_child, each, report) for each in assignments]
            try:
                while wait(running, _POLL_S).not_done:
                    if (mode := find_stop()) is not None:
                        self._stop_children(mode)
            except BaseException:  # for instance Ctrl-C
                self._stop_children("step")
                raise
        # Raise a child's failure only now: the work of the others is on their threads.
        return tuple(each.result() for each in running)

    def _run_child(self, assignment: Assignment, report: Callable[..., Any]) -> ChildResult:
        options = self._settings | assignment.budget.model_dump()
        deeper = self._delegation.model_copy(update={"depth": self.depth + 1})
        with (
            self._open_run(
                assignment.thread,
                **options,
                sandbox=self._sandbox,
                delegation=deeper,
                policy="record",
                points=(),
                on_progress=self._child_progress(assignment.thread),
            ) as held,
            self._register_active(held),
        ):
            report(
                "child_started", child=assignment.thread, mode=assignment.mode, text=redact(assignment.goal)
            )
            record = held.session.records.load(assignment.record)
            outcome = _run_or_resume(held, assignment)
            if assignment.mode == "look" and outcome.stop_reason is not None:
                held.delete_snapshots()
        report(
            "child_finished",
            child=assignment.thread,
            stop_reason=outcome.stop_reason,
            steps_of_child=outcome.steps,
        )
        return _child_result(outcome, record.left_out)

    @contextmanager
    def _register_active(self, run: Run) -> Iterator[None]:
        with self._lock:
            self._active_runs.add(run)
            if self._is_stopped:
                run.session.stop.request("step")
        try:
            yield
        finally:
            with self._lock:
                self._active_runs.discard(run)

    def _stop_children(self, mode: StopMode) -> None:
        with self._lock:
            self._is_stopped = True
            for held in self._active_runs:
                held.session.stop.request(mode)

    def _child_progress(self, thread: str) -> ProgressCallback | None:
        listening = self._on_progress
        if listening is None:
            return None

        def report(update: Progress) -> None:
            with self._lock:  # a listener need not handle two events at once
                listening({"child": thread, **update})

        return report


def _child_settings(delegation: Delegation, parent: AgentConfig) -> dict[str, Any]:
    """Return the children's settings, except their budgets."""
    settings = {name: getattr(parent, name) for name in _INHERITED_SETTINGS}
    if delegation.model is not None:
        # Facts about the parent's model do not apply to another one.
        settings |= {"model": delegation.model, "model_name": delegation.model_name, "window_tokens": None}
        known = delegation.window_tokens or (delegation.model.profile or {}).get("max_input_tokens")
        settings["condense"] = parent.condense and known is not None
    own = {name: getattr(delegation, name) for name in ("prices", "window_tokens", "tools")}
    return settings | {name: value for name, value in own.items() if value is not None}


def _run_or_resume(run: Run, assignment: Assignment) -> Outcome:
    """Start a child, resume it, or return its outcome. Raises ThreadExistsError if the thread belongs to another run."""
    state = run.state()
    if state is None:
        return run.take_over(assignment.record, "payload")
    if state and state.get("record") != assignment.record:
        raise ThreadExistsError(
            f"thread {run.thread!r} already holds another run, but a child needs that name "
            "(start the parent's run on a thread with another name)"
        )
    if state.get("stop_reason") is not None:
        return run.outcome()
    return run.resume(go_back=True)


def _child_result(outcome: Outcome, left_out_before: Sequence[LeftOut] = ()) -> ChildResult:
    """Return a child's result; changes that its parent's patch already lacked are not the child's."""
    changed, before = compute_differences(outcome.events), {each.path for each in left_out_before}
    left_out = tuple(each for each in outcome.left_out if each.path in changed or each.path not in before)
    return ChildResult(
        thread=outcome.thread,
        stop_reason=outcome.stop_reason,
        message=outcome.answer or "",
        patch=outcome.diff_from_base,
        left_out=left_out,
        left_out_count=outcome.left_out_count - len(outcome.left_out) + len(left_out),
        problem="" if outcome.diff_from_base else outcome.patch_error or "",
        steps=outcome.steps,
        prompt_tokens=outcome.prompt_tokens,
        completion_tokens=outcome.completion_tokens,
        uncounted_calls=outcome.uncounted_calls,
        cost=outcome.cost,
        seconds=outcome.seconds,
    )
