"""The threads of a run, one per predecessor and takeover: start, resume and release them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from langchain_core.language_models import BaseChatModel

from langgraph_takeover import Home, Run, open_run
from langgraph_takeover.agents import ExternalAgent, external_agent
from langgraph_takeover.evals import models
from langgraph_takeover.evals.run.execution.attempts import list_traces
from langgraph_takeover.evals.run.rows import AgentRow, Takeover
from langgraph_takeover.evals.run.settings.config import RunConfig, RunPaths, shorten_model_name
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.handoff.ledger import ThreadHeldError, acquire, effects
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.nodes.context.agent_options import AgentOptions, select_options
from langgraph_takeover.nodes.session.observation import CallLog
from langgraph_takeover.nodes.session.state_store import BASE_STATE, SnapshotEvery

PREDECESSOR_PREFIX, TAKEOVER_PREFIX, NOTES_PREFIX = "predecessor.", "takeover.", "notes."
_SNAPSHOT_FREQUENCY: dict[str, SnapshotEvery] = {
    "openai": "step", "entry": "step", "replay": "point", "builtin": "never",
}  # fmt: skip
"""Snapshot after every step of an LLM, because repeating one is expensive. A replayed step, and a whole takeover by the
built-in model, cost less than a snapshot."""


def name_thread(row: AgentRow) -> str:
    """The thread of a predecessor's or takeover's row."""
    name = name_takeover_thread if isinstance(row, Takeover) else name_predecessor_thread
    return name(row.trace or "")


def name_predecessor_thread(run: str) -> str:
    return f"{PREDECESSOR_PREFIX}{run}"


def name_takeover_thread(takeover: str) -> str:
    return f"{TAKEOVER_PREFIX}{takeover}"


def name_takeover(record_id: str, view: str, successor: str, repeat: int) -> str:
    """The name of a takeover, used for its thread, trace and logs."""
    return f"{record_id}.{view}.{shorten_model_name(successor)}.{repeat}"


def release_snapshots(config: RunConfig, home: Home, task: Task, row: AgentRow) -> None:
    """Release the snapshots of a row's thread once the row is saved. The thread cannot resume afterwards."""
    names = map(name_takeover_thread, list_traces(row)) if isinstance(row, Takeover) else (name_thread(row),)
    kept = [each for each in names if effects.list_state_ids(home.ledger, each)]
    if row.is_failure or not kept:
        return
    spec = RunPaths(home.directory).spec(config, task)
    for each in kept:
        # If a reader holds the thread, the resumed run tries again.
        with suppress(ThreadHeldError), home.open_session(each, spec) as (session, _):
            session.forget_snapshots()
    home.remove_unused_snapshots()


@contextmanager
def open_thread(
    config: RunConfig,
    task: Task,
    paths: RunPaths,
    thread: str,
    model: str,
    record: HandoffRecord | None = None,
    **settings: Any,
) -> Iterator[Run]:
    """The lease of a thread, with its model and the settings of this run."""
    spec, name = paths.spec(config, task), models.parse_model_name(model)
    if record is not None:
        found = {"predecessor": config.find_recording(record.predecessor, task.id)}
        record = record.model_copy(update=found)

    def build_model(workspace: str) -> BaseChatModel:
        return models.build_model(
            config.find_recording(model, task.id),
            task=task,
            base_url=config.base_url,
            models=config.models,
            record=record,
            workspace=workspace,
            max_reply_tokens=config.max_reply_tokens,
            read_timeout_s=config.find_timeout_s("read_timeout_s", model),
        )

    frequency = "step" if name.agent else _SNAPSHOT_FREQUENCY[name.kind]
    settings = {"snapshot_every": frequency} | settings
    with (
        paths.home() as home,
        open_run(
            home,
            thread,
            model=build_model(record.task.workspace if record else spec.workspace),
            model_name=model,
            sandbox=spec,
            agent=_find_agent(config, name),
            parallel_tool_calls=False,  # the experiment counts one action per reply
            **{**select_options(AgentOptions, config), **_select_model_options(config, model), **settings},
        ) as run,
    ):
        if record is None and spec.backend == "process" and name.kind == "replay":
            # Only the sandbox knows the paths to which recorded paths move.
            workspace_path = run.session.enter_state(BASE_STATE).workspace
            run.context = run.context.model_copy(update={"model": build_model(workspace_path)})
        yield run


def _find_agent(config: RunConfig, name: models.ModelName) -> ExternalAgent | None:
    """The external agent of a model's name; None for the built-in one."""
    if not name.agent:
        return None
    return external_agent(
        name.agent, program=config.agent_programs.get(name.agent), model_name=name.wire_name
    )


def _select_model_options(config: RunConfig, model: str) -> dict[str, Any]:
    """The options of an agent that depend on its model. Only LLMs need a shorter conversation."""
    condense = config.condense and models.is_llm(model) and not models.split_agent(model)[0]
    timeout_s = config.find_timeout_s("model_timeout_s", model)
    return {"window_tokens": config.find_window(model), "condense": condense, "model_timeout_s": timeout_s}


@contextmanager
def open_call_log(paths: RunPaths, name: str) -> Iterator[CallLog]:
    """The log of the calls of a job without checkpoints, which starts over after a kill."""
    with paths.home() as home:
        lease = acquire(home.ledger, name)
        log = CallLog(lease)
        try:
            yield log
        except BaseException:
            log.end_failed_step()
            raise
        finally:
            log.close()
            lease.remove()
