"""Every example runs as its docstring says, without a key, and what it shows is what happened."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from langgraph_takeover import open_home
from langgraph_takeover.handoff.views import VIEWS

from .chat_server import ChatServer

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
FIXED = "+        room = width - measure(hanging if lines else initial)"
APART = {
    "trial.py": "what the others are tried on",
    "offline_images.py": "test_offline_images",
    "small_model_server.py": "needs a model of a gigabyte",
}


def example(name: str, *arguments: str | Path, stdin: str = "", **env: str) -> str:
    """What an example printed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name, *map(str, arguments)],
        env=clean | {"PYTHONPATH": path} | env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_a_run_in_a_program(tmp_path: Path) -> None:
    shown = example("run_in_app.py", tmp_path)
    assert "  1 shell: ls -A\n" in shown
    assert "first_source_edit: edited galley/wrap.py\n" in shown
    assert "finished after 10 steps" in shown
    assert FIXED in shown.splitlines()


@pytest.mark.slow
def test_an_endpoint_in_the_environment_is_asked(tmp_path: Path, chat_server: ChatServer) -> None:
    replies = iter(["```bash\necho [bold]no markup[/]\n```", "<finish>Nothing to do.</finish>"])
    chat_server.answer = lambda request: chat_server.reply(next(replies), prompt_tokens=1_000)
    shown = example("run_in_app.py", tmp_path, OPENAI_BASE_URL=chat_server.url, OPENAI_API_KEY="k")
    assert "  1 shell: echo [bold]no markup[/]\n" in shown
    assert "finished after 2 steps, 2,000 prompt tokens" in shown
    assert [request["model"] for request in chat_server.requests] == ["gpt-5", "gpt-5"]


@pytest.mark.slow
def test_a_crash(tmp_path: Path) -> None:
    killed, left, *rest = example("crash_and_resume.py", tmp_path).splitlines()
    assert killed == "killed while it does: str_replace galley/wrap.py"
    assert "step=6, next=('editor',)" in left
    assert rest[0] == "finished after 10 steps"
    assert rest.count(FIXED) == 1
    assert "+++ b/reproduce_issue.py" in rest  # made before the kill


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_a_takeover(tmp_path: Path, view: str) -> None:
    shown = example("take_over.py", tmp_path, view).splitlines()
    assert shown[0].startswith("begun.first_source_edit: 6 steps")
    assert shown[1].startswith("finished after ")
    assert FIXED in shown
    with open_home(tmp_path) as home:
        assert home.threads() == ("begun", f"by {view}")


@pytest.mark.slow
def test_a_person_edits_the_note(tmp_path: Path) -> None:
    shown = example("human_in_the_loop.py", tmp_path, stdin="perhaps\nedit\nMind the hanging.\n.\n")
    assert shown.count("**Changed source files:**") == 2  # it asks again
    assert "successor: finished" in shown
    with open_home(tmp_path) as home:
        review = home.records.load("reviewed.first_source_edit").review
    assert review is not None
    assert review.note == "Mind the hanging."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "thread"),
    [("approve", "successor"), ("view repository", "successor"), ("refuse", "reviewed")],
)
def test_a_person_decides(tmp_path: Path, answer: str, thread: str) -> None:
    shown = example("human_in_the_loop.py", tmp_path, stdin=f"{answer}\n")
    assert f"{thread}: finished after " in shown
    assert FIXED in shown.splitlines()


@pytest.mark.slow
def test_a_tool_of_the_programs_own(tmp_path: Path) -> None:
    shown = example("custom_tool.py", tmp_path)
    assert "finished after 11 steps; tickets:\nThe tests pass." in shown
    assert len(list((tmp_path / "tickets").iterdir())) == 1


@pytest.mark.slow
def test_delegation(tmp_path: Path) -> None:
    shown = example("delegate.py", tmp_path).splitlines()
    assert shown[0] == "The model is builtin:oracle, which is no LLM."
    # What a child was handed it does not look for again: its parent read two files and ran a failing check.
    rows = {line[:18].strip(): line[18:].split() for line in shown[3:6]}
    assert rows["parent"][:3] == ["19", "3", "5"]
    assert rows["child, payload"][:3] == ["7", "0", "2"]
    assert rows["child, without"][:3] == ["17", "2", "6"]
    assert {cells[4] for cells in rows.values()} == {"finished"}
    assert FIXED in shown
    with open_home(tmp_path) as home:
        payload = home.records.load("parent.12.0.requested").payload
    assert payload is not None
    assert [file.path for file in payload.read_files] == ["CONTRIBUTING.md", "galley/wrap.py"]


