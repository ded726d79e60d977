"""Graphs with `Sandboxes`: agents side by side, requests to a warm thread, and the event loop of a web service.

Eight agents of one step each fix another file, in forks of the sandbox; their work is merged, and the next node runs all
tests. That is compared with one agent of the same length, and with the eight one after another. A request invokes a graph
of one node on a thread whose sandbox is open. The loop serves five users of an agent at once, after `gc.freeze()`, as in
`examples/fastapi_service.py`; its longest block is the time by which a timer of 1 ms was late. The model waits like an
endpoint, and is not an LLM.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Annotated, Any

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph

from benchmarks.figures import Goal, format_count, print_figures, run_command
from benchmarks.models import InstantModel
from benchmarks.testbed import make_spec
from benchmarks.turns import AsJson, Comparison, Rounds, measure_in_turns, open_work_directory
from langgraph_takeover import SandboxSpec, open_home
from langgraph_takeover.handoff.shell.command_effects import CommandEffect
from langgraph_takeover.integrations import Sandboxes, SandboxState
from langgraph_takeover.middleware import SandboxMiddleware

_BRANCHES, _USERS, _PROBE_S = 8, 5, 0.001
_TEST = "python3 -m unittest -q"


class _FixingModel(InstantModel):
    """Fixes the file that its prompt names, tests it, and ends."""

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        return self

    def _write_reply(self, messages: Sequence[Any]) -> ChatResult:
        asked = max(n for n, each in enumerate(messages) if each.type == "human")
        name, step = messages[asked].text, sum(each.type == "ai" for each in messages[asked:])
        commands = (f"sed -i s/-/+/ {name}.py", f"{_TEST} test_{name}")
        reply = AIMessage("Done.")
        if step < len(commands):
            call = {"name": "shell", "args": {"command": commands[step]}, "id": f"{name}_{len(messages)}"}
            reply = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=reply)])

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        time.sleep(self.reply_s)
        return self._write_reply(messages)

    async def _agenerate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        await asyncio.sleep(self.reply_s)
        return self._write_reply(messages)


def _make_repository(directory: Path, number: int) -> SandboxSpec:
    """A repository in which each of these functions has an error and a test."""
    directory.mkdir()
    for n in range(number):
        (directory / f"part{n}.py").write_text(f"def add{n}(a, b):\n    return a - b\n")
        (directory / f"test_part{n}.py").write_text(
            f"import unittest\nfrom part{n} import add{n}\n\n\nclass T(unittest.TestCase):\n"
            f"    def test(self):\n        self.assertEqual(add{n}(1, 2), 3)\n"
        )
    return make_spec(directory, 100)


def _fix(branches: int, reply_s: float, *, in_turn: bool = False) -> float:
    """Return the seconds in which agents fix a file each, and a node finds all tests passing."""
    with open_work_directory() as work, open_home(work / "home") as home:
        spec = _make_repository(work / "repository", branches)
        with Sandboxes(home, spec, max_open=branches) as sandboxes:
            model = _FixingModel(command="", steps=2, reply_s=reply_s)
            agent: Any = create_agent(model, middleware=[SandboxMiddleware(sandboxes, points=())])
            builder = StateGraph(SandboxState)

            def add_agent(name: str) -> None:
                def node(state: SandboxState) -> Any:
                    given = {"messages": [("user", name)], "sandbox_state": state.get("sandbox_state")}
                    return {"sandbox_state": agent.invoke(given)["sandbox_state"]}

                builder.add_node(name, node)

            def test(state: SandboxState) -> Any:
                run: Callable[[Any], Any] = lambda box: box.run(_TEST, timeout_s=60).exit_code  # noqa: E731
                done = sandboxes.current().act("test", run, state=state["sandbox_state"])
                assert done.value == 0
                return {"sandbox_state": done.state}

            names = [f"part{n}" for n in range(branches)]
            for name in names:
                add_agent(name)
            builder.add_node(test)
            if in_turn:
                builder.add_edge(START, names[0])
                for before, after in zip(names, [*names[1:], "test"], strict=True):
                    builder.add_edge(before, after)
            else:
                for name in names:
                    builder.add_edge(START, name)
                builder.add_edge(names, "test")
            graph: Any = builder.compile(checkpointer=InMemorySaver())
            started = time.perf_counter()
            graph.invoke({}, {"configurable": {"thread_id": "fix"}})
            return time.perf_counter() - started


def _request(command: str | None, requests: int, effects: CommandEffect = "anything") -> float:
    """Return the median of the seconds of a request; without a command, of a graph without sandbox."""
    with open_work_directory() as work, ExitStack() as stack:
        home = stack.enter_context(open_home(work / "home"))
        sandboxes = stack.enter_context(Sandboxes(home, make_spec(work / "repository", 100)))

        def node(state: SandboxState) -> Any:
            if command is None:
                return {"sandbox_state": "base"}
            run: Callable[[Any], Any] = lambda box: box.run(command, timeout_s=60).exit_code  # noqa: E731
            done = sandboxes.current().act("run", run, state=state.get("sandbox_state"), effects=effects)
            return {"sandbox_state": done.state}

        builder = StateGraph(SandboxState).add_node(node).add_edge(START, "node")
        graph: Any = builder.compile(checkpointer=InMemorySaver())
        seconds = []
        for _ in range(requests):
            started = time.perf_counter()
            graph.invoke({}, {"configurable": {"thread_id": "user"}})
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds[1:])


@tool
def shell(command: str) -> str:
    """Run a command."""
    return command


async def _serve(*, has_sandbox: bool, reply_s: float) -> Mapping[str, float]:
    """Return the longest block of the loop while five users' agents work, and the 99th percentile."""
    late: list[float] = []

    async def probe() -> None:
        while True:
            due = time.perf_counter() + _PROBE_S
            await asyncio.sleep(_PROBE_S)
            late.append(time.perf_counter() - due)

    with open_work_directory() as work:
        async with AsyncExitStack() as stack:
            chats = AsyncSqliteSaver.from_conn_string(str(work / "chats.sqlite"))
            saver = await stack.enter_async_context(chats)
            home = await stack.enter_async_context(open_home(work / "home"))
            spec = _make_repository(work / "repository", _USERS)
            sandboxes = await stack.enter_async_context(Sandboxes(home, spec))
            parts: Any = {"tools": [shell], "checkpointer": saver}
            if has_sandbox:
                middleware = [SandboxMiddleware(sandboxes)]
                parts = {"middleware": middleware, "checkpointer": sandboxes.guard(saver)}
            agent: Any = create_agent(_FixingModel(command="", steps=2, reply_s=reply_s), **parts)

            async def use(user: int) -> None:
                for turn in range(3):
                    given = {"messages": [("user", f"part{(user + turn) % _USERS}")]}
                    await agent.ainvoke(given, {"configurable": {"thread_id": f"user-{user}"}})

            gc.freeze()
            probing = asyncio.create_task(probe())
            await asyncio.gather(*map(use, range(_USERS)))
            probing.cancel()
            gc.unfreeze()
    late.sort()
    return {"longest": late[-1], "p99": late[int(len(late) * 0.99)]}


