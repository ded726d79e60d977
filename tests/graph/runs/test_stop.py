"""A run is stopped from outside: after its step, or at once. Nothing is lost, and the thread resumes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from langgraph_takeover import Outcome, RunStatus, SandboxSpec, run
from langgraph_takeover.errors import (
    RunStoppedError,
    SandboxUnavailableError,
    ThreadNotFoundError,
)

from ..conftest import BOTH_DATABASES, DONE, NOTE, PROMPT, SHOW, RunHarness, get_note_text, scripted_model

pytestmark = BOTH_DATABASES
SLEEP = f"sleep 60.{os.getpid()}"
LONG = f"```bash\necho begun >> notes.txt; export LOST=1; {SLEEP}\n```"
_STOP_IN_ANOTHER_PROCESS = """
import sys
from langgraph_takeover import open_home
with open_home(sys.argv[1], sys.argv[2] or None) as home:
    print(home.stop("thread", now=True), home.status("thread"))
"""


def until(is_true: Callable[[], object]) -> None:
    ends_at = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


def is_sleeping() -> bool:
    """Whether the long command of this process's test runs."""
    return any(each.info["cmdline"] == SLEEP.split() for each in psutil.process_iter(["cmdline"]))


def stop_during(
    bench: RunHarness, begin: Callable[[], Outcome], is_ready: Callable[[], object], *, now: bool
) -> Outcome:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(begin)
        until(is_ready)
        assert bench.home.status("thread") == "running"
        assert bench.home.stop("thread", now=now)
        assert bench.home.status("thread") == "stopping"
        return running.result(timeout=20)


@pytest.mark.cases(1)
@pytest.mark.parametrize("backend", ["process", "host", pytest.param("docker", marks=pytest.mark.slow)])
def test_a_command_is_killed_and_repeated(bench: RunHarness) -> None:
    model = scripted_model(NOTE.format("one"), LONG, SHOW, DONE)
    started = time.monotonic()
    outcome = stop_during(bench, lambda: bench.run_to_outcome(model), is_sleeping, now=True)
    assert time.monotonic() - started < 30
    assert (outcome.status, outcome.stop_reason, outcome.steps) == (RunStatus.STOPPED, None, 2)
    assert "begun" not in outcome.patch
    assert not is_sleeping()
    assert bench.home.status("thread") == "stopped"

    model.replies[1] = LONG  # in the state already: the command runs again, and is stopped after its time
    model.replies[2] = "```bash\ncat notes.txt; echo $LOST\n```"
    finished = bench.resume(model, command_timeout_s=1)
    assert (finished.status, finished.steps) == (RunStatus.FINISHED, 4)
    assert get_note_text(finished.state).split() == ["one", "begun", "1"]
    assert bench.home.status("thread") == "finished"


def test_a_model_call_is_ended(bench: RunHarness) -> None:
    model = scripted_model(NOTE.format("one"), DONE)
    reached, release = threading.Event(), threading.Event()

    class Slow(type(model)):  # type: ignore[misc]
        def _generate(self, messages: list[object], *args: object, **kwargs: object) -> object:
            if len(messages) > 2:
                reached.set()
                release.wait(60)
            return super()._generate(messages, *args, **kwargs)

    slow = Slow(replies=model.replies, seen=[], tools=[])
    try:
        outcome = stop_during(bench, lambda: bench.run_to_outcome(slow), reached.is_set, now=True)
    finally:
        release.set()
    assert (outcome.status, outcome.steps) == (RunStatus.STOPPED, 1)
    assert bench.resume(model).status is RunStatus.FINISHED


def test_a_step_ends_first(bench: RunHarness) -> None:
    model = scripted_model(NOTE.format("one"), "```bash\nsleep 1.5; echo two >> notes.txt\n```", SHOW, DONE)
    ready = lambda: len(model.seen) == 2  # noqa: E731
    outcome = stop_during(bench, lambda: bench.run_to_outcome(model), ready, now=False)
    assert (outcome.status, outcome.steps) == (RunStatus.STOPPED, 2)
    assert "two" in outcome.patch
    assert bench.resume(model).steps == 4
    assert len(model.seen) == 4


def test_another_process_stops_it(bench: RunHarness) -> None:
    model = scripted_model(LONG, DONE)
    url = "" if bench.home.ledger.is_sqlite else bench.home.ledger.url
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(bench.run_to_outcome, model)
        until(is_sleeping)
        command = [sys.executable, "-c", _STOP_IN_ANOTHER_PROCESS, str(bench.home.directory), url]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["True", "stopping"]
        assert running.result(timeout=20).status is RunStatus.STOPPED


def test_a_streamed_graph_is_stopped_too(bench: RunHarness) -> None:
    model = scripted_model(NOTE.format("one"), LONG, DONE)
    with bench.open_run(model) as opened:
        updates = opened.agent.stream({"task": {"id": "t", "prompt": PROMPT}}, **opened.options)
        until(lambda: next(updates) and len(model.seen) == 1)
        bench.home.stop("thread")
        until(lambda: opened.session.stop.mode)
        with pytest.raises(RunStoppedError, match="resume it"):
            list(updates)
    model.replies[1] = DONE
    assert bench.resume(model).steps == 2


def test_a_request_ends_with_the_run(bench: RunHarness) -> None:
    model = scripted_model(NOTE.format("one"), DONE)
    with pytest.raises(ThreadNotFoundError, match="nowhere"):
        bench.home.stop("nowhere")
    bench.run_to_outcome(model, max_steps=1)
    assert not bench.home.stop("thread"), "nobody runs it"
    assert bench.home.status("thread") == "stopped"
    assert bench.resume(model).status is RunStatus.FINISHED


def test_a_waiting_run_says_so(bench: RunHarness) -> None:
    model = scripted_model("```bash\nsed -i s/1/2/ pkg/core.py\n```", DONE)
    bench.run_to_outcome(model, policy="review", points=("first_source_edit",))
    assert bench.home.status("thread") == "waiting"


def test_a_failed_start_leaves_the_name_free(bench: RunHarness, tmp_path: Path) -> None:
    nothing = SandboxSpec(backend="process", directory=tmp_path / "missing")
    with pytest.raises(SandboxUnavailableError):
        run(bench.home, "thread", task_id="t", prompt=PROMPT, model=scripted_model(DONE), sandbox=nothing)
    assert bench.home.status("thread") == "empty"
    assert bench.run_to_outcome(scripted_model(DONE)).status is RunStatus.FINISHED
