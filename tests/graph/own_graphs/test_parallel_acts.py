"""Nodes of one step: each acts in a fork of the state before the step, the next one in the merge of what they left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import operator
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command, Send

from langgraph_takeover.errors import (
    ActConflictError,
    InputError,
    MergeConflictError,
    SandboxStateLostError,
    SnapshotNotFoundError,
)
from langgraph_takeover.integrations import SandboxState, ThreadSandbox, open_sandbox
from langgraph_takeover.middleware import SandboxMiddleware
from langgraph_takeover.sandbox import Sandbox

from ..conftest import RunHarness, native_reply, scripted_model, task_model

CONFIG: Any = {"configurable": {"thread_id": "own"}}


class State(SandboxState):
    seen: Annotated[list[Any], operator.add]


class _KilledError(BaseException):
    """Ends a process as a kill would."""


def hold(bench: RunHarness, **options: Any) -> Any:
    return open_sandbox(bench.home, "own", sandbox=bench.spec, **options)


def append(name: str, pause_s: float = 0.0, log: str = "log") -> Callable[[Sandbox], str]:
    """Append a name to a file in two commands, with a pause between them."""

    def function(sandbox: Sandbox) -> str:
        sandbox.run(f"printf {name} >> {log}; sleep {pause_s}", timeout_s=10)
        return sandbox.run(f"echo >> {log}; touch $(tail -n 1 {log}); cat {log}", timeout_s=10).output

    return function


def make_branch(work: ThreadSandbox, name: str, acts: int = 1) -> Callable[[State], Any]:
    def branch(state: State) -> Any:
        now, seen = state.get("sandbox_state"), []
        for number in range(acts):
            done = work.act(f"append {number}", append(f"{name}{number}", log=f"log-{name}"), state=now)
            now = done.state
            seen.append((name, done.value))
        return {"sandbox_state": now, "seen": seen}

    return branch


def build_fan(work: ThreadSandbox, names: str, acts: int = 1) -> Any:
    builder = StateGraph(State)
    for name in names:
        builder.add_node(name, make_branch(work, name, acts)).add_edge(START, name)
    return builder.compile(checkpointer=work.saver)


def read_log(work: ThreadSandbox, state: str) -> list[str]:
    return work.enter(state).run("cat log*", timeout_s=10).output.split()


def test_parallel_nodes_lose_nothing(bench: RunHarness) -> None:
    for round_ in range(3):
        config: Any = {"configurable": {"thread_id": f"own {round_}"}}
        with open_sandbox(bench.home, f"own {round_}", sandbox=bench.spec) as work:
            end = build_fan(work, "abc", acts=2).invoke({}, config)
            log = read_log(work, end["sandbox_state"])
            assert sorted(log) == ["a0", "a1", "b0", "b1", "c0", "c1"]
            assert all(log.index(f"{name}0") < log.index(f"{name}1") for name in "abc")
            listed = work.enter(end["sandbox_state"]).directory_listing(".") or ()
            assert set(log) <= set(listed)
        for name, value in end["seen"]:  # in its own fork
            assert value.split() in ([f"{name}0"], [f"{name}0", f"{name}1"])
    assert all(each.is_restorable for each in bench.home.history("own 0"))


@pytest.mark.slow
def test_twenty_rounds_of_parallel_nodes(bench: RunHarness) -> None:
    with hold(bench) as work:
        graph, log = build_fan(work, "abcd"), []
        for _ in range(20):
            end = graph.invoke({}, CONFIG)
            log += ["a0", "b0", "c0", "d0"]
            assert read_log(work, end["sandbox_state"]) == sorted(log)


def test_parallel_acts_in_an_event_loop(bench: RunHarness) -> None:
    async def run() -> None:
        async with hold(bench) as work:

            def make(name: str) -> Any:
                async def node(state: State) -> Any:
                    done = await work.aact(
                        "append", append(name, log=f"log-{name}"), state=state.get("sandbox_state")
                    )
                    return {"sandbox_state": done.state, "seen": [name]}

                return node

            builder = StateGraph(State)
            for name in "abcdefgh":
                builder.add_node(name, make(name)).add_edge(START, name)
            end = await builder.compile(checkpointer=work.saver).ainvoke({}, CONFIG)
            log = (await asyncio.to_thread(lambda: read_log(work, end["sandbox_state"]))).copy()
            assert sorted(log) == list("abcdefgh")

    asyncio.run(run())


def test_a_kill_in_a_branch_repeats_no_other(bench: RunHarness) -> None:
    calls: list[str] = []

    def build(work: ThreadSandbox, killed: str) -> Any:
        def branch(item: dict[str, Any]) -> Any:
            name = item["name"]

            def count(sandbox: Sandbox) -> str:
                calls.append(name)
                if name == killed:
                    raise _KilledError
                return append(name, log=f"log-{name}")(sandbox)

            done = work.act("branch", count, state=item["sandbox_state"])
            return {"sandbox_state": done.state, "seen": [(name, done.value.split()[-1])]}

        def fan(state: State) -> list[Send]:
            return [Send("branch", {"name": name, "sandbox_state": state["sandbox_state"]}) for name in "abc"]

        builder = StateGraph(State).add_node("first", lambda state: {"sandbox_state": "base"})
        builder.add_node("branch", branch).add_edge(START, "first").add_conditional_edges("first", fan)
        return builder.compile(checkpointer=work.saver)

    config = {**CONFIG, "max_concurrency": 1}
    with hold(bench) as work, pytest.raises(_KilledError):
        build(work, "c").invoke({}, config, durability="sync")
    assert calls == ["a", "b", "c"]
    with hold(bench) as work:
        end = build(work, "").invoke(None, config)
        assert read_log(work, end["sandbox_state"]) == ["a", "b", "c"]
    assert calls == ["a", "b", "c", "c"]
    assert [list(each) for each in end["seen"]] == [["a", "a"], ["b", "b"], ["c", "c"]]


def test_a_killed_node_with_several_acts_repeats_none(bench: RunHarness) -> None:
    """The acts of parallel nodes do not remove each other from the journal."""
    calls: list[str] = []

    def build(work: ThreadSandbox, *, is_killed: bool) -> Any:
        reached = threading.Barrier(2, timeout=20)

        def make(name: str) -> Any:
            def count(text: str) -> Callable[[Sandbox], str]:
                def function(sandbox: Sandbox) -> str:
                    calls.append(text)
                    return append(text, log=f"log-{name}")(sandbox)

                return function

            def node(state: State) -> Any:
                one = work.act("one", count(f"{name}1"), state=state.get("sandbox_state"))
                if is_killed:
                    reached.wait()
                    raise _KilledError
                two = work.act("two", count(f"{name}2"), state=one.state)
                return {"sandbox_state": two.state}

            return node

        builder = StateGraph(State)
        for name in "ab":
            builder.add_node(name, make(name)).add_edge(START, name)
        return builder.compile(checkpointer=work.saver)

    with hold(bench) as work, pytest.raises(_KilledError):
        build(work, is_killed=True).invoke({}, CONFIG)
    with hold(bench) as work:
        end = build(work, is_killed=False).invoke(None, CONFIG)
        assert sorted(read_log(work, end["sandbox_state"])) == ["a1", "a2", "b1", "b2"]
    assert sorted(calls) == ["a1", "a2", "b1", "b2"]


def test_the_same_key_in_another_step_is_another_act(bench: RunHarness) -> None:
    def node(state: State) -> Any:
        done = work.act("look", lambda box: len(state.get("seen", [])), state="base")
        return {"sandbox_state": done.state, "seen": [done.value]}

    with hold(bench) as work:
        builder = StateGraph(State).add_sequence([("one", node), ("two", node)])
        end = builder.add_edge(START, "one").compile(checkpointer=work.saver).invoke({}, CONFIG)
    assert end["seen"] == [0, 1]


def test_a_repeated_key_is_refused(bench: RunHarness) -> None:
    def node(state: State) -> Any:
        for name in "ab":
            work.act("append", append(name), state=state.get("sandbox_state"))
        return {}

    def retry(state: State) -> Any:
        with pytest.raises(ZeroDivisionError):
            work.act("append", lambda box: 1 // 0, state="base")
        return {"sandbox_state": work.act("append", append("a"), state="base").state}

    with hold(bench) as work:
        builder = StateGraph(State).add_node(node).add_edge(START, "node")
        with pytest.raises(ActConflictError, match="key 'append' repeats"):
            builder.compile(checkpointer=work.saver).invoke({}, CONFIG)
        builder = StateGraph(State).add_node(retry).add_edge(START, "retry")
        end = builder.compile().invoke({}, CONFIG)
        assert read_log(work, end["sandbox_state"]) == ["a"]


def test_a_node_that_tries_two_ways_keeps_one(bench: RunHarness) -> None:
    """Beside another node, whose work is merged with the way that was kept."""

    def one(state: State) -> Any:
        work.act("left", append("left", log="log-left"), state="base")
        return {"sandbox_state": work.act("right", append("right", log="log-right"), state="base").state}

    def other(state: State) -> Any:
        return {"sandbox_state": work.act("other", append("other"), state="base").state}

    with hold(bench) as work:
        builder = StateGraph(State).add_node(one).add_node(other)
        builder.add_edge(START, "one").add_edge(START, "other")
        end = builder.compile(checkpointer=work.saver).invoke({}, CONFIG)
        assert read_log(work, end["sandbox_state"]) == ["other", "right"]


def test_reading_waits_for_an_act(bench: RunHarness) -> None:
    started = threading.Event()

    def act(state: State) -> Any:
        def function(sandbox: Sandbox) -> str:
            started.set()
            return append("acted", pause_s=0.5)(sandbox)

        return {"sandbox_state": work.act("act", function, state=state["sandbox_state"]).state}

    def read(state: State) -> Any:
        started.wait(20)
        sandbox = work.enter(state["sandbox_state"])
        return {"seen": [sandbox.read_file("log").decode(), sandbox.run("echo $((6*7))", timeout_s=9).output]}

    def list_log(sandbox: Sandbox) -> str:
        return sandbox.run("cat log", timeout_s=9).output

    def look(state: State) -> Any:
        started.wait(20)
        done = work.act("look", list_log, state=state["sandbox_state"], effects="nothing")
        return {"seen": [done.value.split()[0]], "sandbox_state": done.state}

    with hold(bench) as work:
        first = work.act("first", append("first"), state=None).state
        builder = StateGraph(State).add_node(act).add_node(read).add_node(look)
        for name in ("act", "read", "look"):
            builder.add_edge(START, name)
        end = builder.compile(checkpointer=work.saver).invoke({"sandbox_state": first}, CONFIG)
        assert end["seen"] == ["first", "first\n", "42\n"] or end["seen"] == ["first\n", "42\n", "first"]
        assert read_log(work, end["sandbox_state"]) == ["first", "acted"]


def test_a_view_of_a_state_outlives_acts(bench: RunHarness) -> None:
    with hold(bench) as work:
        first = work.act("first", append("first"), state=None)
        view = work.enter(first.state)
        second = work.act("second", append("second"), state=first.state)
        assert view.read_file("log") == b"first\n"
        assert read_log(work, second.state) == ["first", "second"]
        view.close()
        assert read_log(work, second.state) == ["first", "second"]


def test_an_act_in_an_act_is_refused(bench: RunHarness) -> None:
    with hold(bench) as work:

        def function(sandbox: Sandbox) -> str:
            for nested in (
                lambda: work.enter("base"),
                lambda: work.act("inner", append("inner"), state=None),
                lambda: view.read_file("pkg/core.py"),
                work.snapshot,
            ):
                with pytest.raises(ActConflictError, match="an act runs"):
                    nested()
            with pytest.raises(ActConflictError, match="an act runs"):
                asyncio.run(asyncio.to_thread(lambda: work.enter("base")))
            return append("outer")(sandbox)

        view = work.enter("base")
        assert read_log(work, work.act("outer", function, state=None).state) == ["outer"]


def test_a_missing_state_is_refused(bench: RunHarness) -> None:
    class Bare(SandboxState):
        text: str

    def act(state: Any) -> Any:
        return {"text": work.act("append", append("a"), state=state.get("sandbox_state")).state}

    with hold(bench) as work:
        builder = StateGraph(Bare).add_sequence([("one", act), ("two", act)]).add_edge(START, "one")
        graph = builder.compile(checkpointer=work.saver)
        with pytest.raises(SandboxStateLostError, match="this node has no sandbox_state"):
            graph.invoke({}, CONFIG)
        start = [*graph.get_state_history(CONFIG)][-2]
        assert start.next == ("one",)
        with pytest.raises(SandboxStateLostError):
            graph.invoke(None, start.config)
        assert graph.get_state(CONFIG).next == ("two",)  # a fork from the start begins at the base again
        for wrong in (None, "", 7):
            with pytest.raises(SnapshotNotFoundError, match="is not a state of the sandbox"):
                work.session.enter_state(wrong)  # type: ignore[arg-type]
        for value in (None, 7):
            builder = StateGraph(State).add_node(
                "odd", lambda _, value=value: {"sandbox_state": value, "seen": [1]}
            )
            graph = builder.add_edge(START, "odd").compile()
            with pytest.raises(InputError, match="7 is not a state") if value else contextlib.nullcontext():
                assert graph.invoke({}) == {"seen": [1]}


@pytest.mark.parametrize("shape", ["sequence", "parallel"])
def test_a_node_that_returns_no_state_loses_nothing_in_silence(bench: RunHarness, shape: str) -> None:
    acted = threading.Event()

    def first(state: State) -> Any:
        found = work.act("first", append("first"), state=state.get("sandbox_state"))
        acted.set()
        return {"sandbox_state": found.state}

    def silent(state: State) -> Any:
        acted.wait(20)
        work.act("silent", append("silent"), state=state.get("sandbox_state"))
        return {"sandbox_state": state["sandbox_state"]} if drops else {"seen": ["silent"]}

    def last(state: State) -> Any:
        found = work.act("last", append("last"), state=state.get("sandbox_state"))
        return {"sandbox_state": found.state}

    for drops in (False, True):
        acted.clear()
        with hold(bench) as work:
            builder = (
                StateGraph(State).add_node(first).add_node(silent).add_node(last).add_edge(START, "first")
            )
            builder.add_edge(START if shape == "parallel" else "first", "silent")
            builder.add_edge(["first", "silent"] if shape == "parallel" else "silent", "last")
            graph = builder.compile(checkpointer=work.saver)
            begin = work.act(f"begin {drops}", append("begin"), state=None).state
            if drops:
                end = graph.invoke({"sandbox_state": begin}, CONFIG)
                assert read_log(work, end["sandbox_state"]) == ["begin", "first", "last"]
                continue
            with pytest.raises(SandboxStateLostError, match="node 'silent' changed the sandbox"):
                graph.invoke({"sandbox_state": begin}, CONFIG)


def test_acts_of_one_task_from_one_state_at_once_are_refused(bench: RunHarness) -> None:
    """Each would lack the changes of the others, and the task could return only one of them."""

    async def gather(state: State) -> Any:
        await asyncio.gather(*(work.aact(name, append(name, 0.3), state="base") for name in "abc"))

    def use_threads(state: State) -> Any:
        with ContextThreadPoolExecutor(3) as pool:
            [*pool.map(lambda name: work.act(name, append(name, 0.3), state="base"), "abc")]

    @task
    def act(name: str) -> str:
        return work.act("act", append(name, 0.3), state="base").state

    with hold(bench) as work:

        @entrypoint()
        def flow(names: str) -> list[str]:
            return [each.result() for each in [act(name) for name in names]]

        for node in (gather, use_threads):
            graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile()
            with pytest.raises(ActConflictError, match="acts of one task run at once"):
                asyncio.run(graph.ainvoke({}, CONFIG))
        with pytest.raises(ActConflictError, match="acts of one task run at once"):
            flow.invoke("abc", CONFIG)
        with pytest.raises(ActConflictError, match="acts of one task run at once"):
            use_threads({})


def test_subgraphs_with_their_own_history_lose_nothing(bench: RunHarness) -> None:
    with hold(bench) as work:
        inner = StateGraph(State).add_node("a", make_branch(work, "a")).add_node("b", make_branch(work, "b"))
        graph = inner.add_edge(START, "a").add_edge(START, "b").compile(checkpointer=True)
        outer = StateGraph(State).add_node("one", graph).add_node("two", make_branch(work, "c"))
        outer.add_edge(START, "one").add_edge(START, "two")
        end = outer.compile(checkpointer=work.saver).invoke({}, CONFIG)
        assert sorted(read_log(work, end["sandbox_state"])) == ["a0", "b0", "c0"]


@pytest.mark.parametrize("returns_state", [True, False])
def test_an_agent_that_a_tool_calls_shares_its_state(bench: RunHarness, returns_state: bool) -> None:
    """Beside a call of the shell, whose result must not hide what the agent did."""
    inner = native_reply(("shell", '{"command": "echo inner >> inner; sleep 0.3"}'))
    both = native_reply(("shell", '{"command": "echo outer >> outer"}'), ("ask", '{"text": "go"}'))
    with hold(bench) as work:
        show = native_reply(("shell", '{"command": "cat inner outer"}'))
        agent = build_asking(
            work,
            scripted_model(both, show, "Done."),
            asked=scripted_model(inner, "Done."),
            returns_state=returns_state,
            wait_s=0.5,
        )
        end = agent.invoke({"messages": [("user", "Go.")]}, CONFIG)
        assert end["messages"][-2].text.split()[-2:] == ["inner", "outer"]


def build_asking(
    work: ThreadSandbox, model: Any, *, asked: Any = None, returns_state: bool = False, wait_s: float = 0.0
) -> Any:
    """An agent with a tool that calls another agent on the same sandbox; by default of the same model."""
    sub = create_agent(asked or model, middleware=[SandboxMiddleware(work)])

    @tool
    def ask(text: str, runtime: ToolRuntime) -> Any:
        """Ask the other agent."""
        time.sleep(wait_s)
        given: Any = {"messages": [("user", text)], "sandbox_state": runtime.state["sandbox_state"]}
        end = sub.invoke(given)
        if not returns_state:
            return "asked"
        message = ToolMessage("asked", tool_call_id=runtime.tool_call_id)
        return Command(update={"messages": [message], "sandbox_state": end["sandbox_state"]})

    return create_agent(model, [ask], middleware=[SandboxMiddleware(work)], checkpointer=work.saver)


def shell(command: str) -> AIMessage:
    return native_reply(("shell", json.dumps({"command": command})))


ASK_BOTH = [("ask", '{"text": "a"}'), ("ask", '{"text": "b"}')]


@pytest.mark.parametrize("returns_state", [pytest.param(True, marks=pytest.mark.slow), False])
def test_agents_that_a_tool_calls_at_once_are_branches(bench: RunHarness, returns_state: bool) -> None:
    """Between calls of the shell, which do not wait for other tools."""
    before, after = (("shell", f'{{"command": "echo {n} > log-{n}"}}') for n in "09")
    scripts = {
        "go": [native_reply(before, *ASK_BOTH, after), shell("cat log*"), "Done."],
        **{
            name: [shell(f"echo {name} > log-{name}"), shell(f"echo >> log-{name}; ls"), "Done."]
            for name in "ab"
        },
    }
    both = threading.Barrier(2, timeout=20).wait
    model = task_model(scripts, {("a", 1): both, ("b", 1): both})
    with hold(bench) as work:
        agent = build_asking(work, model, returns_state=returns_state)
        end = agent.invoke({"messages": [("user", "go")]}, CONFIG)
    assert end["messages"][-2].text.split()[-4:] == ["0", "9", "a", "b"]


def test_a_conflict_of_agents_names_the_tool_that_called_them(bench: RunHarness) -> None:
    scripts = {"go": [native_reply(*ASK_BOTH), shell("cat log"), "Done."]}
    scripts |= {name: [shell(f"echo {name} > log"), "Done."] for name in "ab"}
    with hold(bench) as work:
        agent = build_asking(work, task_model(scripts))
        with pytest.raises(MergeConflictError, match="log: ask and ask 2 created it with different content"):
            agent.invoke({"messages": [("user", "go")]}, CONFIG)


def test_a_graph_that_a_tool_calls_keeps_what_follows_its_branches(bench: RunHarness) -> None:
    """Although the tool returns no state."""
    with hold(bench) as work:
        builder = StateGraph(State).add_node("last", make_branch(work, "c"))
        for name in "ab":
            builder.add_node(name, make_branch(work, name)).add_edge(START, name)
        graph = builder.add_edge(["a", "b"], "last").compile()

        @tool
        def ask(runtime: ToolRuntime) -> str:
            """Run the graph."""
            graph.invoke({"sandbox_state": runtime.state["sandbox_state"]})
            return "asked"

        model = scripted_model(native_reply(("ask", "{}")), shell("cat log*"), "Done.")
        agent = create_agent(model, [ask], middleware=[SandboxMiddleware(work)], checkpointer=work.saver)
        end = agent.invoke({"messages": [("user", "Go.")]}, CONFIG)
    assert end["messages"][-2].text.split()[-3:] == ["a0", "b0", "c0"]


def test_several_calls_of_a_reply_need_no_snapshots(bench: RunHarness) -> None:
    calls = [("shell", f'{{"command": "echo {name} >> log"}}') for name in "ab"]
    with hold(bench, snapshot_every="point") as work:
        model = scripted_model(native_reply(*calls), shell("cat log"), "Done.")
        agent = create_agent(model, middleware=[SandboxMiddleware(work)], checkpointer=work.saver)
        end = agent.invoke({"messages": [("user", "Go.")]}, CONFIG)
    assert end["messages"][-2].text.split()[-2:] == ["a", "b"]


def test_an_agent_that_a_tool_calls_needs_the_state(bench: RunHarness) -> None:
    shell = native_reply(("shell", '{"command": "cat outer; echo 1 > inner"}'))
    with hold(bench) as work:
        sub = create_agent(scripted_model(shell, "Done."), middleware=[SandboxMiddleware(work)])

        @tool
        def ask(text: str) -> str:
            """Ask the other agent."""
            return str(sub.invoke({"messages": [("user", text)]})["messages"][-1].text)

        replies = [
            native_reply(("shell", '{"command": "echo 1 > outer"}')),
            native_reply(("ask", '{"text": "go"}')),
        ]
        model = scripted_model(*replies, "Done.")
        agent = create_agent(model, [ask], middleware=[SandboxMiddleware(work)], checkpointer=work.saver)
        with pytest.raises(
            SandboxStateLostError, match="pass sandbox_state to a graph that a node or tool calls"
        ):
            agent.invoke({"messages": [("user", "Go.")]}, CONFIG)


def test_three_agents_side_by_side(bench: RunHarness) -> None:
    """No agent's result holds what the runtime asks the shell, and all their files remain."""
    with hold(bench) as work:
        builder = StateGraph(State)

        def make(name: str) -> Any:
            commands = [
                f"echo {name}{number} >> log-{name}; X{name}={number}; echo did-{name}{number}"
                for number in range(2)
            ]
            replies = [
                AIMessage("", tool_calls=[{"name": "shell", "args": {"command": each}, "id": f"{name}{n}"}])
                for n, each in enumerate(commands)
            ]
            agent = create_agent(scripted_model(*replies, "Done."), middleware=[SandboxMiddleware(work)])

            def node(state: State) -> Any:
                given = {"messages": [("user", "Go.")]}
                if state.get("sandbox_state"):
                    given["sandbox_state"] = state["sandbox_state"]
                end = agent.invoke(given)
                texts = [each.text for each in end["messages"] if isinstance(each, ToolMessage)]
                return {"seen": [(name, *texts)], "sandbox_state": end["sandbox_state"]}

            return node

        for name in "abc":
            builder.add_node(name, make(name)).add_edge(START, name)
        end = builder.compile(checkpointer=work.saver).invoke({}, CONFIG)
        for name, *texts in end["seen"]:
            assert [each.split("\n", 1)[1].strip() for each in texts] == [f"did-{name}0", f"did-{name}1"], (
                texts
            )
        assert sorted(read_log(work, end["sandbox_state"])) == ["a0", "a1", "b0", "b1", "c0", "c1"]
        shown = work.enter(end["sandbox_state"]).run("echo $Xa$Xb$Xc", timeout_s=10).output
        assert shown == "111\n"


