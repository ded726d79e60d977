"""Requests to threads of users' graphs: for a handoff, for their status, for notes, and for room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.outputs import ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from langgraph_takeover import hand_over
from langgraph_takeover.errors import (
    HandoffError,
    RunStoppedError,
    SettingsError,
    SnapshotNotFoundError,
    ThreadNotFoundError,
)
from langgraph_takeover.graph.swarm import create_recall_tool
from langgraph_takeover.handoff.recordings.recorded_run import LATER_REQUEST_PREFIX
from langgraph_takeover.integrations import Sandboxes, SandboxState
from langgraph_takeover.middleware import SandboxMiddleware, read_events, receive_record

from ..conftest import RunHarness, Scripted, scripted_model
from .test_middleware import CONFIG, EDIT, ask, reply, results, shell
from .test_sandboxes import list_open

NOTES = '{"recommended_next_action": ["Run the tests. [e1]"]}'


@pytest.fixture
def sandboxes(bench: RunHarness) -> Iterator[Sandboxes]:
    with Sandboxes(bench.home, bench.spec, wait_s=0.2) as opened:
        yield opened


class Requesting(Scripted):
    """A model during whose first reply somebody asks for a handoff."""

    home: Any

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        if not self.seen:
            self.home.request_handoff("chat", "lunch")
        return super()._generate(*args, **options)


@pytest.mark.parametrize("policy", ["record", "stop", "review", "refused"])
@pytest.mark.parametrize(
    "is_async", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["sync", "async"]
)
def test_an_agent_hands_over_on_request(
    bench: RunHarness, sandboxes: Sandboxes, policy: Any, is_async: bool
) -> None:
    """After its current step, under every policy; a person can refuse. The request is answered once."""
    given: Any = "review" if policy == "refused" else policy
    replies = [shell("echo one", EDIT), shell("echo two", text="x"), "Done."]
    model = Requesting(replies=replies, seen=[], tools=[], home=bench.home)
    middleware = SandboxMiddleware(sandboxes, points=(), policy=given)
    agent = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())

    def invoke(value: Any) -> dict[str, Any]:
        return dict(asyncio.run(agent.ainvoke(value, CONFIG)) if is_async else agent.invoke(value, CONFIG))

    end = invoke(ask())
    if given == "review":
        assert end["__interrupt__"][0].value["point"] == "requested"
        end = invoke(Command(resume={"decision": "approve" if policy == "review" else "refuse"}))
    (record_id,) = end["records"]
    record = bench.home.records.load(record_id)
    assert (record.point.kind, record.point.detail, len(record.trace)) == ("requested", "lunch", 4)
    assert "n * 3" in (record.patch or "")
    went_on = policy == "refused"
    assert ("two" in str(end["messages"]), end["messages"][-1].text == "Done.") == (went_on, went_on)
    if policy == "record":
        assert end["messages"][-1].text == f"Handed over on request: record {record_id}."
    with sandboxes.open("chat") as work:
        assert work.handoff_request is None
    if not went_on:
        assert len(model.seen) == 1
        end = invoke(ask("Go on."))
        assert (end["messages"][-1].text, end["records"]) == ("Done.", [record_id])
    with sandboxes.open("next") as work:
        taken = receive_record(work, record_id)
        assert work.enter(taken["sandbox_state"]).read_file("pkg/core.py").endswith(b"n * 3\n")


class Failing(InMemorySaver):
    """A saver that fails once: at the step that made the record."""

    has_failed = False

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if checkpoint["channel_values"].get("records") and not self.has_failed:
            self.has_failed = True
            raise OSError("disk full")
        return super().put(config, checkpoint, metadata, new_versions)


@pytest.mark.parametrize("policy", ["record", "stop"])
def test_a_failure_at_the_handover_loses_nothing(
    bench: RunHarness, sandboxes: Sandboxes, policy: Any
) -> None:
    model = Requesting(replies=[shell(EDIT), "Never."], seen=[], tools=[], home=bench.home)
    middleware = SandboxMiddleware(sandboxes, points=(), policy=policy)
    agent = create_agent(model, middleware=[middleware], checkpointer=Failing())
    with pytest.raises(OSError, match="disk full"):
        agent.invoke(ask(), CONFIG)
    end = agent.invoke(None, CONFIG)
    assert (bench.home.records.list_ids(), len(model.seen)) == (tuple(end["records"]), 1)
    with sandboxes.open("chat") as work:
        assert work.handoff_request is None


def test_a_request_waits_for_the_first_step(bench: RunHarness, sandboxes: Sandboxes) -> None:
    """On an idle thread, and on one on which nothing has happened yet."""
    model = scripted_model("Hello.", shell(EDIT), "Never.", "Back.")
    agent = create_agent(model, middleware=[SandboxMiddleware(sandboxes)], checkpointer=InMemorySaver())
    agent.invoke(ask("Hello."), CONFIG)
    bench.home.request_handoff("chat")
    end = agent.invoke(ask(), CONFIG)
    assert [bench.home.records.load(each).point.kind for each in end["records"]] == [
        "first_source_edit",
        "requested",
    ]
    assert len(model.seen) == 2
    bench.home.request_handoff("chat", "again")
    end = agent.invoke(ask("Go on."), CONFIG)
    assert bench.home.records.load(end["records"][-1]).point.detail == "again"
    assert (len(end["records"]), len(model.seen)) == (3, 2)
    assert len(read_events(bench.home, end, thread="chat")) == 2


def test_a_node_reads_a_request(bench: RunHarness, sandboxes: Sandboxes) -> None:
    seen: list[str | None] = []

    def node(state: SandboxState) -> Any:
        work = sandboxes.current()
        done = work.act(
            "log",
            lambda box: box.run("echo 1 >> log", timeout_s=10).exit_code,
            state=state.get("sandbox_state"),
        )
        if seen.append(work.handoff_request) is None and seen[-1]:
            work.answer_handoff_request()
        return {"sandbox_state": done.state}

    graph = (
        StateGraph(SandboxState).add_node(node).add_edge(START, "node").compile(checkpointer=InMemorySaver())
    )
    for reason in (None, "lunch", None):
        if reason:
            bench.home.request_handoff("chat", reason)
        graph.invoke({}, CONFIG)
    assert seen == [None, "lunch", None]


def test_status_with_a_saver_of_ones_own(bench: RunHarness, sandboxes: Sandboxes) -> None:
    saver, seen = InMemorySaver(), []

    def node(state: SandboxState) -> Any:
        done = sandboxes.current().act(
            "log", lambda box: box.run("echo 1 >> log", timeout_s=10).exit_code, state=None
        )
        seen.append(sandboxes.status("chat", saver=saver))
        interrupt("go on?")
        return {"sandbox_state": done.state}

    graph = StateGraph(SandboxState).add_node(node).add_edge(START, "node").compile(checkpointer=saver)
    with pytest.raises(ThreadNotFoundError):
        sandboxes.status("chat", saver=saver)
    graph.invoke({}, CONFIG)
    assert (seen, sandboxes.status("chat", saver=saver)) == (["running"], "waiting")
    assert bench.home.status("chat") == "elsewhere"
    graph.invoke(Command(resume="yes"), CONFIG)
    assert sandboxes.status("chat", saver=saver) == "finished"


def test_status_in_an_event_loop(bench: RunHarness) -> None:
    async def run() -> None:
        async with (
            AsyncSqliteSaver.from_conn_string(str(bench.home.directory / "chats.sqlite")) as saver,
            Sandboxes(bench.home, bench.spec) as sandboxes,
        ):
            model = scripted_model(shell(EDIT), "Done.")
            agent = create_agent(model, middleware=[SandboxMiddleware(sandboxes)], checkpointer=saver)
            await agent.ainvoke(ask(), CONFIG)
            while (status := await bench.home.acall(sandboxes.status, "chat", saver=saver)) == "running":
                await asyncio.sleep(0.01)  # a run of an event loop is released after its end
            assert status == "finished"
            assert await bench.home.acall(sandboxes.prune, "chat", saver=saver) == 0

    asyncio.run(run())


def test_prune_keeps_what_checkpoints_need(bench: RunHarness, sandboxes: Sandboxes) -> None:
    """Of parallel branches too: their states, and the state that they began with."""
    saver = InMemorySaver()

    def act(name: str) -> Any:
        def node(state: SandboxState) -> Any:
            write = lambda box: box.run(f"echo {name} >> {name}", timeout_s=10).exit_code  # noqa: E731
            return {
                "sandbox_state": sandboxes.current().act(name, write, state=state.get("sandbox_state")).state
            }

        return node

    builder = StateGraph(SandboxState).add_edge(START, "first")
    for name in ("first", "left", "right", "last"):
        builder.add_node(name, act(name))
    for name in ("left", "right"):
        builder.add_edge("first", name).add_edge(name, "last")
    graph = builder.compile(checkpointer=saver)
    for _ in range(2):
        graph.invoke({}, CONFIG)
    assert sandboxes.prune("chat", saver=saver) == 0
    first = [each for each in graph.get_state_history(CONFIG) if each.next == ("left", "right")][-1]
    branched = next(each for each in graph.get_state_history(CONFIG) if each.next == ("last",))
    end = graph.invoke(None, branched.config)
    with sandboxes.open("chat") as work:
        assert work.enter(end["sandbox_state"]).read_file("last") == b"last\nlast\n"
    _, *older = [each.config["configurable"]["checkpoint_id"] for each in saver.list(CONFIG)]
    for each in older:
        del saver.storage["chat"][""][each]
    assert sandboxes.prune("chat", saver=saver) > 0
    with sandboxes.open("chat") as work:
        assert work.enter(end["sandbox_state"]).read_file("left") == b"left\nleft\n"
        with pytest.raises(SnapshotNotFoundError):
            work.enter(first.values["sandbox_state"])
    assert graph.invoke({}, CONFIG)


class Cipher:
    """Hides ids in stored checkpoints."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", bytes(each ^ 90 for each in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return self.encrypt(ciphertext)[1]


def test_prune_under_encryption(bench: RunHarness) -> None:
    saver = InMemorySaver(serde=EncryptedSerializer(Cipher()))
    for number in range(3):
        with Sandboxes(bench.home, bench.spec) as sandboxes:
            model = scripted_model(shell(EDIT), *["Done."] * 3)
            agent = create_agent(model, middleware=[SandboxMiddleware(sandboxes)], checkpointer=saver)
            end = agent.invoke(ask(), CONFIG)
            if number:
                assert sandboxes.prune("chat", saver=saver) == 0
            with sandboxes.open("chat") as work:
                assert work.enter(end["sandbox_state"]).read_file("pkg/core.py").endswith(b"n * 3\n")


def test_a_saver_without_the_thread_prunes_nothing(sandboxes: Sandboxes) -> None:
    with pytest.raises(ThreadNotFoundError, match="thread not found: 'chat'"):
        sandboxes.prune("chat", saver=InMemorySaver())
    model, saver = scripted_model(shell(EDIT), "Done."), InMemorySaver()
    agent = create_agent(model, middleware=[SandboxMiddleware(sandboxes)], checkpointer=saver)
    end = agent.invoke(ask(), CONFIG)
    with pytest.raises(ThreadNotFoundError, match="this saver has no checkpoint of it"):
        sandboxes.prune("chat", saver=InMemorySaver())
    with sandboxes.open("chat") as work:
        assert end["sandbox_state"] in work.list_states()


def test_a_chosen_offer_is_accepted(bench: RunHarness, sandboxes: Sandboxes) -> None:
    agent = create_agent(
        scripted_model(shell(EDIT), "Done."),
        middleware=[SandboxMiddleware(sandboxes)],
        checkpointer=InMemorySaver(),
    )
    (record,) = agent.invoke(ask(), CONFIG)["records"]
    made = [hand_over(bench.home, record, target=name) for name in ("tester", "reviewer")]
    with sandboxes.open("next") as work:
        with pytest.raises(HandoffError, match="handoff 'no-such': no open offer of record"):
            receive_record(work, record, handoff="no-such")
        with pytest.raises(HandoffError, match="agent 'testr': no open offer of record"):
            receive_record(work, record, agent_name="testr")
        for _ in range(2):
            receive_record(work, record, handoff=made[1].id)
    with sandboxes.open("late") as work, pytest.raises(HandoffError, match="no open offer"):
        receive_record(work, record, handoff=made[1].id)


def test_a_record_is_not_received_again_over_work(bench: RunHarness, sandboxes: Sandboxes) -> None:
    """Such as by a job that is retried: the sandbox would lose the successor's files."""
    saver, middleware = InMemorySaver(), [SandboxMiddleware(sandboxes)]
    agent = create_agent(scripted_model(shell(EDIT), "Done."), middleware=middleware, checkpointer=saver)
    (record,) = agent.invoke(ask(), CONFIG)["records"]
    model = scripted_model("Never.", shell("echo 1 > mine", text="x"), "Done.")
    agent = create_agent(model, middleware=middleware, checkpointer=saver)
    for _ in range(2):
        with sandboxes.open("next") as work:
            taken = receive_record(work, record, "transcript")
    end = agent.invoke(taken, {"configurable": {"thread_id": "next"}})
    with sandboxes.open("next") as work:
        with pytest.raises(HandoffError, match="thread 'next': work has been done there"):
            receive_record(work, record)
        assert work.enter(end["sandbox_state"]).read_file("mine") == b"1\n"


@pytest.mark.parametrize("when", ["at the point", "at the takeover"])
def test_a_model_writes_the_notes(bench: RunHarness, sandboxes: Sandboxes, when: str) -> None:
    writer = scripted_model(*[NOTES] * 9)
    middleware = SandboxMiddleware(sandboxes, notes_model=writer if when == "at the point" else None)
    agent = create_agent(
        scripted_model(shell(EDIT), "Done."), middleware=[middleware], checkpointer=InMemorySaver()
    )
    (record,) = agent.invoke(ask(), CONFIG)["records"]
    for _ in range(2):
        with sandboxes.open("next") as work:
            taken = receive_record(work, record, notes_model=writer)
    assert "Run the tests" in str(taken["messages"])
    assert len(writer.seen) == 2


def test_a_record_has_all_requests_and_reasons(bench: RunHarness, sandboxes: Sandboxes) -> None:
    """Later messages of the person, and what the agent said beside its calls and without one."""
    first = shell("true", "ls", text="I list the files.")
    model = scripted_model(first, "Which number?", shell(EDIT, text="Three, as asked."), "Done.")
    agent = create_agent(model, middleware=[SandboxMiddleware(sandboxes)], checkpointer=InMemorySaver())
    agent.invoke(ask(), CONFIG)
    end = agent.invoke(ask("Three."), CONFIG)
    record = bench.home.records.load(end["records"][0])
    assert record.task.prompt.split("\n\n") == ["Make `double` double.", LATER_REQUEST_PREFIX, "Three."]
    texts = [each.text for each in record.trace if each.kind == "action"]
    assert texts[0].startswith('I list the files.\n{"name": "shell", "arguments": {"command": "true"}}')
    assert texts[1] == ""
    assert texts[2].startswith('Which number?\n\nThree, as asked.\n{"name": "shell"')
    with sandboxes.open("next") as work:
        taken = receive_record(work, record.id)
    given: Any = {"configurable": {"thread_id": "next"}}
    agent = create_agent(
        scripted_model("Hello.", "Hello."),
        middleware=[SandboxMiddleware(sandboxes)],
        checkpointer=InMemorySaver(),
    )
    assert agent.invoke(taken, given)["task"]["prompt"] == record.task.prompt
    end = agent.invoke(ask("Now four."), given)
    assert end["task"]["prompt"] == f"{record.task.prompt}\n\n{LATER_REQUEST_PREFIX}\n\nNow four."
    assert "Three." in str(taken["messages"])


def test_the_cited_view_comes_with_its_events(bench: RunHarness, sandboxes: Sandboxes) -> None:
    agent = create_agent(
        scripted_model(shell(EDIT), "Done."),
        middleware=[SandboxMiddleware(sandboxes)],
        checkpointer=InMemorySaver(),
    )
    (record,) = agent.invoke(ask(), CONFIG)["records"]
    with sandboxes.open("next") as work:
        taken = receive_record(work, record, "cited")
    recall = create_recall_tool(records=bench.home.records)
    model = scripted_model(reply(("recall", {"what": "e0"})), "Done.")
    agent = create_agent(
        model, [recall], middleware=[SandboxMiddleware(sandboxes)], checkpointer=InMemorySaver()
    )
    end = agent.invoke(taken, {"configurable": {"thread_id": "next"}})
    assert EDIT in results(end)[0]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"policy": "stopp"}, "policy: invalid value 'stopp'"),
        ({"points": ["first_edit"]}, "points: invalid value"),
        ({"points": "first_source_edit"}, "points: invalid value"),
        ({"points": None}, "points: invalid value None"),
        ({"notes_model": "gpt-5"}, "notes_model: invalid value 'gpt-5'"),
    ],
)
def test_options_without_effect_are_refused(
    sandboxes: Sandboxes, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem):
        SandboxMiddleware(sandboxes, **options)


