"""Calls of `task` in one reply: side by side, each in a fork of the sandbox. `test_deepagents.py` runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from langgraph_takeover import SandboxSpec, open_home
from langgraph_takeover.deepagents import SandboxBackend, SandboxFilesystemMiddleware
from langgraph_takeover.errors import MergeConflictError
from langgraph_takeover.integrations import Sandboxes, SandboxState, ThreadSandbox, open_sandbox

from ..conftest import RunHarness, TaskModel, task_model
from .deepagents_agents import CONFIG, ask, execute, hold, invoke, reply, results


class _KilledError(BaseException):
    """Ends a process as a kill would."""


def call_task(name: str, kind: str = "writer") -> tuple[str, dict[str, Any]]:
    return "task", {"description": name, "subagent_type": kind}


def run(command: str) -> tuple[str, dict[str, Any]]:
    return "execute", {"command": command}


def build(
    work: ThreadSandbox | Sandboxes, model: TaskModel, *, saver: Any = None, inner: Any = (), **options: Any
) -> Any:
    """Build an agent whose subagent `writer` has the middleware `inner` too."""
    backend = SandboxBackend(work)
    ours = SandboxFilesystemMiddleware(backend)
    fields = {"description": "Writes.", "system_prompt": "Write."}
    writer = {"name": "writer", "middleware": [ours, *inner], **fields}
    options["middleware"] = [ours, *options.get("middleware", ())]
    return create_deep_agent(
        model,
        backend=backend,
        checkpointer=saver or getattr(work, "saver", None),
        **{"subagents": [writer], **options},
    )


def meet(timeout_s: float = 60) -> Callable[[], int]:
    """Return a function that two callers leave together."""
    return threading.Barrier(2, timeout=timeout_s).wait


@pytest.mark.parametrize("kind", ["general-purpose", "writer"])
@pytest.mark.parametrize("is_async", [False, True])
def test_tasks_overlap_between_ordered_calls(
    bench: RunHarness, tmp_path: Path, is_async: bool, kind: str
) -> None:
    """Each command waits for a file, outside of the sandbox, that the other task's command makes."""

    def wait_for(mine: str, other: str) -> str:
        return f"touch {tmp_path}/{mine}; until [ -e {tmp_path}/{other} ]; do sleep 0.02; done"

    scripts = {
        "go": [
            reply(run("echo 0 > log-0"), call_task("a", kind), call_task("b", kind), run("cat log-*; ls")),
            execute("cat log-*; echo $A$B", text="2"),
            "Done.",
        ],
        "a": [execute(f"{wait_for('a', 'b')}; A=1; echo a > log-a", "cat log-*", text="a"), "A done."],
        "b": [execute(f"{wait_for('b', 'a')}; B=2; echo b > log-b", "cat log-*", text="b"), "B done."],
    }
    model = task_model(scripts, {("a", 1): (both := meet()), ("b", 1): both})
    with hold(bench) as work:
        end = invoke(build(work, model), ask("go"), is_async=is_async)
    assert results(end)[1:3] == ["A done.", "B done."]
    assert results(end)[3].split()[:3] == ["0", "a", "b"]
    assert results(end)[4].split()[:4] == ["0", "a", "b", "12"]
    seen = {each[1].text: each[-1].text.split()[:2] for each in model.seen if len(each) == 5}
    assert seen == {"a": ["0", "a"], "b": ["0", "b"]}


def test_all_sandboxes_in_use_only_delay_tasks(bench: RunHarness) -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    names = "abcd"
    scripts = {name: [execute(f"echo {name} > log-{name}", text=name), f"{name} done."] for name in names}
    scripts["go"] = [reply(*map(call_task, names), run("cat log-*")), "Done."]
    everyone = threading.Barrier(4, timeout=60).wait
    model = task_model(scripts, {(name, 0): everyone for name in names})
    with Sandboxes(bench.home, bench.spec, max_open=1) as sandboxes:
        end = invoke(build(sandboxes, model, saver=InMemorySaver()), ask("go"))
    assert results(end)[4].split()[:4] == [*names]


CONFLICT = "log: task 1 and task 2 created it with different content"