# Merging


CONFLICT = "log: one and two created it with different content"


def build_writers(work: ThreadSandbox, saver: Any, *, read: Callable[[State], Any] | None = None) -> Any:
    """Two nodes that write one file in one step, and a node that looks at it."""

    def make(name: str) -> Any:
        def node(state: State) -> Any:
            done = work.act(name, append(name), state=state.get("sandbox_state"))
            return {"sandbox_state": done.state}

        return node

    def look(state: State) -> Any:
        done = work.act(
            "look", lambda box: box.run("cat log", timeout_s=9).output, state=state["sandbox_state"]
        )
        return {"seen": [done.value], "sandbox_state": done.state}

    builder = StateGraph(State).add_node("one", make("one")).add_node("two", make("two"))
    builder.add_node("look", read or look).add_edge(START, "one").add_edge(START, "two")
    return builder.add_edge(["one", "two"], "look").compile(checkpointer=saver)


def test_a_conflict_is_an_error_that_loses_nothing(bench: RunHarness) -> None:
    with hold(bench) as work:
        graph = build_writers(work, work.saver)
        with pytest.raises(MergeConflictError, match=f"{CONFLICT} .*merge='markers'") as raised:
            graph.invoke({}, CONFIG)
        assert [str(each) for each in raised.value.conflicts] == [CONFLICT]
        assert "\n" not in str(raised.value)
    with hold(bench, merge="theirs") as work:  # the same step again, with a policy
        assert build_writers(work, work.saver).invoke(None, CONFIG)["seen"] == ["two\n"]


