"""Commands that attack the runtime through the bridge, and through the files of their own agent."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from langchain_core.messages import AIMessage

from langgraph_takeover import RunStatus
from langgraph_takeover.agents import ExternalAgent, ExternalAgentError, prepare_continuation
from langgraph_takeover.nodes.external.call_results import CallReader
from langgraph_takeover.sandbox.interface import BackendName

from .conftest import DONE, EDIT, RunHarness, Scripted, parse_events, scripted_model
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


@pytest.mark.slow
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

    def crash(self: CallReader, *args: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), 9)

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(CallReader, "read", crash)
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


class KilledAgentModel(Scripted):
    """A model in whose answer time something in the sandbox kills the agent."""

    step: int

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        if sum(isinstance(each, AIMessage) for each in messages) == self.step:
            time.sleep(3)
        return super()._generate(messages, *args, **kwargs)


KILL_LATER = (
    "echo {} >> notes.txt; "
    'setsid sh -c "sleep 1; kill -9 $PPID; echo lost >> notes.txt; sleep 1000" >/dev/null 2>&1 &'
)


@pytest.mark.slow
@pytest.mark.parametrize("snapshots", ["step", pytest.param("never", marks=pytest.mark.slow)])
def test_an_agent_that_is_killed_at_its_request_resumes_as_after_a_crash(
    bench: RunHarness, agent: ExternalAgent, snapshots: Any
) -> None:
    replies = [
        call("echo 0 >> notes.txt"),
        call(KILL_LATER.format(1)),
        call("echo 2 >> notes.txt; cat notes.txt; pgrep -c sleep"),
        finish(),
    ]
    model = KilledAgentModel(replies=replies, seen=[], tools=[], step=2)
    outcome = bench.run_to_outcome(model, agent=agent, snapshot_every=snapshots)
    assert outcome.status is RunStatus.FINISHED
    assert len(model.seen) == len(replies)
    lines = outcome.events[5].text.split()
    # Without a snapshot, what the killer did stays.
    assert lines[2:] == (["0", "1", "2", "0"] if snapshots == "step" else ["0", "1", "lost", "2", "1"])


@pytest.mark.parametrize(
    "obstacle",
    [
        "ln -s /testbed ~/.small",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("touch ~/.small", "mkfifo ~/.small", "ln -s /nowhere ~/.small")
        ),
        "mkdir ~/.small; touch ~/.small/x; chmod 0 ~/.small",
    ],
)
def test_nothing_stands_in_the_way_of_a_successor(
    bench: RunHarness, agent: ExternalAgent, obstacle: str
) -> None:
    bench.run(scripted_model(f"```bash\n{obstacle}\n```", EDIT, DONE), points=ALL_POINTS)
    look = call("cat pkg/core.py; git status --short")
    state = bench.take_over(scripted_model(None, None, look, finish()), "transcript", agent=agent)
    assert parse_events(state)[1].text.endswith("return n * 3\n M pkg/core.py\n")


def test_home_of_the_shell_before_does_not_mislead_a_successor(
    bench: RunHarness, agent: ExternalAgent
) -> None:
    variables = "export HOME=/tmp/other XDG_CONFIG_HOME=/tmp/other CODEX_HOME=/tmp/other"
    bench.run(scripted_model(f"```bash\n{variables}\n```", EDIT, DONE), points=ALL_POINTS)
    look = call("echo $HOME$XDG_CONFIG_HOME$CODEX_HOME; ls -d ~/.small")
    state = bench.take_over(scripted_model(None, None, look, finish()), "transcript", agent=agent)
    home, session = parse_events(state)[1].text.splitlines()[1:]
    assert "/tmp" not in home
    assert session == f"{home}/.small"


ASK_FIRST = rf"""{POST}import socket
one = socket.socket(socket.AF_UNIX)
try:
    one.bind("\0asks-first")
except OSError:
    sys.exit()
while True:
    status = post(tools=TOOLS)
    with open("/tmp/statuses", "a") as file:
        file.write(f"{{status}}\n")
    time.sleep(0.01)
E
trap '(setsid python3 /tmp/attack.py </dev/null >/dev/null 2>&1 &)' DEBUG"""


def test_no_process_of_a_predecessor_asks_before_the_agent(bench: RunHarness, agent: ExternalAgent) -> None:
    bench.run(scripted_model(f"```bash\n{ASK_FIRST}\n```", EDIT, DONE), points=ALL_POINTS)
    look = call("sleep 1; sort -u /tmp/statuses")
    state = bench.take_over(scripted_model(None, None, look, finish()), "transcript", agent=agent)
    statuses = parse_events(state)[1].text.split()[2:]
    assert "403" in statuses
    assert set(statuses) <= {"0", "403"}
    assert state["external"]["refused_requests"]["foreign process"] > 0


FLOOD = r"""cat > /tmp/flood.py <<'E'
import socket, sys, time
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 7000000\r\n\r\n"
peers, ends = [], time.time() + 60
while time.time() < ends:
    while len(peers) < 60:
        peer = socket.socket()
        peer.setblocking(False)
        peer.connect_ex(("127.0.0.1", 8377))
        peers.append([peer, {"idle": b"", "slow": HEAD, "big": HEAD}[sys.argv[1]]])
    for each in list(peers):
        peer, rest = each
        try:
            if rest:
                each[1] = rest[peer.send(rest):]
            elif sys.argv[1] != "idle":
                peer.send(b"{" * (1 if sys.argv[1] == "slow" else 100_000))
            if peer.recv(1000) == b"":
                raise ConnectionResetError
        except BlockingIOError:
            pass
        except OSError:
            peer.close()
            peers.remove(each)
    time.sleep(0.02)
E
setsid python3 /tmp/flood.py %s >/dev/null 2>&1 &
sleep 2"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["idle", "slow", "big"])
def test_a_flood_delays_the_agent_but_does_not_end_it(
    bench: RunHarness, agent: ExternalAgent, kind: str
) -> None:
    process = psutil.Process()
    before, files_before = process.memory_info().rss, process.num_fds()
    peak: list[tuple[int, int, int]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            peak.append((process.memory_info().rss, process.num_threads(), process.num_fds()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        model = scripted_model(call(FLOOD % kind), call("echo a"), call("echo b"), finish())
        outcome = bench.run_to_outcome(model, agent=agent)
    finally:
        stop.set()
        watcher.join()
    assert (outcome.status, outcome.steps) == (RunStatus.FINISHED, 4)
    memory, threads, files = map(max, zip(*peak, strict=True))
    print(f"{kind}: {(memory - before) / 1e6:.0f} MB, {threads} threads, {files} descriptors")
    assert memory - before < 200 * 1024**2
    assert threads < 50
    assert files - files_before < 100
