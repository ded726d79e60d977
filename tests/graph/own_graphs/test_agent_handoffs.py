"""The agents of a swarm or under a supervisor work in one sandbox, whose state survives handoffs, kills and forks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, create_react_agent
from langgraph.prebuilt.chat_agent_executor import AgentState as ReactState
from langgraph.types import Command, Send
from langgraph_supervisor import create_supervisor
from langgraph_swarm import SwarmState, create_handoff_tool, create_swarm

from langgraph_takeover.errors import SandboxStateLostError
from langgraph_takeover.graph import swarm as views
from langgraph_takeover.graph.own_graphs.agent_handoffs import pass_on_state
from langgraph_takeover.integrations import (
    SandboxState,
    ThreadSandbox,
    acarry_sandbox_state,
    carry_sandbox_state,
    open_sandbox,
)
from langgraph_takeover.middleware import SandboxMiddleware

from ..conftest import RunHarness, Scripted, scripted_model
from .test_middleware import reply, results, shell

CONFIG: Any = {"configurable": {"thread_id": "team"}}
QUESTION: Any = {"messages": [("user", "Fix it.")]}
SLOW_FULL_HISTORY = pytest.param("full_history", marks=pytest.mark.slow)
ALICE = "cd pkg; name=kept; echo alice >> log"
BOB = "echo bob >> log; cat log; echo $name; basename $PWD"
BOTH = ["alice", "bob", "kept", "pkg"]


class TeamState(SwarmState, SandboxState):
    pass


class ReactTeamState(ReactState, SandboxState):
    pass


def hold(bench: RunHarness) -> Any:
    return open_sandbox(bench.home, "team", sandbox=bench.spec)


def to_bob() -> tuple[str, dict[str, Any]]:
    return "transfer_to_bob", {}


def script(*, bob: str = BOB) -> Scripted:
    """Alice works and hands over to Bob, who works."""
    return scripted_model(shell(ALICE, text="1"), reply(to_bob(), text="2"), shell(bob, text="3"), "Done.")


class _SequenceModel(Scripted):
    """A model that sends its replies in order, whatever the messages are."""

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return super()._generate([AIMessage("sent")] * len(self.seen), *args, **kwargs)
        finally:
            self.seen[-1] = [*messages]


def build_sequence_model(*replies: Any) -> Scripted:
    return _SequenceModel(replies=[*replies], seen=[], tools=[])


def build_swarm(
    work: ThreadSandbox, model: Scripted, *, state_schema: Any = TeamState, handoff: Any = create_handoff_tool
) -> Any:
    def make_agent(name: str, *tools: Any) -> Any:
        return create_agent(model, tools=[*tools], middleware=[SandboxMiddleware(work)], name=name)

    agents = [make_agent("alice", handoff(agent_name="bob")), make_agent("bob")]
    return create_swarm(agents, default_active_agent="alice", state_schema=state_schema).compile(
        checkpointer=work.saver
    )


def read_output(state: dict[str, Any]) -> list[str]:
    """The lines that the last command printed."""
    return results(state)[-1].split()[3:]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handoff_takes_the_sandbox_along(bench: RunHarness, is_async: bool) -> None:
    with hold(bench) as work:
        team = build_swarm(work, script())
        end = asyncio.run(team.ainvoke(QUESTION, CONFIG)) if is_async else team.invoke(QUESTION, CONFIG)
        assert (end["active_agent"], read_output(end)) == ("bob", BOTH)
        assert work.enter(end["sandbox_state"]).read_file("pkg/log") == b"alice\nbob\n"
    with hold(bench) as work:  # the next turn, in another process
        again = scripted_model(*["x"] * 4, shell("cat log", text="5"), "Done.")
        end = build_swarm(work, again).invoke({"messages": [("user", "Show the log.")]}, CONFIG)
        assert read_output(end) == ["alice", "bob"]


def test_a_handoff_waits_for_the_calls_before_it(bench: RunHarness) -> None:
    slow = ("shell", {"command": f"sleep 0.5; {ALICE}"})
    model = scripted_model(reply(slow, to_bob(), text="1"), shell(BOB, text="2"), "Done.")
    with hold(bench) as work:
        assert read_output(build_swarm(work, model).invoke(QUESTION, CONFIG)) == BOTH


@pytest.mark.slow
def test_handoffs_under_a_view_take_the_sandbox_along(bench: RunHarness) -> None:
    def handoff(agent_name: str) -> Any:
        return views.create_handoff_tool(agent_name=agent_name, view="trace")

    model = build_sequence_model(
        shell(ALICE, text="1"), reply(to_bob(), text="2"), shell(BOB, text="3"), "Done."
    )
    with hold(bench) as work:
        assert read_output(build_swarm(work, model, handoff=handoff).invoke(QUESTION, CONFIG)) == BOTH


def test_a_swarm_without_the_channel_is_refused(bench: RunHarness) -> None:
    with hold(bench) as work, pytest.raises(SandboxStateLostError, match="thread 'team': earlier agents"):
        build_swarm(work, script(), state_schema=SwarmState).invoke(QUESTION, CONFIG)


@pytest.mark.parametrize("output_mode", ["last_message", SLOW_FULL_HISTORY])
def test_a_supervisor_without_the_channel_is_refused(bench: RunHarness, output_mode: Any) -> None:
    with hold(bench) as work, pytest.raises(SandboxStateLostError, match="thread 'team': earlier agents"):
        build_supervisor(work, output_mode=output_mode).invoke(QUESTION, CONFIG)


class _KilledError(BaseException):
    pass


@pytest.fixture
def kill_bob(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Raise inside the effect of Bob's first command."""
    from langgraph_takeover.graph.own_graphs import agent_middleware as module

    execute, killed = module.execute_command, []

    def execute_and_die(sandbox: Any, command: str, **options: Any) -> Any:
        result = execute(sandbox, command, **options)
        if "bob" in command and not killed:
            killed.append(command)
            raise _KilledError
        return result

    monkeypatch.setattr(module, "execute_command", execute_and_die)
    yield
    assert killed


