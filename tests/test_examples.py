"""Every example runs as its docstring describes, without a key."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from langgraph_takeover import open_home
from langgraph_takeover.handoff.views import VIEWS

from .chat_server import ChatServer
from .command_line import list_complaints
from .deepagents_environment import find_deepagents_python

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
FIXED = "+        room = width - measure(hanging if lines else initial)"
UNTESTED = {
    "demo_task.py": "the task of the other examples",
    "fastapi_service.py": "test_the_service_serves_five_users_with_two_workers_of_which_one_is_killed",
    "offline_images.py": "test_offline_images",
    "small_model_server.py": "requires a model of 1.1 GB",
}
NEEDS_NO_DIRECTORY = "live_points.py"


def run_example(
    name: str, *arguments: str | Path, stdin: str = "", python: str | Path = sys.executable, **env: str
) -> str:
    """The output of an example."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [python, ROOT / "examples" / name, *map(str, arguments)],
        env=clean | {"PYTHONPATH": path} | env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, list_complaints(done.stderr)) == (0, [])
    return done.stdout


@pytest.mark.slow
def test_run_in_app(tmp_path: Path) -> None:
    output = run_example("run_in_app.py", tmp_path)
    assert "  1 shell: ls -A\n" in output
    assert "first_source_edit: edited galley/wrap.py\n" in output
    assert "finished after 10 steps" in output
    assert FIXED in output.splitlines()


@pytest.mark.slow
def test_run_in_app_uses_the_endpoint_in_the_environment(tmp_path: Path, chat_server: ChatServer) -> None:
    replies = iter(["```bash\necho [bold]no markup[/]\n```", "<finish>Nothing to do.</finish>"])
    chat_server.answer = lambda request: chat_server.reply(next(replies), prompt_tokens=1_000)
    output = run_example("run_in_app.py", tmp_path, OPENAI_BASE_URL=chat_server.url, OPENAI_API_KEY="k")
    assert "  1 shell: echo [bold]no markup[/]\n" in output
    assert "finished after 2 steps, 2,000 prompt tokens" in output
    assert [request["model"] for request in chat_server.requests] == ["gpt-5", "gpt-5"]


@pytest.mark.slow
def test_crash_and_resume(tmp_path: Path) -> None:
    killed, left, *rest = run_example("crash_and_resume.py", tmp_path).splitlines()
    assert killed == "killed during: str_replace galley/wrap.py"
    assert "step=6, next=('editor',)" in left
    assert rest[0] == "finished after 10 steps"
    assert rest.count(FIXED) == 1
    assert "+++ b/reproduce_issue.py" in rest  # written before the kill


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_take_over(tmp_path: Path, view: str) -> None:
    output = run_example("take_over.py", tmp_path, view).splitlines()
    assert output[0].startswith("begun.first_source_edit: 6 steps")
    assert output[1].startswith("finished after ")
    assert FIXED in output
    with open_home(tmp_path) as home:
        assert home.threads() == ("begun", f"by {view}")


@pytest.mark.slow
def test_human_in_the_loop_edits_the_note(tmp_path: Path) -> None:
    output = run_example(
        "human_in_the_loop.py", tmp_path, stdin="perhaps\nedit\nCheck the hanging indent.\n.\n"
    )
    assert output.count("**Changed source files:**") == 2  # the invalid answer is requested again
    assert "successor: finished" in output
    with open_home(tmp_path) as home:
        review = home.records.load("reviewed.first_source_edit").review
    assert review is not None
    assert review.note == "Check the hanging indent."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "thread"),
    [("approve", "successor"), ("view repository", "successor"), ("refuse", "reviewed")],
)
def test_human_in_the_loop_decides(tmp_path: Path, answer: str, thread: str) -> None:
    output = run_example("human_in_the_loop.py", tmp_path, stdin=f"{answer}\n")
    assert f"{thread}: finished after " in output
    assert FIXED in output.splitlines()


@pytest.mark.slow
def test_custom_tool(tmp_path: Path) -> None:
    output = run_example("custom_tool.py", tmp_path)
    assert "finished after 11 steps; tickets:\nThe tests pass." in output
    assert len(list((tmp_path / "tickets").iterdir())) == 1


@pytest.mark.slow
def test_delegate(tmp_path: Path) -> None:
    output = run_example("delegate.py", tmp_path).splitlines()
    assert output[0] == "model: builtin:oracle, which is not an LLM"
    # The parent read two files and ran a failing check; the child with the payload repeats neither.
    rows = {line[:18].strip(): line[18:].split() for line in output[3:6]}
    assert rows["parent"][:3] == ["19", "3", "5"]
    assert rows["child, payload"][:3] == ["7", "0", "2"]
    assert rows["child, without"][:3] == ["17", "2", "6"]
    assert {cells[4] for cells in rows.values()} == {"finished"}
    assert FIXED in output
    with open_home(tmp_path) as home:
        payload = home.records.load("parent.12.0.requested").payload
    assert payload is not None
    assert [file.path for file in payload.read_files] == ["CONTRIBUTING.md", "galley/wrap.py"]


