"""The documented graphs under `langgraph dev`, which forbids blocking calls and replaces the checkpointer."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.pregel.remote import RemoteGraph
from langgraph_sdk.errors import ConflictError, NotFoundError

from langgraph_takeover.sandbox import default_backend

from ...chat_server import ChatServer
from ...deepagents_environment import find_deepagents_python
from ...langgraph_dev import ROOT, DevServer, stream_reply

EXAMPLE = ROOT / "examples" / "langgraph_server"
MORE = Path(__file__).with_name("served_graphs.py")
SHOW = "cat log; echo x=$x"
LONG = "echo begun >> log; x=long; sleep 29; echo ended >> log"
CALLS = {"agent": "shell", "reviewed": "shell", "deep": "execute"}
"""The agents, each with the tool that runs a command."""


def answer_request(request: dict[str, Any]) -> tuple[int, bytes]:
    """Run each line of the user's message as a command, then finish. Like strict endpoints, refuse calls without results."""
    unanswered: list[str] = []
    for message in request["messages"]:
        if message["role"] == "tool" and message["tool_call_id"] in unanswered:
            unanswered.remove(message["tool_call_id"])
        elif unanswered or message["role"] == "tool":
            return 400, b'{"error": {"message": "each call needs one result"}}'
        unanswered += [call["id"] for call in message.get("tool_calls") or ()]
    last, (tool,) = request["messages"][-1], {*_list_tools(request)} & {*CALLS.values()}
    calls: tuple[dict[str, Any], ...] = ()
    if last["role"] == "user":
        text = last["content"] if isinstance(last["content"], str) else last["content"][0]["text"]
        calls = tuple(
            {
                "id": f"call-{len(request['messages'])}-{n}",
                "type": "function",
                "function": {"name": tool, "arguments": json.dumps({"command": command})},
            }
            for n, command in enumerate(text.splitlines())
        )
    if request.get("stream"):
        return 200, stream_reply("" if calls else "All is done.", calls)
    return ChatServer.reply("" if calls else "All is done.", tool_calls=calls)


def _list_tools(request: dict[str, Any]) -> list[str]:
    return [each["function"]["name"] for each in request.get("tools", ())]


class SandboxServer(DevServer):
    """`langgraph dev` in a copy of the example, with further graphs beside it."""

    def __init__(
        self, directory: Path, graphs: dict[str, str], *, keeps_saver: bool = True, **options: Any
    ) -> None:
        shutil.copytree(EXAMPLE, directory, dirs_exist_ok=True)
        shutil.copy(MORE, directory)
        if default_backend(allow_process=True) == "process":
            module = directory / "graphs.py"
            module.write_text(module.read_text().replace("default_backend()", '"process"'))
        repository = directory / "repository"
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(repository)]
        subprocess.run(["git", "init", "-q", repository], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "base"], check=True)
        config = directory / "langgraph.json"
        settings = json.loads(config.read_text())
        settings["graphs"] |= graphs
        if not keeps_saver:
            del settings["checkpointer"]
        config.write_text(json.dumps(settings))
        self.chat = ChatServer()
        self.chat.answer = answer_request
        super().__init__(
            directory, config, jobs=4, OPENAI_API_KEY="k", OPENAI_BASE_URL=self.chat.url, **options
        )

    def close(self) -> None:
        self.stop()
        self.chat.close()

    def begin(self, thread: str | None, graph: str, command: str, **options: Any) -> str:
        """Start a run in the background; return its id."""
        return str(self.client.runs.create(thread, graph, input=give(graph, command), **options)["run_id"])

    def run(self, thread: str | None, graph: str, command: str, **options: Any) -> str:
        """Return the output of a command."""
        return read_output(self.client.runs.wait(thread, graph, input=give(graph, command), **options))

    def join(self, thread: str, run: str) -> str:
        return read_output(self.client.runs.join(thread, run))


def give(graph: str, command: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": command}]} if graph in CALLS else {"command": command}


def read_output(values: Any) -> str:
    """The output of the last command in a state."""
    if "messages" not in values:
        return str(values["output"])
    (*_, last) = (each["content"] for each in values["messages"] if each["type"] == "tool")
    output = str(last).rpartition("[exit code 0]\n")[2].partition("[Command")[0]
    return output.rstrip("\n") + "\n"


def name_graphs(*names: str) -> dict[str, str]:
    return {name: f"./served_graphs.py:{name}" for name in names}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxServer]:
    graphs = name_graphs("synchronous", "asking", "reviewed", "branches")
    started = SandboxServer(tmp_path_factory.mktemp("server"), graphs)
    yield started
    started.close()
    assert "Blocking call" not in (started.directory / "server.log").read_text()