def main(
    reply_s: Annotated[float, typer.Option(min=0.0, help="Seconds per reply of the model.")] = 1.0,
    requests: Annotated[int, typer.Option(min=2, help="Requests to a warm thread.")] = 50,
    rounds: Rounds = 3,
    as_json: AsJson = False,
) -> None:
    """Measure parallel branches, warm requests, and the event loop."""
    samples = measure_in_turns(
        rounds,
        {
            "branches": lambda _: _fix(_BRANCHES, reply_s),
            "turns": lambda _: _fix(_BRANCHES, reply_s, in_turn=True),
            "branch": lambda _: _fix(1, reply_s),
            "plain": lambda _: _request(None, requests),
            "reading": lambda _: _request("wc pkg/part00/module0000.py", requests, "nothing"),
            "acting": lambda _: _request("date +%N > new.txt", requests),
            "loop": lambda _: asyncio.run(_serve(has_sandbox=True, reply_s=reply_s / 4)),
            "theirs": lambda _: asyncio.run(_serve(has_sandbox=False, reply_s=reply_s / 4)),
        },
    )
    for reading, plain in zip(samples.values["reading"], samples.values["plain"], strict=True):
        samples.add("over", reading - plain)
    agents = f"{_BRANCHES} agents side by side, merged and tested"
    own = "LangGraph without a sandbox"
    figures = samples.compare(
        Comparison(agents, "branches", "branch", "one agent", unit="s"),
        Comparison(agents, "branches", "turns", "one after another", unit="s"),
        Comparison("request that reads", "reading", "plain", own),
        Comparison(f"request that reads, over {own}", "over", goal=Goal(15)),
        Comparison("request that acts", "acting", "plain", own),
        Comparison(
            f"longest block of the loop, {_USERS} users", "loop_longest", "theirs_longest", own, Goal(10)
        ),
        Comparison(f"block of the loop, {_USERS} users, p99", "loop_p99", "theirs_p99", own),
    )
    title = f"medians of {format_count(rounds, 'round')}; replies after {reply_s} s"
    print_figures(title, figures, as_json=as_json)


if __name__ == "__main__":
    run_command(main)
