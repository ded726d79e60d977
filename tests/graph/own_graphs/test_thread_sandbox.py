"""A sandbox for graphs of one's own: effects once, states that follow the checkpoints, one holder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph

from langgraph_takeover.errors import (
    ActResultError,
    SnapshotNotFoundError,
    ThreadHeldError,
    ThreadNameError,
)
from langgraph_takeover.integrations import Act, SandboxState, ThreadSandbox, open_sandbox
from langgraph_takeover.sandbox import Sandbox

from ..conftest import RunHarness


class _KilledError(BaseException):
    """Ends an act as a kill would: nothing is caught, nothing is recorded."""


class Calls:
    """A function that appends a line to a file, counts its calls, and can be killed in the middle."""

    def __init__(self) -> None:
        self.count = 0
        self.kills = 0

    def append(self, text: str) -> Callable[[Sandbox], str]:
        def function(sandbox: Sandbox) -> str:
            self.count += 1
            sandbox.run(f"echo {text} >> log; last={text}", timeout_s=10)
            if self.kills:
                self.kills -= 1
                raise _KilledError
            return sandbox.run("cat log; echo $last", timeout_s=10).output

        return function


@pytest.fixture
def calls() -> Calls:
    return Calls()


def hold(bench: RunHarness, thread: str = "own", **options: Any) -> Any:
    return open_sandbox(bench.home, thread, sandbox=bench.spec, **options)


def lines(act: Act) -> list[str]:
    return str(act.value).split()


def test_an_act_takes_effect_once(bench: RunHarness, calls: Calls) -> None:
    with hold(bench) as work:
        first = work.act("one", calls.append("a"), state=None)
        assert (lines(first), [change.path for change in first.changes]) == (["a", "a"], ["log"])
        assert work.act("one", calls.append("a"), state=None) == first
        second = work.act("one", calls.append("b"), state=first.state)
    assert calls.count == 2
    with hold(bench) as work:  # as after a crash: a new sandbox
        assert work.act("one", calls.append("a"), state=None) == first
        assert lines(work.act("two", calls.append("c"), state=second.state)) == ["a", "b", "c", "c"]
    assert calls.count == 3


@pytest.mark.parametrize("backend", ["process", "host", pytest.param("docker", marks=pytest.mark.slow)])
def test_an_interrupted_act_is_undone_and_repeated(bench: RunHarness, calls: Calls) -> None:
    with hold(bench) as work:
        before = work.act("one", calls.append("a"), state=None).state
        calls.kills = 1
        with pytest.raises(_KilledError):
            work.act("two", calls.append("b"), state=before)
        assert work.enter(before).run("cat log; echo $last", timeout_s=10).output.split() == ["a", "a"]
        assert lines(work.act("two", calls.append("b"), state=before)) == ["a", "b", "b"]


def test_forks_have_their_own_sandbox(bench: RunHarness, calls: Calls) -> None:
    with hold(bench) as work:
        start = work.act("one", calls.append("a"), state=None).state
        left = work.act("two", calls.append("left"), state=start)
        right = work.act("three", calls.append("right"), state=start)
        assert lines(left) == ["a", "left", "left"]
        assert lines(right) == ["a", "right", "right"]
        assert work.enter(left.state).read_file("log") == b"a\nleft\n"
        assert work.enter().directory_listing(".git") is not None
        assert "log" not in (work.enter().directory_listing(".") or ())


def test_reading_is_not_recorded(bench: RunHarness) -> None:
    seen: list[str] = []

    def read(sandbox: Sandbox) -> list[str]:
        seen.append("")
        return [*(sandbox.directory_listing("pkg") or ())]

    with hold(bench) as work:
        for _ in range(2):
            act = work.act("look", read, state=None, effects="nothing")
            assert (act.value, act.state, act.changes) == (["__init__.py", "core.py"], "base", ())
    assert len(seen) == 2


def test_a_value_that_cannot_be_stored(bench: RunHarness, calls: Calls) -> None:
    with hold(bench, "mine") as work:
        with pytest.raises(ActResultError, match=r"thread 'mine': act 'odd' returned lock"):
            work.act("odd", lambda sandbox: __import__("threading").Lock(), state=None)
        assert lines(work.act("odd", calls.append("a"), state=None)) == ["a", "a"]


def test_names_that_are_not_utf_8(bench: RunHarness) -> None:
    name = "a\\377b"

    def create(sandbox: Sandbox) -> int | None:
        return sandbox.run(f"echo 1 > $(printf '{name}')", timeout_s=10).exit_code

    with hold(bench) as work:
        first = work.act("odd", create, state=None)
        assert (first.value, len(first.changes)) == (0, 1)
        assert work.act("odd", create, state=None) == first


def test_errors_name_the_thread(bench: RunHarness) -> None:
    with hold(bench, "mine") as work:
        with pytest.raises(SnapshotNotFoundError, match="thread 'mine'"):
            work.enter("0123456789abcdef")
        with pytest.raises(ThreadHeldError, match="thread 'mine' is held by process"), hold(bench, "mine"):
            pass
    with pytest.raises(ThreadNameError), hold(bench, ""):
        pass


def test_a_snapshot_moves_to_another_thread(bench: RunHarness, calls: Calls) -> None:
    with hold(bench) as work:
        state = work.act("one", calls.append("a"), state=None).state
        snapshot = work.snapshot(state)
        directory = work.snapshot_directory(snapshot)
    with hold(bench, "other") as work:
        state = work.restore(snapshot, directory)
        assert lines(work.act("two", calls.append("b"), state=state)) == ["a", "b", "b"]


def build_graph(work: ThreadSandbox, calls: Calls, names: str) -> Any:
    """A chain of nodes that each append their name."""

    def make_node(name: str) -> Callable[[SandboxState], SandboxState]:
        def node(state: SandboxState) -> SandboxState:
            return {
                "sandbox_state": work.act(name, calls.append(name), state=state.get("sandbox_state")).state
            }

        return node

    builder = StateGraph(SandboxState).add_sequence([(name, make_node(name)) for name in names])
    return builder.add_edge(START, names[0]).compile(checkpointer=work.saver)


def test_a_graph_resumes_where_it_was_killed(bench: RunHarness, calls: Calls) -> None:
    config: Any = {"configurable": {"thread_id": "own"}}
    with hold(bench) as work:
        calls.kills = 0
        graph = build_graph(work, calls, "abc")
        graph.invoke({}, config, interrupt_after=["a"])
        calls.kills = 1
        with pytest.raises(_KilledError):
            graph.invoke(None, config)
    with hold(bench) as work:
        end = build_graph(work, calls, "abc").invoke(None, config)
        assert work.enter(end["sandbox_state"]).read_file("log") == b"a\nb\nc\n"
    (newest, *_) = bench.home.history("own")
    assert newest.is_restorable


def test_an_earlier_checkpoint_has_its_sandbox(bench: RunHarness, calls: Calls) -> None:
    config: Any = {"configurable": {"thread_id": "own"}}
    with hold(bench) as work:
        graph = build_graph(work, calls, "abc")
        graph.invoke({}, config)
        after_a = next(each for each in graph.get_state_history(config) if each.next == ("b",))
        end = graph.invoke(None, after_a.config)
        assert work.enter(end["sandbox_state"]).read_file("log") == b"a\nb\nc\n"
        assert work.enter(after_a.values["sandbox_state"]).read_file("log") == b"a\n"


def test_the_functional_api(bench: RunHarness, calls: Calls) -> None:
    config: Any = {"configurable": {"thread_id": "own"}}
    with hold(bench) as work:

        @task
        def step(name: str, state: str | None) -> str:
            return work.act(name, calls.append(name), state=state).state

        @entrypoint(checkpointer=work.saver)
        def program(names: str) -> str | None:
            state = None
            for name in names:
                state = step(name, state).result()
            return state

        calls.kills = 0
        state = program.invoke("ab", config)
        assert work.enter(state).read_file("log") == b"a\nb\n"
    assert calls.count == 2