@pytest.mark.usefixtures("kill_bob")
def test_a_kill_in_the_second_agent(bench: RunHarness) -> None:
    with hold(bench) as work, pytest.raises(_KilledError):
        build_swarm(work, script()).invoke(QUESTION, CONFIG)
    with hold(bench) as work:
        model = script()
        end = build_swarm(work, model).invoke(None, CONFIG)
        assert read_output(end) == BOTH
        assert len(model.seen) == 1, "the replies before the kill are not asked for again"


@pytest.mark.usefixtures("kill_bob")
def test_a_kill_under_a_supervisor(bench: RunHarness) -> None:
    with hold(bench) as work, pytest.raises(_KilledError):
        build_supervisor(work, state_schema=ReactTeamState).invoke(QUESTION, CONFIG)
    with hold(bench) as work:
        team = build_supervisor(work, boss=BOSS[2:], bob=BOB_REPLIES[1:], state_schema=ReactTeamState)
        end = team.invoke(None, CONFIG)
        assert end["messages"][-1].text == "All done."
        sandbox = work.enter(end["sandbox_state"])
        assert sandbox.read_file("pkg/log") == b"alice\nbob\n"
        assert sandbox.run("echo $name; basename $PWD", timeout_s=10).output.split() == ["kept", "pkg"]


