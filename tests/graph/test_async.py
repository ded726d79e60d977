"""Runs in asyncio and in threads use the same checkpoints, leases and sandboxes as synchronous runs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command

from langgraph_takeover import Home, Outcome, open_run, run
from langgraph_takeover.errors import ThreadNotFoundError
from langgraph_takeover.handoff.ledger import FencedError, Ledger, ThreadHeldError, acquire
from langgraph_takeover.nodes.model.model_errors import ModelError
from langgraph_takeover.nodes.state import ReviewRequest
from langgraph_takeover.sandbox.interface import SandboxSpec

from .conftest import (
    BOTH_DATABASES,
    DONE,
    EDIT,
    NOTE,
    PROMPT,
    SHOW,
    RunHarness,
    get_shown_lines,
    scripted_model,
)

pytestmark = BOTH_DATABASES
GIVEN = {"task": {"id": "t", "prompt": PROMPT}}
NOTES = [NOTE.format(number) for number in (1, 2, 3)]


def test_ainvoke(bench: RunHarness) -> None:
    with open_run(
        bench.home, "thread", model=scripted_model(*NOTES, SHOW, DONE), sandbox=bench.spec
    ) as agent_run:
        state = asyncio.run(agent_run.agent.ainvoke(GIVEN, **agent_run.options))
        outcome = agent_run.outcome()
    assert get_shown_lines(state) == ["1", "2", "3"]
    assert (outcome.stop_reason, outcome.steps) == ("finished", 5)
    assert "+3" in outcome.patch
    moments = bench.home.history("thread")
    assert moments[0].next == ()
    assert all(moment.is_restorable for moment in moments)


def test_astream(bench: RunHarness) -> None:
    async def watch_run() -> list[tuple[int, str]]:
        with open_run(
            bench.home, "thread", model=scripted_model(*NOTES, DONE), sandbox=bench.spec
        ) as agent_run:
            stream = agent_run.agent.astream(GIVEN, **agent_run.options, stream_mode="custom")
            return [(event["step"], event["event"]) async for event in stream]

    moments = ("acting", "observed", "thinking")
    steps = [(step, moment) for step in (1, 2, 3) for moment in moments]
    assert asyncio.run(watch_run()) == [(0, "started"), (0, "thinking"), *steps]


@pytest.mark.slow
def test_an_abandoned_stream_resumes(bench: RunHarness) -> None:
    async def leave_early() -> None:
        with open_run(
            bench.home, "thread", model=scripted_model(*NOTES, SHOW, DONE), sandbox=bench.spec
        ) as agent_run:
            stream = agent_run.agent.astream(GIVEN, **agent_run.options, stream_mode="custom")
            async for event in stream:
                if (event["step"], event["event"]) == (2, "observed"):
                    break
            await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(leave_early())
    outcome = bench.resume(scripted_model(*NOTES, SHOW, DONE))
    assert get_shown_lines(outcome.state) == ["1", "2", "3"]


@pytest.mark.slow
def test_a_failure_and_a_resume(bench: RunHarness) -> None:
    broken = scripted_model(NOTES[0], ModelError("gone"))
    with (
        open_run(bench.home, "thread", model=broken, sandbox=bench.spec, model_tries=1) as agent_run,
        pytest.raises(ModelError),
    ):
        asyncio.run(agent_run.agent.ainvoke(GIVEN, **agent_run.options))
    with open_run(
        bench.home, "thread", model=scripted_model(*NOTES, SHOW, DONE), sandbox=bench.spec
    ) as agent_run:
        state = asyncio.run(agent_run.agent.ainvoke(None, **agent_run.options))
    assert get_shown_lines(state) == ["1", "2", "3"]


@pytest.mark.slow
def test_a_review(bench: RunHarness) -> None:
    async def review_run() -> Outcome:
        settings: Any = {"policy": "review", "points": ("first_source_edit",)}
        model = scripted_model(EDIT, "Summary.", "Fields.", DONE)
        with open_run(bench.home, "thread", model=model, sandbox=bench.spec, **settings) as agent_run:
            state = await agent_run.agent.ainvoke(GIVEN, **agent_run.options)
            (request,) = state["__interrupt__"]
            assert "pkg/core.py" in request.value["note"]
            assert agent_run.outcome().waiting == ReviewRequest.model_validate(request.value)
        with open_run(bench.home, "thread", model=model, sandbox=bench.spec, **settings) as agent_run:
            answer = {"decision": "approve", "view": "trace", "note": "Mind it."}
            await agent_run.agent.ainvoke(Command(resume=answer), **agent_run.options)
            return agent_run.outcome()

    outcome = asyncio.run(review_run())
    assert (outcome.stop_reason, outcome.waiting) == ("handoff", None)
    review = bench.store.load(outcome.records[0]).review
    assert review is not None
    assert (review.view, review.note) == ("trace", "Mind it.")


@pytest.mark.slow
def test_a_failed_takeover_is_resumed_as_a_takeover(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",))
    state: Any = {"record": "run.first_source_edit", "view": "trace"}
    broken = scripted_model(ModelError("gone"))
    with (
        open_run(bench.home, "taking", model=broken, sandbox=bench.spec, model_tries=1) as agent_run,
        pytest.raises(ModelError),
    ):
        asyncio.run(agent_run.takeover.ainvoke(state, **agent_run.options))
    done = bench.resume(scripted_model(DONE), thread="taking")
    assert (done.stop_reason, done.state["view"]) == ("finished", "trace")
    assert "n * 3" in done.diff_from_base


@pytest.mark.slow
def test_tasks_on_different_threads_at_once(bench: RunHarness) -> None:
    together = asyncio.Barrier(3)

    async def one(name: str) -> Outcome:
        model = scripted_model(NOTE.format(name), SHOW, DONE)
        with open_run(bench.home, name, model=model, sandbox=bench.spec) as agent_run:
            await together.wait()
            async for _ in agent_run.agent.astream(GIVEN, **agent_run.options):
                await asyncio.sleep(0)
            return await asyncio.to_thread(agent_run.outcome)

    async def all_of_them() -> list[Outcome]:
        return await asyncio.gather(*map(one, ("a", "b", "c")))

    for name, outcome in zip("abc", asyncio.run(all_of_them()), strict=True):
        assert (outcome.thread, outcome.stop_reason) == (name, "finished")
        assert get_shown_lines(outcome.state) == [name]


def test_a_held_thread_names_its_holder(bench: RunHarness) -> None:
    async def both() -> None:
        model = scripted_model(*NOTES, SHOW, DONE)
        with open_run(bench.home, "thread", model=model, sandbox=bench.spec) as agent_run:
            async for _ in agent_run.agent.astream(GIVEN, **agent_run.options, stream_mode="custom"):
                with pytest.raises(ThreadHeldError, match="held by process"):
                    bench.run(model)
            assert get_shown_lines(agent_run.outcome().state) == ["1", "2", "3"]

    asyncio.run(both())


@pytest.mark.slow
def test_runs_in_threads_of_one_process(bench: RunHarness) -> None:
    together = threading.Barrier(4)

    def one(name: str) -> Outcome:
        together.wait()
        model = scripted_model(NOTE.format(name), NOTE.format(name), SHOW, DONE)
        return run(
            bench.home,
            name,
            task_id=name,
            prompt=PROMPT,
            model=model,
            sandbox=bench.spec,
            on_progress=lambda _: None,
        )

    with ThreadPoolExecutor(4) as pool:
        for name, outcome in zip("abcd", pool.map(one, "abcd"), strict=True):
            assert (outcome.thread, outcome.stop_reason) == (name, "finished")
            assert get_shown_lines(outcome.state) == [name, name]
    assert bench.home.threads() == ("a", "b", "c", "d")


@pytest.mark.slow
def test_a_lost_lease_stops_an_asynchronous_run(
    bench: RunHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steal_lease(other: Ledger) -> None:
        with open_run(
            bench.home, "thread", model=scripted_model(*NOTES, SHOW, DONE), sandbox=bench.spec
        ) as agent_run:
            async for event in agent_run.agent.astream(GIVEN, **agent_run.options, stream_mode="custom"):
                if (event["step"], event["event"]) == (2, "thinking"):
                    with other.write_transaction() as connection:
                        connection.exec_driver_sql("UPDATE takeover_leases SET expires_at = 0")
                    acquire(other, "thread").release()

    other = Ledger(bench.home.ledger.url)
    with pytest.raises(FencedError):
        asyncio.run(steal_lease(other))
    other.close()
    assert bench.home.history("thread")[0].step == 2
    assert get_shown_lines(bench.resume(scripted_model(*NOTES, SHOW, DONE)).state) == ["1", "2", "3"]


def test_an_outcome_before_the_first_run(bench: RunHarness) -> None:
    with (
        open_run(bench.home, "thread", model=scripted_model(DONE), sandbox=bench.spec) as agent_run,
        pytest.raises(ThreadNotFoundError, match="thread not found"),
    ):
        agent_run.outcome()


def test_reading_during_a_run(bench: RunHarness, tmp_path: Path) -> None:
    seen: list[int] = []

    async def watch_run(home: Home, spec: SandboxSpec) -> None:
        with open_run(home, "thread", model=scripted_model(*NOTES, DONE), sandbox=spec) as agent_run:
            async for _ in agent_run.agent.astream(GIVEN, **agent_run.options, stream_mode="custom"):
                seen.append(len(await asyncio.to_thread(home.history, "thread")))

    asyncio.run(watch_run(bench.home, bench.spec))
    assert seen == sorted(seen)
    assert seen[-1] > seen[0] >= 1


def test_a_node_cancelled_during_its_write_runs_again(bench: RunHarness) -> None:
    bench.run(scripted_model(DONE))
    with bench.home.open_session("thread", bench.spec) as (_, saver):
        newest = saver.get_tuple({"configurable": {"thread_id": "thread"}})
        writes = [("messages", []), ("seconds", 1.0), ("__error__", asyncio.CancelledError())]
        saver.put_writes(newest.config, writes, "task")
        again = saver.get_tuple(newest.config)
    assert [(task, channel) for task, channel, _ in again.pending_writes] == [("task", "__error__")]