def conflict_scripts(*calls: Any) -> dict[str, list[Any]]:
    return {
        "go": [reply(call_task("a"), call_task("b"), *calls), execute("cat log", text="2"), "Done."],
        "a": [execute("echo a > log", text="a"), "A done."],
        "b": [execute("echo b > log", text="b"), "B done."],
    }


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("calls", [(), (run("cat log"),)], ids=["next step", "same reply"])
def test_a_conflict_is_an_error_that_loses_nothing(bench: RunHarness, calls: Any, is_async: bool) -> None:
    model = task_model(conflict_scripts(*calls))
    with hold(bench) as work, pytest.raises(MergeConflictError, match=CONFLICT):
        invoke(build(work, model), ask("go"), is_async=is_async)
    asked = len(model.seen)
    with open_sandbox(bench.home, "deep", sandbox=bench.spec, merge="theirs") as work:
        end = invoke(build(work, model), None, is_async=is_async)
    # LangGraph restores the results of one step in any order.
    assert sorted(text.split()[0] for text in results(end)) == ["A", "B", *["b" for _ in calls], "b"]
    assert all(each[1].text == "go" for each in model.seen[asked:])  # no task is repeated


@pytest.mark.parametrize("calls", [(), (run("cat log"),)], ids=["next step", "same reply"])
def test_an_agent_reads_what_was_in_conflict(bench: RunHarness, calls: Any) -> None:
    model = task_model(conflict_scripts(*calls))
    with open_sandbox(bench.home, "deep", sandbox=bench.spec, merge="markers") as work:
        end = build(work, model).invoke(ask("go"), CONFIG)
    assert results(end)[-1].startswith("<<<<<<< task 1\na\n")
    notes = [each.text for each in end["messages"] if isinstance(each, HumanMessage)][1:]
    assert len(notes) == 1
    assert f"- {CONFLICT} (what is there now: conflict markers)" in notes[0]


def test_a_call_after_tasks_can_undo_their_changes(bench: RunHarness) -> None:
    """The state after the reply is the last call's, not its merge with the tasks' states."""
    scripts = {
        "go": [
            reply(call_task("a"), call_task("b"), run("rm log-a; git checkout -q pkg; echo new > log-b")),
            execute("ls; cat log-b; git status --short", text="2"),
            "Done.",
        ],
        "a": [execute("echo a > log-a; echo a >> pkg/core.py", text="a"), "A done."],
        "b": [execute("echo b > log-b", text="b"), "B done."],
    }
    with hold(bench) as work:
        end = build(work, task_model(scripts)).invoke(ask("go"), CONFIG)
    assert "log-a" not in results(end)[-1]
    assert "pkg/core.py" not in results(end)[-1]
    assert "new" in results(end)[-1]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_interrupt_in_one_task_keeps_the_other(bench: RunHarness, is_async: bool) -> None:
    review = HumanInTheLoopMiddleware(interrupt_on={"execute": True})
    scripts = {
        "go": [
            reply(run("echo 0 > log-0"), call_task("a"), call_task("b", "general-purpose"), run("cat log-*")),
            "Done.",
        ],
        "a": [execute("echo a > log-a", text="a"), "A done."],
        "b": [execute("echo b > log-b", text="b"), "B done."],
    }
    model = task_model(scripts)
    with hold(bench) as work:
        agent = build(work, model, inner=[review])
        end = invoke(agent, ask("go"), is_async=is_async)
        assert [each.value["action_requests"][0]["name"] for each in end["__interrupt__"]] == ["execute"]
    with hold(bench) as work:
        resume = Command(resume={"decisions": [{"type": "approve"}]})
        end = invoke(build(work, model, inner=[review]), resume, is_async=is_async)
    assert results(end)[3].split()[:3] == ["0", "a", "b"]
    first = [each[1].text for each in model.seen]
    assert {name: first.count(name) for name in ("a", "b", "go")} == {"a": 2, "b": 2, "go": 2}


