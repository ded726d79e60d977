"""What runs is what was approved: a user's guards, before and after our middleware.

Each case is one reply with two calls. Guards and persons answer the calls, change them, stop them or repeat them. The
file `log`, the events and the answers to the model must agree, and no call may wait for one that never runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.agents.middleware.types import AgentMiddleware
from langchain_core.messages import ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, interrupt
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm

from langgraph_takeover import Home
from langgraph_takeover.errors import EarlierCallError
from langgraph_takeover.graph import swarm as views
from langgraph_takeover.graph.own_graphs import call_order
from langgraph_takeover.integrations import SandboxState, ThreadSandbox, open_sandbox
from langgraph_takeover.middleware import SandboxMiddleware, read_events, receive_record

from ..conftest import DONE, RunHarness, scripted_model
from .test_agent_handoffs import ReactTeamState, TeamState, build_sequence_model
from .test_middleware import reply, shell

CONFIG: Any = {"configurable": {"thread_id": "guarded"}, "recursion_limit": 40}
ONE, TWO = "echo one >> log", "echo two >> log"
SLOW_ASYNC = pytest.param(True, marks=pytest.mark.slow)
pytestmark = pytest.mark.timeout(60)


class Guard(AgentMiddleware[Any, Any, Any]):
    """A user's guard, sync and async: a generator that yields requests, gets their results, and returns the answer."""

    def __init__(self, decide: Callable[[ToolCallRequest], Any], only: str = "one") -> None:
        super().__init__()
        self._decide, self._only = decide, only

    @property
    def name(self) -> str:
        return f"Guard {id(self)}"

    def _start(self, request: ToolCallRequest) -> Any:
        if self._only in str(request.tool_call["args"]):
            return self._decide(request)
        return pass_on(request)

    def wrap_tool_call(self, request: ToolCallRequest, handler: Any) -> Any:
        steps = self._start(request)
        try:
            given = next(steps)
            while True:
                try:
                    result = handler(given)
                except Exception as error:
                    given = steps.throw(error)
                else:
                    given = steps.send(result)
        except StopIteration as end:
            return end.value

    async def awrap_tool_call(self, request: ToolCallRequest, handler: Any) -> Any:
        steps = self._start(request)
        try:
            given = next(steps)
            while True:
                try:
                    result = await handler(given)
                except Exception as error:
                    given = steps.throw(error)
                else:
                    given = steps.send(result)
        except StopIteration as end:
            return end.value


def pass_on(request: ToolCallRequest) -> Any:
    return (yield request)


def with_command(request: ToolCallRequest, command: str) -> ToolCallRequest:
    return request.override(tool_call={**request.tool_call, "args": {"command": command}})


def refuse(request: ToolCallRequest) -> Any:
    return ToolMessage("Refused.", tool_call_id=request.tool_call["id"], status="error")
    yield


def edit(request: ToolCallRequest) -> Any:
    return (yield with_command(request, "echo edited >> log"))


def ask(request: ToolCallRequest) -> Any:
    if interrupt(f"May it run: {request.tool_call['args']}?") != "yes":
        return ToolMessage("Refused by a person.", tool_call_id=request.tool_call["id"])
    return (yield request)


def ask_afterwards(request: ToolCallRequest) -> Any:
    result = yield request
    interrupt("Is the result right?")
    return result


def run_twice(request: ToolCallRequest) -> Any:
    yield request
    return (yield request)


def fall_back(request: ToolCallRequest) -> Any:
    yield with_command(request, "echo tried >> log; exit 1")
    return (yield with_command(request, "echo fallback >> log"))


def answer_itself_after_running(request: ToolCallRequest) -> Any:
    yield request
    return ToolMessage("[removed]", tool_call_id=request.tool_call["id"])


class Flaky:
    """Fails on the first attempts, before the tool runs."""

    def __init__(self, failures: int) -> None:
        self.left = failures

    def __call__(self, request: ToolCallRequest) -> Any:
        if self.left:
            self.left -= 1
            raise ConnectionError("try again")
        return (yield request)


def review(**options: Any) -> HumanInTheLoopMiddleware:
    return HumanInTheLoopMiddleware(interrupt_on={"shell": True, "editor": True}, **options)


def decide(*decisions: dict[str, Any]) -> dict[str, Any]:
    return {"decisions": [*decisions]}