@pytest.mark.slow
def test_postgres(tmp_path: Path, postgres_database: str) -> None:
    output = run_example("postgres.py", tmp_path, postgres_database).splitlines()
    assert output[0].startswith("finished after 10 steps, ")
    assert FIXED in output
    assert not (tmp_path / "takeover.sqlite").exists()
    with open_home(tmp_path, postgres_database) as home:
        assert home.threads() == ("postgres",)


@pytest.mark.slow
def test_async_app(tmp_path: Path) -> None:
    output = run_example("async_app.py", tmp_path).splitlines()
    assert "streamed 10 finished" not in output
    assert "streamed 6 record" in output
    for thread in ("streamed", "awaited"):
        assert f"{thread}: finished after 10 steps" in output
    assert output.count(FIXED) == 2


@pytest.mark.slow
@pytest.mark.parametrize("view", ["structured", "transcript"])
def test_swarm(tmp_path: Path, view: str) -> None:
    lines = run_example("swarm.py", tmp_path, view).splitlines()
    line_pattern = re.compile(
        r"(\S+): first prompt of the fixer: ([\d,]+) characters; result: 1 file changed, .*"
    )
    sizes = {
        match[1]: int(match[2].replace(",", "")) for match in map(line_pattern.fullmatch, lines) if match
    }
    assert list(sizes) == ["langgraph-swarm", view]
    assert (sizes[view] < sizes["langgraph-swarm"]) == (view == "structured")


@pytest.mark.slow
def test_team(tmp_path: Path) -> None:
    head, handoff, rotation, patch = run_example("team.py", tmp_path).split("\n\n", 3)
    assert head == "model: builtin:oracle, which is not an LLM"
    first, *steps = handoff.splitlines()
    assert first == "handoff: finished after 11 steps"
    (passed,) = [n for n, line in enumerate(steps) if line.split()[0] == "->"]
    assert steps[passed].strip() == "-> tester (handoff, everything)"
    assert {line.split()[1] for line in steps[:passed]} == {"writer"}
    assert {line.split()[1] for line in steps[passed + 1 :]} == {"tester"}
    shared = [line.partition("(")[2] for line in rotation.splitlines() if line.split()[0] == "->"]
    assert shared == ["rotation, results only)", "rotation, everything)", "rotation, results only)"]
    assert FIXED in patch.splitlines()
    with open_home(tmp_path) as home:
        assert home.threads() == ("handoff", "rotation")
        assert "handoff.requested" in home.records.list_ids()


@pytest.mark.slow
def test_own_graph(tmp_path: Path) -> None:
    output = run_example("own_graph.py", tmp_path).splitlines()
    assert output == ["one", "two", "kept in tests", "changed: ['tests/log']"]


@pytest.mark.slow
def test_sandboxed_agent(tmp_path: Path) -> None:
    killed, _, *output = run_example("sandboxed_agent.py", tmp_path).splitlines()
    assert killed == "killed"
    assert output == ["one", "two", "kept in tests"]


@pytest.mark.slow
def test_swarm_sandbox(tmp_path: Path) -> None:
    killed, *patch = run_example("swarm_sandbox.py", tmp_path).splitlines()
    assert killed == "killed: True"
    assert patch.count(FIXED) == 1
    with open_home(tmp_path) as home:
        assert {each.next for each in home.history("swarm")} == {("finder",), ("fixer",), ()}
        assert all(each.is_restorable for each in home.history("swarm"))


@pytest.mark.slow
def test_hold_thread(tmp_path: Path) -> None:
    first, refused, second = run_example("hold_thread.py", tmp_path).splitlines()
    assert first == "first process: works after: prepared"
    assert refused.startswith("second process: thread 'job' is held by process ")
    assert second == "second process: ['prepared', 'worked']"
    with sqlite3.connect(tmp_path / "checkpoints.sqlite") as database:
        assert database.execute("SELECT token FROM takeover_leases").fetchone() == (2,)


@pytest.mark.slow
def test_deep_agent(tmp_path: Path) -> None:
    output = run_example("deep_agent.py", tmp_path, python=find_deepagents_python()).splitlines()
    assert output[:4] == ["killed", "one", "two", "kept in tests"]