@pytest.mark.slow
def test_forks_have_their_own_sandbox(bench: RunHarness) -> None:
    with hold(bench) as work:
        team = build_swarm(work, script())
        first = team.invoke(QUESTION, CONFIG)
        after_alice = next(each for each in team.get_state_history(CONFIG) if each.next == ("bob",))
        again = team.invoke(None, after_alice.config)
        assert read_output(again) == BOTH
        other = build_swarm(work, script(bob=BOB.replace("bob", "carol")))
        forked = other.invoke({"messages": [("user", "Call yourself Carol.")]}, after_alice.config)
        assert read_output(forked) == ["alice", "carol", "kept", "pkg"]
        edited = team.update_state(after_alice.config, {"messages": [("user", "Again.")]}, as_node=START)
        assert read_output(team.invoke(None, edited)) == BOTH
        start = next(each for each in team.get_state_history(CONFIG) if each.next == ("alice",))
        assert read_output(team.invoke(None, start.config)) == BOTH
        for end, log in ((first, b"alice\nbob\n"), (forked, b"alice\ncarol\n")):
            assert work.enter(end["sandbox_state"]).read_file("pkg/log") == log
    assert {each.is_restorable for each in bench.home.history("team")} == {True}


TO_ALICE, TO_BOB = (reply((f"transfer_to_{name}", {}), text=f"to {name}") for name in ("alice", "bob"))
BOSS = (TO_ALICE, TO_BOB, "All done.")
BOB_REPLIES = (shell(BOB, text="b"), "Did it, too.")


def build_supervisor(
    work: ThreadSandbox, *, boss: tuple[Any, ...] = BOSS, bob: tuple[Any, ...] = BOB_REPLIES, **options: Any
) -> Any:
    """A supervisor of Alice and Bob, with the replies that its model and Bob's send next."""
    models = {
        "alice": build_sequence_model(shell(ALICE, text="a"), "Did it."),
        "bob": build_sequence_model(*bob),
    }
    agents = [
        create_agent(model, middleware=[SandboxMiddleware(work)], name=name) for name, model in models.items()
    ]
    return create_supervisor(agents, model=build_sequence_model(*boss), **options).compile(
        checkpointer=work.saver
    )


@pytest.mark.parametrize("output_mode", ["last_message", SLOW_FULL_HISTORY])
def test_agents_under_a_supervisor(bench: RunHarness, output_mode: Any) -> None:
    with hold(bench) as work:
        team = build_supervisor(work, state_schema=ReactTeamState, output_mode=output_mode)
        end = team.invoke(QUESTION, CONFIG)
        assert end["messages"][-1].text == "All done."
        assert work.enter(end["sandbox_state"]).read_file("pkg/log") == b"alice\nbob\n"
        history = [each for each in team.get_state_history(CONFIG) if each.next == ("supervisor",)]
        after_bob, after_alice, _ = history
        assert after_bob.values["sandbox_state"] == end["sandbox_state"]
        assert work.enter(after_alice.values["sandbox_state"]).read_file("pkg/log") == b"alice\n"
    with hold(bench) as work:  # a step back
        carol = (shell(BOB.replace("bob", "carol"), text="c"), "Did it, too.")
        options = {"state_schema": ReactTeamState, "output_mode": output_mode}
        again = build_supervisor(work, boss=BOSS[1:], bob=carol, **options).invoke(None, after_alice.config)
        assert work.enter(again["sandbox_state"]).read_file("pkg/log") == b"alice\ncarol\n"
        assert work.enter(end["sandbox_state"]).read_file("pkg/log") == b"alice\nbob\n"


@pytest.mark.slow
def test_several_handoffs_of_a_supervisor_in_one_reply(bench: RunHarness) -> None:
    """langgraph-supervisor starts one of the agents; its work is kept, and nothing happened for the other."""
    both = reply(("transfer_to_alice", {}), to_bob(), text="both")
    with hold(bench) as work:
        bob = (shell("echo bob > pkg/log", text="b"), "Did it, too.")
        team = build_supervisor(work, boss=(both, "All done."), bob=bob, state_schema=ReactTeamState)
        end = team.invoke(QUESTION, CONFIG)
        log = work.enter(end["sandbox_state"]).read_file("pkg/log").decode()
    assert log.split() == [each.name for each in end["messages"] if each.text.startswith("Did it")]