def test_a_person_can_choose_one_of_the_states(bench: RunHarness) -> None:
    with hold(bench) as work:
        graph = build_writers(work, work.saver)
        with pytest.raises(MergeConflictError):
            graph.invoke({}, CONFIG)
        asked = graph.get_state(CONFIG)
        one, two = asked.values["sandbox_state"].split("+")
        for state, content in ((one, "one\n"), (two, "two\n")):
            chosen = graph.update_state(asked.config, {"sandbox_state": state}, as_node="one")
            graph.update_state(chosen, {}, as_node="two")
            assert work.enter(state).read_file("log").decode() == content


def test_markers_and_a_note(bench: RunHarness) -> None:
    with hold(bench, merge="markers") as work:
        end = build_writers(work, work.saver).invoke({}, CONFIG)
        lines = end["seen"][0].split("\n")
        assert lines[:1] + lines[-2:] == ["<<<<<<< one", ">>>>>>> two", ""]
        (conflict,) = work.list_conflicts(graph_state(work, "look"))
        assert (str(conflict), conflict.left) == (CONFLICT, "conflict markers")


def graph_state(work: ThreadSandbox, node: str) -> str:
    """The state of the newest checkpoint before a node."""
    for stored in work.saver.list(CONFIG):
        if f"branch:to:{node}" in stored.checkpoint["channel_values"] or "+" in str(
            stored.checkpoint["channel_values"].get("sandbox_state")
        ):
            return str(stored.checkpoint["channel_values"]["sandbox_state"])
    raise AssertionError