def test_live_points() -> None:
    assert run_example("live_points.py").splitlines() == [
        "step 2: first_source_edit: edited src/core.py",
        "step 3: first_validation: test failed: python3 -m pytest -q",
        "step 4: first_post_failure_edit: edited src/core.py",
    ]


@pytest.mark.slow
def test_telemetry(tmp_path: Path) -> None:
    output = run_example("telemetry.py", tmp_path)
    assert output.endswith(f" spans: {tmp_path / 'trace.json'}\n")
    (resource,) = json.loads((tmp_path / "trace.json").read_text())["resourceSpans"]
    spans = [span for scope in resource["scopeSpans"] for span in scope["spans"]]
    ids = {span["spanId"] for span in spans}
    (trace_id,) = {span["traceId"] for span in spans}
    assert re.fullmatch("[0-9a-f]{32}", trace_id)
    assert all(re.fullmatch("[0-9a-f]{16}", each) for each in ids)
    (root,) = (span for span in spans if "parentSpanId" not in span)
    assert root["name"] == "takeover"
    assert {span["parentSpanId"] for span in spans if span is not root} <= ids
    predecessor, successor = sorted(
        (span for span in spans if span["name"].startswith("invoke_agent")),
        key=lambda span: int(span["startTimeUnixNano"]),
    )
    assert [link["spanId"] for link in successor["links"]] == [predecessor["spanId"]]
    names = [span["name"] for span in spans]
    assert (names.count("takeover.handoff"), names.count("takeover.restore")) == (1, 1)


@pytest.mark.slow
def test_a2a_task(tmp_path: Path) -> None:
    head, _, task = run_example("a2a_task.py", tmp_path).partition("{")
    states = dict(line.split() for line in head.splitlines())
    assert list(states) == ["prepared", "offered", "accepted", "active", "completed"]
    assert list(dict.fromkeys(states.values())) == [
        "TASK_STATE_SUBMITTED",
        "TASK_STATE_WORKING",
        "TASK_STATE_COMPLETED",
    ]
    found = json.loads("{" + task)
    assert (found["status"]["state"], found["id"]) == ("TASK_STATE_COMPLETED", f"{found['contextId']}.1")


def test_sandbox_alone(tmp_path: Path) -> None:
    after, directory, name, *rest = run_example("sandbox_alone.py", tmp_path).splitlines()
    assert after.startswith("after rm: ['CONTRIBUTING.md', ")
    assert (Path(directory).name, name) == ("tests", "kept")
    assert {"new.txt", "test_wrap.py", "?? new.txt"} <= set(rest)


def test_every_example_is_tested() -> None:
    text = Path(__file__).read_text()
    assert [name for name in EXAMPLES if f'"{name}"' not in text] == []
    assert [name for name in EXAMPLES if name not in UNTESTED and f'run_example("{name}"' not in text] == []


@pytest.mark.slow
def test_every_example_is_short_and_prints_its_usage() -> None:
    names = [name for name in EXAMPLES if name not in {*UNTESTED, NEEDS_NO_DIRECTORY}]
    expected = {}
    for name in names:
        _, docstring, code = (ROOT / "examples" / name).read_text().split('"""', 2)
        assert f"\nUsage: python examples/{name} DIRECTORY" in docstring
        assert "def main(" in code
        assert len([line for line in code.splitlines() if line.strip()]) <= 50
        expected[name] = [2, "", f"{docstring}\n"]
    other = ["deep_agent.py"]
    here = [name for name in names if name not in other]
    assert run_without_arguments(here) | run_without_arguments(other, find_deepagents_python()) == expected


def run_without_arguments(names: list[str], python: str | Path = sys.executable) -> dict[str, Any]:
    """The exit code, standard output and standard error of each example, run one after the other in one process."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [python, "-c", _RUN_ALL, *[ROOT / "examples" / name for name in names]],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    results: dict[str, Any] = json.loads(done.stdout)
    return results


_RUN_ALL = """
import contextlib, io, json, pathlib, runpy, sys
results = {}
for path in map(pathlib.Path, sys.argv[1:]):
    sys.argv, code = [str(path)], 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        sys.path.insert(0, str(path.parent))
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            code = end.code
            if isinstance(code, str):
                code = print(code, file=sys.stderr) or 1
        sys.path.remove(str(path.parent))
    results[path.name] = [code, out.getvalue(), err.getvalue()]