APPROVE, REJECT = {"type": "approve"}, {"type": "reject", "message": "No."}
RESPOND = {"type": "respond", "message": "A person did it."}
EDIT = {"type": "edit", "edited_action": {"name": "shell", "args": {"command": "echo edited >> log"}}}
CREATE = {"command": "create", "path": "log", "content": "edited\n"}
EDITOR = {"type": "edit", "edited_action": {"name": "editor", "args": CREATE}}
NO_LOG = "cat: log: No such file or directory"


class Case(NamedTuple):
    middleware: Callable[[], list[Any]]
    ran: list[str]
    """The words in the file `log`."""
    answers: list[str]
    """Part of the answer to each call."""
    resume: tuple[Any, ...] = ()
    places: str = "before after"
    commands: list[str] | None = None
    """The commands of the events, if they are not `echo WORD >> log`."""
    calls: tuple[str, str] = (ONE, TWO)


BOTH = ["one", "two"]
OK = "[exit code 0]"
CASES = {
    "guard refuses": Case(lambda: [Guard(refuse)], ["two"], ["Refused.", OK]),
    "guard refuses the second": Case(lambda: [Guard(refuse, "two")], ["one"], [OK, "Refused."]),
    "guard edits": Case(lambda: [Guard(edit)], ["edited", "two"], [OK, OK]),
    "guard asks": Case(lambda: [Guard(ask)], BOTH, [OK, OK], ("yes",)),
    "guard asks and refuses": Case(lambda: [Guard(ask)], ["two"], ["Refused by a person.", OK], ("no",)),
    "guard asks about both": Case(lambda: [Guard(ask, "")], BOTH, [OK, OK], (["yes", "yes"],)),
    "guard asks afterwards": Case(lambda: [Guard(ask_afterwards)], BOTH, [OK, OK], ("yes",)),
    "guard runs twice": Case(lambda: [Guard(run_twice)], ["one", "one", "two"], [OK, OK]),
    "guard falls back": Case(
        lambda: [Guard(fall_back)], ["tried", "fallback", "two"], [OK, OK],
        commands=["echo tried >> log; exit 1", "echo fallback >> log", TWO],
    ),
    "guard asks afterwards and falls back": Case(
        lambda: [Guard(fall_back), Guard(ask_afterwards, "tried")],
        ["tried", "fallback", "two"], [OK, OK], ("yes",),
        commands=["echo tried >> log; exit 1", "echo fallback >> log", TWO],
    ),
    "guard hides a result": Case(
        lambda: [Guard(answer_itself_after_running)], BOTH, ["[removed]", OK]
    ),
}  # fmt: skip


def hold(bench: RunHarness) -> Any:
    return open_sandbox(bench.home, "guarded", sandbox=bench.spec)


def invoke(graph: Any, given: Any, is_async: bool) -> Any:
    if is_async:
        return asyncio.run(asyncio.wait_for(graph.ainvoke(given, CONFIG), 40))
    return graph.invoke(given, CONFIG)


def play(graph: Any, resume: tuple[Any, ...] = (), *, is_async: bool = False) -> dict[str, Any]:
    """Run a graph to its end, with a person's answers: those of a list belong to questions of one step."""
    end = invoke(graph, {"messages": [("user", "Go.")]}, is_async)
    for answer in resume:
        if isinstance(answer, list):
            questions = sorted(end["__interrupt__"], key=lambda each: str(each.value))
            answer = {each.id: value for each, value in zip(questions, answer, strict=True)}
        end = invoke(graph, Command(resume=answer), is_async)
    assert "__interrupt__" not in end
    return end


def read_log(work: ThreadSandbox, end: dict[str, Any]) -> list[str]:
    shown = work.enter(end["sandbox_state"]).run("cat log || true", timeout_s=10)
    return shown.output.replace(NO_LOG, "").split()


def answers(end: dict[str, Any]) -> list[str]:
    found = {each.tool_call_id: each.text for each in end["messages"] if isinstance(each, ToolMessage)}
    return [text for _, text in sorted(found.items())]


def commands(home: Home, end: dict[str, Any]) -> list[str]:
    events = read_events(home, end, thread=CONFIG["configurable"]["thread_id"])
    return [event.arguments["command"] for event in events if event.kind == "action"]


