"""Several tool calls of one reply run in order, each as an event of its own, over a real OpenAI client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.types import interrupt

from langgraph_takeover import Agent, RunStatus, take_over
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.handoff.views.team_views import TurnPass, build_timeline
from langgraph_takeover.nodes.state_events import BUDGET_SPENT, MAX_CALLS, NOT_RUN

from ..chat_server import ChatServer
from .conftest import RunHarness, parse_events

APPEND, SHOW = "echo {} >>notes.txt", "cat notes.txt"


@pytest.fixture
def server() -> Iterator[ChatServer]:
    server = ChatServer()
    yield server
    server.close()


def call(name: str, arguments: Any, number: int = 0) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": text}}


def shell(command: str) -> tuple[str, Any]:
    return "shell", {"command": command}


FINISH = ("finish", {"message": "Done."})


def build_model(server: ChatServer, *replies: list[tuple[str, Any]]) -> ChatOpenAI:
    """Return a client of an endpoint that refuses, as OpenAI's does, a request with an unanswered call."""

    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        number = require_answers(request["messages"])
        calls = [
            call(name, arguments, 100 * number + n) for n, (name, arguments) in enumerate(replies[number])
        ]
        return server.reply("", "tool_calls", tool_calls=calls)

    server.answer = answer
    return ChatOpenAI(model="m", base_url=server.url, api_key="none", max_retries=0)  # type: ignore[arg-type]


def require_answers(messages: list[dict[str, Any]]) -> int:
    """Check that each call has exactly one answer, right after its reply; return the number of replies."""
    replies = [index for index, each in enumerate(messages) if each["role"] == "assistant"]
    for index in replies:
        calls = [each["id"] for each in messages[index].get("tool_calls") or ()]
        answers = messages[index + 1 : index + 1 + len(calls)]
        assert [each.get("tool_call_id") for each in answers] == calls
    return len(replies)


def run_calls(bench: RunHarness, server: ChatServer, *replies: list[tuple[str, Any]], **settings: Any) -> Any:
    return bench.run(build_model(server, *replies), protocol="native", **settings)


def events(state: Any, kind: str = "action") -> list[Event]:
    return [event for event in parse_events(state) if event.kind == kind]


def last_answers(server: ChatServer, count: int) -> list[str]:
    return [each["content"] for each in server.requests[-1]["messages"][-count:]]


def test_the_calls_run_in_order(bench: RunHarness, server: ChatServer) -> None:
    view = {"command": "view", "path": "notes.txt"}
    calls = [
        shell(APPEND.format("one")),
        shell("export TWO=two; echo $TWO >>notes.txt"),
        ("editor", view),
        shell(SHOW),
    ]
    state = run_calls(bench, server, calls, [FINISH])
    assert [event.tool for event in events(state)] == ["shell", "shell", "editor", "shell", "finish"]
    assert [event.is_parallel for event in events(state)] == [False, True, True, True, False]
    assert [event.index for event in parse_events(state)] == list(range(9))
    shown = last_answers(server, 4)
    assert shown[2].startswith("notes.txt, lines 1 to 2 of 2:")
    assert shown[3] == "[exit code 0]\none\ntwo\n"
    assert state["steps"] == 2
    assert len(server.requests) == 2
    assert state["spent"]["prompt_tokens"] == 200
    assert "parallel_tool_calls" not in server.requests[0]