print(json.dumps(results))
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["", "person"])
def test_deliver(tmp_path: Path, mode: str) -> None:
    output = run_example("deliver.py", tmp_path, *filter(None, [mode])).splitlines()
    assert output[0].startswith("killed before its first step: ")
    assert any(line.split()[1:4] == ["accepted", "writer", "tester"] for line in output if line)
    assert any("is accepted, but no process works on" in line for line in output)
    states = [line.split()[2] for line in output if line.startswith("+") and line.split()[1:2] == ["s"]]
    assert states == [
        "prepared",
        "offered",
        "accepted",
        *(["rolled_back"] if mode else ["active", "completed"]),
    ]
    results = [line for line in output if ": finished after " in line]
    assert len(results) == 1
    assert results[0].startswith("written:") is bool(mode), "the thread that finishes"
    assert FIXED in output


def test_compiled_once(tmp_path: Path) -> None:
    assert run_example("compiled_once.py", tmp_path).splitlines()[-2:] == [
        "ann: ann-1 ann-2 ann-3",
        "ben: ben-1 ben-2 ben-3",
    ]


def test_parallel_branches(tmp_path: Path) -> None:
    output = run_example("parallel_branches.py", tmp_path).splitlines()
    assert output[3:8] == ["look: docs", "tests", "style", "# First line", "Last line"]
    assert "docs.txt: docs and tests created it with different content" in output[-1]


def test_best_of_three(tmp_path: Path) -> None:
    output = run_example("best_of_three.py", tmp_path).splitlines()
    assert [line.split(",")[0].split()[-1] for line in output[:3]] == ["1", "0", "1"]
    assert output[3] == "chosen: fix.fork-2"


@contextmanager
def serve(directory: Path, workers: int) -> Iterator[str]:
    """Run the service; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "--app-dir", ROOT / "examples", "--port", str(port)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    repository = directory / "repository"
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(repository)]
    subprocess.run(["git", "init", "-q", repository], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "base"], check=True)
    log = (directory / "service.log").open("w")
    with (
        log,
        subprocess.Popen(
            [*command, "--workers", str(workers), "fastapi_service:app"],
            env=os.environ | {"DIRECTORY": str(directory), "REPOSITORY": str(repository), "PYTHONPATH": path},
            stdout=log,
            stderr=log,
        ) as server,
    ):
        try:
            wait_for_service(f"http://127.0.0.1:{port}", directory)
            yield f"http://127.0.0.1:{port}"
        finally:
            children = psutil.Process(server.pid).children(recursive=True)
            server.kill()  # first: it would start new workers
            for each in children:
                with suppress(psutil.NoSuchProcess):
                    each.kill()


def wait_for_service(address: str, directory: Path) -> None:
    ends_at = time.monotonic() + 60
    while True:
        try:
            httpx.get(f"{address}/nobody", timeout=10)
        except httpx.TransportError:
            assert time.monotonic() < ends_at, (directory / "service.log").read_text()[-3000:]
            time.sleep(0.2)
        else:
            return


def find_workers(directory: Path) -> list[psutil.Process]:
    """The processes that have the service's database open."""
    file, found = str(directory / "chats.sqlite"), []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(opened.path == file for opened in each.open_files()):
                found.append(each)
    return found


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_the_service_serves_five_users_with_two_workers_of_which_one_is_killed(tmp_path: Path) -> None:
    with serve(tmp_path, 2) as address, httpx.Client(base_url=address, timeout=60) as client:

        def post(user: str, given: dict[str, Any]) -> dict[str, Any]:
            """Send it until the service has taken it; after the end of a worker, resume what it left."""
            while True:
                try:
                    found = client.post(f"/{user}", json=given)
                    assert found.status_code == 200, found.text
                    return dict(found.json())
                except httpx.TransportError:
                    state = read(user)
                    if state["next"] and not state["questions"]:
                        given = {}
                    elif bool(state["questions"]) == ("text" in given):
                        return state

        def read(user: str) -> dict[str, Any]:
            while True:
                with suppress(httpx.TransportError):
                    return dict(client.get(f"/{user}").json())

        def serve_user(user: str) -> list[str]:
            for number in range(4):
                asked = post(user, {"text": f"echo {number} >> log; cat log"})
                (question,) = asked["questions"]
                (request,) = question["action_requests"]
                assert read(user)["next"]
                decision: dict[str, Any] = {"type": "approve"}
                if number % 2:
                    edited = {"name": "shell", "args": {"command": f"echo edited-{number} >> log; cat log"}}
                    decision = {"type": "edit", "edited_action": edited}
                assert request["args"]["command"] == f"echo {number} >> log; cat log"
                post(user, decision)
            return str(read(user)["texts"][-2]).split()[-4:]

        workers = find_workers(tmp_path)
        with ThreadPoolExecutor(5) as pool:
            users = [pool.submit(serve_user, f"user-{n}") for n in range(5)]
            time.sleep(1)
            workers[0].kill()
            ends = [each.result() for each in users]
        assert ends == [["0", "edited-1", "2", "edited-3"]] * 5