@pytest.mark.parametrize("is_async", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_agents_of_create_react_agent(bench: RunHarness, is_async: bool) -> None:
    with hold(bench) as work:

        @tool("shell")
        def run_command(
            command: str,
            state: Annotated[dict[str, Any], InjectedState],
            call_id: Annotated[str, InjectedToolCallId],
        ) -> Command[Any]:
            """Run a command."""
            done = work.act(
                call_id,
                lambda sandbox: sandbox.run(command, timeout_s=10).output,
                state=state.get("sandbox_state"),
            )
            message = ToolMessage(f"[exit code 0]\n{done.value}", tool_call_id=call_id)
            return Command(update={"sandbox_state": done.state, "messages": [message]})

        model = script()

        def make_agent(name: str, *tools: Any) -> Any:
            node = ToolNode(
                [run_command, *tools],
                wrap_tool_call=carry_sandbox_state,
                awrap_tool_call=acarry_sandbox_state,
            )
            return create_react_agent(model, node, state_schema=ReactTeamState, name=name)

        agents = [make_agent("alice", create_handoff_tool(agent_name="bob")), make_agent("bob")]
        team = create_swarm(agents, default_active_agent="alice", state_schema=TeamState)
        graph = team.compile(checkpointer=work.saver)
        end = asyncio.run(graph.ainvoke(QUESTION, CONFIG)) if is_async else graph.invoke(QUESTION, CONFIG)
        assert read_output(end) == BOTH


STATE = {"sandbox_state": "before"}


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (None, {"sandbox_state": "after"}),
        ({"x": 1}, {"x": 1, "sandbox_state": "after"}),
        ({"x": 1, "sandbox_state": "before"}, {"x": 1, "sandbox_state": "after"}),
        ({"sandbox_state": "by the tool"}, {"sandbox_state": "by the tool"}),
        ([("x", 1)], [("x", 1), ("sandbox_state", "after")]),
        ([("sandbox_state", "before"), ("x", 1)], [("x", 1), ("sandbox_state", "after")]),
        ([("sandbox_state", "by the tool")], [("sandbox_state", "by the tool")]),
    ],
)
def test_forms_of_updates(update: Any, expected: Any) -> None:
    handoff: Any = Command(graph=Command.PARENT, goto="bob", update=update)
    passed = pass_on_state([handoff], STATE, "after")[0]
    assert (passed.update, passed.goto, passed.graph) == (expected, ["bob"], Command.PARENT)


def test_other_results_stay_as_they_are() -> None:
    for result in ("text", ToolMessage("text", tool_call_id="1"), Command(update={"x": 1}, goto="bob")):
        assert pass_on_state(result, STATE, "after") is result
    handoff: Any = Command(graph=Command.PARENT, goto="bob")
    assert pass_on_state(handoff, {}, None) is handoff
    with pytest.raises(SandboxStateLostError, match="an update of type Upper"):
        pass_on_state(Command(graph=Command.PARENT, update=type("Upper", (), {})()), STATE, "after")


def test_sends_get_the_state() -> None:
    sends = [Send("bob", {"messages": []}), Send("carol", "text")]
    passed = pass_on_state(Command(graph=Command.PARENT, goto=sends), STATE, "after")
    assert [each.arg for each in passed.goto] == [{"messages": [], "sandbox_state": "after"}, "text"]


def test_an_agent_as_a_node_of_a_larger_graph(bench: RunHarness) -> None:
    """Nothing is missing there: no agent has used the sandbox before."""
    with hold(bench) as work:
        model = scripted_model(shell(BOB, text="1"), "Done.")
        agent = create_agent(model, middleware=[SandboxMiddleware(work)], name="bob")
        builder = StateGraph(TeamState).add_node("bob", agent).add_edge(START, "bob")
        end = builder.compile(checkpointer=work.saver).invoke(QUESTION, CONFIG)
        assert work.enter(end["sandbox_state"]).read_file("log") == b"bob\n"