def test_an_agent_reads_what_was_in_conflict(bench: RunHarness) -> None:
    with hold(bench, merge="markers") as work:
        command = native_reply(("shell", '{"command": "cat log"}'))
        model = scripted_model(command, "Done.")
        agent = create_agent(model, middleware=[SandboxMiddleware(work)])

        def read(state: State) -> Any:
            given = {"messages": [("user", "Go on.")], "sandbox_state": state["sandbox_state"]}
            end = agent.invoke(given)
            return {"seen": [end["messages"][-2].text], "sandbox_state": end["sandbox_state"]}

        end = build_writers(work, work.saver, read=read).invoke({}, CONFIG)
        assert "<<<<<<< one" in end["seen"][0]
        assert any(
            f"- {CONFLICT} (what is there now: conflict markers)" in each.text for each in model.seen[0]
        )


def test_a_conflict_of_agents_names_their_nodes(bench: RunHarness) -> None:
    """Not the nodes inside of them, which have equal names."""
    with hold(bench) as work:
        builder = StateGraph(State)
        for name in ("one", "two"):
            command = native_reply(("shell", json.dumps({"command": f"echo {name} > log"})))
            agent = create_agent(scripted_model(command, "Done."), middleware=[SandboxMiddleware(work)])
            builder.add_node(name, agent).add_edge(START, name)
        builder.add_node("look", make_branch(work, "look")).add_edge(["one", "two"], "look")
        with pytest.raises(MergeConflictError, match=CONFLICT):
            builder.compile(checkpointer=work.saver).invoke({"messages": [("user", "Go.")]}, CONFIG)