def list_places(cases: dict[str, Case]) -> list[Any]:
    """Return the parameters of a test of some cases, with the others' middleware before and after ours."""
    return [
        pytest.param(name, place, marks=[pytest.mark.slow] if place == "after" else [])
        for name in cases
        for place in cases[name].places.split()
    ]


def play_case(
    home: Home, sandboxes: Any, saver: Any, case: Case, place: str, is_async: bool
) -> dict[str, Any]:
    """Run an agent with a case's middleware; check its answers and events, and return its end."""
    model = scripted_model(shell(*case.calls), "Done.")
    sandboxed, others = [SandboxMiddleware(sandboxes)], case.middleware()
    middleware = others + sandboxed if place == "before" else sandboxed + others
    agent = create_agent(model, middleware=middleware, checkpointer=saver)
    end = play(agent, case.resume, is_async=is_async)
    assert all(part in text for part, text in zip(case.answers, answers(end), strict=True)), answers(end)
    events = read_events(home, end, thread=CONFIG["configurable"]["thread_id"])
    assert [event.index for event in events] == list(range(len(events)))
    assert commands(home, end) == (case.commands or [f"echo {word} >> log" for word in case.ran])
    return end


@pytest.mark.sampled(10)
@pytest.mark.cases(5)
@pytest.mark.parametrize("is_async", [False, SLOW_ASYNC])
@pytest.mark.parametrize(("name", "place"), list_places(CASES))
def test_what_runs_is_what_was_approved(bench: RunHarness, name: str, place: str, is_async: bool) -> None:
    with hold(bench) as work:
        end = play_case(bench.home, work, work.saver, CASES[name], place, is_async)
        assert read_log(work, end) == CASES[name].ran


class NodeState(MessagesState, SandboxState):
    pass


def build_node_graph(work: ThreadSandbox, guards: list[Guard], place: str, is_plain: bool = False) -> Any:
    """A graph of one's own with a `ToolNode`, which runs all calls of a reply in one task."""
    middleware = SandboxMiddleware(work)
    chain: list[Any] = [*guards, middleware] if place == "before" else [middleware, *guards]

    def wrap(request: ToolCallRequest, handler: Any) -> Any:
        for each in reversed(chain):
            handler = partial(each.wrap_tool_call, handler=handler)
        return handler(request)

    async def awrap(request: ToolCallRequest, handler: Any) -> Any:
        for each in reversed(chain):
            handler = partial(each.awrap_tool_call, handler=handler)
        return await handler(request)

    model = scripted_model(shell(ONE, TWO), "Done.")
    builder = StateGraph(NodeState)
    builder.add_node("think", lambda state: {"messages": model.invoke(state["messages"])})
    options = {} if is_plain else {"wrap_tool_call": wrap, "awrap_tool_call": awrap}
    builder.add_node("tools", ToolNode(middleware.tools, **options))
    builder.add_edge(START, "think").add_edge("tools", "think")
    builder.add_conditional_edges("think", tools_condition)
    return builder.compile(checkpointer=work.saver)


def build_swarm(work: ThreadSandbox, guards: list[Guard], place: str) -> Any:
    sandboxed = [SandboxMiddleware(work)]
    middleware = [*guards, *sandboxed] if place == "before" else [*sandboxed, *guards]
    handoff = create_handoff_tool(agent_name="bob")
    model = scripted_model(reply(("transfer_to_bob", {}), text="t"), shell(ONE, TWO), "Done.")
    alice = create_agent(model, [handoff], middleware=middleware, name="alice")
    bob = create_agent(model, middleware=middleware, name="bob")
    team = create_swarm([alice, bob], default_active_agent="alice", state_schema=TeamState)
    return team.compile(checkpointer=work.saver)


def build_bob(sandboxed: SandboxMiddleware, command: str, *tools: Any) -> Any:
    """An agent that runs one command."""
    model = build_sequence_model(shell(command, text="b"), "Done.")
    return create_agent(model, [*tools], middleware=[sandboxed], name="bob")


