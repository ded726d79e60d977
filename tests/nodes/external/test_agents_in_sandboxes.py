"""The real agents in a real sandbox, against a scripted endpoint in the sandbox's network."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from pathlib import Path

import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.handoff.agents.adapter import Launch
from langgraph_takeover.handoff.trace.events import Action
from langgraph_takeover.sandbox.interface import SandboxSpec
from langgraph_takeover.testing.agents.agent_programs import ScriptedEndpoint
from langgraph_takeover.testing.agents.wire import ScriptedReply, list_calls, read_messages

from ...agent_programs import find_test_program


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ADAPTERS)
def test_agent_works_with_mounted_program(name: str, tmp_path: Path) -> None:
    adapter = ADAPTERS[name]
    program = find_test_program(adapter)
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "a.py").write_text("x = 1\n")
    for arguments in (
        ("init", "-q"),
        ("add", "-A"),
        ("-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "base"),
    ):
        subprocess.run(["git", *arguments], cwd=repository, check=True)
    spec = SandboxSpec(
        backend="host",
        directory=repository,
        programs=program.mounts,
        memory_mb=max(4096, adapter.program.address_space_mb),
    )
    with contextlib.closing(sandbox.start(spec)) as box:
        home = box.run('printf %s "$HOME"', timeout_s=30).output.strip()
        launch = Launch(
            program=program.argv,
            home=home,
            workspace=box.workspace,
            port=8377,
            model="scripted",
            message="Fix x.",
        )
        edit = Action("editor", {"command": "str_replace", "path": "a.py", "old": "x = 1", "new": "x = 2"})
        end = adapter.write_call(Action("finish", {}), box.workspace)
        call = adapter.write_call(edit, box.workspace)
        assert call is not None
        replies = [
            ScriptedReply("", {"call_1": call}),
            ScriptedReply("Done.", {"call_2": end} if end else {}),
        ]
        setup, command = adapter.setup(launch), adapter.command(launch)
        for path, text in (*setup.files.items(), ("stdin", command.stdin)):
            box.write_file(f"{home}/{path}", text.encode())
        exports = "".join(f"export {key}={shlex.quote(value)}; " for key, value in setup.environment.items())
        with ScriptedEndpoint(adapter, replies, box.listen(launch.port)) as endpoint:
            result = box.run(f"({exports}{shlex.join(command.argv)} <{home}/stdin)", timeout_s=300)
        output = adapter.read_output(result.output, result.exit_code)
        assert output.is_complete, result.output[-3000:]
        assert len(endpoint.requests) == len(endpoint.main_requests) == 2
        done = list_calls(read_messages(adapter.api, endpoint.main_requests[1].body))
        assert box.run("cat a.py", timeout_s=30).output.strip() == "x = 2", done
        assert [change.path for change in box.changes() if not change.path.startswith("/")] == ["a.py"]