def test_a_kill_between_branches_and_merge_loses_nothing(bench: RunHarness) -> None:
    calls: list[str] = []

    def build(work: ThreadSandbox, *, is_killed: bool) -> Any:
        def look(state: State) -> Any:
            if is_killed:
                raise _KilledError
            return {"seen": read_log(work, state["sandbox_state"])}

        def make(name: str) -> Any:
            def node(state: State) -> Any:
                calls.append(name)
                done = work.act("act", append(name, log=f"log-{name}"), state=state.get("sandbox_state"))
                return {"sandbox_state": done.state}

            return node

        builder = StateGraph(State).add_node("look", look)
        for name in "abc":
            builder.add_node(name, make(name)).add_edge(START, name)
        return builder.add_edge(["a", "b", "c"], "look").compile(checkpointer=work.saver)

    with hold(bench) as work, pytest.raises(_KilledError):
        build(work, is_killed=True).invoke({}, CONFIG)
    with hold(bench) as work:
        assert build(work, is_killed=False).invoke(None, CONFIG)["seen"] == ["a", "b", "c"]
    assert sorted(calls) == ["a", "b", "c"]


def test_an_earlier_checkpoint_with_branches_can_be_continued(bench: RunHarness) -> None:
    """Long after, when the journal of its step is gone."""
    with hold(bench) as work:
        graph = build_fan(work, "ab")
        first = graph.invoke({}, CONFIG)
        assert "+" in first["sandbox_state"]
        old = graph.get_state(CONFIG).config
        for _ in range(2):
            graph.invoke({}, CONFIG)
        end = graph.invoke({"seen": []}, old)
        assert read_log(work, end["sandbox_state"]) == ["a0", "a0", "b0", "b0"]
        work.prune()
        assert read_log(work, graph.invoke({}, CONFIG)["sandbox_state"]) == ["a0"] * 3 + ["b0"] * 3


