"""A custom tool can ask a question: the run waits, and the answer continues the tool with its effects once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from langgraph_takeover import Delegation, RunStatus
from langgraph_takeover.errors import InputError, NotWaitingError, SettingsError
from langgraph_takeover.graph.outcome import Outcome
from langgraph_takeover.protocol import ToolQuestion

from ...graph.conftest import (
    DONE,
    EDIT,
    NOTE,
    SHOW,
    RunHarness,
    get_shown_lines,
    native_reply,
    scripted_model,
)
from .test_custom import native, results, textual


@tool
def ask(question: str, config: RunnableConfig) -> str:
    """Ask a person."""
    sandbox = config["configurable"]["sandbox"]
    sandbox.run("echo asked >>notes.txt", timeout_s=10)
    return f"They say {interrupt({'question': question})!r}."


@tool
async def ask_async(question: str, config: RunnableConfig) -> str:
    """Ask a person."""
    config["configurable"]["sandbox"].run("echo asked >>notes.txt", timeout_s=10)
    await asyncio.sleep(0)
    return f"They say {interrupt({'question': question})!r}."


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("asking", "answer"),
    [
        (ask, {"ok": True}),
        (ask, False),
        (ask_async, "yes"),
        *(pytest.param(ask, answer, marks=pytest.mark.slow) for answer in ("yes", ["a"], 0, "")),
    ],
)
def test_the_answer_continues_the_tool(bench: RunHarness, asking: Any, answer: Any) -> None:
    model = scripted_model(NOTE.format("before"), textual(asking.name, question="Deploy?"), SHOW, DONE)
    outcome = start(bench, model, asking)
    assert outcome.status is RunStatus.WAITING
    assert outcome.waiting is None
    assert outcome.question == ToolQuestion(tool=asking.name, call="call_e2", value={"question": "Deploy?"})
    assert bench.home.status("thread") == "waiting"
    assert "asked" not in outcome.patch  # undone, because the call runs again
    done = bench.resume(model, answer, tools=(asking,))
    assert done.status is RunStatus.FINISHED
    assert [event.text for event in results(done.state, asking.name)] == [f"They say {answer!r}."]
    assert get_shown_lines(done.state) == ["before", "asked"]


def start(bench: RunHarness, model: Any, *tools: Any, **settings: Any) -> Outcome:
    with bench.open_run(model, tools=tools, **settings) as held:
        return held.start("t", "Do it.")


def test_a_native_call_waits_without_an_answer(bench: RunHarness) -> None:
    model = scripted_model(native("ask", question="Deploy?"), native_reply(("finish", "{}")))
    outcome = start(bench, model, ask, protocol="native")
    assert outcome.question is not None
    assert outcome.question.call == "call_0_ask"
    again = bench.resume(model, tools=(ask,), protocol="native")
    assert (again.question, again.status) == (outcome.question, RunStatus.WAITING)
    done = bench.resume(model, "yes", tools=(ask,), protocol="native")
    assert done.status is RunStatus.FINISHED
    assert [message.tool_call_id for message in model.seen[1][-1:]] == ["call_0_ask"]


def test_within_one_run(bench: RunHarness) -> None:
    model = scripted_model(textual("ask", question="?"), SHOW, DONE)
    with bench.open_run(model, tools=(ask,)) as held:
        assert held.start("t", "Do it.").question is not None
        done = held.resume("fine")
    assert get_shown_lines(done.state) == ["asked"]


def test_a_fork_gets_its_own_answer(bench: RunHarness) -> None:
    @tool
    def write_answer(config: RunnableConfig) -> str:
        """Ask a person, and write the answer down."""
        answer = interrupt("Deploy?")
        config["configurable"]["sandbox"].run(f"echo {answer} >>notes.txt", timeout_s=10)
        return f"They say {answer}."

    model = scripted_model(textual("write_answer"), SHOW, DONE)
    start(bench, model, write_answer)
    (waiting,) = [each for each in bench.home.history("thread") if each.next == ("tool",)]
    options: Any = {"tools": (write_answer,)}
    for answer in ("yes", "no"):
        if answer == "no":
            with bench.open_run(model, **options) as held:
                fork = held.update_state({}, checkpoint=waiting.checkpoint)
                assert held.resume(checkpoint=fork).question is not None
        done = bench.resume(model, answer, **options)
        assert [event.text for event in results(done.state, "write_answer")] == [f"They say {answer}."]
        assert get_shown_lines(done.state) == [answer]


def test_an_empty_answer_is_an_answer(bench: RunHarness) -> None:
    """LangGraph would take it for a mapping of answers by question."""
    model = scripted_model(textual("ask", question="?"), DONE)
    assert start(bench, model, ask).question is not None
    done = bench.resume(model, {}, tools=(ask,))
    assert [event.text for event in results(done.state, "ask")] == ["They say {}."]


def test_secrets_in_questions_and_answers_are_redacted(bench: RunHarness) -> None:
    key = "sk-" + "a1B2" * 12
    model = scripted_model(textual("ask", question=key), DONE)
    asked = start(bench, model, ask)
    assert asked.question is not None
    assert key not in str(asked.question)
    done = bench.resume(model, {"key": key}, tools=(ask,))
    assert key not in str([event.text for event in results(done.state, "ask")])


@tool
def ask_twice(config: RunnableConfig) -> str:
    """Ask twice."""
    config["configurable"]["sandbox"].run("echo asked >>notes.txt", timeout_s=10)
    first = interrupt("first?")
    second = interrupt("second?")
    return f"{first} {second}"


@pytest.mark.parametrize("answers", [("same", "same"), pytest.param(("a", "b"), marks=pytest.mark.slow)])
def test_two_questions_of_one_call(bench: RunHarness, answers: tuple[str, str]) -> None:
    model = scripted_model(textual("ask_twice"), SHOW, DONE)
    first = start(bench, model, ask_twice)
    assert first.question is not None
    assert first.question.value == "first?"
    second = bench.resume(model, answers[0], tools=(ask_twice,))
    assert second.question is not None
    assert second.question.value == "second?"
    assert bench.home.status("thread") == "waiting"
    again = bench.resume(model, tools=(ask_twice,))
    assert again.question == second.question
    done = bench.resume(model, answers[1], tools=(ask_twice,))
    assert [event.text for event in results(done.state, "ask_twice")] == [" ".join(answers)]
    assert get_shown_lines(done.state) == ["asked"]


def test_a_failure_after_the_answer_keeps_it(bench: RunHarness) -> None:
    failures = [OSError("no network")]

    @tool
    def deploy(config: RunnableConfig) -> str:
        """Deploy."""
        answer = interrupt("Deploy?")
        config["configurable"]["sandbox"].run(f"echo {answer} >>notes.txt", timeout_s=10)
        if failures:
            raise failures.pop()
        return "deployed"

    model = scripted_model(textual("deploy"), SHOW, DONE)
    assert start(bench, model, deploy).question is not None
    with pytest.raises(OSError, match="no network"):
        bench.resume(model, "yes", tools=(deploy,))
    done = bench.resume(model, tools=(deploy,))
    assert done.status is RunStatus.FINISHED
    assert get_shown_lines(done.state) == ["yes"]


def test_an_answer_that_the_tool_refuses_can_be_replaced(bench: RunHarness) -> None:
    class Approval(BaseModel):
        approved: bool

    @tool
    def approve() -> str:
        """Ask for approval."""
        return str(interrupt("Approve?", response_schema=Approval).approved)

    model = scripted_model(textual("approve"), DONE)
    assert start(bench, model, approve).question is not None
    with pytest.raises(InputError, match=r"^answer: approved: Input should be a valid boolean"):
        bench.resume(model, {"approved": "perhaps"}, tools=(approve,))
    with pytest.raises(InputError, match=r"^answer: not JSON: "):
        bench.resume(model, object(), tools=(approve,))
    done = bench.resume(model, {"approved": True}, tools=(approve,))
    assert [event.text for event in results(done.state, "approve")] == ["True"]
    with pytest.raises(NotWaitingError):
        bench.resume(model, {"approved": True}, tools=(approve,))


def test_a_review_and_a_question_in_one_run(bench: RunHarness) -> None:
    model = scripted_model(EDIT, textual("ask", question="?"), DONE)
    settings: Any = {"policy": "review", "points": ("first_source_edit",), "tools": (ask,)}
    with bench.open_run(model, **settings) as held:
        reviewed = held.start("t", "Do it.")
        assert reviewed.waiting is not None
        assert reviewed.question is None
        with pytest.raises(InputError):
            held.resume("an answer that is no review")


def test_a_question_without_snapshots_of_each_step(bench: RunHarness) -> None:
    @tool
    def look(config: RunnableConfig) -> str:
        """Ask without a change."""
        return str(interrupt(config["configurable"]["sandbox"].read_file("notes.txt").decode()))

    model = scripted_model(NOTE.format("before"), textual("look"), SHOW, DONE)
    assert start(bench, model, look, snapshot_every="point").question is not None
    done = bench.resume(model, "seen", tools=(look,), snapshot_every="point")
    assert [event.text for event in results(done.state, "look")] == ["seen"]
    assert get_shown_lines(done.state) == ["before"]


def test_a_question_after_a_change_that_cannot_be_undone_is_refused(bench: RunHarness) -> None:
    model = scripted_model(NOTE.format("before"), textual("ask", question="?"), DONE)
    with pytest.raises(SettingsError, match=r"^tools: tool 'ask' called interrupt\(\) after it had changed"):
        start(bench, model, ask, snapshot_every="never")


@pytest.mark.slow
def test_a_question_in_a_child_is_refused(bench: RunHarness) -> None:
    call = {"name": "delegate_task", "arguments": {"goal": "Ask."}}
    parent = scripted_model(f"```json\n{json.dumps(call)}\n```", DONE)
    child = scripted_model(textual("ask", question="?"), DONE)
    with pytest.raises(SettingsError, match=r"^tools: tool 'ask' called interrupt\(\) in a child agent"):
        start(bench, parent, ask, delegation=Delegation(model=child))


def test_the_event_loop_of_a_program(bench: RunHarness) -> None:
    async def ask_and_answer() -> Outcome:
        model = scripted_model(textual("ask", question="?"), SHOW, DONE)
        with bench.open_run(model, tools=(ask,)) as held:
            task: Any = {"task": {"id": "t", "prompt": "Do it."}}
            state = await held.agent.ainvoke(task, **held.options)
            assert [each.value for each in state["__interrupt__"]] == [{"question": "?"}]
            await held.agent.ainvoke(Command(resume="yes"), **held.options)
            return held.outcome()  # type: ignore[no-any-return]

    done = asyncio.run(ask_and_answer())
    assert get_shown_lines(done.state) == ["asked"]


def test_a_graph_inside_a_tool_begins_again_with_it(bench: RunHarness) -> None:
    """Its checkpoints would know of effects that the sandbox no longer has."""
    runs: list[str] = []

    def write(state: dict[str, str]) -> dict[str, str]:
        runs.append("write")
        return {"text": "written"}

    def confirm(state: dict[str, str]) -> dict[str, str]:
        return {"text": f"{state['text']}, {interrupt('Confirm?')}"}

    inner: Any = StateGraph(dict)
    inner.add_node("write", write)
    inner.add_node("confirm", confirm)
    inner.add_edge(START, "write")
    inner.add_edge("write", "confirm")
    inner.add_edge("confirm", END)
    compiled = inner.compile()

    @tool
    def nest() -> str:
        """Run a graph."""
        return str(compiled.invoke({"text": ""})["text"])

    model = scripted_model(textual("nest"), DONE)
    question = start(bench, model, nest).question
    assert question is not None
    assert question.value == "Confirm?"
    checkpoints = list(bench.home.saver.list({"configurable": {"thread_id": "thread"}}))
    assert {each.config["configurable"]["checkpoint_ns"] for each in checkpoints} == {""}
    done = bench.resume(model, "confirmed", tools=(nest,))
    assert [event.text for event in results(done.state, "nest")] == ["written, confirmed"]
    assert runs == ["write", "write"]


def test_a_kill_between_question_and_answer(bench: RunHarness, tmp_path: Path) -> None:
    """The question is a checkpoint: another process with another home object answers it."""
    model = scripted_model(NOTE.format("before"), textual("ask", question="?"), SHOW, DONE)
    with bench.open_run(model, tools=(ask,)) as held:
        held.start("t", "Do it.")
        held.session.close_sandbox()
    done = bench.resume(model, "late", tools=(ask,))
    assert get_shown_lines(done.state) == ["before", "asked"]


@pytest.mark.slow
def test_kills_around_the_answer(bench: RunHarness, tmp_path: Path) -> None:
    """SIGKILL while the run waits, and again after the answer and its effect; each effect stands once."""
    script, home = Path(__file__).parents[2] / "graph/question_crash.py", tmp_path / "killed"

    def run_process(*words: str) -> tuple[int, str]:
        command = [sys.executable, str(script), str(home), str(bench.spec.directory), *words]
        path = {"PYTHONPATH": str(script.parents[2])}
        done = subprocess.run(command, env=os.environ | path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.strip() or done.stderr

    assert run_process("start", "asked") == (-signal.SIGKILL, "")
    assert run_process("resume") == (0, "waiting")
    assert run_process("answer", "answered") == (-signal.SIGKILL, "")
    assert run_process("resume") == (0, "finished before go yes")
