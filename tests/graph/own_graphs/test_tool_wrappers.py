"""What runs is what was approved: LangChain's middleware and a user's guards, before and after ours.

Each case is one reply with two calls. Guards and persons answer the calls, change them, stop them or repeat them. The
file `log`, the events and the answers to the model must agree, and no call may wait for one that never runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    LLMToolEmulator,
    LLMToolSelectorMiddleware,
    ModelCallLimitMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolErrorMiddleware,
    ToolRetryMiddleware,
)
from langchain.agents.middleware.types import AgentMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, interrupt

from langgraph_takeover.integrations import ThreadSandbox, open_sandbox
from langgraph_takeover.middleware import SandboxMiddleware

from ..conftest import RunHarness, scripted_model
from .test_agent_handoffs import build_sequence_model
from .test_middleware import shell

CONFIG: Any = {"configurable": {"thread_id": "guarded"}, "recursion_limit": 40}
ONE, TWO = "echo one >> log", "echo two >> log"
pytestmark = pytest.mark.timeout(60)


class Guard(AgentMiddleware[Any, Any, Any]):
    """A user's guard, sync and async: a generator that yields requests, gets their results, and returns the answer."""

    def __init__(self, decide: Callable[[ToolCallRequest], Any], only: str = "one") -> None:
        super().__init__()
        self._decide, self._only = decide, only

    @property
    def name(self) -> str:
        return f"Guard({self._only})"

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
EDITOR = {
    "type": "edit",
    "edited_action": {"name": "editor", "args": {"command": "create", "path": "log", "content": "edited\n"}},
}
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
SELECTION = AIMessage(
    "", tool_calls=[{"name": "ToolSelectionResponse", "args": {"tools": ["shell", "editor"]}, "id": "s"}]
)


def hold(bench: RunHarness) -> Any:
    return open_sandbox(bench.home, "guarded", sandbox=bench.spec)


def invoke(graph: Any, given: Any, is_async: bool) -> dict[str, Any]:
    end: dict[str, Any] = (
        asyncio.run(asyncio.wait_for(graph.ainvoke(given, CONFIG), 40))
        if is_async
        else graph.invoke(given, CONFIG)
    )
    return end


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
    return (
        work.enter(end["sandbox_state"])
        .run("cat log || true", timeout_s=10)
        .output.replace(NO_LOG, "")
        .split()
    )


def answers(end: dict[str, Any]) -> list[str]:
    found = {each.tool_call_id: each.text for each in end["messages"] if isinstance(each, ToolMessage)}
    return [text for _, text in sorted(found.items())]


def commands(end: dict[str, Any]) -> list[str]:
    return [event["arguments"]["command"] for event in end["events"] if event["kind"] == "action"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("name", CASES)
def test_what_runs_is_what_was_approved(bench: RunHarness, name: str, place: str, is_async: bool) -> None:
    case = CASES[name]
    if place not in case.places:
        pytest.skip("the same as in the other place")
    model = scripted_model(shell(*case.calls), "Done.")
    with hold(bench) as work:
        sandboxed, others = [SandboxMiddleware(work)], case.middleware()
        middleware = others + sandboxed if place == "before" else sandboxed + others
        agent = create_agent(model, middleware=middleware, checkpointer=work.saver)
        end = play(agent, case.resume, is_async=is_async)
        ran = read_log(work, end)
    assert ran == case.ran
    assert all(part in text for part, text in zip(case.answers, answers(end), strict=True)), answers(end)
    assert [event["index"] for event in end["events"]] == list(range(len(end["events"])))
    expected = case.commands or [f"echo {word} >> log" for word in case.ran]
    assert commands(end) == expected