def build_supervisor(work: ThreadSandbox, guards: list[Guard], place: str) -> Any:
    sandboxed = [SandboxMiddleware(work)]
    middleware = [*guards, *sandboxed] if place == "before" else [*sandboxed, *guards]
    bob = create_agent(build_sequence_model(shell(ONE, TWO), "Done."), middleware=middleware, name="bob")
    boss = build_sequence_model(reply(("transfer_to_bob", {}), text="t"), "All done.")
    team = create_supervisor([bob], model=boss, state_schema=ReactTeamState, output_mode="full_history")
    return team.compile(checkpointer=work.saver)


GUARDS = {
    "refuses": (refuse, ["two"], ()),
    "edits": (edit, ["edited", "two"], ()),
    "asks": (ask, BOTH, ("yes",)),
}


@pytest.mark.sampled(10)
@pytest.mark.cases(2)
@pytest.mark.parametrize("is_async", [False, SLOW_ASYNC])
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("build", [build_node_graph, build_swarm, build_supervisor])
def test_guards_in_other_graphs(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch, build: Any, guard: str, place: str, is_async: bool
) -> None:
    monkeypatch.setattr(call_order, "_START_S", 0.5)
    decide, expected, resume = GUARDS[guard]
    with hold(bench) as work:
        end = play(build(work, [Guard(decide)], place), resume, is_async=is_async)
        assert read_log(work, end) == expected


@pytest.mark.parametrize("is_async", [False, True])
def test_tools_without_the_wrapper_of_their_middleware(bench: RunHarness, is_async: bool) -> None:
    with hold(bench) as work:
        graph = build_node_graph(work, [], "after", is_plain=True)
        assert read_log(work, play(graph, is_async=is_async)) == BOTH


