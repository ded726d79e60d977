"""A continuation in a sandbox goes on where it stopped, pays no step twice, and ends with a record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from langgraph_takeover import open_home
from langgraph_takeover.graph.continuation import sandboxed_continuation
from langgraph_takeover.graph.continuation.sandboxed_continuation import SandboxedContinuation, _choose_thread
from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.handoff.records.record_facts import list_chain_lines
from langgraph_takeover.handoff.records.verification import Verification, verify_record

from ...agent_programs import find_test_command
from ...chat_server import ChatServer
from ..conftest import Scripted, scripted_model
from ..small_agent_adapter import build_small_agent
from .conftest import Workplace

ROOT = Path(__file__).parents[3]
STEPS = 3


def answer_steps(server: ChatServer, request: dict[str, Any]) -> tuple[int, bytes]:
    """Ask for the next step that the conversation does not show, and finish after the last."""
    shown = json.dumps([each for each in request["messages"] if each["role"] == "tool"])
    number = sum(f"ran step {each}" in shown for each in range(STEPS))
    if number == STEPS:
        return server.reply("Done.")
    command = f"sleep 0.2; echo {number} >> steps.txt; echo ran step {number}"
    function = {"name": "exec_command", "arguments": json.dumps({"cmd": command})}
    call = {"id": f"call_{len(server.requests)}", "type": "function", "function": function}
    return server.reply("", "tool_calls", tool_calls=[call])


class Continuation:
    """The command `handoff continue` with a real agent and a scripted endpoint."""

    def __init__(self, workplace: Workplace, server: ChatServer) -> None:
        self.record = workplace.capture().record.id
        self.home = workplace.home
        program = find_test_command(ADAPTERS["codex"])
        self.words = [
            sys.executable, "-m", "handoff", "continue", self.record, "--agent", "codex", "--program", str(program),
            "--sandbox", "host", "--model", f"openai:m@{server.url}", "--home", str(self.home),
        ]  # fmt: skip
        self.environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "OPENAI_API_KEY": "none",
            "HOME": str(workplace.user_home),
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.words, *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def interrupt(self, mark: str, number: int, times: int = 1) -> str:
        """Run the command until it has printed a mark, send a signal, and return its errors."""
        process = self.start()
        assert process.stdout is not None
        for line in process.stdout:
            if mark in line:
                break
        for _ in range(times):
            process.send_signal(number)
            process.stdout.readline()
        return process.communicate(timeout=60)[1]

    def finish(self, *words: str) -> str:
        process = self.start(*words)
        shown, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        return shown

    def read_steps(self) -> list[str]:
        """The steps in the patches, which hold what the agent did."""
        patches = (self.home / "continuations").rglob("*.patch")
        return [
            line[1:]
            for each in patches
            for line in each.read_text().splitlines()
            if line[1:] in map(str, range(STEPS))
        ]


@pytest.fixture
def server() -> Any:
    server = ChatServer()
    server.answer = lambda request: answer_steps(server, request)
    yield server
    server.close()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "times"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGKILL, 1)])
def test_the_same_command_resumes(workplace: Workplace, server: ChatServer, number: int, times: int) -> None:
    continuation = Continuation(workplace, server)
    errors = continuation.interrupt("observed", number, times)
    assert "Traceback" not in errors
    shown = continuation.finish()
    assert ", which resumes" in shown
    assert continuation.read_steps() == [str(each) for each in range(STEPS)]
    assert len(server.requests) <= STEPS + 2
    paid = len(server.requests)
    again = continuation.finish()
    assert len(server.requests) == paid
    assert ", which has finished (--new begins anew)" in again
    assert again.splitlines()[-2:] == shown.splitlines()[-2:]
    store = RecordStore(continuation.home / "records")
    ends = [store.load(each) for each in store.list_ids() if ".end" in each]
    assert max(ends, key=lambda end: end.created_at).point.detail == "finished: Done."
    assert [verify_record(store.directory(each.id)) for each in ends] == [Verification(())] * len(ends)
    assert len(ends) == (1 if number == signal.SIGKILL else 2)


@pytest.mark.slow
def test_a_failure_has_a_record_and_resumes(workplace: Workplace, server: ChatServer) -> None:
    continuation = Continuation(workplace, server)
    server.answer = lambda request: (
        answer_steps(server, request) if len(server.requests) < 3 else (401, b"{}")
    )
    process = continuation.start()
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert len(errors.strip().splitlines()) == 1
    record = next(line.split()[1] for line in shown.splitlines() if line.startswith("record "))
    assert RecordStore(continuation.home / "records").load(record).point.detail.startswith("failed: ")
    server.answer = lambda request: answer_steps(server, request)
    continuation.finish()
    assert continuation.read_steps() == [str(each) for each in range(STEPS)]


def test_the_thread_of_a_continuation(tmp_path: Path) -> None:
    with open_home(tmp_path / "home") as home:
        assert _choose_thread(home, "r.codex-1", is_new=False) == "r.codex-1"
        assert _choose_thread(home, "r.codex-1", is_new=True) == "r.codex-1"


class Failing(Scripted):
    """An endpoint that refuses every request after some replies."""

    def _generate(self, messages: object, *args: object, **kwargs: object) -> object:
        if len(self.seen) == len(self.replies):
            raise ValueError("the endpoint is gone")
        return super()._generate(messages, *args, **kwargs)  # type: ignore[arg-type]


def call(number: int) -> AIMessage:
    arguments = {"command": f"echo {number} >> steps.txt"}
    return AIMessage("", tool_calls=[{"name": "bash", "args": arguments, "id": f"call_{number}"}])


def test_the_same_command_continues_and_every_end_is_a_record(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxed_continuation, "external_agent", lambda *args, **named: build_small_agent())
    first = workplace.capture().record
    shown: list[str] = []

    def run(model: Scripted, *, is_new: bool = False) -> SandboxedContinuation:
        return sandboxed_continuation.continue_in_sandbox(
            Path(workplace.home), first.id, agent="small", model=model, model_name="m", is_new=is_new,
            show=shown.append,
        )  # fmt: skip

    with pytest.raises(ValueError, match="gone"):
        run(Failing(replies=[call(0), call(1)], seen=[], tools=[]))
    store = RecordStore(workplace.home / "records")
    (failed,) = set(store.list_ids()) - {first.id}
    assert any(line == f"record    {failed}" for line in shown)
    assert len(store.load(failed).trace) == len(first.trace) + 4
    model = scripted_model(call(0), call(1), call(2), AIMessage("Done."))
    done = run(model)
    assert len(model.seen) == 2  # nothing twice
    assert "+0\n+1\n+2\n" in done.outcome.diff_from_base
    record = store.load(done.record)
    assert list_chain_lines(record)[0] == f"agent 1: codex, e0 to e{len(first.trace) - 1}"
    assert record.parent is not None
    assert record.parent.digest == first.digest
    again = run(scripted_model())
    assert (again.record, again.outcome.thread) == (done.record, done.outcome.thread)
    other = run(scripted_model(AIMessage("Done.")), is_new=True)
    assert other.outcome.thread == f"{done.outcome.thread}-2"
