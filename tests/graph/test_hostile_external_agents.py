"""Commands that attack the runtime through the bridge, and through the files of their own agent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from langgraph_takeover import RunStatus
from langgraph_takeover.agents import ExternalAgent, ExternalAgentError, prepare_continuation
from langgraph_takeover.nodes.external.process import ExternalProcess
from langgraph_takeover.sandbox.interface import BackendName

from .conftest import RunHarness, scripted_model
from .small_agent_adapter import build_small_agent
from .test_external_agents import ALL_POINTS, call, finish, get_commands

POST = r"""
cat > /tmp/attack.py <<'E'
import glob, json, os, sys, time, urllib.error, urllib.request
TOOLS = [{"type": "function", "function": {"name": "x", "parameters": {}}}]
def post(**fields):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "spend"}], **fields}).encode()
    url = "http://127.0.0.1:8377/v1/chat/completions"
    try:
        return urllib.request.urlopen(urllib.request.Request(url, body), timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
E
cat >> /tmp/attack.py <<'E'
"""
FORGE = f"{POST}while True: post(tools=TOOLS); time.sleep(0.01)\nE\nsetsid python3 /tmp/attack.py >/dev/null 2>&1 &\nsleep 1"
SPEND = f"{POST}print([post() for _ in range(8)])\nE\npython3 /tmp/attack.py"
DROP_RESULTS = r"""cat > /tmp/attack.py <<'E'
import glob, json, os
while True:
    (path,) = glob.glob(os.path.expanduser("~/.small/*.json"))
    try:
        kept = [each for each in json.load(open(path)) if each["role"] != "tool"]
    except ValueError:
        continue
    with open(path + ".new", "w") as file:
        json.dump(kept, file)
    os.replace(path + ".new", path)
E
setsid python3 /tmp/attack.py >/dev/null 2>&1 &
sleep 0.5"""


@pytest.fixture
def backend() -> BackendName:
    return "host"


@pytest.fixture
def agent() -> ExternalAgent:
    return build_small_agent()


def test_no_process_asks_after_the_agent_has_finished(bench: RunHarness, agent: ExternalAgent) -> None:
    model = scripted_model(call(FORGE), finish("The end."), *[call("echo forged")] * 3)
    outcome = bench.run_to_outcome(model, agent=agent)
    assert outcome.status is RunStatus.FINISHED
    assert get_commands(outcome.state) == [FORGE, ""]
    assert len(model.seen) == 2


def test_a_spent_budget_stops_side_requests(bench: RunHarness, agent: ExternalAgent) -> None:
    model = scripted_model(*[call(SPEND)] * 2, tokens=1000)
    outcome = bench.run_to_outcome(model, agent=agent, max_tokens=3000)
    assert outcome.stop_reason == "max_tokens"
    assert outcome.events[1].text == f"exit 0\n{[200] * 2 + [429] * 6}\n"
    assert outcome.state["external"]["refused_requests"] == {"spent budget": 6}
    assert (outcome.prompt_tokens, len(model.seen)) == (3000, 3)


@pytest.mark.parametrize(
    "command",
    [
        "cd ~/.takeover && rm in out err start && ln -s /tmp/x in && ln -s /tmp/x out && ln -s /tmp/x start && mkdir err",
        "rm -rf ~/.takeover; echo x > ~/.takeover",
        "rm -rf ~/.takeover; ln -s /tmp ~/.takeover",
        "rm ~/.takeover/out; mkfifo ~/.takeover/out ~/.takeover/exit_code.part",
    ],
)
def test_replaced_files_of_the_agent_do_not_stop_a_resume(
    bench: RunHarness, agent: ExternalAgent, command: str
) -> None:
    replies = [call(command), call("cat pkg/core.py"), finish()]
    bench.run(scripted_model(*replies), agent=agent, max_steps=1)
    assert bench.resume(scripted_model(*replies), agent=agent).status is RunStatus.FINISHED


def test_output_that_became_a_pipe_does_not_block(bench: RunHarness, agent: ExternalAgent) -> None:
    command = "rm ~/.takeover/out; mkfifo ~/.takeover/out"
    outcome = bench.run_to_outcome(scripted_model(call(command), finish()), agent=agent)
    assert (outcome.status, outcome.stop_reason) == (RunStatus.STOPPED, "agent_ended")


@pytest.mark.slow
def test_deleted_results_are_no_silent_loss(bench: RunHarness, agent: ExternalAgent) -> None:
    replies: list[AIMessage] = [call("echo first"), call(DROP_RESULTS), finish()]
    bench.run(scripted_model(*replies), agent=agent, max_steps=2)
    with pytest.raises(ExternalAgentError, match="its session lacks 2 of 2 results"):
        bench.resume(scripted_model(*replies), agent=agent)


def test_run_resumes_after_a_crash_in_its_first_turn(
    bench: RunHarness, agent: ExternalAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = [call("echo 0 >> notes.txt; cat notes.txt"), finish()]

    def crash(self: ExternalProcess, *args: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), 9)

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(ExternalProcess, "_read_results", crash)
        bench.run(scripted_model(*replies), agent=agent)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 9
    outcome = bench.resume(scripted_model(*replies), agent=agent)
    assert outcome.status is RunStatus.FINISHED
    assert outcome.events[1].text == "exit 0\n0\n"


def test_errors_of_an_agent_cannot_control_the_terminal(bench: RunHarness, agent: ExternalAgent) -> None:
    script = "printf '\\033]0;title\\007bad' >&2; exit 3"
    program = agent.program.model_copy(update={"argv": ("sh", "-c", script)})
    with pytest.raises(ExternalAgentError) as caught:
        bench.run(scripted_model(finish()), agent=agent.model_copy(update={"program": program}))
    assert str(caught.value).endswith("ended: ?]0;title?bad")


def test_a_checkout_writes_through_no_link(bench: RunHarness, agent: ExternalAgent, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    kept = victim / "takeover" / "kept.txt"
    kept.parent.mkdir(parents=True)
    kept.touch()
    model = scripted_model(call(f"mv .git /tmp/git; ln -s {victim} .git"), finish())
    outcome = bench.run_to_outcome(model, agent=agent, points=ALL_POINTS, record_every_steps=1)
    program = tmp_path / "codex"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    record = outcome.periodic_records[0]
    done = prepare_continuation(
        bench.store.directory(record).parent.parent,
        record,
        agent="codex",
        program=program,
        directory=tmp_path / "new",
        user_home=tmp_path / "user",
        allow_unisolated=True,
    )
    assert (done.directory / ".git").is_symlink()
    assert list(victim.rglob("*")) == [kept.parent, kept]
