"""Tools of a real MCP server beside the sandbox's, by langchain-mcp-adapters. `test_deepagents.py` runs them.

The adapters need another major version of `mcp` than this project's own server, so they have a directory of their own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_mcp_adapters.client import MultiServerMCPClient

from langgraph_takeover import SandboxSpec, open_home
from langgraph_takeover.deepagents import SandboxBackend, SandboxFilesystemMiddleware
from langgraph_takeover.errors import SettingsError
from langgraph_takeover.integrations import ThreadSandbox, open_sandbox
from langgraph_takeover.middleware import SandboxMiddleware, read_events

from ...crash_case import create_repository
from ..conftest import RunHarness, scripted_model
from .deepagents_agents import CONFIG, ask, execute, hold, reply, results

SERVER = Path(__file__).with_name("mcp_server.py")


def shell(command: str) -> tuple[str, dict[str, Any]]:
    return "shell", {"command": command}


def count(text: str) -> tuple[str, dict[str, Any]]:
    return "count", {"text": text}


async def load_tools(notes: Path, *names: str, **options: Any) -> Any:
    connection: Any = {
        "transport": "stdio",
        "command": sys.executable,
        "args": [str(SERVER), str(notes), *names],
        "env": dict(os.environ),
    }
    return await MultiServerMCPClient({"notes": connection}, **options).get_tools()


async def play(work: ThreadSandbox, tools: Any, *replies: Any, given: Any = None) -> dict[str, Any]:
    model = scripted_model(*replies)
    agent = create_agent(model, tools, middleware=[SandboxMiddleware(work)], checkpointer=work.saver)
    end: dict[str, Any] = await agent.ainvoke(given, CONFIG)
    return end


def test_calls_of_both_kinds_in_one_reply(bench: RunHarness, tmp_path: Path) -> None:
    """The sandbox's calls run in order; an MCP tool's error is an answer, and does not stop the calls after it."""
    calls = [shell("echo 1 >> log"), count("a"), ("fail", {"text": "b"}), shell("echo 2 >> log; cat log")]

    async def run(work: ThreadSandbox) -> Any:
        tools = await load_tools(tmp_path / "notes")
        return await play(work, tools, reply(*calls), "Done.", given=ask())

    with hold(bench) as work:
        end = asyncio.run(run(work))
        events = read_events(bench.home, end, thread="deep")
    answers = [each for each in end["messages"] if isinstance(each, ToolMessage)]
    assert [each.status for each in answers] == ["success", "success", "error", "success"]
    assert [results(end)[1], "no b" in results(end)[2]] == ["1", True]
    assert results(end)[3].split()[-2:] == ["1", "2"]
    assert (tmp_path / "notes").read_text() == "a\n"
    assert [each.tool for each in events if each.kind == "action"] == ["shell", "shell"]


def test_a_tool_with_the_name_of_ours_is_refused(bench: RunHarness, tmp_path: Path) -> None:
    async def run(work: ThreadSandbox) -> None:
        tools = await load_tools(tmp_path / "notes", "shell")
        await play(work, tools, reply(shell("echo 1 >> log")), "Done.", given=ask())

    with hold(bench) as work, pytest.raises(SettingsError, match=r"'shell'.*rename it"):
        asyncio.run(run(work))
    assert not (tmp_path / "notes").exists()


def test_a_server_that_is_gone_is_an_error_after_which_the_thread_continues(
    bench: RunHarness, tmp_path: Path
) -> None:
    replies = reply(shell("echo 1 >> log"), count("a"), shell("echo 2 >> log; cat log")), "Done."

    async def lose(request: Any, handler: Any) -> Any:
        raise ConnectionError("the server is gone")

    async def run(work: ThreadSandbox, given: Any, **options: Any) -> Any:
        tools = await load_tools(tmp_path / "notes", **options)
        return await play(work, tools, *replies, given=given)

    with hold(bench) as work, pytest.raises(ConnectionError, match="the server is gone"):
        asyncio.run(run(work, ask(), tool_interceptors=[lose]))
    with hold(bench) as work:
        end = asyncio.run(run(work, None))
    assert sorted(text.split()[-1] for text in results(end)) == ["0]", "1", "2"]
    assert any(text.split()[-2:] == ["1", "2"] for text in results(end))


def test_beside_tasks_of_deepagents(bench: RunHarness, tmp_path: Path) -> None:
    async def run(work: ThreadSandbox) -> Any:
        backend = SandboxBackend(work)
        agent = create_deep_agent(
            scripted_model(
                reply(("execute", {"command": "echo 1 > log"}), count("a"), text="1"),
                execute("cat log", text="2"),
                "Done.",
            ),
            await load_tools(tmp_path / "notes"),
            backend=backend,
            middleware=[SandboxFilesystemMiddleware(backend)],
            checkpointer=work.saver,
        )
        return await agent.ainvoke(ask(), CONFIG)

    with hold(bench) as work:
        end = asyncio.run(run(work))
    assert [results(end)[1], results(end)[2].split()[0]] == ["1", "1"]


def work_until_killed(root: Path) -> None:
    """Run or resume the agent; the first process dies when the MCP server has answered, and the first command ran."""
    is_first = not (root / "killed").exists()

    async def kill(request: Any, handler: Any) -> Any:
        result = await handler(request)
        while is_first and not (root / "ran").exists():
            await asyncio.sleep(0.02)
        if is_first:
            (root / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    async def run(work: ThreadSandbox) -> Any:
        tools = await load_tools(root / "notes", tool_interceptors=[kill])
        calls = shell(f"echo 1 >> log; touch {root}/ran"), count("a"), shell("echo 2 >> log; cat log")
        return await play(work, tools, reply(*calls), "Done.", given=ask() if is_first else None)

    spec = SandboxSpec(backend="process", directory=root / "base")
    with open_home(root / "home") as home, open_sandbox(home, "deep", sandbox=spec) as work:
        print(*[text.replace("\n", " ") for text in results(asyncio.run(run(work)))], sep="\n")


def test_after_a_kill_commands_are_not_repeated_but_mcp_calls_are(tmp_path: Path) -> None:
    """The sandbox's effects happen once; those of an MCP server are outside of it."""
    create_repository(tmp_path)
    command = [sys.executable, "-m", __spec__.name, str(tmp_path)]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert "1 2" in done.stdout, done.stderr
    assert (tmp_path / "notes").read_text() == "a\na\n"


if __name__ == "__main__":
    work_until_killed(Path(sys.argv[1]))
