"""The code blocks in the documents on embedding and handoffs run in order as one program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from langgraph_takeover import open_home
from langgraph_takeover.evals.tasks import BUNDLED, load_tasks

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
ASYNC = (ROOT / "docs" / "async.md").read_text(encoding="utf-8")
HANDOFFS = (ROOT / "docs" / "handoffs.md").read_text(encoding="utf-8")


def blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_program(program: str, directory: Path) -> str:
    (directory / "program.py").write_text(f"import demo_task\n{program}")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=directory,
        env=clean | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (task,) = load_tasks(BUNDLED, ["galley__galley-31"])
    task.check_out(tmp_path)
    return (tmp_path / task.id).rename(tmp_path / "repository")


@pytest.mark.slow
def test_the_program_hands_over(tmp_path: Path, repository: Path) -> None:
    program = "".join(blocks(HANDOFFS))
    output = run_program(
        program.replace('"Make the tests pass."', "demo_task.TASK.prompt").replace(
            'backend="host"', "backend=demo_task.default_backend(allow_process=True)"
        ),
        tmp_path,
    )
    assert output.startswith("completed thread=")
    assert "stop_reason='finished'" in output


@pytest.mark.slow
def test_the_programs_for_event_loops_run(tmp_path: Path, repository: Path) -> None:
    program = "".join(blocks(ASYNC)).replace('"Make the tests pass."', "demo_task.TASK.prompt")
    output = run_program(
        program.replace('backend="host"', "backend=demo_task.default_backend(allow_process=True)"), tmp_path
    )
    assert output.startswith("finished diff --git")
    assert output.splitlines()[-1].startswith("0")


@pytest.mark.slow
def test_every_code_block_runs(tmp_path: Path, repository: Path) -> None:
    before = (repository / "galley" / "wrap.py").read_text()
    # The model of one task uses its statement as the prompt, and works in any sandbox.
    program = "".join(
        block.replace('"Make the tests pass."', "demo_task.TASK.prompt")
        .replace('backend="host"', "backend=demo_task.default_backend(allow_process=True)")
        .replace("done =", "outcome =")
        .replace("asyncio.run(main())", "asyncio.run(main())\nwith open_home('work') as home:\n"
                 "    outcome = resume(home, 'async', model=model, sandbox=repository)")
        + f"print('=====', {number}, outcome.stop_reason, outcome.steps)\n"
        for number, block in enumerate(blocks(TEXT))
    )  # fmt: skip
    (tmp_path / "models.yaml").write_text("judge:\n  base_url: http://127.0.0.1:1/v1\n  window: 50000\n")
    output = run_program(program, tmp_path)
    ends = re.findall(r"^===== (\d+) (\w+) \d+$", output, re.MULTILINE)
    reasons = ["finished"] * len(blocks(TEXT))
    assert ends == [(str(number), reason) for number, reason in enumerate(reasons)]
    assert (repository / "galley" / "wrap.py").read_text() == before
    (reviewed,) = (tmp_path / "work" / "records").glob("*/review.json")
    note = json.loads(reviewed.read_text())["note"]
    assert "Changed source files" in note
    assert note.endswith("\n\nMind the edge cases.")
    with open_home(tmp_path / "work") as home:
        moments = {name: home.history(name) for name in ("approved", "fake", "fix-2")}
    assert moments["approved"][0].next == ()
    assert moments["fake"][0].step == 3
    assert [each.is_restorable for each in moments["fix-2"]] == [False]
    assert {each.name for each in (tmp_path / "work").iterdir()} >= {
        "takeover.sqlite",
        "records",
        "snapshots",
    }


def test_names_in_the_text_exist() -> None:
    from langgraph_takeover import Delegation, errors
    from langgraph_takeover.nodes.context.settings import AgentConfig
    from langgraph_takeover.nodes.context.team_members import Team

    (table,) = re.findall(r"^## Errors$(.*)", TEXT, re.MULTILINE | re.DOTALL)
    listed = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (`[^|]*)\|", table, re.MULTILINE))))
    assert listed == {*errors.__all__} - {"TakeoverError"}
    for name in re.findall(r"\b(max_\w+|model_t\w+|offer_handoff|policy|points|protocol)=", TEXT):
        assert name in {
            *AgentConfig.model_fields, *Delegation.model_fields, *Team.model_fields, "max_retries"
        }, name  # fmt: skip
