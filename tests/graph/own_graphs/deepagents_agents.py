"""Agents of deepagents in a sandbox: calls once and in order, subagents, long results. `test_deepagents.py` runs them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ToolCallLimitMiddleware
from langchain.agents.middleware.types import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from langgraph_takeover.deepagents import SandboxBackend, SandboxFilesystemMiddleware
from langgraph_takeover.errors import EarlierCallError, SandboxStateLostError
from langgraph_takeover.integrations import Sandboxes, ThreadSandbox, open_sandbox

from ..conftest import RunHarness, Scripted, scripted_model, task_model

CONFIG: Any = {"configurable": {"thread_id": "deep"}}


def reply(*calls: tuple[str, dict[str, Any]], text: str = "") -> AIMessage:
    made = [{"name": name, "args": args, "id": f"{text}{name}{n}"} for n, (name, args) in enumerate(calls)]
    return AIMessage(text, tool_calls=made)


def execute(*commands: str, text: str = "") -> AIMessage:
    return reply(*(("execute", {"command": command}) for command in commands), text=text)


def build(work: ThreadSandbox, model: Scripted, **options: Any) -> Any:
    backend = SandboxBackend(work)
    middleware = [SandboxFilesystemMiddleware(backend)]
    return create_deep_agent(
        model, backend=backend, middleware=middleware, checkpointer=work.saver, **options
    )


def ask(text: str = "Make `double` double.") -> dict[str, Any]:
    return {"messages": [("user", text)]}


def results(state: dict[str, Any]) -> list[str]:
    return [message.text for message in state["messages"] if isinstance(message, ToolMessage)]


def hold(bench: RunHarness, thread: str = "deep") -> Any:
    return open_sandbox(bench.home, thread, sandbox=bench.spec)


def invoke(agent: Any, given: Any, *, is_async: bool = False) -> Any:
    return asyncio.run(agent.ainvoke(given, CONFIG)) if is_async else agent.invoke(given, CONFIG)


@pytest.mark.parametrize("is_async", [False, True])
def test_files_and_commands_are_in_the_sandbox(bench: RunHarness, is_async: bool) -> None:
    with hold(bench) as work:
        path = f"{work.enter().workspace}/pkg/core.py"
        edit = {"file_path": path, "old_string": "n + 1", "new_string": "n * 2"}
        replies = (
            execute("cd pkg; export A=b", text="1"),
            reply(("read_file", {"file_path": path}), ("edit_file", edit), text="2"),
            execute("basename $PWD; echo $A; cat core.py", text="3"),
            "Done.",
        )
        end = invoke(build(work, scripted_model(*replies)), ask(), is_async=is_async)
        assert "n * 2" in work.enter(end["sandbox_state"]).read_file(path).decode()
    assert results(end)[3].startswith("pkg\nb\ndef double(n):\n    return n * 2")
    assert end["messages"][-1].text == "Done."


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_of_one_reply_are_made_in_order(bench: RunHarness, is_async: bool) -> None:
    commands = [f"sleep 0.{9 - n}; echo {n} >> log; cat log" for n in range(8)]
    with hold(bench) as work:
        end = invoke(build(work, scripted_model(execute(*commands), "Done.")), ask(), is_async=is_async)
    assert results(end)[7].split("\n")[:8] == [*map(str, range(8))]


class _KilledError(BaseException):
    pass


def test_an_interrupted_call_is_undone_and_repeated(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = (execute("x=1; echo 0 >> log", "echo 1 >> log", "echo 2 >> log; cat log; echo $x"), "Done.")
    run = SandboxBackend.execute

    def kill_second(self: Any, command: str, **options: Any) -> Any:
        result = run(self, command, **options)
        if "1 >>" in command:
            raise _KilledError
        return result

    monkeypatch.setattr(SandboxBackend, "execute", kill_second)
    with hold(bench) as work, pytest.raises((_KilledError, EarlierCallError)):
        build(work, scripted_model(*replies)).invoke(ask(), CONFIG)
    monkeypatch.undo()
    with hold(bench) as work:
        end = build(work, scripted_model(*replies)).invoke(None, CONFIG)
    assert results(end)[2].split("\n")[:4] == ["0", "1", "2", "1"]


def test_a_cancelled_agent_ends_its_command_and_resumes(bench: RunHarness, tmp_path: Path) -> None:
    begun = tmp_path / "begun"  # outside the sandbox, so that the repeated command sees it

    async def cancel(agent: Any) -> None:
        task = asyncio.create_task(agent.ainvoke(ask(), CONFIG))
        while not begun.exists():
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    long = f"echo 1 >> log; [ -e {begun} ] || (touch {begun}; sleep 60); cat log"
    with hold(bench) as work:
        agent = build(work, scripted_model(execute("echo 0 >> log"), execute(long, text="2"), "Done."))
        asyncio.run(asyncio.wait_for(cancel(agent), 45))
        end = agent.invoke(None, CONFIG)
    assert results(end)[-1].split("\n")[:2] == ["0", "1"]


def test_secrets_are_not_stored(bench: RunHarness) -> None:
    key = "sk-abcdefghijklmnop1234567890"
    printed = execute(f"echo {key[:10]}'{key[10:]}' | tee note")
    with hold(bench) as work:
        end = invoke(build(work, scripted_model(printed, "Done.")), ask())
        assert work.enter(end["sandbox_state"]).read_file("note").decode().strip() == key
    assert key not in "".join(results(end))
    assert "[redacted]" in results(end)[0]


class _Guard(AgentMiddleware[Any, Any, Any]):
    """Runs other commands than the first one of the reply; without commands it refuses."""

    def __init__(self, *commands: str) -> None:
        super().__init__()
        self._commands = commands

    def _replace(self, request: Any) -> list[Any]:
        call = request.tool_call
        return [request.override(tool_call={**call, "args": {"command": each}}) for each in self._commands]

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        if "one" not in str(request.tool_call["args"]):
            return handler(request)
        result: Any = ToolMessage("Refused.", tool_call_id=request.tool_call["id"])
        for each in self._replace(request):
            result = handler(each)
        return result

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        if "one" not in str(request.tool_call["args"]):
            return await handler(request)
        result: Any = ToolMessage("Refused.", tool_call_id=request.tool_call["id"])
        for each in self._replace(request):
            result = await handler(each)
        return result


def _review(*decisions: str) -> tuple[Any, Any]:
    answers = [{"type": each, "message": "No."} if each == "reject" else {"type": each} for each in decisions]
    return HumanInTheLoopMiddleware(interrupt_on={"execute": True}), Command(resume={"decisions": answers})


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (lambda: (_Guard(), None), "two"),
        (lambda: (_Guard("echo edited >> log"), None), "edited two"),
        (lambda: (_Guard("echo tried >> log; exit 1", "echo fallback >> log"), None), "tried fallback two"),
        (lambda: _review("reject", "approve"), "two"),
        (lambda: _review("approve", "reject"), "one"),
        (lambda: (ToolCallLimitMiddleware(tool_name="execute", run_limit=1), None), "one"),
    ],
)
def test_what_runs_is_what_was_approved(
    bench: RunHarness, is_async: bool, place: str, other: Any, expected: str
) -> None:
    middleware, resume = other()
    with hold(bench) as work:
        backend = SandboxBackend(work)
        ours = SandboxFilesystemMiddleware(backend)
        agent = create_deep_agent(
            scripted_model(execute("echo one >> log", "echo two >> log"), "Done."),
            backend=backend,
            middleware=[middleware, ours] if place == "before" else [ours, middleware],
            checkpointer=work.saver,
        )
        end = invoke(agent, ask(), is_async=is_async)
        if resume is not None:
            end = invoke(agent, resume, is_async=is_async)
        assert work.enter(end["sandbox_state"]).read_file("log").decode().split() == expected.split()


def test_a_fork_with_an_edited_call_runs_the_edited_call(bench: RunHarness) -> None:
    with hold(bench) as work:
        agent = build(work, scripted_model(execute("echo WRONG >> log", text="1"), "Done."))
        agent.invoke(ask(), CONFIG)
        before = next(each for each in agent.get_state_history(CONFIG) if each.next == ("tools",))
        edited = execute("echo RIGHT >> log; cat log", text="1")
        edited = edited.model_copy(update={"id": before.values["messages"][-1].id})
        fork = agent.update_state(before.config, {"messages": [edited]}, as_node="model")
        assert results(agent.invoke(None, fork))[0].startswith("RIGHT\n")


def with_ids(message: AIMessage, *ids: str) -> AIMessage:
    calls = [{**call, "id": name} for call, name in zip(message.tool_calls, ids, strict=True)]
    return message.model_copy(update={"tool_calls": calls})


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_with_one_id_get_their_own(bench: RunHarness, is_async: bool) -> None:
    tasks = [
        ("task", {"description": each, "subagent_type": "general-purpose"}) for each in ("first", "second")
    ]
    scripts = {
        "go": [
            with_ids(execute("echo 0 >> log", "echo 1 >> log; cat log"), "a", "a"),
            with_ids(reply(*tasks, ("execute", {"command": "cat log*"})), "a", "a", ""),
            "Done.",
        ],
        "first": [with_ids(execute("echo first > log-1", text="a"), "a"), "First done."],
        "second": [with_ids(execute("echo second > log-2", text="b"), "a"), "Second done."],
    }
    with hold(bench) as work:
        end = invoke(build(work, task_model(scripts)), ask("go"), is_async=is_async)
    ids = [call["id"] for each in end["messages"] if isinstance(each, AIMessage) for call in each.tool_calls]
    assert len(ids) == len({*ids, ""}) - 1 == 5
    assert [each.tool_call_id for each in end["messages"] if isinstance(each, ToolMessage)] == ids
    assert results(end)[1].split("\n")[:2] == ["0", "1"]
    assert results(end)[2:4] == ["First done.", "Second done."]
    assert results(end)[4].split("\n")[:4] == ["0", "1", "first", "second"]


def test_a_thread_with_equal_ids_continues(bench: RunHarness) -> None:
    stored = [HumanMessage("Work."), with_ids(execute("true", "true"), "a", "a")]
    stored += [ToolMessage(str(n), tool_call_id="a") for n in range(2)]
    model = scripted_model("unused", "Done.")
    with hold(bench) as work:
        end = invoke(build(work, model), {"messages": stored})
    sent = [each.tool_call_id for each in model.seen[0] if isinstance(each, ToolMessage)]
    assert len({*sent}) == 2
    assert end["messages"][-1].text == "Done."


def test_a_long_result_is_in_a_file_of_the_sandbox(bench: RunHarness) -> None:
    with hold(bench) as work:
        model = scripted_model(execute("seq 100000", text="t"), "Done.")
        end = build(work, model).invoke(ask(), CONFIG)
        saved = work.enter(end["sandbox_state"]).inspect("tail -n 3 /large_tool_results/*").output
    assert len(results(end)[0]) < 20_000
    assert "100000" in saved


def test_uploads_before_the_start_and_between_turns(bench: RunHarness) -> None:
    with hold(bench) as work:
        backend = SandboxBackend(work)
        where = work.enter().workspace
        backend.upload_files([(f"{where}/first", b"1")])
        middleware = [SandboxFilesystemMiddleware(backend)]
        model = scripted_model(
            execute("cat first", text="1"), "Done.", execute("cat first second", text="2"), "Done."
        )
        agent = create_deep_agent(model, backend=backend, middleware=middleware, checkpointer=work.saver)
        agent.invoke(ask(), CONFIG)
        backend.upload_files([(f"{where}/second", b"2")])
        end = agent.invoke(ask("Again."), CONFIG)
    assert [text.split("\n")[0] for text in results(end)] == ["1", "12"]
    with hold(bench) as work:
        assert SandboxBackend(work).execute("cat first second").output == "12"


def test_a_snapshot_starts_another_thread(bench: RunHarness) -> None:
    with hold(bench) as work:
        build(work, scripted_model(execute("cd pkg; A=b; echo x > new"), "Done.")).invoke(ask(), CONFIG)
        backend = SandboxBackend(work)
        snapshot = backend.snapshot()
        directory = work.snapshot_directory(snapshot)
    with hold(bench, "other") as work:
        backend = SandboxBackend(work)
        given = {**ask(), "sandbox_state": backend.restore(snapshot, directory)}
        model = scripted_model(execute("cat new; echo $A"), "Done.")
        middleware = [SandboxFilesystemMiddleware(backend)]
        agent = create_deep_agent(model, backend=backend, middleware=middleware, checkpointer=work.saver)
        end = agent.invoke(given, {"configurable": {"thread_id": "other"}})
    assert results(end)[0].startswith("x\nb\n")


def test_a_fork_has_the_files_of_its_checkpoint(bench: RunHarness) -> None:
    replies = (execute("echo 1 > log", text="1"), execute("cat log; echo 2 > log", text="2"), "Done.")
    model = scripted_model(*replies)
    with hold(bench) as work:
        agent = build(work, model)
        agent.invoke(ask(), CONFIG)
        early = next(
            each
            for each in agent.get_state_history(CONFIG)
            if sum(isinstance(message, ToolMessage) for message in each.values.get("messages", [])) == 1
            and each.next == ("model",)
        )
        end = agent.invoke(None, early.config)
    assert results(end)[1].startswith("1\n")


def test_a_command_that_takes_too_long_is_ended(bench: RunHarness) -> None:
    with hold(bench) as work:
        backend = SandboxBackend(work)
        result = backend.execute("echo begun; sleep 60", timeout=1)
        stopped = "begun\n\n[stopped after 1 s: the command and its child processes were killed]"
        assert (result.exit_code, result.output) == (124, stopped)
        assert backend.execute("echo \0").exit_code == 2


def test_names_and_output_that_are_not_utf_8(bench: RunHarness) -> None:
    with hold(bench) as work:
        where = work.enter().workspace
        command = "printf 'x\\377' | tee $(printf 'pkg/a\\377b.py')"
        model = scripted_model(
            reply(("execute", {"command": command}), ("ls", {"path": f"{where}/pkg"}), text="t"), "Done."
        )
        end = build(work, model).invoke(ask(), CONFIG)
    assert "core.py" in results(end)[1]


def test_the_examples_of_the_docstrings_run(bench: RunHarness, tmp_path: Path) -> None:
    import doctest

    names = {"home": bench.home, "sandbox_spec": bench.spec, "model": scripted_model("Done.")}
    for each in (SandboxBackend, SandboxFilesystemMiddleware):
        example = doctest.DocTestParser().get_doctest(
            each.__doc__ or "", dict(names), each.__name__, None, None
        )
        assert example.examples
        assert doctest.DocTestRunner(verbose=False).run(example).failed == 0


@pytest.mark.parametrize("is_async", [False, True])
def test_an_agent_on_a_fork_continues_with_its_files(bench: RunHarness, is_async: bool) -> None:
    with hold(bench) as work:
        backend = SandboxBackend(work)
        build(work, scripted_model(execute("cd pkg; A=b; echo 1 > new"), "Done.")).invoke(ask(), CONFIG)
        with backend.fork("fork") as fork:
            fork.execute("echo 2 >> new")
            agent = create_deep_agent(
                scripted_model(execute("cat new; echo $A; echo 3 >> new"), "Done."),
                backend=fork,
                middleware=[SandboxFilesystemMiddleware(fork)],
                checkpointer=InMemorySaver(),
            )
            config: Any = {"configurable": {"thread_id": "fork"}}
            end = asyncio.run(agent.ainvoke(ask(), config)) if is_async else agent.invoke(ask(), config)
            assert results(end)[0].split()[:3] == ["1", "2", "b"]
            assert fork.execute("cat new").output.split() == ["1", "2", "3"]
        assert backend.execute("cat new").output.split() == ["1"]


def test_a_snapshot_before_the_start_does_not_undo_uploads(bench: RunHarness) -> None:
    with hold(bench) as work:
        backend = SandboxBackend(work)
        backend.execute("echo 1 > first")
        backend.snapshot()
        middleware = [SandboxFilesystemMiddleware(backend)]
        model = scripted_model(execute("cat first"), "Done.")
        agent = create_deep_agent(model, backend=backend, middleware=middleware, checkpointer=work.saver)
        end = agent.invoke(ask(), CONFIG)
    assert results(end)[0].startswith("1")


def test_a_backend_of_all_threads_works_in_a_block_too(bench: RunHarness) -> None:
    """Before the start, between two turns and after them; a process that has not seen the agent is refused."""
    saver = InMemorySaver()
    with Sandboxes(bench.home, bench.spec) as sandboxes:
        backend = SandboxBackend(sandboxes)
        model = scripted_model(
            execute("cat first", text="1"), "Done.", execute("cat first second", text="2"), "Done."
        )
        middleware = [SandboxFilesystemMiddleware(backend)]
        agent = create_deep_agent(model, backend=backend, middleware=middleware, checkpointer=saver)
        with sandboxes.open("deep"):
            backend.execute("echo 1 > first")
        agent.invoke(ask(), CONFIG)
        with sandboxes.open("deep"):
            backend.execute("echo 2 > second")
            with backend.fork("fork") as fork:
                assert backend.id == "deep"
                assert fork.execute("cat first second").output.split() == ["1", "2"]
        end = agent.invoke(ask("Again."), CONFIG)
        with sandboxes.open("other"), sandboxes.open("deep"):
            assert backend.execute("cat first second").output.split() == ["1", "2"]
    assert [text.split("\n")[:2] for text in results(end)] == [["1", ""], ["1", "2"]]
    refusal = pytest.raises(SandboxStateLostError, match="its newest state is unknown")
    with Sandboxes(bench.home, bench.spec) as others, others.open("deep"), refusal:
        SandboxBackend(others).execute("cat first")
