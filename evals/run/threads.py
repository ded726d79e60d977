"""The threads of a run: one a predecessor and one a takeover, begun or gone on with, and given back when done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from langchain_core.language_models import BaseChatModel

from evals import models
from evals.run.config import RunConfig, short
from evals.run.journal import Row
from evals.run.places import Places
from evals.tasks import Task
from graph import CheckpointCorruptError, Home, Outcome, Run, ThreadTaken, open_run
from handoff.ledger import ThreadHeld, machines
from handoff.record import HandoffRecord
from nodes.options import AgentOptions, select_options
from nodes.replies import ModelFailed
from nodes.session import BASE, MachineNotKept, SnapshotEvery
from nodes.state import NOTHING_SPENT
from sandbox.machine import SnapshotCorrupt

PREDECESSOR, TAKEOVER = "predecessor.", "takeover."
_KEPT: dict[str, SnapshotEvery] = {"openai": "step", "replay": "point", "builtin": "never"}
"""A step of an LLM is dear to take again; one of a replay costs less than its machine's snapshot, and so does a
whole takeover by the built-in model."""


def thread_of(row: Row) -> str:
    """The thread that a predecessor's or a takeover's row came from."""
    return f"{TAKEOVER if 'record_id' in row else PREDECESSOR}{row['trace']}"


def takeover_of(record_id: str, view: str, successor: str, repeat: int) -> str:
    """The name of a takeover, with which its thread, its trace and its logs are named."""
    return f"{record_id}.{view}.{short(successor)}.{repeat}"


def forget_machines(config: RunConfig, home: Home, task: Task, row: Row) -> None:
    """Give back what the machines of a row's thread take, once the row is safe: nothing will go on from them."""
    if row["outcome"] == "infrastructure_failure" or not machines.kept(home.ledger, thread_of(row)):
        return
    spec = Places(home.directory).spec(config, task)
    # Where somebody looks at the thread just now, it is tried again when the run is resumed.
    with suppress(ThreadHeld), home.session(thread_of(row), spec) as (session, _):
        session.forget_machines()
    home.remove_unused_machines()


@contextmanager
def opened(
    config: RunConfig,
    task: Task,
    places: Places,
    thread: str,
    model: str,
    record: HandoffRecord | None = None,
    **settings: Any,
) -> Iterator[Run]:
    """The hold on a thread, with the model that works there and the settings of this run."""
    spec, name = places.spec(config, task), models.read_name(model)

    def built(workspace: str) -> BaseChatModel:
        return models.build(
            model,
            task=task,
            base_url=config.base_url,
            record=record,
            workspace=workspace,
            max_reply_tokens=config.max_reply_tokens,
        )

    with (
        places.home() as home,
        open_run(
            home,
            thread,
            model=built(record.task.workspace if record else spec.workspace),
            model_name=model,
            sandbox=spec,
            snapshot_every=_KEPT[name.kind],
            **select_options(AgentOptions, config),
            **settings,
        ) as run,
    ):
        if record is None and spec.backend == "process" and name.kind == "replay":
            # Only the machine itself tells where the recorded paths are to be moved to.
            there = run.session.enter(BASE).workspace
            run.context = run.context.model_copy(update={"model": built(there)})
        yield run


def carried_out(run: Run, begin: Callable[[], Outcome]) -> tuple[Outcome, float]:
    """What the thread's run comes to, and the seconds spent on it before: it goes on where it was cut short.

    Where its machine is gone or damaged, it is let go, so that the next attempt goes back to the beginning; the same
    where the model never replied, which says nothing about the work. Raises ModelFailed for the latter.
    """
    outcome, before = _carried_out(run, begin)
    if outcome.stop_reason == "max_seconds" and not outcome.steps:
        run.forget_machines()
        raise ModelFailed(
            f"no reply within the {run.context.max_seconds:g} seconds that an agent may take: see whether the endpoint "
            "answers, or allow more by --max-seconds in a new run"
        )
    return outcome, before


def _carried_out(run: Run, begin: Callable[[], Outcome]) -> tuple[Outcome, float]:
    try:
        return begin(), 0.0
    except ThreadTaken:
        before = run.agent.get_state(run.config).values.get("spent", NOTHING_SPENT)["seconds"]
    except SnapshotCorrupt:
        run.forget_machines()
        raise
    except CheckpointCorruptError as error:
        raise _discard(run, error) from error
    try:
        return run.resume(go_back=True), before
    except CheckpointCorruptError as error:
        raise _discard(run, error) from error
    except (MachineNotKept, SnapshotCorrupt) as error:
        run.forget_machines()
        raise MachineNotKept(
            f"thread {run.thread} cannot go on where it stood: {error}; when the run is resumed, it begins anew"
        ) from error


def _discard(run: Run, error: CheckpointCorruptError) -> MachineNotKept:
    run.discard()
    return MachineNotKept(
        f"{error}; here its checkpoints are deleted: when the run is resumed, the thread begins anew"
    )
