"""Asynchronous runs: the model is awaited, nothing blocks the event loop, and a cancelled task leaves a resumable run."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult
from langgraph.graph import END, START, StateGraph
from pydantic import Field

from langgraph_takeover import Home, Outcome, RunStatus, open_home, open_run, run_team
from langgraph_takeover.errors import ModelError, ReplyTimeoutError, SettingsError, ThreadHeldError
from langgraph_takeover.integrations import SandboxState, open_sandbox
from langgraph_takeover.nodes.context.team_members import Agent

from .conftest import DONE, EDIT, NOTE, PROMPT, SHOW, RunHarness, Scripted, get_shown_lines, scripted_model

NOTES = [NOTE.format(number) for number in (1, 2, 3)]


class AwaitOnlyModel(Scripted):
    """A scripted model that can only be awaited."""

    begun: list[int] = Field(default_factory=list)
    cancelled: list[int] = Field(default_factory=list)

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise AssertionError("the synchronous call was made")

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.begun.append(1)
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.cancelled.append(1)
            raise
        return super()._generate(messages)


class BarrierModel(AwaitOnlyModel):
    """A model that replies when as many calls wait as there are runs."""

    barrier: Any

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        await self.barrier.wait()
        return await super()._agenerate(messages)


class BlockingModel(Scripted):
    """A synchronous model that waits for the event loop."""

    may_reply: threading.Event

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        assert self.may_reply.wait(60), "the event loop was blocked"
        return super()._generate(messages)


def awaited_model(*replies: Any, kind: type[Scripted] = AwaitOnlyModel, **settings: Any) -> Any:
    model = kind(replies=list(replies), seen=[], tools=[], **settings)
    model.delay_s = 0.0
    return model


async def start_run(bench: RunHarness, model: Any, thread: str = "thread", **settings: Any) -> Outcome:
    async with bench.open_run(model, thread, **settings) as opened:
        outcome: Outcome = await opened.astart("t", PROMPT)
        return outcome


def test_the_model_is_awaited(bench: RunHarness) -> None:
    outcome = asyncio.run(start_run(bench, awaited_model(*NOTES, SHOW, DONE)))
    assert (outcome.status, outcome.steps) == (RunStatus.FINISHED, 5)
    assert get_shown_lines(outcome.state) == ["1", "2", "3"]


def test_notes_and_answers_are_awaited(bench: RunHarness) -> None:
    model = awaited_model(EDIT, "Summary.", "Fields.", DONE)
    settings: Any = {"policy": "review", "points": ("first_source_edit",)}

    async def review() -> Outcome:
        waiting = await start_run(bench, model, **settings)
        assert waiting.status is RunStatus.WAITING
        assert len(model.seen) > 1, "the model was not asked for its notes"
        async with bench.open_run(model, **settings) as opened:
            outcome: Outcome = await opened.aresume({"decision": "refuse"})
            assert await opened.aoutcome() == outcome
            return outcome

    assert asyncio.run(review()).status is RunStatus.FINISHED


def test_a_successor_is_awaited(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",))

    async def take_over() -> Outcome:
        async with bench.open_run(awaited_model(DONE), "taking") as opened:
            outcome: Outcome = await opened.atake_over("run.first_source_edit", "trace")
            return outcome

    assert asyncio.run(take_over()).status is RunStatus.FINISHED


def test_a_blocking_function_awaits_its_models(bench: RunHarness) -> None:
    agents = [Agent(name=name, model=awaited_model(DONE)) for name in ("writer", "tester")]

    async def work() -> Outcome:
        return await bench.home.acall(
            run_team, bench.home, "team", task_id="t", prompt=PROMPT, agents=agents, sandbox=bench.spec
        )

    assert asyncio.run(work()).status is RunStatus.FINISHED


def test_a_synchronous_model_does_not_block_the_loop(bench: RunHarness) -> None:
    async def work() -> Outcome:
        may_reply = threading.Event()
        model = awaited_model(NOTES[0], DONE, kind=BlockingModel, may_reply=may_reply)
        task = asyncio.create_task(start_run(bench, model))
        await asyncio.sleep(0.1)
        may_reply.set()
        return await task

    assert asyncio.run(work()).status is RunStatus.FINISHED


@pytest.mark.slow
def test_runs_share_the_threads_of_their_home(bench: RunHarness, tmp_path: Path) -> None:
    async def work() -> int:
        before = threading.active_count()
        model = awaited_model(NOTES[0], SHOW, DONE, kind=BarrierModel, barrier=asyncio.Barrier(16))
        async with open_home(tmp_path / "small", workers=1) as home:

            async def run_one(number: int) -> Outcome:
                async with open_run(home, f"run-{number}", model=model, sandbox=bench.spec) as opened:
                    return await opened.astart("t", PROMPT)

            outcomes = await asyncio.gather(*map(run_one, range(16)))
            assert {outcome.status for outcome in outcomes} == {RunStatus.FINISHED}
            assert all(get_shown_lines(outcome.state) == ["1"] for outcome in outcomes)
            # Each sandbox that took a snapshot has a thread of its own; those are closed by now.
            return threading.active_count() - before

    assert asyncio.run(work()) < 16


@pytest.mark.cases(1)
@pytest.mark.parametrize("command", ["sleep 60", "echo begun >> notes.txt; sleep 60"])
def test_a_cancelled_task_leaves_a_resumable_run(bench: RunHarness, command: str) -> None:
    replies = (NOTES[0], f"```bash\n{command}\n```", SHOW, DONE)

    async def cancel() -> None:
        acting = asyncio.Event()

        def see(event: Any) -> None:
            if event["event"] == "acting" and event["step"] == 2:
                acting.set()

        task = asyncio.create_task(start_run(bench, awaited_model(*replies), on_progress=see))
        await acting.wait()
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(cancel(), 45))
    assert bench.home.status("thread") != "running", "the lease was not released"
    again = (NOTES[0], "```bash\necho second >> notes.txt\n```", SHOW, DONE)
    outcome = bench.resume(scripted_model(*again), command_timeout_s=2.0)
    assert outcome.status is RunStatus.FINISHED
    lines = get_shown_lines(outcome.state)
    assert lines.count("1") == 1
    assert lines.count("begun") == (1 if "begun" in command else 0), "the interrupted command was not undone"


def test_a_cancelled_task_ends_its_model_call_and_can_continue(bench: RunHarness) -> None:
    slow = awaited_model(NOTES[0], DONE)
    slow.delay_s = 60.0

    async def cancel() -> Outcome:
        async with bench.open_run(slow) as opened:
            task = asyncio.create_task(opened.astart("t", PROMPT))
            while not slow.begun:
                await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            slow.delay_s = 0.0
            outcome: Outcome = await opened.aresume()
            return outcome

    assert asyncio.run(asyncio.wait_for(cancel(), 45)).status is RunStatus.FINISHED
    assert slow.cancelled == [1]


def test_a_stop_at_once_ends_an_awaited_call(bench: RunHarness) -> None:
    slow = awaited_model(NOTES[0], DONE)
    slow.delay_s = 60.0

    async def stop() -> Outcome:
        task = asyncio.create_task(start_run(bench, slow))
        while not slow.begun:
            await asyncio.sleep(0.05)
        assert bench.home.stop("thread", now=True)
        return await task

    assert asyncio.run(asyncio.wait_for(stop(), 45)).status is RunStatus.STOPPED
    assert slow.cancelled == [1]
    assert bench.resume(scripted_model(NOTES[0], DONE)).status is RunStatus.FINISHED


def test_a_late_or_failing_reply_is_handled_as_in_synchronous_runs(bench: RunHarness) -> None:
    late = awaited_model(DONE)
    late.delay_s = 60.0
    with pytest.raises(ReplyTimeoutError):
        asyncio.run(start_run(bench, late, model_timeout_s=0.2))
    with pytest.raises(ModelError, match="gone"):
        asyncio.run(start_run(bench, awaited_model(ModelError("gone")), "other", model_tries=2))


def test_a_home_and_its_threads_are_opened_by_both_protocols(bench: RunHarness, tmp_path: Path) -> None:
    async def hold() -> None:
        async with open_home(tmp_path / "own") as home:
            async with open_run(home, "thread", model=awaited_model(DONE), sandbox=bench.spec) as opened:
                assert await home.acall(home.status, "thread") == "running"
                with pytest.raises(ThreadHeldError):
                    async with open_run(home, "thread", model=awaited_model(DONE), sandbox=bench.spec):
                        pass
                assert opened.thread == "thread"
            assert await home.acall(home.status, "thread") == "empty"

    asyncio.run(hold())
    with pytest.raises(SettingsError, match="workers"):
        open_home(tmp_path / "own", workers=0)


def test_a_task_cancelled_while_it_opens_a_run_releases_the_thread(bench: RunHarness) -> None:
    async def cancel() -> None:
        for delay_s in (0.0, 0.001, 0.01, 0.05):

            async def open_and_wait() -> None:
                async with bench.open_run(awaited_model(DONE)):
                    await asyncio.sleep(60)

            task = asyncio.create_task(open_and_wait())
            await asyncio.sleep(delay_s)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with bench.open_run(awaited_model(DONE)):  # ThreadHeldError if it was not released
                pass

    asyncio.run(cancel())


def test_a_graph_of_your_own_acts_in_an_event_loop(bench: RunHarness) -> None:
    async def work(home: Home) -> list[str]:
        async with open_sandbox(home, "own", sandbox=bench.spec) as work:

            async def note(state: SandboxState) -> SandboxState:
                done = await work.aact(
                    "note",
                    lambda box: box.run("echo 1 >> n", timeout_s=9).exit_code,
                    state=state.get("sandbox_state"),
                )
                return SandboxState(sandbox_state=done.state)

            graph = StateGraph(SandboxState)
            graph.add_node("note", note)
            graph.add_edge(START, "note")
            graph.add_edge("note", END)
            built = graph.compile(checkpointer=work.saver)
            state: Any = await built.ainvoke({}, {"configurable": {"thread_id": "own"}}, durability="sync")
            content = await work.run_blocking(lambda: work.enter(state["sandbox_state"]).read_file("n"))
            return content.decode().splitlines()

    assert asyncio.run(work(bench.home)) == ["1"]