@pytest.fixture
def thread(server: SandboxServer) -> str:
    return server.thread()


def test_the_guide_shows_the_example() -> None:
    guide = (ROOT / "docs" / "langgraph-server.md").read_text()
    shown = re.findall(r"```json\n(.*?)```", guide, re.DOTALL)[0]
    assert json.loads(shown) == json.loads((EXAMPLE / "langgraph.json").read_text())


def test_reads_open_no_sandbox(server: SandboxServer) -> None:
    client = server.client
    thread = client.threads.create(graph_id="commands")["thread_id"]
    for each in client.assistants.search():
        assert client.assistants.get_schemas(each["assistant_id"])["state_schema"]
        assert client.assistants.get_graph(each["assistant_id"], xray=True)["nodes"]
    client.threads.update_state(thread, {"command": "echo 1"}, as_node="__start__")
    assert client.threads.get_state(thread, subgraphs=True)["next"] == ["run"]
    assert len(client.threads.get_history(thread)) == 1
    assert server.list_commands() == []
    assert read_output(client.runs.wait(thread, "commands")) == "1\n"
    assert server.list_commands() != []


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["agent", "commands", "synchronous"])
def test_a_thread_keeps_files_and_shell_between_runs(server: SandboxServer, thread: str, graph: str) -> None:
    server.run(thread, graph, "echo 1 >> log; x=kept")
    assert server.run(thread, graph, f"echo 2 >> log; {SHOW}") == "1\n2\nx=kept\n"


def test_a_run_is_streamed(server: SandboxServer, thread: str) -> None:
    modes = ["messages-tuple", "updates", "values"]
    parts = [*server.client.runs.stream(thread, "agent", input=give("agent", "echo 1"), stream_mode=modes)]
    words = [part.data[0]["content"] for part in parts if part.event == "messages"]
    assert [word for word in words if word][-3:] == ["All ", "is ", "done."]
    updates = [name for part in parts if part.event == "updates" for name in part.data]
    assert [name for name in updates if "." not in name] == ["model", "tools", "model"]
    (*_, last) = (part.data for part in parts if part.event == "values")
    assert read_output(last) == "1\n"


@pytest.mark.slow
def test_interrupt_and_resume(server: SandboxServer, thread: str) -> None:
    server.client.runs.wait(thread, "asking", input={})
    (question,) = server.client.threads.get_state(thread)["interrupts"]
    assert question["value"] == "which command?"
    end = server.client.runs.wait(thread, "asking", command={"resume": "cat log; echo $y"})
    assert read_output(end) == "prepared\nkept\n"


@pytest.mark.slow
def test_a_person_edits_a_call(server: SandboxServer, thread: str) -> None:
    server.client.runs.wait(thread, "reviewed", input=give("reviewed", "echo wrong >> log"))
    edited = {"name": "shell", "args": {"command": "echo right >> log; cat log"}}
    answer = {"decisions": [{"type": "edit", "edited_action": edited}]}
    end = server.client.runs.wait(thread, "reviewed", command={"resume": answer})
    assert read_output(end) == "right\n"


@pytest.mark.slow
def test_a_fork_begins_with_the_files_of_its_checkpoint(server: SandboxServer, thread: str) -> None:
    for text in "12":
        server.run(thread, "commands", f"echo {text} >> log; x={text}; {SHOW}")
    history = server.client.threads.get_history(thread)
    first = next(each for each in history if each["values"].get("output") == "1\nx=1\n")
    update = {"command": f"echo fork >> log; {SHOW}"}
    fork = server.client.threads.update_state(
        thread, update, checkpoint=first["checkpoint"], as_node="__start__"
    )
    end = server.client.runs.wait(thread, "commands", checkpoint=fork["checkpoint"])
    assert read_output(end) == "1\nfork\nx=1\n"
    assert server.run(thread, "commands", "cat log", checkpoint=first["checkpoint"]) == "1\n"
    copy = server.client.threads.copy(thread)["thread_id"]
    assert server.run(copy, "commands", "cat log") == "1\n"


