"""Background processes of a run: recorded with its states, shown to whoever continues, and started again by policy."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover import RunStatus, take_over
from langgraph_takeover.errors import InputError
from langgraph_takeover.handoff.ledger import effects
from langgraph_takeover.handoff.views import find_view
from langgraph_takeover.sandbox.interface import BackendName, BackgroundProcess
from langgraph_takeover.testing.sandboxes.host_parts import find_free_port

from .conftest import DONE, RunHarness, parse_events, scripted_model
from .server_crash import await_port

_PROCESS, _ROOT = "tests.graph.server_crash", Path(__file__).parents[2]
BACKENDS = pytest.mark.parametrize(
    "backend", ["host", *(pytest.param(each, marks=pytest.mark.slow) for each in ("process", "docker"))]
)


def _run_process(directory: Path, *words: Any) -> tuple[int, str]:
    """Return the exit code and the output of a process; its sandbox may outlive it, so that no pipe would end."""
    log = directory / "output"
    with log.open("wb") as output:
        command = [sys.executable, "-m", _PROCESS, str(directory / "killed"), *map(str, words)]
        status = subprocess.run(command, cwd=_ROOT, stdout=output, stderr=output, check=False).returncode
    return status, log.read_text()


def _bash(command: str) -> str:
    return f"```bash\n{command}\n```"


def _serve(port: int, words: str = "") -> str:
    return _bash(
        f"python3 -m http.server {port} --bind 127.0.0.1 {words} >/dev/null 2>&1 & {await_port(port)}"
    )


def _probe(port: int) -> str:
    return _bash(f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo answers || echo silent")


def _last_state(bench: RunHarness, state: Any) -> tuple[BackgroundProcess, ...] | None:
    snapshot = effects.find_snapshot(bench.home.ledger, state["sandbox_state"])
    assert snapshot is not None
    return snapshot.processes


@BACKENDS
@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_server_of_a_killed_run_answers_again(
    bench: RunHarness, tmp_path: Path, backend: BackendName, kills: int
) -> None:
    where = (bench.spec.image or bench.spec.directory, backend, find_free_port(), "always")
    for what in ("start", "resume")[:kills]:
        status, output = _run_process(tmp_path, *where, what, 2)
        assert status == -signal.SIGKILL, output
    _, output = _run_process(tmp_path, *where, "resume")
    assert output.startswith("finished\n"), output
    assert output.rstrip().endswith("\n200"), output
    assert f"`python3 -m http.server {where[2]} --bind 127.0.0.1`" in output
    assert f"started again and listens on TCP {where[2]} without the value of DB_PASSWORD" in output
    assert "hunter2" not in output


@BACKENDS
def test_without_a_policy_the_run_learns_what_no_longer_runs(
    bench: RunHarness, tmp_path: Path, backend: BackendName
) -> None:
    where = (bench.spec.image or bench.spec.directory, backend, find_free_port(), "never")
    status, output = _run_process(tmp_path, *where, "start", 2)
    assert status == -signal.SIGKILL, output
    _, output = _run_process(tmp_path, *where, "resume")
    assert "refused" in output
    assert f"`python3 -m http.server {where[2]} --bind 127.0.0.1` in " in output
    assert ": does not run any more]" in output


def test_a_step_that_only_starts_or_ends_a_process_makes_a_state_with_the_same_files(
    bench: RunHarness,
) -> None:
    port = find_free_port()
    replies = [_bash("echo 1 >notes.txt"), _serve(port), _bash("kill %1; wait; true"), _bash("true"), DONE]
    states = []
    with bench.open_run(scripted_model(*replies)) as run:
        for update in run.agent.stream(
            {"task": {"id": "t", "prompt": "Do it."}}, stream_mode="values", **run.options
        ):
            if (state := update.get("sandbox_state")) is not None and state not in states:
                states.append(state)
    snapshots = [effects.find_snapshot(bench.home.ledger, state) for state in states[-3:]]
    before, serving, after = (each for each in snapshots if each is not None)
    assert [each.tcp_ports for each in serving.processes or ()] == [(port,)]
    assert before.processes == after.processes == ()
    assert before.digest == serving.digest == after.digest
    assert len(states) == 4, "the last step changed nothing"


def test_a_successor_reads_what_ran(bench: RunHarness) -> None:
    port = find_free_port()
    edit = _bash("sed -i 's/n + 1/n * 3/' pkg/core.py")
    options: dict[str, Any] = {"points": ("first_source_edit",), "policy": "stop"}
    bench.run(scripted_model(_serve(port, "--directory pkg"), edit, DONE), **options)
    command = f"`python3 -m http.server {port} --bind 127.0.0.1 --directory pkg`"
    record = bench.store.load("run.first_source_edit")
    for view in ("structured", "payload", "cited"):
        shown = "\n".join(message.text for message in find_view(view)(record))
        assert command in shown, view
        assert f"listened on TCP {port}" in shown, view
    state = bench.take_over(scripted_model(_probe(port), DONE), "structured")
    first = next(event.text for event in parse_events(state) if event.kind == "observation")
    assert f"{command} in " in first
    assert "does not run any more" in first
    assert first.endswith("silent\n")
    bench.spec = bench.spec.model_copy(update={"restart_processes": "always"})
    state = bench.take_over(scripted_model(_probe(port), DONE), "repository")
    texts = [event.text for event in parse_events(state) if event.kind == "observation"]
    assert "started again" in texts[0]
    assert texts[0].endswith("answers\n")


def test_a_restart_that_fails_is_told_and_the_run_goes_on(bench: RunHarness) -> None:
    port = find_free_port()
    serve = _bash(
        'printf \'import http.server as h\\nh.HTTPServer(("127.0.0.1", PORT), h.SimpleHTTPRequestHandler)'
        f".serve_forever()\\n' | sed s/PORT/{port}/ >$HOME/serve.py; python3 $HOME/serve.py >/dev/null 2>&1 & "
        f"{await_port(port)}; rm $HOME/serve.py"
    )
    edit = _bash("sed -i 's/n + 1/n * 3/' pkg/core.py")
    bench.run(scripted_model(serve, edit, DONE), points=("first_source_edit",), policy="stop")
    bench.spec = bench.spec.model_copy(update={"restart_processes": "always"})
    outcome = bench.take_over(scripted_model(_probe(port), DONE), "structured")
    texts = [event.text for event in parse_events(outcome) if event.kind == "observation"]
    assert "ended at once with exit code 2" in texts[0]
    assert outcome["stop_reason"] == "finished"


def test_a_person_chooses_what_starts_again(bench: RunHarness) -> None:
    first, second = find_free_port(), find_free_port()
    edit = _bash("sed -i 's/n + 1/n * 3/' pkg/core.py")
    options: dict[str, Any] = {"points": ("first_source_edit",), "policy": "stop"}
    bench.run(scripted_model(_serve(first), _serve(second), edit, DONE), **options)
    bench.spec = bench.spec.model_copy(update={"restart_processes": "ask"})
    model = scripted_model(_probe(first), _probe(second), DONE)
    outcome = take_over(
        bench.home, "taking", record_id="run.first_source_edit", model=model, sandbox=bench.spec, points=()
    )
    assert outcome.status is RunStatus.WAITING
    assert outcome.processes is not None
    assert [
        f"TCP {first}" in outcome.processes.processes[0],
        f"TCP {second}" in outcome.processes.processes[1],
    ] == [True] * 2
    assert not model.seen, "the model is asked after the person"
    again = bench.resume(model, thread="taking")
    assert again.processes == outcome.processes
    for wrong in ("yes", {"start": ["first"]}, {"start": [-1]}):
        with pytest.raises(InputError, match="answer: "):
            bench.resume(model, wrong, thread="taking")
    outcome = bench.resume(model, {"start": [1]}, thread="taking")
    assert outcome.status is RunStatus.FINISHED
    texts = [event.text for event in outcome.events if event.kind == "observation"]
    assert [text.rstrip().rpartition("\n")[2] for text in texts[:2]] == ["silent", "answers"]
    assert "does not run any more" in texts[0]
    assert f"started again and listens on TCP {second}" in texts[0]