@pytest.mark.slow
def test_postgres(tmp_path: Path, postgres_database: str) -> None:
    shown = example("postgres.py", tmp_path, postgres_database).splitlines()
    assert shown[0].startswith("finished after 10 steps, ")
    assert FIXED in shown
    assert not (tmp_path / "takeover.sqlite").exists()
    with open_home(tmp_path, postgres_database) as home:
        assert home.threads() == ("postgres",)


@pytest.mark.slow
def test_two_threads_in_asyncio(tmp_path: Path) -> None:
    shown = example("async_app.py", tmp_path).splitlines()
    assert "streamed 10 finished" not in shown
    assert "streamed 6 record" in shown
    assert "awaited 10 finished" in shown
    for thread in ("streamed", "awaited"):
        assert f"{thread}: finished after 10 steps" in shown
    assert shown.count(FIXED) == 2


@pytest.mark.slow
@pytest.mark.parametrize("view", ["structured", "transcript"])
def test_a_swarm(tmp_path: Path, view: str) -> None:
    lines = example("swarm.py", tmp_path, view).splitlines()
    said = re.compile(r"(\S+): the fixer is sent ([\d,]+) characters at first; then 1 file changed, .*")
    found = {match[1]: int(match[2].replace(",", "")) for match in map(said.fullmatch, lines) if match}
    assert list(found) == ["langgraph-swarm", view]
    assert (found[view] < found["langgraph-swarm"]) == (view == "structured")


@pytest.mark.slow
def test_a_team(tmp_path: Path) -> None:
    head, handoff, rotation, patch = example("team.py", tmp_path).split("\n\n", 3)
    assert head == "model: builtin:oracle, which is no LLM"
    first, *steps = handoff.splitlines()
    assert first == "handoff: finished after 11 steps"
    (passed,) = [n for n, line in enumerate(steps) if line.split()[0] == "->"]
    assert steps[passed].strip() == "-> tester (handoff, all of it)"
    assert {line.split()[1] for line in steps[:passed]} == {"writer"}
    assert {line.split()[1] for line in steps[passed + 1 :]} == {"tester"}
    shared = [line.partition("(")[2] for line in rotation.splitlines() if line.split()[0] == "->"]
    assert shared == ["rotation, results only)", "rotation, all of it)", "rotation, results only)"]
    assert FIXED in patch.splitlines()
    with open_home(tmp_path) as home:
        assert home.threads() == ("handoff", "rotation")
        assert "handoff.requested" in home.records.list_ids()


def test_no_example_is_forgotten() -> None:
    text = Path(__file__).read_text()
    assert [name for name in EXAMPLES if f'"{name}"' not in text] == []
    assert [name for name in EXAMPLES if name not in APART and f'example("{name}"' not in text] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in APART])
def test_an_example_says_how_it_is_run_and_is_short(name: str) -> None:
    text = (ROOT / "examples" / name).read_text()
    _, docstring, code = text.split('"""', 2)
    assert f"\nUsage: python examples/{name} DIRECTORY" in docstring
    assert "def main(" in code
    assert len([line for line in code.splitlines() if line.strip()]) < 45
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{docstring}\n")


@pytest.mark.slow
@pytest.mark.parametrize("then", ["", "person"])
def test_a_successor_that_is_killed_before_its_first_action(tmp_path: Path, then: str) -> None:
    shown = example("deliver.py", tmp_path, *filter(None, [then])).splitlines()
    assert shown[0].startswith("killed; it meant to begin so: ")
    assert any(line.split()[1:4] == ["accepted", "writer", "tester"] for line in shown if line)
    assert any("is accepted, and nobody works on" in line for line in shown)
    states = [line.split()[2] for line in shown if line.startswith("+") and line.split()[1:2] == ["s"]]
    assert states == [
        "prepared",
        "offered",
        "accepted",
        *(["rolled_back"] if then else ["active", "completed"]),
    ]
    ended = [line for line in shown if ": finished after " in line]
    assert len(ended) == 1
    assert ended[0].startswith("written:") is bool(then), "who goes on"
    assert FIXED in shown