def test_effects_happen_once_when_a_call_in_the_middle_fails(bench: RunHarness, server: ChatServer) -> None:
    failures, keys = [OSError("hung up")], []

    @tool
    def pay(config: RunnableConfig) -> str:
        """Pay."""
        keys.append(config["configurable"]["idempotency_key"])
        config["configurable"]["sandbox"].run(APPEND.format("paid"), timeout_s=10)
        if failures:
            raise failures.pop()
        return "paid"

    calls = [shell(APPEND.format("one")), ("pay", {}), ("pay", {}), shell(APPEND.format("two")), shell(SHOW)]
    model = build_model(server, calls, [FINISH])
    with pytest.raises(OSError, match="hung up"):
        bench.run(model, protocol="native", tools=(pay,))
    bench.resume(model, protocol="native", tools=(pay,))
    assert last_answers(server, 1) == ["[exit code 0]\none\npaid\npaid\ntwo\n"]
    assert keys[0] == keys[1] != keys[2]
    assert len(server.requests) == 2


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("bad", "answer"),
    [
        (("subtract", {"a": 1}), "You have no tool 'subtract'"),
        (("shell", {"command": "  "}), "Your command is empty"),
        (("editor", {"command": "view", "path": "missing.txt"}), "Not done: "),
        (shell("sleep 30"), "[stopped after 1 s"),
        (shell("exit 3"), "[exit code 3]"),
    ],
    ids=["unknown", "unreadable", "refused", "timeout", "shell-ended"],
)
@pytest.mark.parametrize("position", [0, 1])
def test_what_follows_a_failed_call_is_not_run(
    bench: RunHarness, server: ChatServer, bad: Any, answer: str, position: int
) -> None:
    calls = [shell(APPEND.format("one")), shell(APPEND.format("two")), shell(APPEND.format("three"))]
    calls.insert(position, bad)
    run_calls(bench, server, calls, [shell("cat notes.txt || true")], [FINISH], command_timeout_s=1)
    answers = [each["content"] for each in server.requests[1]["messages"][-4:]]
    assert answers[position].startswith(answer)
    assert answers[position + 1 :] == [NOT_RUN] * (3 - position)
    assert ("one\n" in last_answers(server, 1)[0]) == bool(position)
    assert "two" not in last_answers(server, 1)[0]


def test_a_command_that_fails_is_a_result(bench: RunHarness, server: ChatServer) -> None:
    run_calls(bench, server, [shell("grep -q missing pkg/core.py"), shell("echo after")], [FINISH])
    assert last_answers(server, 2) == ["[exit code 1]\n", "[exit code 0]\nafter\n"]


def test_nothing_runs_if_the_arguments_of_a_call_are_no_json(bench: RunHarness, server: ChatServer) -> None:
    """Its place among the other calls is unknown."""
    calls: Any = [shell(APPEND.format("one")), ("shell", '{"command": "echo'), shell(APPEND.format("two"))]
    state = build_and_run_unordered(bench, server, calls)
    assert [event.tool for event in events(state)] == ["unreadable", "shell", "finish"]
    assert "cannot access 'notes.txt'" in last_answers(server, 1)[0]


def build_and_run_unordered(bench: RunHarness, server: ChatServer, calls: Any) -> Any:
    model = build_model(server, calls, [shell("ls notes.txt")], [FINISH])
    inner = server.answer

    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        # The client lists unreadable calls last; each of them still has one answer.
        messages = [dict(each) for each in request["messages"]]
        for index, each in enumerate(messages):
            answers = {m.get("tool_call_id") for m in messages[index + 1 :]}
            assert all(call["id"] in answers for call in each.get("tool_calls") or ())
        number = sum(each["role"] == "assistant" for each in messages)
        return inner({"messages": [{"role": "assistant"}] * number})

    server.answer = answer
    return bench.run(model, protocol="native")


def test_too_many_calls(bench: RunHarness, server: ChatServer) -> None:
    run_calls(bench, server, [shell("true")] * (MAX_CALLS + 1), [FINISH])
    assert set(last_answers(server, MAX_CALLS + 1)) == {last_answers(server, 1)[0]}
    assert "nothing was run" in last_answers(server, 1)[0]


@pytest.mark.slow
def test_the_maximum_of_calls_in_each_reply(bench: RunHarness, server: ChatServer) -> None:
    state = run_calls(
        bench, server, [shell("true")] * MAX_CALLS, [shell("true")] * MAX_CALLS, [FINISH], max_steps=3
    )
    assert len(events(state)) == 2 * MAX_CALLS + 1


def test_a_finish_ends_the_run_after_the_calls_before_it(bench: RunHarness, server: ChatServer) -> None:
    state = run_calls(bench, server, [shell(APPEND.format("one")), FINISH, shell(APPEND.format("two"))])
    assert state["stop_reason"] == "finished"
    assert [event.tool for event in events(state)] == ["shell", "finish"]


def test_a_handoff_ends_the_step(bench: RunHarness, server: ChatServer) -> None:
    calls = [shell(APPEND.format("one")), ("handoff", {"message": "Go on."}), shell(APPEND.format("two"))]
    state = run_calls(bench, server, calls, offer_handoff=True, points=("requested",))
    assert (state["stop_reason"], state["open_calls"]) == ("handoff", 0)
    record = bench.store.load(state["records"][0])
    assert [event.tool for event in record.trace if event.kind == "action"] == ["shell", "handoff"]
    assert [message.text for message in state["messages"][-2:]] == ["[handed over]", NOT_RUN]


