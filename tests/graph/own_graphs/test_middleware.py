"""The middleware for `create_agent`: calls in order and once, handoff points, review, and successors."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command
from pydantic import BaseModel

from langgraph_takeover import open_home
from langgraph_takeover.errors import EarlierCallError, RecordError
from langgraph_takeover.graph.own_graphs.agent_trace import find_trace
from langgraph_takeover.handoff.ledger.traces import TracePart
from langgraph_takeover.integrations import (
    SandboxState,
    ThreadSandbox,
    open_sandbox,
    repair_messages,
    repair_reply,
)
from langgraph_takeover.middleware import SandboxMiddleware, read_events, receive_record
from langgraph_takeover.views import VIEWS

from ...chat_server import ChatServer
from ..conftest import RunHarness, scripted_model
from ..test_strict_endpoint import ANTHROPIC, find_refusal

CONFIG: Any = {"configurable": {"thread_id": "chat"}}
EDIT = "sed -i 's/n + 1/n * 3/' pkg/core.py"


def reply(*calls: tuple[str, dict[str, Any]], text: str = "") -> AIMessage:
    made = [{"name": name, "args": args, "id": f"{text}{name}{n}"} for n, (name, args) in enumerate(calls)]
    return AIMessage(text, tool_calls=made)


def shell(*commands: str, text: str = "") -> AIMessage:
    return reply(*(("shell", {"command": command}) for command in commands), text=text)


def view(path: str) -> tuple[str, dict[str, Any]]:
    return "editor", {"command": "view", "path": path}


def build(work: ThreadSandbox, model: Any, *tools: Any, **options: Any) -> Any:
    middleware = SandboxMiddleware(work, model_name="scripted", **options)
    return create_agent(model, tools=[*tools], middleware=[middleware], checkpointer=work.saver)


def ask(text: str = "Make `double` double.") -> dict[str, Any]:
    return {"messages": [("user", text)]}


def results(state: dict[str, Any]) -> list[str]:
    return [message.text for message in state["messages"] if isinstance(message, ToolMessage)]


def hold(bench: RunHarness, thread: str = "chat") -> Any:
    return open_sandbox(bench.home, thread, sandbox=bench.spec)


def test_the_agent_has_a_shell_and_an_editor(bench: RunHarness) -> None:
    edit = {"command": "str_replace", "path": "pkg/core.py", "old": "n + 1", "new": "n * 2"}
    model = scripted_model(
        shell("cd pkg; export A=b"), reply(("editor", edit)), shell("pwd; echo $A; cat core.py"), "Done."
    )
    with hold(bench) as work:
        end = build(work, model).invoke(ask(), CONFIG)
    assert [*map(str.splitlines, results(end))][2][2:] == ["b", "def double(n):", "    return n * 2"]
    assert end["messages"][-1].text == "Done."
    assert [event.kind for event in read_events(bench.home, end, thread="chat")] == [
        "action",
        "observation",
    ] * 3


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_of_one_reply_are_made_in_order(bench: RunHarness, is_async: bool) -> None:
    commands = [f"sleep 0.{4 - n}; echo {n} >> log; cat log" for n in range(5)]
    mixed = reply(*(("shell", {"command": each}) for each in commands), view("log"), text="t")
    with hold(bench) as work:
        agent = build(work, scripted_model(mixed, shell("cat log"), "Done."))
        end = asyncio.run(agent.ainvoke(ask(), CONFIG)) if is_async else agent.invoke(ask(), CONFIG)
    assert results(end)[4].split("\n")[1:6] == ["0", "1", "2", "3", "4"]
    assert "lines 1 to 5 of 5" in results(end)[5]
    assert [event.index for event in read_events(bench.home, end, thread="chat")] == list(range(14))


def reply_with_ids(*ids: str) -> AIMessage:
    """A reply whose calls each write their number to a log, and show it."""
    calls = [
        reply(("shell", {"command": f"echo {n} >> log; cat log"})).tool_calls[0] for n in range(len(ids))
    ]
    return AIMessage("t", tool_calls=[{**each, "id": name} for each, name in zip(calls, ids, strict=True)])


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_with_one_id_get_their_own(bench: RunHarness, is_async: bool) -> None:
    with hold(bench) as work:
        model = scripted_model(reply_with_ids(*"abbc"), reply_with_ids(*"ab"), "Done.")
        agent = build(work, model)
        end = asyncio.run(agent.ainvoke(ask(), CONFIG)) if is_async else agent.invoke(ask(), CONFIG)
    assert [each.split("\n")[1:-1][-1] for each in results(end)] == ["0", "1", "2", "3", "0", "1"]
    ids = [call["id"] for each in end["messages"] if isinstance(each, AIMessage) for call in each.tool_calls]
    assert len(ids) == len({*ids}) == 6
    assert [each.tool_call_id for each in end["messages"] if isinstance(each, ToolMessage)] == ids


@pytest.mark.parametrize("is_async", [False, True])
def test_reasoning_goes_back_to_its_server(
    bench: RunHarness, chat_server: ChatServer, is_async: bool
) -> None:
    function = {"name": "shell", "arguments": {"command": "ls"}}
    call = {"id": "a", "type": "function", "function": function, "extra_content": {"google": {"s": 1}}}

    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        replies = [each for each in request["messages"] if each["role"] == "assistant"]
        if len(replies) > 1 and any("reasoning_content" in each for each in replies):
            return 400, b'{"error": {"message": "property reasoning_content is unsupported"}}'
        calls = [call] if len(replies) < 2 else []
        return chat_server.reply("" if calls else "Done.", None, thought="I ponder.", tool_calls=calls)

    chat_server.answer = answer
    model = ChatOpenAI(model="m", base_url=chat_server.url, api_key="none", max_retries=0)  # type: ignore[arg-type]
    stored = [HumanMessage("One."), HumanMessage("Two.")]
    with hold(bench) as work:
        agent = build(work, model)
        state: Any = {"messages": stored}
        end = asyncio.run(agent.ainvoke(state, CONFIG)) if is_async else agent.invoke(state, CONFIG)
    assert end["messages"][-1].text == "Done."
    assert end["messages"][-1].additional_kwargs["reasoning_content"] == "I ponder."
    second, *_, refused, last = [request["messages"] for request in chat_server.requests[1:]]
    assert second[0] == {"role": "user", "content": "One.\n\nTwo."}
    assert second[1]["tool_calls"][0]["extra_content"] == {"google": {"s": 1}}
    assert second[1]["reasoning_content"] == "I ponder."
    assert any("reasoning_content" in each for each in refused)
    assert not any("reasoning_content" in each for each in last)


@pytest.mark.parametrize("system_prompt", [None, "You work."])
def test_messages_that_strict_servers_refuse(
    bench: RunHarness, chat_server: ChatServer, system_prompt: str | None
) -> None:
    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        refusal = find_refusal(request["messages"], ANTHROPIC)
        if refusal or any(" " in each.get("name", "") for each in request["messages"]):
            return 400, json.dumps({"error": {"message": refusal or "invalid name"}}).encode()
        return chat_server.reply("Done.")

    chat_server.answer = answer
    model = ChatOpenAI(model="m", base_url=chat_server.url, api_key="none", max_retries=0)  # type: ignore[arg-type]
    stored = [SystemMessage("Be brief."), HumanMessage("Work."), SystemMessage("Be polite.")]
    with hold(bench) as work:
        agent = create_agent(
            model,
            name="Code Reviewer",
            system_prompt=system_prompt,
            middleware=[SandboxMiddleware(work)],
            checkpointer=work.saver,
        )
        state: Any = {"messages": stored}
        for _ in range(2):
            end = agent.invoke(state, CONFIG)
            state = ask("More.")
    assert [each.name for each in end["messages"] if isinstance(each, AIMessage)] == ["Code Reviewer"] * 2


class _NodeState(MessagesState, SandboxState):
    pass


def test_calls_with_one_id_in_a_graph_of_ones_own(bench: RunHarness) -> None:
    model = scripted_model(reply_with_ids("a", "a"), reply_with_ids("a"), "Done.")

    def think(state: _NodeState) -> dict[str, Any]:
        messages = state["messages"]
        answer: Any = model.invoke(repair_messages(messages, model))
        return {"messages": repair_reply(answer, messages, model=model)}

    with hold(bench) as work:
        middleware = SandboxMiddleware(work)
        wrappers = {"wrap_tool_call": middleware.wrap_tool_call}
        builder = StateGraph(_NodeState)
        builder.add_node("think", think)
        builder.add_node("tools", ToolNode(middleware.tools, **wrappers))
        builder.add_edge(START, "think").add_edge("tools", "think")
        builder.add_conditional_edges("think", tools_condition)
        end = builder.compile(checkpointer=work.saver).invoke(ask(), CONFIG)
    assert [each.split("\n")[1:-1] for each in results(end)] == [["0"], ["0", "1"], ["0", "1", "0"]]
    assert len({each.tool_call_id for each in end["messages"] if isinstance(each, ToolMessage)}) == 3


class _Answer(BaseModel):
    number: int


def test_a_structured_response_keeps_its_result(bench: RunHarness) -> None:
    answer = AIMessage("", tool_calls=[{"name": "_Answer", "args": {"number": 3}, "id": "a"}])
    with hold(bench) as work:
        agent = create_agent(
            scripted_model(reply_with_ids("a"), answer),
            middleware=[SandboxMiddleware(work)],
            checkpointer=work.saver,
            response_format=ToolStrategy(_Answer),
        )
        end = agent.invoke(ask(), CONFIG)
    ids = [call["id"] for each in end["messages"] if isinstance(each, AIMessage) for call in each.tool_calls]
    assert end["structured_response"].number == 3
    assert len({*ids}) == 2
    assert [each.tool_call_id for each in end["messages"] if isinstance(each, ToolMessage)] == ids


def test_a_thread_with_equal_ids_continues(bench: RunHarness, caplog: pytest.LogCaptureFixture) -> None:
    model = scripted_model("unused", "Done.", "Again.")
    stored = [HumanMessage("Work."), reply_with_ids("a", "a")]
    stored += [ToolMessage(str(n), tool_call_id="a") for n in range(2)]
    with hold(bench) as work:
        agent = build(work, model)
        end = agent.invoke({"messages": stored}, CONFIG)
        agent.invoke({"messages": [HumanMessage("More.")]}, CONFIG)
    sent = model.seen[0]
    assert [each.tool_call_id for each in sent if isinstance(each, ToolMessage)] == [
        call["id"] for each in sent if isinstance(each, AIMessage) for call in each.tool_calls
    ]
    assert len({each.tool_call_id for each in sent if isinstance(each, ToolMessage)}) == 2
    assert [each.tool_call_id for each in end["messages"] if isinstance(each, ToolMessage)] == ["a", "a"]
    assert len([each for each in caplog.records if "repaired" in each.message]) == 1


def test_calls_whose_ids_a_wrapper_made_equal_are_refused(bench: RunHarness) -> None:
    class Equal(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            response = handler(request)
            for each in response.result:
                for call in each.tool_calls[1:3]:
                    call["id"] = "b"
            return response

    with hold(bench) as work:
        model = scripted_model(reply_with_ids(*"abxc"), "Done.")
        agent = create_agent(model, middleware=[Equal(), SandboxMiddleware(work)], checkpointer=work.saver)
        answers = results(agent.invoke(ask(), CONFIG))
    assert [each.startswith("Not run: several calls") for each in answers] == [False, True, True, False]
    assert answers[3].split("\n")[1:3] == ["0", "3"]


@pytest.mark.parametrize("count", [1, 2])
def test_waiting_calls_do_not_block_earlier_calls(bench: RunHarness, tmp_path: Path, count: int) -> None:
    class Late(AgentMiddleware[Any, Any, Any]):
        """Starts the calls of a reply in reverse."""

        async def awrap_tool_call(self, request: ToolCallRequest, handler: Any) -> Any:
            await asyncio.sleep(1 - 0.2 * int(request.tool_call["args"]["command"].split()[1]))
            return await handler(request)

    async def run() -> Any:
        async with (
            open_home(tmp_path, workers=count) as home,
            open_sandbox(home, "chat", sandbox=bench.spec) as work,
        ):
            model = scripted_model(shell(*(f"echo {n} >> log; cat log" for n in range(4))), "Done.")
            agent = create_agent(model, middleware=[Late(), SandboxMiddleware(work)], checkpointer=work.saver)
            return await agent.ainvoke(ask(), CONFIG)

    end = asyncio.run(asyncio.wait_for(run(), 60))
    assert results(end)[3].split("\n")[1:5] == ["0", "1", "2", "3"]


class _KilledError(BaseException):
    pass


def test_a_killed_step_is_repeated(bench: RunHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    from langgraph_takeover.graph.own_graphs import agent_middleware as module

    model = scripted_model(shell("echo 0 >> log", "echo 1 >> log", "echo 2 >> log; cat log"), "Done.")
    execute = module.execute_command

    def kill_second(sandbox: Any, command: str, **options: Any) -> Any:
        result = execute(sandbox, command, **options)
        if "1" in command:
            raise _KilledError
        return result

    with hold(bench) as work:
        monkeypatch.setattr(module, "execute_command", kill_second)
        with pytest.raises((_KilledError, EarlierCallError)):
            build(work, model).invoke(ask(), CONFIG)
    monkeypatch.setattr(module, "execute_command", execute)
    with hold(bench) as work:
        end = build(work, model).invoke(None, CONFIG)
    assert results(end)[2].split("\n")[1:4] == ["0", "1", "2"]


def test_wrong_calls_are_explained(bench: RunHarness) -> None:
    wrong = [("shell", {}), ("editor", {"command": "burn", "path": "x"}), ("shell", {"command": {"a": 1}})]
    with hold(bench) as work:
        end = build(work, scripted_model(reply(*wrong), "Done.")).invoke(ask(), CONFIG)
    assert [message.status for message in end["messages"] if isinstance(message, ToolMessage)] == [
        "error"
    ] * 3
    assert "command" in results(end)[0]


def test_other_tools_are_left_alone(bench: RunHarness) -> None:
    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    both = reply(("add", {"a": 1, "b": 2}), ("shell", {"command": "echo 4"}))
    with hold(bench) as work:
        end = build(work, scripted_model(both, "Done."), add).invoke(ask(), CONFIG)
    assert results(end) == ["3", "[exit code 0]\n4\n"]


def test_points_make_records(bench: RunHarness) -> None:
    model = scripted_model(shell("cat pkg/core.py"), shell(EDIT), shell("python3 -m unittest -q"), "Done.")
    with hold(bench) as work:
        end = build(work, model).invoke(ask(), CONFIG)
    records = [bench.home.records.load(name) for name in end["records"]]
    assert [record.point.kind for record in records] == ["first_source_edit", "first_validation"]
    assert "+    return n * 3" in records[0].patch
    assert records[0].task.prompt == "Make `double` double."
    assert [event.tool for event in records[0].trace] == ["shell"] * 4


def test_names_and_output_that_are_not_utf_8(bench: RunHarness) -> None:
    command = "printf 'x\\377' | tee $(printf 'pkg/a\\377b.py')"
    with hold(bench) as work:
        end = build(work, scripted_model(shell(command), "Done.")).invoke(ask(), CONFIG)
        assert end["messages"][-1].text == "Done."
        assert len(read_events(bench.home, end, thread="chat")[1].changes) == 1
    assert len(bench.home.history("chat")) > 2


def test_a_record_names_its_checkpoint(bench: RunHarness) -> None:
    with hold(bench) as work:
        end = build(work, scripted_model(shell(EDIT), "Done.")).invoke(ask(), CONFIG)
    record = bench.home.records.load(end["records"][0])
    assert record.checkpoint_id in {each.checkpoint for each in bench.home.history("chat")}


def test_the_policy_stop_ends_the_agent(bench: RunHarness) -> None:
    model = scripted_model(shell(EDIT), "Never asked.")
    with hold(bench) as work:
        end = build(work, model, policy="stop").invoke(ask(), CONFIG)
    assert (len(end["records"]), len(model.seen)) == (1, 1)


def test_agents_that_begin_with_the_same_events_do_not_share_what_follows(bench: RunHarness) -> None:
    with hold(bench) as work:
        trace = find_trace(work)
        first = trace.append(None, TracePart([{"text": "first"}], []))
        begun = trace.load(first).events
        ends = [trace.append(first, TracePart([{"text": name}], [])) for name in ("left", "right")]
        assert begun == [{"text": "first"}]
        assert [[each["text"] for each in trace.load(end).events] for end in ends] == [
            ["first", "left"],
            ["first", "right"],
        ]


class _CountingMiddleware(SandboxMiddleware):
    """A user's own, with a hook of its own."""

    calls = 0

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        self.calls += 1
        return super().wrap_model_call(request, handler)