def test_subagents_of_subagents(bench: RunHarness) -> None:
    scripts: dict[str, list[Any]] = {
        "go": [reply(call_task("x", "lead"), call_task("y", "lead"), run("cat log-*")), "Done."]
    }
    before = {}
    for lead in "xy":
        pair = [call_task(f"{lead}{n}") for n in "12"]
        scripts[lead] = [reply(*pair, run("ls log-*"), text=lead), f"{lead} done."]
        for n in "12":
            name = f"{lead}{n}"
            scripts[name] = [execute(f"echo {name} > log-{name}", text=name), f"{name} done."]
    everyone = threading.Barrier(4, timeout=60).wait
    before = {(f"{lead}{n}", 1): everyone for lead in "xy" for n in "12"}
    model = task_model(scripts, before)
    with hold(bench) as work:
        lead_graph = build(work, model)
        lead = {"name": "lead", "description": "Leads.", "runnable": lead_graph}
        end = build(work, model, subagents=[lead]).invoke(ask("go"), CONFIG)
    assert results(end)[2].split()[:4] == ["x1", "x2", "y1", "y2"]
    listed = {each[1].text: each[-1].text.split()[:2] for each in model.seen if each[1].text in ("x", "y")}
    assert listed == {lead: [f"log-{lead}1", f"log-{lead}2"] for lead in "xy"}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_that_uses_the_backend_beside_tasks(bench: RunHarness, is_async: bool) -> None:
    scripts = {
        "go": [
            reply(call_task("a"), ("note", {"text": "note"}), call_task("b")),
            execute("cat log-*"),
            "Done.",
        ],
        "a": [execute("echo a > log-a", text="a"), "A done."],
        "b": [reply(("note", {"text": "b"}), text="b"), execute("cat log-*", text="b"), "B done."],
    }
    with hold(bench) as work:
        backend = SandboxBackend(work)

        @tool
        def note(text: str) -> str:
            """Write a note."""
            for _ in range(2):
                backend.execute(f"echo {text} >> log-{text}")
            return backend.execute("cat log-*").output

        model = task_model(scripts)
        end = invoke(build(work, model, tools=[note]), ask("go"), is_async=is_async)
    assert results(end)[1].split() == ["note", "note"]
    assert results(end)[3].split()[:5] == ["a", "b", "b", "note", "note"]