EDIT_CALL = shell("sed -i 's/n + 1/n * 2/' pkg/core.py")


def test_a_point_lies_between_calls(bench: RunHarness, server: ChatServer) -> None:
    """A record holds the work up to its call, and the run continues with the next one."""
    calls = [EDIT_CALL, shell(APPEND.format("later")), FINISH]
    state = run_calls(bench, server, calls, points=("first_source_edit",))
    assert state["stop_reason"] == "finished"
    record = bench.store.load(state["records"][0])
    assert record.point.event_index == len(record.trace) - 1 == 1
    assert "n * 2" in record.patch
    assert "later" not in record.patch
    assert [event.tool for event in events(state)] == ["shell", "shell", "finish"]


def test_a_stop_between_calls_and_a_resume(bench: RunHarness, server: ChatServer) -> None:
    calls = [EDIT_CALL, shell(APPEND.format("later")), shell(SHOW)]
    model = build_model(server, calls, [FINISH])
    settings: Any = {"protocol": "native", "points": ("first_source_edit",)}
    stopped = bench.run(model, policy="stop", **settings)
    assert stopped["stop_reason"] == "point"
    assert len(server.requests) == 1
    done = bench.resume(model, **settings)
    assert done.status is RunStatus.FINISHED
    assert last_answers(server, 1) == ["[exit code 0]\nlater\n"]


def test_its_own_agent_continues_from_a_point_between_calls(bench: RunHarness, server: ChatServer) -> None:
    calls = [EDIT_CALL, shell(APPEND.format("later"))]
    settings: Any = {"protocol": "native", "points": ("first_source_edit",)}
    stopped = bench.run(build_model(server, calls, [FINISH]), policy="stop", **settings)
    done = take_over(
        bench.home, "own", record_id=stopped["records"][0], view="continuation",
        model=build_model(server, [], [FINISH]), sandbox=bench.spec, **settings,
    )  # fmt: skip
    assert done.status is RunStatus.FINISHED
    assert last_answers(server, 1)[0].startswith("Not run: the work continued on another thread")


@pytest.mark.cases(1)
@pytest.mark.parametrize("view", ["trace", "transcript", "structured"])
def test_a_successor_takes_over_between_calls(bench: RunHarness, server: ChatServer, view: Any) -> None:
    calls = [shell("echo first"), EDIT_CALL, shell(APPEND.format("later"))]
    settings: Any = {"protocol": "native", "points": ("first_source_edit",)}
    stopped = bench.run(build_model(server, calls, [FINISH]), policy="stop", **settings)
    successor = build_model(server, *([[FINISH]] * 9))
    done = take_over(
        bench.home, "next", record_id=stopped["records"][0], view=view, model=successor, sandbox=bench.spec,
        **settings,
    )  # fmt: skip
    assert done.status is RunStatus.FINISHED


def test_a_question_between_calls(bench: RunHarness, server: ChatServer) -> None:
    @tool
    def ask(question: str) -> str:
        """Ask."""
        return str(interrupt(question))

    calls = [shell(APPEND.format("one")), ("ask", {"question": "Go on?"}), shell(SHOW)]
    model = build_model(server, calls, [FINISH])
    with bench.open_run(model, protocol="native", tools=(ask,)) as held:
        waiting = held.start("t", "Do it.")
    assert waiting.question is not None
    assert waiting.question.call == "call_1"
    done = bench.resume(model, "yes", protocol="native", tools=(ask,))
    assert last_answers(server, 3)[1:] == ["yes", "[exit code 0]\none\n"]
    assert done.status is RunStatus.FINISHED


def test_a_spent_budget_ends_the_reply(bench: RunHarness, server: ChatServer) -> None:
    state = run_calls(bench, server, [shell("true")] * 4, max_events=4)
    assert state["stop_reason"] == "max_events"
    assert len(state["events"]) == 4
    assert [message.text for message in state["messages"][-2:]] == [BUDGET_SPENT] * 2