def test_values_of_a_wrong_kind_are_refused_at_once(bench: RunHarness) -> None:
    wrong: Any = bench.home
    with pytest.raises(SettingsError, match=r"sandboxes: invalid value .*pass Sandboxes"):
        SandboxMiddleware(wrong)
    wrong = "repository"
    with pytest.raises(SettingsError, match="sandbox: invalid value 'repository'"):
        Sandboxes(bench.home, wrong)


def test_a_stop_at_once_is_named(bench: RunHarness, sandboxes: Sandboxes) -> None:
    """Whatever the killed command made of it."""
    model = scripted_model(shell("echo 1 >> log; sleep 60"), "Never.")
    agent = create_agent(model, middleware=[SandboxMiddleware(sandboxes)], checkpointer=InMemorySaver())
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(agent.invoke, ask(), CONFIG)
        while "chat" not in list_open(sandboxes):
            time.sleep(0.01)
        time.sleep(0.5)  # the command has begun
        bench.home.stop("chat", now=True)
        with pytest.raises(RunStoppedError, match="thread 'chat': a stop was requested"):
            run.result()


def test_agents_side_by_side_make_records(bench: RunHarness, sandboxes: Sandboxes) -> None:
    class Team(SandboxState):
        messages: Annotated[list[Any], add_messages]

    builder = StateGraph(Team)
    for name in ("one", "two", "three"):
        command = f"echo {name} >> pkg/{name}.py; python3 -m unittest -q"
        agent = create_agent(
            scripted_model(shell(command), "Done."), middleware=[SandboxMiddleware(sandboxes)], name=name
        )
        builder.add_node(name, agent).add_edge(START, name)
    graph = builder.compile(checkpointer=InMemorySaver())
    for turn in range(3):
        config: Any = {"configurable": {"thread_id": f"team-{turn}"}}
        graph.invoke(ask(), config)
        made = [each for each in bench.home.records.list_ids() if each.startswith(f"team-{turn}.")]
        patches = [bench.home.records.load(each).patch or "" for each in made]
        assert all(any(f"pkg/{name}.py" in patch for patch in patches) for name in ("one", "two", "three"))