HANDOFFS = {
    "the command is rejected": (["bob"], (decide(REJECT, APPROVE),), "bob"),
    "the handoff is rejected": (["one"], (decide(APPROVE, REJECT),), "alice"),
    "both are approved": (["one", "bob"], (decide(APPROVE, APPROVE),), "bob"),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("is_async", [False, SLOW_ASYNC])
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("name", HANDOFFS)
def test_handoffs_under_review(bench: RunHarness, name: str, place: str, is_async: bool) -> None:
    expected, resume, last = HANDOFFS[name]
    reviewed = HumanInTheLoopMiddleware(interrupt_on={"shell": True, "transfer_to_bob": True})
    with hold(bench) as work:
        sandboxed = SandboxMiddleware(work)
        both = reply(("shell", {"command": ONE}), ("transfer_to_bob", {}))
        alice = create_agent(
            scripted_model(both, "Done."), [create_handoff_tool(agent_name="bob")], name="alice",
            middleware=[reviewed, sandboxed] if place == "before" else [sandboxed, reviewed],
        )  # fmt: skip
        bob = build_bob(sandboxed, "echo bob >> log")
        team = create_swarm([alice, bob], default_active_agent="alice", state_schema=TeamState)
        end = play(team.compile(checkpointer=work.saver), resume, is_async=is_async)
        assert read_log(work, end) == expected
    assert end.get("active_agent", "alice") == last


@pytest.mark.cases(2)
@pytest.mark.parametrize("decision", [APPROVE, REJECT, RESPOND, EDIT], ids=lambda each: each["type"])
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_person_answers_in_another_process(bench: RunHarness, place: str, decision: Any) -> None:
    """One question at a time: the second call is answered first, and runs after the first."""

    def build(work: ThreadSandbox) -> Any:
        middleware: list[Any] = [review(interrupt_mode="per_call"), SandboxMiddleware(work)]
        if place == "after":
            middleware.reverse()
        model = scripted_model(shell(ONE, TWO), "Done.")
        return create_agent(model, middleware=middleware, checkpointer=work.saver)

    with hold(bench) as work:
        first, second = sorted(play_once(build(work)), key=lambda each: str(each.value))
    with hold(bench) as work:
        (left,) = play_once(build(work), Command(resume={second.id: APPROVE}))
        assert left.id == first.id
    with hold(bench) as work:
        end = invoke(build(work), Command(resume={first.id: decision}), False)
        words = {"approve": ["one"], "edit": ["edited"]}.get(decision["type"], [])
        assert read_log(work, end) == [*words, "two"]


def play_once(graph: Any, given: Any = None) -> list[Any]:
    end = graph.invoke(given or {"messages": [("user", "Go.")]}, CONFIG)
    return [*end["__interrupt__"]]


def test_a_fork_with_an_edited_call_runs_the_edited_call(bench: RunHarness) -> None:
    wrong, right = shell("echo WRONG >> log", TWO), shell("echo RIGHT >> log", TWO)
    model = scripted_model(wrong, "Done.")
    with hold(bench) as work:
        agent = create_agent(model, middleware=[SandboxMiddleware(work)], checkpointer=work.saver)
        first = play(agent)
        assert read_log(work, first) == ["WRONG", "two"]
        before = next(each for each in agent.get_state_history(CONFIG) if each.next == ("tools", "tools"))
        edited = before.values["messages"][-1].model_copy(update={"tool_calls": right.tool_calls})
        fork = agent.update_state(before.config, {"messages": [edited]}, as_node="model")
        end = invoke(agent, None, False) if fork is None else agent.invoke(None, fork)
        assert read_log(work, end) == ["RIGHT", "two"]
        assert commands(bench.home, end) == ["echo RIGHT >> log", TWO]
        again = agent.invoke(None, before.config)  # and the other branch again
        assert read_log(work, again) == ["WRONG", "two"]


class _KilledError(BaseException):
    pass


class Crash:
    """Ends the process after a call, once."""

    def __init__(self) -> None:
        self.has_crashed = False

    def __call__(self, request: ToolCallRequest) -> Any:
        result = yield request
        if not self.has_crashed:
            self.has_crashed = True
            raise _KilledError
        return result


@pytest.mark.cases(3)
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("only", ["one", "two", "fallback"])
def test_a_crash_after_a_call_does_not_repeat_it(
    bench: RunHarness, tmp_path: Any, only: str, place: str
) -> None:
    """Between the end of the effect and the checkpoint; also between the attempts of a guard."""
    outside = tmp_path / "outside"  # of the sandbox: what is undone there stays here

    def count(word: str) -> str:
        return f"echo {word} | tee -a log >> {outside}"

    def try_both(request: ToolCallRequest) -> Any:
        yield with_command(request, count("tried one"))
        return (yield with_command(request, count("fallback one")))

    crash = Guard(Crash(), only)
    for attempt in range(2):
        with hold(bench) as work:
            guards: list[Any] = [Guard(try_both, "one"), crash]
            sandboxed = [SandboxMiddleware(work)]
            middleware = guards + sandboxed if place == "before" else sandboxed + guards
            if only == "two":
                middleware.remove(crash)
                middleware.insert(0, crash)
            model = scripted_model(shell(count("one"), count("two")), "Done.")
            agent = create_agent(model, middleware=middleware, checkpointer=work.saver)
            if attempt == 0:
                with pytest.raises((_KilledError, EarlierCallError)):
                    invoke(agent, {"messages": [("user", "Go.")]}, False)
            else:
                end = invoke(agent, None, False)
                assert read_log(work, end) == ["tried", "one", "fallback", "one", "two"]
    assert outside.read_text().split() == ["tried", "one", "fallback", "one", "two"]
    assert len(read_events(bench.home, end, thread="guarded")) == 6


def test_another_call_after_a_crash_replaces_the_one_before_it(bench: RunHarness) -> None:
    """A guard that decides otherwise after a crash: nobody has seen the first result, so its effect is undone."""
    with hold(bench) as work:
        crash = Guard(Crash(), "one")
        middleware = [crash, SandboxMiddleware(work)]
        model = scripted_model(shell(ONE, TWO), "Done.")
        with pytest.raises((_KilledError, EarlierCallError)):
            play(create_agent(model, middleware=middleware, checkpointer=work.saver))
    with hold(bench) as work:
        middleware = [SandboxMiddleware(work), Guard(edit)]
        model = scripted_model(shell(ONE, TWO), "Done.")
        end = invoke(create_agent(model, middleware=middleware, checkpointer=work.saver), None, False)
        assert read_log(work, end) == ["edited", "two"]
        assert commands(bench.home, end) == ["echo edited >> log", TWO]


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True])
def test_every_wait_has_an_end(bench: RunHarness, monkeypatch: pytest.MonkeyPatch, is_async: bool) -> None:
    monkeypatch.setattr(call_order, "_LONGEST_WAIT_S", 0.5)
    with hold(bench) as work:
        model = scripted_model(shell("sleep 4", TWO), "Done.")
        agent = create_agent(model, middleware=[SandboxMiddleware(work)], checkpointer=work.saver)
        with pytest.raises(EarlierCallError, match=r"has not ended after 0 s \(resume the thread\)"):
            play(agent, is_async=is_async)