def test_periodic_records_lie_between_replies(bench: RunHarness, server: ChatServer) -> None:
    state = run_calls(bench, server, [shell("true")] * 3, [FINISH], record_every_steps=1)
    (record_id,) = state["periodic_records"]
    assert len(bench.store.load(record_id).trace) == 6


def test_a_reply_that_a_budget_ends_has_its_periodic_record(bench: RunHarness, server: ChatServer) -> None:
    state = run_calls(bench, server, [shell("true")] * 4, max_events=4, record_every_steps=1)
    assert state["stop_reason"] == "max_events"
    (record_id,) = state["periodic_records"]
    assert len(bench.store.load(record_id).trace) == 4


def test_a_written_reply_has_all_its_calls_run(bench: RunHarness, server: ChatServer) -> None:
    """An engineer writes a reply, and an event that names it as its text."""
    model = build_model(server, [shell("true")], [FINISH], [FINISH])
    bench.run(model, protocol="native")
    (after,) = [each for each in bench.home.history("thread") if (each.step, each.next) == (1, ("think",))]
    commands = [APPEND.format(1), APPEND.format(2)]
    reply = AIMessage(
        "", tool_calls=[{"name": "shell", "args": {"command": each}, "id": each} for each in commands]
    )
    messages = len(bench.load_state(after.checkpoint).values["messages"])
    event = {"index": 2, "kind": "action", "tool": "shell", "arguments": {"command": commands[0]}}
    with bench.open_run(model, protocol="native") as held:
        update = {"messages": [reply], "events": [{**event, "message": messages}], "steps": 2}
        changed = held.update_state(update, checkpoint=after.checkpoint)
        done = held.resume(checkpoint=changed)
        assert held.sandbox().read_file("notes.txt") == b"1\n2\n"
    assert [event.arguments.get("command") for event in events(done.state)][1:3] == commands
    assert commands[0] in events(done.state)[1].text


def test_one_call_per_reply(bench: RunHarness, server: ChatServer) -> None:
    calls = [shell(APPEND.format("one")), shell(APPEND.format("two"))]
    state = run_calls(bench, server, calls, [shell("ls notes.txt")], [FINISH], parallel_tool_calls=False)
    assert all(request["parallel_tool_calls"] is False for request in server.requests)
    answers = [each["content"] for each in server.requests[1]["messages"][-2:]]
    assert answers[0] == answers[1]
    assert answers[0].startswith("Your reply contains 2 actions (shell, shell); nothing was run.")
    assert "cannot access 'notes.txt'" in last_answers(server, 1)[0]
    assert "open_calls" not in state


def test_a_client_can_leave_the_option_out(bench: RunHarness, server: ChatServer) -> None:
    model = build_model(server, [FINISH]).model_copy(
        update={"disabled_params": {"parallel_tool_calls": None}}
    )
    bench.run(model, protocol="native", parallel_tool_calls=False)
    assert "parallel_tool_calls" not in server.requests[0]


def test_a_team_rotates_after_a_reply_with_several_calls(bench: RunHarness, server: ChatServer) -> None:
    calls = [shell(APPEND.format("one")), shell(APPEND.format("two"))]
    writer = build_model(server, calls, [FINISH])
    replies = iter([calls, [shell(SHOW), FINISH]])
    inner = server.answer

    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        require_answers(request["messages"])
        status, body = inner({"messages": []})
        data = json.loads(body)
        data["choices"][0]["message"]["tool_calls"] = [
            call(name, arguments, number) for number, (name, arguments) in enumerate(next(replies))
        ]
        return status, json.dumps(data).encode()

    server.answer = answer
    agents = [Agent(name="writer", model=writer), Agent(name="tester", model=writer)]
    with bench.open_run(None, agents=agents, max_consecutive_turns=1, protocol="native") as held:  # type: ignore[arg-type]
        done = held.start("t", "Do it.")
    assert done.status is RunStatus.FINISHED
    passes = [TurnPass.model_validate(each) for each in done.state["passes"]]
    rows = build_timeline(done.events, passes, ["writer", "tester"])
    assert [(row.step, row.agent) for row in rows] == [
        (1, "writer"), (1, "writer"), (2, "tester"), (2, "tester"),
    ]  # fmt: skip
    assert [row.turn_pass is not None for row in rows] == [False, True, False, False]
    shown = server.requests[1]["messages"][-1]["content"]
    assert "echo two" in shown