def test_branches_with_synchronous_and_asynchronous_nodes(server: SandboxServer, thread: str) -> None:
    """The server hides the saver's synchronous methods, and its connection belongs to the event loop."""
    assert server.run(thread, "branches", "ls") == "left\nright\n"


@pytest.mark.cases(1)
@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize(
    ("graph", "strategy"),
    [
        ("commands", "interrupt"),
        ("synchronous", "rollback"),
        ("agent", "interrupt"),
        ("agent", "rollback"),
        ("commands", "rollback"),
        ("synchronous", "interrupt"),
    ],
)
def test_double_texting_ends_the_running_command(
    server: SandboxServer, thread: str, graph: str, strategy: str, has_state: bool
) -> None:
    expected = ""
    if has_state:
        server.run(thread, graph, "echo 0 >> log; x=before")
        expected = "0\n"
    first = "echo 1 >> log\n" if graph == "agent" else ""  # a finished call of the run that is ended
    run = server.begin(thread, graph, first + LONG)
    server.wait_until_it_runs(["sleep", "29"])
    begun_at = time.monotonic()
    second = server.begin(thread, graph, f"echo 2 >> log; {SHOW}", multitask_strategy=strategy)
    kept = "1\n" if first and strategy == "interrupt" else ""
    x = "before" if has_state else ""
    assert server.join(thread, second) == f"{expected}{kept}2\nx={x}\n"
    assert time.monotonic() - begun_at < 15
    server.wait(lambda: ["sleep", "29"] not in server.list_commands())
    if strategy == "interrupt":
        assert server.client.runs.get(thread, run)["status"] == "interrupted"
    else:
        with pytest.raises(NotFoundError):
            server.client.runs.get(thread, run)


@pytest.mark.slow
def test_double_texting_waits_or_is_refused(server: SandboxServer, thread: str) -> None:
    run = server.begin(thread, "commands", "echo 1 >> log; sleep 2; echo 2 >> log")
    with pytest.raises(ConflictError):
        server.begin(thread, "commands", "echo 3 >> log", multitask_strategy="reject")
    later = server.begin(thread, "commands", "echo 4 >> log; cat log", multitask_strategy="enqueue")
    assert server.join(thread, later) == "1\n2\n4\n"
    assert server.client.runs.get(thread, run)["status"] == "success"


@pytest.mark.slow
@pytest.mark.parametrize("action", ["interrupt", "rollback"])
def test_a_cancelled_run_leaves_nothing(server: SandboxServer, thread: str, action: str) -> None:
    server.run(thread, "commands", "echo 0 >> log")
    run = server.begin(thread, "commands", LONG)
    server.wait_until_it_runs(["sleep", "29"])
    server.client.runs.cancel(thread, run, wait=True, action=action)
    server.wait_until_idle(thread)
    assert server.client.threads.get_state(thread)["next"] == (["run"] if action == "interrupt" else [])
    assert server.run(thread, "commands", SHOW) == "0\nx=\n"


def test_reads_during_a_run_never_fail(server: SandboxServer, thread: str) -> None:
    run, reads = server.begin(thread, "commands", "sleep 1; echo 1"), 0
    while server.client.runs.get(thread, run)["status"] in ("pending", "running"):
        server.client.threads.get_state(thread, subgraphs=True)
        server.client.threads.get_history(thread)
        reads += 1
    assert reads > 5
    assert server.client.runs.get(thread, run)["status"] == "success"


@pytest.mark.slow
def test_a_remote_graph(server: SandboxServer, thread: str) -> None:
    remote, config = RemoteGraph("commands", url=server.url), {"configurable": {"thread_id": thread}}
    remote.invoke({"command": "echo 1 >> log"}, config)
    (update,) = remote.stream({"command": "echo 2 >> log; cat log"}, config, stream_mode="updates")
    assert update["run"]["output"] == remote.get_state(config).values["output"] == "1\n2\n"
    remote.update_state(config, {"command": "echo 3 >> log; cat log"}, as_node="__start__")
    assert read_output(remote.invoke(None, config)) == "1\n2\n3\n"


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["commands", "agent"])
def test_runs_without_a_thread_begin_anew(server: SandboxServer, graph: str) -> None:
    """They have no checkpointer."""
    for _ in range(2):
        assert server.run(None, graph, "echo 1 >> log; cat log") == "1\n"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_cron_job(server: SandboxServer, thread: str) -> None:
    server.run(thread, "commands", "echo 1 >> log")
    client = server.client.crons
    job = client.create_for_thread(
        thread, "commands", schedule="* * * * *", input={"command": "echo 2 >> log"}
    )
    server.wait(lambda: len(server.client.runs.list(thread)) == 2, 130)
    client.delete(job["cron_id"])
    server.wait_until_idle(thread)
    assert server.run(thread, "commands", "head -n 2 log") == "1\n2\n"