@pytest.mark.parametrize(("policy", "calls"), [("record", 2), ("stop", 1)])
def test_a_class_that_inherits(bench: RunHarness, policy: Any, calls: int) -> None:
    with hold(bench) as work:
        own = _CountingMiddleware(work, policy=policy)
        agent: Any = create_agent(
            scripted_model(shell(EDIT), "Done."), middleware=[own], checkpointer=work.saver
        )
        end = agent.invoke(ask(), CONFIG)
    assert (own.calls, own.name, len(end["records"])) == (calls, "_CountingMiddleware", 1)


@pytest.mark.parametrize("decision", ["approve", "refuse"])
def test_a_person_reviews(bench: RunHarness, decision: str) -> None:
    model = scripted_model(shell(EDIT), "Done.")
    with hold(bench) as work:
        question = build(work, model, policy="review").invoke(ask(), CONFIG)["__interrupt__"][0].value
    assert question["point"] == "first_source_edit"
    with hold(bench) as work:
        end = build(work, model, policy="review").invoke(Command(resume={"decision": decision}), CONFIG)
    assert (end["messages"][-1].text == "Done.") is (decision == "refuse")
    record = bench.home.records.load(end["records"][0])
    assert record.review is not None
    assert record.review.decision == decision


def test_a_fork_is_reviewed_by_itself(bench: RunHarness) -> None:
    with hold(bench) as work:
        agent = build(work, scripted_model(shell(EDIT), "Done."), policy="review")
        agent.invoke(ask(), CONFIG)
        asked = agent.get_state(CONFIG).config
        first = agent.invoke(Command(resume={"decision": "approve"}), CONFIG)
        agent.invoke(None, agent.update_state(asked, {}, as_node="tools"))
        second = agent.invoke(Command(resume={"decision": "refuse"}), CONFIG)
    assert second["messages"][-1].text == "Done."
    reviews = [bench.home.records.load(each["records"][0]).review for each in (first, second)]
    assert [each.decision for each in reviews if each] == ["approve", "refuse"]


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", VIEWS)
def test_a_successor_takes_over(bench: RunHarness, name: Any) -> None:
    with hold(bench) as work:
        end = build(work, scripted_model(shell(EDIT), "Never."), policy="stop").invoke(ask(), CONFIG)
    with hold(bench, "next") as work:
        given = receive_record(work, end["records"][0], name)
        seen = sum(isinstance(message, AIMessage) for message in given["messages"])
        model = scripted_model(*["Never."] * seen, shell("cat pkg/core.py", text="x"), "Done.")
        end = build(work, model).invoke(given, {"configurable": {"thread_id": "next"}})
        assert "return n * 3" in results(end)[-1]
        with pytest.raises(RecordError):
            receive_record(work, "no record")