def test_a_state_made_of_a_merge_replaces_what_was_merged(bench: RunHarness) -> None:
    """Even if it undid a branch's change, and if it is among the states of one step."""
    with hold(bench, merge="markers") as work:
        one, two = (work.act(name, append(name), state="base").state for name in ("one", "two"))
        last = work.act(
            "last", lambda box: box.run("rm log", timeout_s=9).exit_code, state=f"{one}+{two}"
        ).state
        assert work.resolve_state(f"{one}+{two}+{last}") == last
        assert [str(each) for each in work.list_conflicts(f"{one}+{two}+{last}")] == [
            f"log: state {one[:8]} and state {two[:8]} created it with different content"
        ]
        assert work.list_conflicts(last) == ()


def test_merges_of_merges(bench: RunHarness) -> None:
    """A branch that forks again is merged first with its own branches."""
    with hold(bench) as work:
        inner = StateGraph(State).add_node("first", make_branch(work, "f")).add_edge(START, "first")
        for name in "ab":
            inner.add_node(name, make_branch(work, name)).add_edge("first", name)
        inner.add_node("last", make_branch(work, "f")).add_edge(["a", "b"], "last")
        outer = StateGraph(State).add_node("one", inner.compile()).add_node("two", make_branch(work, "c"))
        outer.add_edge(START, "one").add_edge(START, "two")
        end = outer.compile(checkpointer=work.saver).invoke({}, CONFIG)
        assert read_log(work, end["sandbox_state"]) == ["a0", "b0", "c0", "f0", "f0"]
