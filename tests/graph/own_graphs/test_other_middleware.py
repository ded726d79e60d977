"""LangChain's middleware beside ours, before and after it: files, events and messages state what ran."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    LLMToolEmulator,
    LLMToolSelectorMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    ShellToolMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolErrorMiddleware,
    ToolRetryMiddleware,
    hook_config,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from langgraph_takeover.errors import SettingsError
from langgraph_takeover.integrations import Sandboxes
from langgraph_takeover.middleware import SandboxMiddleware, read_events

from ...chat_server import ChatServer
from ..conftest import RunHarness, Scripted
from ..test_strict_endpoint import ANTHROPIC, find_refusal
from .test_agent_handoffs import build_sequence_model
from .test_middleware import reply, results, shell
from .test_tool_wrappers import (
    APPROVE,
    BOTH,
    CONFIG,
    EDIT,
    EDITOR,
    OK,
    ONE,
    REJECT,
    RESPOND,
    SLOW_ASYNC,
    TWO,
    Case,
    Flaky,
    Guard,
    answer_itself_after_running,
    commands,
    decide,
    list_places,
    play,
    play_case,
    read_log,
    review,
)

PLACES = pytest.mark.parametrize("place", ["before", pytest.param("after", marks=pytest.mark.slow)])
THREE = "echo three >> log"
CASES = {
    "approve": Case(lambda: [review()], BOTH, [OK, OK], (decide(APPROVE, APPROVE),)),
    "edit": Case(lambda: [review()], ["edited", "two"], ["Executed instead", OK], (decide(EDIT, APPROVE),)),
    "edit to another tool": Case(
        lambda: [review()], ["edited", "two"], ["Executed instead", OK], (decide(EDITOR, APPROVE),),
        commands=["create", TWO],
    ),
    "reject the first": Case(lambda: [review()], ["two"], ["No.", OK], (decide(REJECT, APPROVE),)),
    "reject the second": Case(lambda: [review()], ["one"], [OK, "No."], (decide(APPROVE, REJECT),)),
    "respond": Case(lambda: [review()], ["two"], ["A person did it.", OK], (decide(RESPOND, APPROVE),)),
    "reject all": Case(lambda: [review()], [], ["No.", "No."], (decide(REJECT, REJECT),)),
    "review each call": Case(
        lambda: [review(interrupt_mode="per_call")], ["two"], ["No.", OK], ([REJECT, APPROVE],)
    ),
    "edit each call": Case(
        lambda: [review(interrupt_mode="per_call")], ["edited", "two"], ["Executed", OK], ([EDIT, APPROVE],)
    ),
    "call limit": Case(lambda: [ToolCallLimitMiddleware(run_limit=1)], ["one"], [OK, "limit"]),
    "retry": Case(
        lambda: [ToolRetryMiddleware(initial_delay=0.3, jitter=False), Guard(Flaky(2))], BOTH, [OK, OK]
    ),
    "retry and give up": Case(
        lambda: [ToolRetryMiddleware(max_retries=1, initial_delay=0, jitter=False), Guard(Flaky(9))],
        ["two"], ["failed after 2 attempts", OK],
    ),
    "errors as answers": Case(
        lambda: [ToolErrorMiddleware(lambda *_: "Sorry."), Guard(Flaky(1))], ["two"], ["Sorry.", OK]
    ),
    "emulator": Case(
        lambda: [LLMToolEmulator(model=build_sequence_model("Emulated.", "Emulated."))],
        [], ["Emulated.", "Emulated."],
    ),
    "selector": Case(
        lambda: [LLMToolSelectorMiddleware(model=build_sequence_model(*[SELECTION] * 4))], BOTH, [OK, OK]
    ),
    "redaction": Case(
        lambda: [PIIMiddleware("email", apply_to_tool_results=True)],
        ["a@b.example", "two"], ["[REDACTED_EMAIL]", OK],
        calls=("echo a@b.example | tee -a log", TWO), commands=["echo a@b.example | tee -a log", TWO],
    ),
    "context editing": Case(
        lambda: [ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=0)])], BOTH, [OK, OK]
    ),
    "model middleware": Case(
        lambda: [ModelCallLimitMiddleware(run_limit=9), ModelRetryMiddleware(), TodoListMiddleware()],
        BOTH, [OK, OK],
    ),
}  # fmt: skip
SELECTION = AIMessage(
    "", tool_calls=[{"name": "ToolSelectionResponse", "args": {"tools": ["shell", "editor"]}, "id": "s"}]
)


@pytest.fixture
def sandboxes(bench: RunHarness) -> Iterator[Sandboxes]:
    with Sandboxes(bench.home, bench.spec, wait_s=20) as opened:
        yield opened


def build(sandboxes: Sandboxes, place: str, model: Any, *others: Any, tools: Any = (), **options: Any) -> Any:
    """Return an agent with other middleware before or after ours."""
    sandboxed = [SandboxMiddleware(sandboxes, model_name="scripted")]
    middleware = [*others, *sandboxed] if place == "before" else [*sandboxed, *others]
    return create_agent(
        model, [*tools], middleware=middleware, **{"checkpointer": InMemorySaver(), **options}
    )


def read_words(sandboxes: Sandboxes, end: dict[str, Any]) -> list[str]:
    with sandboxes.open("guarded") as work:
        return read_log(work, end)


@pytest.mark.sampled(20)
@pytest.mark.cases(9)
@pytest.mark.parametrize("is_async", [False, SLOW_ASYNC])
@pytest.mark.parametrize(("name", "place"), list_places(CASES))
def test_files_events_and_answers_agree(sandboxes: Sandboxes, name: str, place: str, is_async: bool) -> None:
    end = play_case(sandboxes._home, sandboxes, InMemorySaver(), CASES[name], place, is_async)
    assert read_words(sandboxes, end) == CASES[name].ran


def serve(server: ChatServer, *replies: AIMessage | str) -> ChatOpenAI:
    """Return a model on an endpoint that refuses invalid conversations, and otherwise sends the replies in order."""
    left = [each if isinstance(each, AIMessage) else AIMessage(each) for each in replies]

    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        if refusal := find_refusal(request["messages"], ANTHROPIC):
            return 400, json.dumps({"error": {"message": refusal}}).encode()
        message = left.pop(0)
        calls = [
            {"id": each["id"], "type": "function", "function": {"name": each["name"], "arguments": json.dumps(each["args"])}}
            for each in message.tool_calls
        ]  # fmt: skip
        return server.reply(message.text, tool_calls=calls)

    server.answer = answer
    return ChatOpenAI(model="m", base_url=server.url, api_key="none", max_retries=0)  # type: ignore[arg-type]


@PLACES
@pytest.mark.parametrize("keep", [("messages", 1), pytest.param(("tokens", 1), marks=pytest.mark.slow)])
def test_a_summary_removes_messages_and_no_event(
    sandboxes: Sandboxes, chat_server: ChatServer, place: str, keep: Any
) -> None:
    """Several times in one run, also right after calls whose results a guard hides."""
    edit = "sed -i 's/n + 1/n * 3/' pkg/core.py"
    model = serve(chat_server, shell(ONE, TWO, text="1"), shell(THREE, edit, text="2"), "Done.", "More.")
    summaries = build_sequence_model(*"ABCDEF")
    summary = SummarizationMiddleware(summaries, trigger=("messages", 3), keep=keep)
    agent = build(sandboxes, place, model, summary, Guard(answer_itself_after_running, "three"))
    end = play(agent)
    assert read_words(sandboxes, end) == ["one", "two", "three"]
    assert commands(sandboxes._home, end) == [ONE, TWO, THREE, edit]
    assert end["messages"][0].text.endswith("B")
    assert [each.partition(".")[2].rpartition(".")[0] for each in end["records"]] == ["first_source_edit"]
    again = play(agent)  # a further turn, after messages that begin with a summary
    assert again["messages"][-1].text == "More."
    assert again["sandbox_state"] == end["sandbox_state"]


class JumpToTools(AgentMiddleware[Any, Any, Any]):
    """Sends every reply with calls to the tools, whatever others decided."""

    @hook_config(can_jump_to=["tools"])
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        last = next(each for each in reversed(state["messages"]) if isinstance(each, AIMessage))
        return {"jump_to": "tools"} if last.tool_calls else None


@PLACES
@pytest.mark.parametrize("limit", [False, True], ids=["rejected", "limited"])
def test_an_answered_call_does_not_run(
    sandboxes: Sandboxes, chat_server: ChatServer, place: str, limit: bool
) -> None:
    """LangChain runs a call that a person rejected if another middleware jumps to the tools."""
    model = serve(chat_server, shell(ONE, TWO), "Done.")
    other = ToolCallLimitMiddleware(run_limit=1) if limit else review()
    agent = build(sandboxes, place, model, JumpToTools(), other)
    end = play(agent, () if limit else (decide(APPROVE, REJECT),))
    assert read_words(sandboxes, end) == ["one"]
    assert commands(sandboxes._home, end) == [ONE]
    assert len(results(end)) == 2
    assert any(("limit" if limit else "No.") in each for each in results(end))


@PLACES
def test_a_limit_that_ends_the_run_leaves_valid_messages(
    sandboxes: Sandboxes, chat_server: ChatServer, place: str
) -> None:
    model = serve(
        chat_server, shell(ONE, text="1"), shell(TWO, THREE, text="2"), shell(TWO, text="3"), "Done."
    )
    limit = ToolCallLimitMiddleware(run_limit=2, exit_behavior="end")
    agent = build(sandboxes, place, model, limit)
    first = play(agent)
    assert read_words(sandboxes, first) == ["one"]
    assert commands(sandboxes._home, first) == [ONE]
    end = play(agent)
    assert end["messages"][-1].text == "Done."
    assert read_words(sandboxes, end) == BOTH


@PLACES
@pytest.mark.parametrize("kind", ["retry", "fallback"])
def test_a_model_that_fails_runs_no_call_twice(sandboxes: Sandboxes, place: str, kind: str) -> None:
    failure = ConnectionError("planted")
    if kind == "retry":
        model = build_sequence_model(failure, shell(ONE, TWO), failure, "Done.")
        other: Any = ModelRetryMiddleware(initial_delay=0, jitter=False)
    else:
        model = build_sequence_model(failure, failure)
        other = ModelFallbackMiddleware(build_sequence_model(shell(ONE, TWO), "Done."))
    end = play(build(sandboxes, place, model, other))
    assert end["messages"][-1].text == "Done."
    assert read_words(sandboxes, end) == BOTH
    assert commands(sandboxes._home, end) == [ONE, TWO]


@PLACES
def test_personal_data_is_removed_from_messages_only(
    bench: RunHarness, sandboxes: Sandboxes, place: str
) -> None:
    """The call runs as the model sent it, although its reply is replaced; events and records keep what ran."""
    command = "echo a@b.example >> log; cat log; sed -i 's/n + 1/n * 3/' pkg/core.py"
    model = build_sequence_model(reply(("shell", {"command": command}), text="For c@d.example."), "Done.")
    redaction = PIIMiddleware("email", apply_to_output=True, apply_to_tool_results=True)
    agent = build(sandboxes, place, model, redaction)
    end = agent.invoke({"messages": [("user", "From e@f.example.")]}, CONFIG)
    shown = [each.text for each in end["messages"]]
    assert not any("@" in each for each in shown)
    assert sum("[REDACTED_EMAIL]" in each for each in shown) == 3
    assert read_words(sandboxes, end) == ["a@b.example"]
    assert commands(sandboxes._home, end) == [command]
    record = bench.home.records.load(end["records"][0])
    assert record.task.prompt == "From e@f.example."
    assert "a@b.example" in record.trace[1].text


@PLACES
def test_results_are_cleared_for_the_model_only(sandboxes: Sandboxes, place: str) -> None:
    model = build_sequence_model(shell(f"{ONE}; cat log", text="1"), shell(TWO, text="2"), "Done.")
    editing = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=0)])
    end = play(build(sandboxes, place, model, editing))
    assert {each.text for each in model.seen[-1] if isinstance(each, ToolMessage)} == {"[cleared]"}
    assert "one" in results(end)[0]
    assert "one" in read_events(sandboxes._home, end, thread="guarded")[1].text
    assert read_words(sandboxes, end) == BOTH


@PLACES
def test_a_list_of_tasks_beside_a_command(sandboxes: Sandboxes, place: str) -> None:
    todos = [{"content": "Count.", "status": "in_progress"}]
    both = reply(("shell", {"command": ONE}), ("write_todos", {"todos": todos}), ("shell", {"command": TWO}))
    end = play(build(sandboxes, place, build_sequence_model(both, "Done."), TodoListMiddleware()))
    assert end["todos"] == todos
    assert read_words(sandboxes, end) == BOTH
    assert commands(sandboxes._home, end) == [ONE, TWO]


@PLACES
def test_a_selection_of_tools(sandboxes: Sandboxes, place: str) -> None:
    """The model sees the selected tools of ours; a call of another one runs."""
    chosen = AIMessage("", tool_calls=[{**SELECTION.tool_calls[0], "args": {"tools": ["shell"]}}])
    create = {"command": "create", "path": "log", "content": "new\n"}
    model = build_sequence_model(shell(ONE), reply(("editor", create), text="e"), "Done.")
    selector = LLMToolSelectorMiddleware(model=build_sequence_model(*[chosen] * 3))
    end = play(build(sandboxes, place, model, selector))
    assert [each.name for each in model.tools] == ["shell"]
    assert commands(sandboxes._home, end) == [ONE, "create"]
    assert read_words(sandboxes, end) == (["one"] if "exists" in results(end)[1] else ["new"])


@PLACES
@pytest.mark.parametrize("is_async", [False, SLOW_ASYNC])
def test_another_shell_beside_ours(sandboxes: Sandboxes, tmp_path: Path, place: str, is_async: bool) -> None:
    model = build_sequence_model(shell(ONE), reply(("host_shell", {"command": TWO}), text="h"), "Done.")
    outside = ShellToolMiddleware(tmp_path / "outside", tool_name="host_shell")
    end = play(build(sandboxes, place, model, outside), is_async=is_async)
    assert read_words(sandboxes, end) == ["one"]
    assert (tmp_path / "outside" / "log").read_text().split() == ["two"]
    assert commands(sandboxes._home, end) == [ONE]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("other", ["middleware", "tool"])
def test_a_tool_with_a_name_of_ours(sandboxes: Sandboxes, tmp_path: Path, other: str, is_async: bool) -> None:
    """LangChain keeps the last tool of a name. A command that runs outside of the sandbox must not look like ours."""

    @tool("shell")
    def outside(command: str) -> str:
        """Run a command."""
        raise AssertionError

    shells = [ShellToolMiddleware(tmp_path / "outside")] if other == "middleware" else []
    agent = build(
        sandboxes, "after", build_sequence_model(shell(ONE)), *shells, tools=[] if shells else [outside]
    )
    with pytest.raises(SettingsError, match=r"'shell'.*rename it"):
        play(agent, is_async=is_async)
    assert not (tmp_path / "outside" / "log").exists()
    if shells:
        agent = build(sandboxes, "before", build_sequence_model(shell(ONE), "Done."), *shells)
        assert read_words(sandboxes, play(agent, is_async=is_async)) == ["one"]
        assert not (tmp_path / "outside" / "log").exists()


class _Answer(BaseModel):
    number: int


@pytest.mark.parametrize("is_beside", [False, True])
def test_a_structured_response_after_or_beside_a_command(
    sandboxes: Sandboxes, chat_server: ChatServer, is_beside: bool
) -> None:
    answer, command = ("_Answer", {"number": 3}), ("shell", {"command": ONE})
    replies = [reply(command, answer)] if is_beside else [reply(command), reply(answer, text="a")]
    model = serve(chat_server, *replies, reply(answer, text="b"))
    agent = build(sandboxes, "before", model, response_format=ToolStrategy(_Answer))
    end = play(agent)
    assert end["structured_response"].number == 3
    assert read_words(sandboxes, end) == ["one"]
    assert commands(sandboxes._home, end) == [ONE]
    assert play(agent)["structured_response"].number == 3  # the endpoint accepts the messages


class _StreamingModel(Scripted):
    """Sends its replies in order, word by word."""

    def _stream(self, messages: Any, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        message = self.replies[len(self.seen)]
        self.seen.append([*messages])
        calls = [
            {"name": each["name"], "args": json.dumps(each["args"]), "id": each["id"], "index": n}
            for n, each in enumerate(message.tool_calls)
        ]
        for word in message.text.split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(f"{word} "))
        yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=calls))


@pytest.mark.parametrize("is_async", [False, True])
def test_tokens_are_streamed_once(sandboxes: Sandboxes, is_async: bool) -> None:
    twins = shell(ONE, TWO, text="I count now.")
    for each in twins.tool_calls:
        each["id"] = "a"  # ours gives them ids of their own
    model = _StreamingModel(replies=[twins, AIMessage("I am done.")], seen=[], tools=[])
    agent = build(sandboxes, "before", model)
    given = {"messages": [("user", "Go.")]}

    async def collect() -> list[Any]:
        return [each async for each in agent.astream(given, CONFIG, stream_mode="messages")]

    streamed = asyncio.run(collect()) if is_async else [*agent.stream(given, CONFIG, stream_mode="messages")]
    texts = [message.text for message, _ in streamed if isinstance(message, AIMessageChunk)]
    assert "".join(texts) == "I count now. I am done. "
    assert not any(type(message) is AIMessage for message, _ in streamed)
    assert sum(isinstance(message, ToolMessage) for message, _ in streamed) == 2
    end = agent.get_state(CONFIG).values
    assert read_words(sandboxes, end) == BOTH
    assert len({each.tool_call_id for each in end["messages"] if isinstance(each, ToolMessage)}) == 2
