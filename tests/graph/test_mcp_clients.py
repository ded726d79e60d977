"""MCP with real clients: Codex and Claude Code take part in a handoff through `handoff mcp`.

The model is a script on loopback. The programs come from PATH, or from the directory that TAKEOVER_TEST_AGENTS names.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from langgraph_takeover.handoff.agents import find_adapter
from langgraph_takeover.handoff.agents.adapter import Launch, NativeCall
from langgraph_takeover.handoff.ledger.handoffs import Handoff
from langgraph_takeover.testing.agents.agent_programs import ScriptedEndpoint
from langgraph_takeover.testing.agents.wire import ScriptedReply, list_calls, read_messages

from ..agent_programs import find_test_command
from .conftest import RunHarness
from .delivery.test_delivery import RECORD
from .test_mcp import PATCH, ROOT, STATEMENTS, offered, server_command, states

__all__ = ["offered"]
pytestmark = pytest.mark.slow


class ClientProgram(NamedTuple):
    """How a script starts an agent that waits for its MCP server, and what the agent calls the server's tools."""

    options: tuple[str, ...]
    prefix: str
    namespace: str = ""


CLIENTS = {
    "codex": ClientProgram(
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"), "", "mcp__takeover"
    ),
    "claude-code": ClientProgram(
        ("-p", "--mcp-config", ".mcp.json", "--allowedTools", "mcp__takeover,Bash(sleep:*)", "--"),
        "mcp__takeover__",
    ),
}


def configure_server(agent: str, bench: RunHarness, home: Path, workspace: Path) -> None:
    """Write the client's configuration of the server, as docs/mcp.md shows it."""
    command, *arguments = server_command(bench)
    environment = {"PYTHONPATH": str(ROOT)} | {
        name: value for name, value in os.environ.items() if name.startswith("TAKEOVER_")
    }
    if agent == "claude-code":
        server = {"command": command, "args": arguments, "env": environment}
        (workspace / ".mcp.json").write_text(json.dumps({"mcpServers": {"takeover": server}}))
        return
    with (home / ".codex/config.toml").open("a") as file:
        file.write(
            f"\n[mcp_servers.takeover]\ncommand = {json.dumps(command)}\nargs = {json.dumps(arguments)}\n"
            f"required = true\n[mcp_servers.takeover.env]\n"
            + "".join(f"{name} = {json.dumps(value)}\n" for name, value in environment.items())
        )


def script_session(client: ClientProgram, offered: Handoff) -> list[ScriptedReply]:
    # Claude Code starts its servers in the background, and waits for them no longer than some seconds.
    pause = NativeCall(name="Bash", arguments={"command": "sleep 15"})
    calls: list[tuple[str, Mapping[str, Any]]] = [
        ("list_records", {}),
        ("show_record", {"record": RECORD}),
        ("recall", {"record": RECORD, "query": "e0"}),
        ("accept", {"handoff": offered.id, "idempotency_key": "a", **STATEMENTS}),
        ("complete", {"handoff": offered.id, "message": "It doubles.", "patch": PATCH, "idempotency_key": "c"}),
    ]  # fmt: skip
    return [
        *([ScriptedReply("", {"pause": pause})] if client.prefix else []),
        *(
            ScriptedReply(
                "",
                {
                    f"call_{number}": NativeCall(
                        name=client.prefix + name, arguments=arguments, namespace=client.namespace
                    )
                },
            )
            for number, (name, arguments) in enumerate(calls)
        ),
        ScriptedReply("Done."),
    ]


@pytest.mark.parametrize("agent", CLIENTS)
def test_a_real_client_completes_a_handoff(
    bench: RunHarness, offered: Handoff, tmp_path: Path, agent: str
) -> None:
    adapter, client = find_adapter(agent), CLIENTS[agent]
    program = find_test_command(adapter)
    home, workspace = tmp_path / "user", tmp_path / "work"
    home.mkdir()
    workspace.mkdir()
    with ScriptedEndpoint(adapter, script_session(client, offered)) as model:
        setup = adapter.setup(
            Launch(
                program=(str(program),), home=str(home), workspace=str(workspace), port=model.port,
                model="scripted-model", message="Look at your handoffs.",
            )
        )  # fmt: skip
        for name, text in setup.files.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
        configure_server(agent, bench, home, workspace)
        environment = {
            "HOME": str(home), "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "LC_ALL": "C.UTF-8",
            "MCP_CONNECTION_NONBLOCKING": "0", **setup.environment,
        }  # fmt: skip
        done = subprocess.run(
            [program, *client.options, "Look at your handoffs."], cwd=workspace, env=environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        results = [
            call.result or "" for call in list_calls(read_messages(adapter.api, model.main_requests[-1].body))
        ][-5:]
    assert f'"handoff": "{offered.id}"' in results[0]
    assert "Continuation state:** changed_not_validated" in results[1]
    assert "sed -i" in results[2]
    assert '"state": "accepted"' in results[3]
    assert '"state": "completed"' in results[4], results[4]
    assert states(bench, offered) == ["prepared", "offered", "accepted", "active", "completed"]