def test_a_review_keeps_what_a_guard_hid(bench: RunHarness) -> None:
    with hold(bench) as work:
        middleware = [Guard(answer_itself_after_running, "core"), SandboxMiddleware(work, policy="review")]
        model = scripted_model(shell("sed -i 's/n + 1/n * 3/' pkg/core.py"), "Done.")
        agent = create_agent(model, middleware=middleware, checkpointer=work.saver)
        end = play(agent, ({"decision": "refuse"},))
        assert b"n * 3" in work.enter(end["sandbox_state"]).read_file("pkg/core.py")
    assert len(read_events(bench.home, end, thread="guarded")) == 2
    assert len(end["records"]) == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_command_after_a_handoff_does_not_run(bench: RunHarness, is_async: bool) -> None:
    with hold(bench) as work:
        both = reply(("transfer_to_bob", {}), ("shell", {"command": ONE}))
        sandboxed = SandboxMiddleware(work)
        to_bob = create_handoff_tool(agent_name="bob")
        alice = create_agent(scripted_model(both), [to_bob], middleware=[sandboxed], name="alice")
        bob = build_bob(sandboxed, TWO)
        team = create_swarm([alice, bob], default_active_agent="alice", state_schema=TeamState)
        end = play(team.compile(checkpointer=work.saver), is_async=is_async)
        assert read_log(work, end) == ["two"]


def test_any_names_of_arguments(bench: RunHarness) -> None:
    odd = {"self": 1, "runtime": "x", "config": {}, "run_manager": 2, "call": 3, "command": ONE}
    with hold(bench) as work:
        model = scripted_model(reply(("shell", odd)), "Done.")
        agent = create_agent(model, middleware=[SandboxMiddleware(work)], checkpointer=work.saver)
        play(agent)
        tool = SandboxMiddleware(work).tools[0]
        with pytest.raises(RuntimeError, match="only in an agent"):
            tool.invoke({"command": "ls"})


@pytest.mark.parametrize("is_async", [False, SLOW_ASYNC])
@pytest.mark.parametrize("beside", [False, True])
def test_a_record_of_a_handoff_tool_can_be_taken_over(
    bench: RunHarness, is_async: bool, beside: bool
) -> None:
    """Also if the command stands beside the handoff in one reply."""
    handoff = views.create_handoff_tool(agent_name="bob", view="structured")
    edit = ("shell", {"command": "cp pkg/core.py pkg/new.py; sed -i 's/n + 1/n * 3/' pkg/core.py"})
    to_bob = ("transfer_to_bob", {})
    replies = [reply(edit, to_bob)] if beside else [reply(edit), reply(to_bob, text="t")]
    with hold(bench) as work:
        sandboxed = SandboxMiddleware(work)
        alice = create_agent(build_sequence_model(*replies), [handoff], middleware=[sandboxed], name="alice")
        back = views.create_handoff_tool(agent_name="alice", view="trace")
        bob = build_bob(sandboxed, "echo bob >> log", back)
        team = create_swarm([alice, bob], default_active_agent="alice", state_schema=TeamState)
        play(team.compile(checkpointer=work.saver), is_async=is_async)
    (record_id,) = [each for each in bench.home.records.list_ids() if ".requested" in each]
    record = bench.home.records.load(record_id)
    assert sorted(file.path for file in record.edited_files) == ["pkg/core.py", "pkg/new.py"]
    assert "+    return n * 3" in record.patch
    changed = [change.path for event in record.trace for change in event.changes]
    assert changed == ["pkg/core.py", "pkg/new.py"]
    assert (record.task.base_directories, len(record.task.base_commit)) == (("pkg",), 40)
    model = build_sequence_model("```bash\ngrep 'n \\* 3' pkg/core.py\n```", DONE)
    assert bench.take_over(model, "structured", record_id)["stop_reason"] == "finished"
    with open_sandbox(bench.home, "next", sandbox=bench.spec) as work:
        given = receive_record(work, record_id)
        assert b"n * 3" in work.enter(given["sandbox_state"]).read_file("pkg/core.py")
