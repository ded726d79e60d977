"""An agent's files replace the links, pipes and files in their way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.handoff.agents.adapter import Launch
from langgraph_takeover.nodes.external.agent_process import build_start_files, wait_for_result, write_files
from langgraph_takeover.sandbox import start
from langgraph_takeover.sandbox.backends import host
from langgraph_takeover.sandbox.interface import FileAccessError, Sandbox, SandboxSpec

from ...conftest import skip_missing

HOME = "/home/agent"
OBSTACLES = {
    "a file": "touch {path}",
    "a pipe": "mkfifo {path}",
    "a link to nowhere": "ln -s /nowhere {path}",
    "a link to the repository": "ln -s /testbed {path}",
    "a loop": "ln -s {path} {path}",
    "a closed directory": "mkdir -p {path}/x/y && chmod 0 {path}/x {path}",
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    if reason := host.unavailable_reason():
        skip_missing(reason)
    base: Path = tmp_path_factory.mktemp("base")
    (base / "kept.txt").write_text("kept")
    sandbox = start(SandboxSpec(backend="host", directory=base))
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize(
    "name", [each if each == "codex" else pytest.param(each, marks=pytest.mark.slow) for each in ADAPTERS]
)
def test_nothing_stands_in_the_way_of_an_agents_files(sandbox: Sandbox, name: str) -> None:
    launch = Launch(
        program=("agent",), home=HOME, workspace=sandbox.workspace, port=8377, model="m", message="Work."
    )
    files = build_start_files(ADAPTERS[name], launch, f"{HOME}/.takeover")
    setup = max(files, key=len)
    directories = [each for each in PurePosixPath(setup).parents if each.is_relative_to(HOME)]
    for place in (setup, *map(str, directories[:-1])):
        for obstacle in OBSTACLES.values():
            sandbox.run(
                f"chmod -R u+rwX {HOME}; rm -rf {HOME}/.[a-z]*; mkdir -p $(dirname {place})", timeout_s=10
            )
            made = sandbox.run(obstacle.format(path=place), timeout_s=10)
            assert made.exit_code == 0, made.output
            write_files(sandbox, HOME, files)
            assert {path: sandbox.read_file(path).decode() for path in files} == files
    assert sandbox.directory_listing("/testbed") == ("kept.txt",)


def test_a_home_that_cannot_be_written_is_an_error_of_its_own(sandbox: Sandbox) -> None:
    with pytest.raises(FileAccessError) as caught:
        write_files(sandbox, "/proc/1", {"/proc/1/x/settings": ""})
    assert "\n" not in str(caught.value)


def test_the_last_of_several_results_with_one_id_is_waited_for(sandbox: Sandbox) -> None:
    """Endpoints begin the ids of calls anew in each reply, so earlier results have the same id."""
    path, lines = f"{HOME}/session.jsonl", "bash:0 call\nbash:0 result\n"
    sandbox.run(f"mkdir -p {HOME}", timeout_s=10)
    sandbox.write_file(path, lines.encode())
    wait_for_result(sandbox, HOME, "session.jsonl", "bash:0")
    sandbox.run(f"(sleep 0.3; printf '%s' '{lines}' >>{path}) >/dev/null 2>&1 &", timeout_s=10)
    wait_for_result(sandbox, HOME, "session.jsonl", "bash:0", count=2)
    assert sandbox.read_file(path).decode() == lines * 2