def _interrupt_and_restart(server: SandboxServer, graphs: list[str], stop: Any) -> None:
    """End the server while it runs a command of each graph; check that each effect happens once after the restart."""
    threads = {graph: server.thread() for graph in graphs}
    runs = {}
    for graph, thread in threads.items():
        server.run(thread, graph, "echo 0 >> log; x=kept")
        first = "echo 1 >> log\n" if graph in CALLS else ""
        runs[graph] = server.begin(thread, graph, f"{first}echo 2 >> log; sleep 4; echo 3 >> log; {SHOW}")
    server.wait(lambda: server.list_commands().count(["sleep", "4"]) == len(graphs))
    stop(runs)
    server.start()
    for graph, thread in threads.items():
        server.wait_until_ended(thread, runs[graph])
        assert server.client.runs.get(thread, runs[graph])["status"] == "success", server.log()
        expected = "0\n1\n2\n3\nx=kept\n" if graph in CALLS else "0\n2\n3\nx=kept\n"
        assert read_output(server.values(thread)) == expected
        assert server.run(thread, graph, SHOW) == expected


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_killed_server_repeats_no_effect(server: SandboxServer) -> None:
    waiting = server.thread()
    server.client.runs.wait(waiting, "reviewed", input=give("reviewed", "echo 1 >> log; cat log"))

    def kill(runs: dict[str, str]) -> None:
        for run in runs.values():
            server.wait_until_listed(run)
        server.kill()

    _interrupt_and_restart(server, ["commands", "synchronous", "agent"], kill)
    answer = {"decisions": [{"type": "approve"}]}
    end = server.client.runs.wait(waiting, "reviewed", command={"resume": answer})
    assert read_output(end) == "1\n"


@pytest.mark.slow
def test_a_stopped_server_repeats_no_effect(server: SandboxServer) -> None:
    _interrupt_and_restart(server, ["commands", "synchronous", "agent"], lambda _: server.stop())


@pytest.mark.slow
def test_the_servers_own_saver_and_a_loop_for_each_run(tmp_path: Path) -> None:
    """The control: this server has a graph that blocks its event loop."""
    server = SandboxServer(
        tmp_path, name_graphs("branches", "blocking"), keeps_saver=False, BG_JOB_ISOLATED_LOOPS="true"
    )
    try:
        thread = server.thread()
        server.run(thread, "commands", "echo 0 >> log; x=before")
        server.begin(thread, "commands", LONG)
        server.wait_until_it_runs(["sleep", "29"])
        expected = "0\n1\nx=before\n"
        assert (
            server.run(thread, "commands", f"echo 1 >> log; {SHOW}", multitask_strategy="rollback")
            == expected
        )
        assert server.run(server.thread(), "branches", "ls") == "left\nright\n"
        assert "Blocking call" not in server.log()
        with pytest.raises(Exception, match="BlockingError"):
            server.run(server.thread(), "blocking", "")
    finally:
        server.close()
    assert "Blocking call to time.sleep" in server.log()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("isolated_loops", ["false", "true"])
def test_an_agent_of_deepagents(tmp_path: Path, isolated_loops: str) -> None:
    python = find_deepagents_python()
    options = {"python": python, "BG_JOB_ISOLATED_LOOPS": isolated_loops}
    server = SandboxServer(tmp_path, {"deep": "./deep.py:deep"}, **options)
    try:
        thread = server.thread()
        for strategy in ("interrupt", "rollback"):
            server.run(thread, "deep", "echo 0 >> log; x=before")
            server.begin(thread, "deep", LONG)
            server.wait_until_it_runs(["sleep", "29"])
            shown = server.run(thread, "deep", "tail -n 1 log; echo x=$x", multitask_strategy=strategy)
            assert shown.startswith("0\nx=before\n")
        _interrupt_and_restart(server, ["deep"], lambda _: server.stop())
    finally:
        server.close()
    assert "Blocking call" not in (tmp_path / "server.log").read_text()
