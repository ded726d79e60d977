"""The state that a tool of a user's agent left is saved while the model answers; a failure loses and repeats nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_takeover.integrations import Sandboxes, open_sandbox
from langgraph_takeover.middleware import SandboxMiddleware
from langgraph_takeover.sandbox.interface import OutOfDiskError

from ..conftest import ArchiveGate, RunHarness, TaskModel, task_model
from .test_middleware import CONFIG, ask, results, shell

ALL_SAVERS = pytest.mark.parametrize(
    ("saver", "is_async"),
    [
        ("home", False),
        ("home", True),
        ("guarded memory", False),
        ("guarded memory", True),
        ("guarded sqlite", False),
    ],
)
_FULL = OutOfDiskError("the disk is full")


@tool
def clock() -> str:
    """Return the time, without the sandbox."""
    return "noon"


class Chat:
    """An agent on one thread, and what is durable of it."""

    def __init__(self, work: Any, model: TaskModel, checkpointer: Any, plain: Any, is_async: bool) -> None:
        middleware = SandboxMiddleware(work, model_name="scripted")
        self.agent: Any = create_agent(
            model, tools=[clock], middleware=[middleware], checkpointer=checkpointer
        )
        self._plain, self._is_async = plain, is_async

    def run(self, given: Any, **options: Any) -> dict[str, Any]:
        if self._is_async:
            return asyncio.run(self.agent.ainvoke(given, CONFIG, **options))  # type: ignore[no-any-return]
        return self.agent.invoke(given, CONFIG, **options)  # type: ignore[no-any-return]

    def list_durable_answers(self) -> list[str]:
        """What tools answered, in all checkpoints and in what tasks have written, as another process reads it."""
        found: list[str] = []
        for stored in self._plain.list({"configurable": {"thread_id": "chat", "checkpoint_ns": ""}}):
            values = [stored.checkpoint["channel_values"].get("messages") or []]
            values += [value for _, _, value in stored.pending_writes or ()]
            for each in (message for value in values if isinstance(value, list) for message in value):
                if isinstance(each, ToolMessage):
                    found.append(each.text)
        return found


@contextmanager
def open_chat(
    bench: RunHarness, model: TaskModel, saver: str, is_async: bool, root: Path, *, in_block: bool = False
) -> Iterator[Chat]:
    if saver == "home":
        with open_sandbox(bench.home, "chat", sandbox=bench.spec) as work:
            yield Chat(work, model, work.saver, bench.home.saver, is_async)
        return
    plain: Any = InMemorySaver()
    with (
        SqliteSaver.from_conn_string(str(root / "own.sqlite")) as sqlite,
        Sandboxes(bench.home, bench.spec, wait_s=20) as sandboxes,
    ):
        plain = sqlite if saver.endswith("sqlite") else plain
        checkpointer = sandboxes.guard(plain) if saver.startswith("guarded") else plain
        chat = Chat(sandboxes, model, checkpointer, plain, is_async)
        if in_block:
            with sandboxes.open("chat"):
                yield chat
        else:
            yield chat


def talk(replies: list[Any], *before: Callable[[], object]) -> TaskModel:
    """A model that calls one of these before each of its replies."""
    return task_model({"Work.": replies}, {("Work.", n): each for n, each in enumerate(before)})


def open_soon(gate: ArchiveGate) -> Callable[[], None]:
    def close_for_a_moment() -> None:
        gate.close()
        threading.Timer(0.5, gate.opened.set).start()

    return close_for_a_moment


def count(text: str) -> str:
    return f"echo {text} >> log; cat log"


def list_counted(end: dict[str, Any]) -> list[str]:
    """The lines of the log, as the last call showed them."""
    return [each for each in results(end)[-1].split("\n") if each.isdigit()]


@ALL_SAVERS
def test_the_model_answers_while_the_state_of_a_tool_is_saved(
    bench: RunHarness, archive_gate: ArchiveGate, saver: str, is_async: bool, tmp_path: Path
) -> None:
    seen: list[Any] = []

    def look() -> None:
        seen.append((archive_gate.opened.is_set(), chat.list_durable_answers()))
        archive_gate.opened.set()

    model = talk(
        [shell(count("1"), text="a"), shell(count("2"), text="b"), "Done."], archive_gate.close, look
    )
    with open_chat(bench, model, saver, is_async, tmp_path) as chat:
        end = chat.run(ask("Work."))
        assert seen == [(False, [])], "the model answers, and no database has what the tool left"
        assert list_counted(end) == ["1", "2"]
        assert {*results(end)} == {*chat.list_durable_answers()}


@pytest.mark.cases(4)
@ALL_SAVERS
@pytest.mark.parametrize("is_beside", [False, True])
def test_a_failure_ends_the_run_and_the_next_one_repeats_the_call_once(
    bench: RunHarness, archive_gate: ArchiveGate, saver: str, is_async: bool, is_beside: bool, tmp_path: Path
) -> None:
    def fail() -> None:
        if not failed:
            failed.append(True)
            archive_gate.close(_FULL)
            if is_beside:  # the second call waits for the state of the first
                threading.Timer(0.3, archive_gate.opened.set).start()

    failed: list[bool] = []
    first = shell(count("1"), count("2"), text="a") if is_beside else shell(count("1"), text="a")
    first.tool_calls.append({"name": "clock", "args": {}, "id": "clock", "type": "tool_call"})
    model = talk([first, shell(count("3"), text="b"), "Done."], fail, archive_gate.opened.set)
    with open_chat(bench, model, saver, is_async, tmp_path) as chat:
        with pytest.raises(OutOfDiskError, match="disk is full"):
            chat.run(ask("Work."))
        assert not any("1" in each for each in chat.list_durable_answers())
        end = chat.run(None)
        assert list_counted(end) == [*("123" if is_beside else "13")]
        assert chat.agent.get_state(CONFIG).values["messages"] == end["messages"]


@pytest.mark.parametrize(("saver", "in_block"), [("home", False), ("guarded memory", True)])
def test_a_new_message_after_a_failure_begins_in_the_state_before(
    bench: RunHarness, archive_gate: ArchiveGate, saver: str, in_block: bool, tmp_path: Path
) -> None:
    model = talk(
        [shell(count("1"), text="a"), shell(count("2"), text="b"), "Done."],
        lambda: archive_gate.close(_FULL),
        archive_gate.opened.set,
    )
    with open_chat(bench, model, saver, False, tmp_path, in_block=in_block) as chat:
        with pytest.raises(OutOfDiskError, match="disk is full"):
            chat.run(ask("Work."))
        end = chat.run({"messages": [HumanMessage("Go on.")]})
        assert list_counted(end) == ["2"]


@pytest.mark.parametrize(
    ("saver", "options"),
    [("memory", {}), ("guarded memory", {"durability": "exit"}), ("guarded memory", {"durability": "sync"})],
)
def test_the_run_waits_under_a_plain_saver_and_if_durability_asks_for_it(
    bench: RunHarness, archive_gate: ArchiveGate, saver: str, options: Any, tmp_path: Path
) -> None:
    seen: list[bool] = []
    model = talk(
        [shell(count("1"), text="a"), AIMessage("Done.")],
        open_soon(archive_gate),
        lambda: seen.append(archive_gate.opened.is_set()),
    )
    with open_chat(bench, model, saver, False, tmp_path) as chat:
        chat.run(ask("Work."), **options)
    assert seen == [True]


def test_a_plain_saver_gets_no_answer_whose_state_was_not_saved(
    bench: RunHarness, archive_gate: ArchiveGate, tmp_path: Path
) -> None:
    def fail() -> None:
        archive_gate.close(_FULL)
        archive_gate.opened.set()

    model = talk([shell(count("1"), text="a"), "Done."], fail)
    with open_chat(bench, model, "memory", False, tmp_path) as chat:
        with pytest.raises(OutOfDiskError, match="disk is full"):
            chat.run(ask("Work."))
        assert chat.list_durable_answers() == []
        model.before.clear()
        assert list_counted(chat.run(None)) == ["1"]