@pytest.mark.parametrize("place", ["before", "after"])
def test_attempts_of_a_tool_follow_one_another_and_are_not_repeated(bench: RunHarness, place: str) -> None:
    """A guard runs the tool twice; in the first process it dies between both, and in the next one it succeeds."""
    scripts = {"go": [reply(("note", {}), text="1"), execute("cat log", text="2"), "Done."]}
    is_killed = [True, False, False]

    class _Twice(AgentMiddleware[Any, Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            if request.tool_call["name"] == "note":
                handler(request)
            return handler(request)

    def make(work: ThreadSandbox) -> Any:
        backend = SandboxBackend(work)

        @tool
        def note() -> str:
            """Write a note."""
            backend.execute("date +%N >> log")
            if is_killed.pop(0):
                raise _KilledError
            return "noted"

        ours = SandboxFilesystemMiddleware(backend)
        middleware = [_Twice(), ours] if place == "before" else [ours, _Twice()]
        model = task_model(scripts)
        return create_deep_agent(
            model, [note], backend=backend, middleware=middleware, checkpointer=work.saver
        )

    with hold(bench) as work, pytest.raises(_KilledError):
        make(work).invoke(ask("go"), CONFIG)
    with hold(bench) as work:
        end = make(work).invoke(None, CONFIG)
    lines = results(end)[1].split("\n")
    assert [each.isdigit() for each in lines[:3]] == [True, True, False]


def test_agents_side_by_side_share_a_backend(bench: RunHarness) -> None:
    """Each works in its fork, and keeps what middleware writes beside the calls of its model."""
    scripts = {name: [execute(f"echo {name} > log-{name}", text=name), "Done."] for name in "ab"}
    both = threading.Barrier(2, timeout=60).wait

    with hold(bench) as work:
        backend = SandboxBackend(work)

        class _Writer(AgentMiddleware[Any, Any, Any]):
            def wrap_model_call(self, request: Any, handler: Any) -> Any:
                both()
                backend.execute(f"echo {request.messages[0].text} >> beside-{request.messages[0].text}")
                both()
                return handler(request)

        middleware = [SandboxFilesystemMiddleware(backend), _Writer()]
        agent = create_deep_agent(task_model(scripts), backend=backend, middleware=middleware)

        def make(name: str) -> Any:
            def node(state: SandboxState) -> Any:
                given: Any = {"messages": [("user", name)], **state}
                return {"sandbox_state": agent.invoke(given)["sandbox_state"]}

            return node

        builder = StateGraph(SandboxState).add_node("start", lambda _: {"sandbox_state": work.start()})
        for name in "ab":
            builder.add_node(name, make(name)).add_edge("start", name)
        end = builder.add_edge(START, "start").compile(checkpointer=work.saver).invoke({}, CONFIG)
        shown = work.enter(end["sandbox_state"]).run("cat log-* beside-*", timeout_s=10).output
    assert shown.split() == ["a", "b", "a", "a", "b", "b"]


def test_without_snapshots_tasks_run_in_order(bench: RunHarness) -> None:
    scripts = {
        "go": [reply(call_task("a"), call_task("b"), run("cat log")), "Done."],
        "a": [execute("sleep 0.3; echo a >> log", text="a"), "A done."],
        "b": [execute("echo b >> log", text="b"), "B done."],
    }
    with open_sandbox(bench.home, "deep", sandbox=bench.spec, snapshot_every="point") as work:
        end = build(work, task_model(scripts)).invoke(ask("go"), CONFIG)
    assert results(end)[2].split()[:2] == ["a", "b"]


# Kills


class _Killer(AgentMiddleware[Any, Any, Any]):
    """Kills the process before the command that it is given runs."""

    def __init__(self, command: str, kill: Callable[[], None]) -> None:
        super().__init__()
        self._command, self._kill = command, kill

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        if request.tool_call["args"].get("command") == self._command:
            self._kill()
        return handler(request)


def work_until_killed(root: Path, moment: str) -> None:
    """Run or resume the agent; the first process kills itself at the moment. `log` counts commands and model calls."""
    is_first, log = not (root / "killed").exists(), root / "log"
    ready = threading.Barrier(2, timeout=60)

    def kill() -> None:
        if is_first:
            (root / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def note(text: str) -> None:
        with log.open("a") as file:
            file.write(f"model {text}\n")

    def wait_and_kill() -> None:
        note("b1")
        if is_first and moment == "both":
            ready.wait()
            kill()
        while is_first and moment == "one":
            stored = work.saver.get_tuple(CONFIG)
            if "A done." in str(stored and stored.pending_writes):
                kill()
            time.sleep(0.02)

    def wait() -> None:
        note("a1")
        if is_first and moment == "both":
            ready.wait()
            time.sleep(60)

    def count(name: str) -> str:
        return f"echo run {name} >> {log}; echo {name} >> log-{name[0]}"

    last = count("z") + "; cat log-*"
    scripts = {
        "go": [reply(run(count("s")), call_task("a"), call_task("b"), run(last)), "Done."],
        "a": [execute(count("a1"), text="a"), execute(count("a2"), text="a2"), "A done."],
        "b": [execute(count("b1"), text="b"), execute(count("b2"), text="b2"), "B done."],
    }
    model = task_model(scripts, {("a", 1): wait, ("b", 1): wait_and_kill})
    spec = SandboxSpec(backend="process", directory=root / "repository")
    with open_home(root / "home") as home, open_sandbox(home, "deep", sandbox=spec) as work:
        killer = _Killer(last if moment == "last" else "", kill)
        agent = build(work, model, middleware=[killer])
        end = agent.invoke(ask("go") if is_first else None, CONFIG, durability="sync")
        print(results(end)[3])


@pytest.mark.parametrize("moment", ["both", "one", "last"])
def test_after_a_kill_nothing_is_lost_or_repeated(tmp_path: Path, moment: str) -> None:
    (tmp_path / "repository").mkdir()
    command = [sys.executable, "-m", __spec__.name, str(tmp_path), moment]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.stdout.split()[:6] == ["a1", "a2", "b1", "b2", "s", "z"], done.stderr
    lines = (tmp_path / "log").read_text().splitlines()
    commands = [each.removeprefix("run ") for each in lines if each.startswith("run")]
    assert sorted(commands) == ["a1", "a2", "b1", "b2", "s", "z"]
    calls = {"both": (2, 2), "one": (1, 2), "last": (1, 1)}[moment]
    assert (lines.count("model a1"), lines.count("model b1")) == calls


if __name__ == "__main__":
    work_until_killed(Path(sys.argv[1]), sys.argv[2])
