"""The code blocks in docs/interop.md, docs/own-graphs.md and docs/langchain-sandbox.md run, a page as one program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from langgraph_takeover import open_home
from langgraph_takeover.handoff.interop import swarm_records as handoff_swarm
from langgraph_takeover.handoff.records.record import RecordStore

from .command_line import list_complaints
from .deepagents_environment import find_deepagents_python

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "interop.md").read_text(encoding="utf-8")
OWN_GRAPHS = (ROOT / "docs" / "own-graphs.md").read_text(encoding="utf-8")
BEGUN = """
import demo_task
from langchain_openai import ChatOpenAI
from pathlib import Path
from langgraph_takeover import open_home, run
from langgraph_takeover.sandbox import SandboxSpec

with open_home("work") as home:
    spec = SandboxSpec(backend=demo_task.default_backend(allow_process=True), directory=Path("repository"))
    run(home, "begun", task_id="t", prompt=demo_task.TASK.prompt, model=ChatOpenAI(model="m"), sandbox=spec,
        policy="stop", points=("first_source_edit",))
"""


def make_program(text: str) -> str:
    """The code blocks of a page, with the model of one task and any sandbox.

    deepagents has an environment of its own; its block and the one that follows its agent are run as examples.
    """
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    program = "".join(each for each in blocks if not re.search("deepagents|PointDetector", each))
    return program.replace('"Make the tests pass."', "demo_task.TASK.prompt").replace(
        'backend="host"', "backend=demo_task.default_backend(allow_process=True)"
    )


def run_example(directory: Path, *command: str, python: str | Path = sys.executable) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    done = subprocess.run(
        [python, *command],
        cwd=directory,
        env=clean | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, list_complaints(done.stderr)) == (0, []) or "characters, about" in done.stderr, (
        done.stderr
    )
    return done.stdout


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from langgraph_takeover.evals.tasks import BUNDLED, load_tasks

    found = tmp_path_factory.mktemp("interop")
    (task,) = load_tasks(BUNDLED, ["galley__galley-31"])
    task.check_out(found)
    (found / task.id).rename(found / "repository")
    return found


@pytest.mark.slow
def test_every_code_block_runs(directory: Path) -> None:
    (directory / "program.py").write_text(f"{BEGUN}{make_program(TEXT)}\nsandbox.close()\n")
    shown = run_example(directory, "program.py").splitlines()
    assert shown[0] == "fixer 6"
    assert shown[1] == "finder handed over to fixer True"
    assert re.fullmatch(r"1\.requested\.\d+ finder handed over to fixer", shown[2])
    assert re.fullmatch(r"1\.requested\.\d+ fixer the recording ends", shown[3])
    assert "## Written by the earlier agent" in shown
    assert shown[-2:] == ["finished", "The fix is in place, and the tests pass."]
    # The first swarm has fixed it; only the sandbox shows that, the second swarm's messages do not.
    (ends,) = (directory / "work" / "records").glob("1.requested.??/record.json")
    assert "galley/wrap.py" in json.loads(ends.read_text())["patch"]
    with open_home(directory / "work") as home:
        assert {"begun", "successor"} <= set(home.threads())
    assert len(RecordStore(directory / "work" / "records").list_ids()) >= 3


@pytest.mark.slow
def test_own_graphs_run(directory: Path) -> None:
    (directory / "own.py").write_text("import demo_task\n" + make_program(OWN_GRAPHS))
    *counts, answer, team, stat, _, greeting = run_example(directory, "own.py").splitlines()[:8]
    assert min(map(int, counts)) > 3
    assert answer.startswith("The fix is in place, and the tests pass. ['chat-1.first_source_edit.")
    assert "chat-1.first_validation." in answer
    assert (team.split()[0], stat.split()[0], greeting) == ("fixer", "1", "Hello.")


@pytest.mark.slow
def test_the_sandbox_for_deep_agents_runs(directory: Path) -> None:
    """In the environment of deepagents, with a scripted model."""
    text = (ROOT / "docs" / "langchain-sandbox.md").read_text(encoding="utf-8")
    program = "".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    command = "call_tool('execute', command='echo \"print(1)\" > hello.py && python3 hello.py')"
    scripted = f"demo_task.ScriptedChat(replies=[demo_task.{command}, 'Written.'])"
    program = program.replace('init_chat_model("openai:gpt-5")', scripted).replace(
        'backend="host"', "backend=demo_task.default_backend(allow_process=True)"
    )
    (directory / "deep.py").write_text(f"import demo_task\n{program}")
    shown = run_example(directory, "deep.py", python=find_deepagents_python()).split("\n")
    assert [*filter(None, shown)] == ["hello", "Written.", "['1', '2', 'kept']", "['1']", "['1', '2']"]


def test_names_in_the_text_exist() -> None:
    from langgraph_takeover.graph import swarm

    for name in re.findall(r"`graph\.swarm\.(\w+)`", TEXT):
        assert hasattr(swarm, name), name
    for name in re.findall(r"handoff\.swarm\.(\w+)", TEXT):
        assert hasattr(handoff_swarm, name), name
