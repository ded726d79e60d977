"""Make sessions of external agents by replaying labelled runs through the real programs.

    python -m tests.handoff.readers.replay_sessions make RUNS --codex PROGRAM --claude PROGRAM
    python -m tests.handoff.readers.replay_sessions unpack RUNS DIRECTORY

`make` runs each program in a bubblewrap sandbox without network. A scripted endpoint answers with the recorded actions,
one by one, as the program's own tool calls; a replacement shell prints the recorded outputs and exits with the recorded
codes. No LLM is asked. RUNS is the directory of the recorded runs that tests/handoff/labels.jsonl names.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from langgraph_takeover.evals.reports.detector_labels import Label, LabelledValidation, read_labels
from langgraph_takeover.handoff.readers import read_traces
from langgraph_takeover.handoff.trace.events import Trace

from . import session_archive
from .replay_steps import MINI_WORKSPACE, build_replay

HERE = Path(__file__).parent
RUN_LABELS = HERE.parent / "labels.jsonl"
OPENHANDS_RUNS = ("openhands-v0/output-2.jsonl#0", "openhands-v0/output-2.jsonl#1", "openhands-v0/output-2.jsonl#2",
                  "openhands-v0/output-3.jsonl#1")  # fmt: skip
_RUNS_PER_AGENT = 22
_MAX_OUTPUT_CHARS = 60_000
_SHELL = "/opt/replay/bash"
_CODEX_CONFIG = """
model = "gpt-5.5"
model_provider = "bridge"
sandbox_mode = "danger-full-access"
approval_policy = "never"
check_for_update_on_startup = false
web_search = "disabled"
[model_providers.bridge]
name = "bridge"
base_url = "http://127.0.0.1:8377/v1"
wire_api = "responses"
[analytics]
enabled = false
[agents]
enabled = false
[features]
plugins = false
apps = false
goals = false
enable_request_compression = false
"""


class Agent(NamedTuple):
    """An external agent with its program."""

    name: str
    program: Path
    api: str
    sessions: str
    """Its session files below the home."""
    command: tuple[str, ...]


def list_agents(codex: Path | None, claude: Path | None) -> Iterator[Agent]:
    if codex is not None:
        options = ("exec", "--skip-git-repo-check", "--json")
        yield Agent("codex", codex, "responses", ".codex/sessions/**/*.jsonl", options)
    if claude is not None:
        options = ("-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions",
                   "--model", "claude-sonnet-4-5", "--tools", "Bash,Edit,Read,Write", "--setting-sources", "", "--")  # fmt: skip
        yield Agent("claude-code", claude, "messages", ".claude/projects/*/*.jsonl", options)


def run_agent(
    agent: Agent,
    commands: list[list[str]],
    steps: list[dict[str, Any]],
    *,
    workspace: str = MINI_WORKSPACE,
    shell: str = _SHELL,
) -> str:
    """Run commands of an agent in turn against the scripted replies; return the rows of the session."""
    with tempfile.TemporaryDirectory() as scratch:
        home, bed, files = (Path(scratch, name) for name in ("home", "testbed", "files"))
        for directory in (home / ".codex", home / ".claude", bed, files):
            directory.mkdir(parents=True)
        (home / ".codex" / "config.toml").write_text(_CODEX_CONFIG)
        (files / "steps.json").write_text(json.dumps(steps))
        program = f"/opt/agent/{agent.program.name}"
        (files / "commands.json").write_text(json.dumps([[program, *words] for words in commands]))
        (files / "passwd").write_text(f"root:x:0:0:root:/home/dev:{shell}\n")
        inside = ["/usr/bin/python3", "/opt/replay/scripted_endpoint.py", "/opt/files/steps.json", agent.api,
                  "/opt/files/commands.json"]  # fmt: skip
        done = subprocess.run(
            [*_list_sandbox_options(agent.program, home, bed, files, workspace, shell), *inside],
            capture_output=True, text=True, check=False, timeout=600, env={"PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(
                f"{agent.name}: exit code {done.returncode}: {(done.stderr or done.stdout)[-2000:]}"
            )
        (session,) = home.glob(agent.sessions)
        return session.read_text()


def _list_sandbox_options(
    program: Path, home: Path, bed: Path, files: Path, workspace: str, shell: str
) -> list[str]:
    system = [option for name in ("usr", "bin", "sbin", "lib", "lib64", "etc") if Path("/", name).exists()
              for option in ("--ro-bind", f"/{name}", f"/{name}")]  # fmt: skip
    names = {"HOME": "/home/dev", "SHELL": shell, "PATH": "/usr/bin:/bin", "TERM": "dumb", "LANG": "C.UTF-8",
             "ANTHROPIC_BASE_URL": "http://127.0.0.1:8377", "ANTHROPIC_API_KEY": "none", "IS_SANDBOX": "1",
             "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}  # fmt: skip
    variables = [option for name, value in names.items() for option in ("--setenv", name, value)]
    return [
        "bwrap", "--unshare-net", "--unshare-pid", "--die-with-parent", "--clearenv", *system,
        "--ro-bind", str(files / "passwd"), "/etc/passwd", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp",
        "--dir", "/opt/replay", "--ro-bind", str(HERE / "scripted_endpoint.py"), "/opt/replay/scripted_endpoint.py",
        "--ro-bind", str(HERE / "replay_shell.py"), _SHELL, "--ro-bind", str(files), "/opt/files",
        "--ro-bind", str(program.resolve().parent), "/opt/agent", "--bind", str(home), "/home/dev",
        "--bind", str(bed), workspace, *variables, "--chdir", workspace,
    ]  # fmt: skip


def strip_instructions(session: str) -> str:
    """Remove the instructions that Codex itself put into a rollout, which are long."""
    rows = []
    for line in session.splitlines():
        row = json.loads(line)
        payload = row.get("payload", {})
        if row.get("type") == "world_state" or payload.get("role") == "developer":
            continue
        if payload.pop("base_instructions", None) is not None:
            line = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
        rows.append(line)
    return "\n".join(rows) + "\n"


def find_rejected(session: str) -> set[int]:
    """Action indices of commands that Codex refuses by itself, such as `rm -rf`, so that they validate nothing."""
    outputs = [row["payload"].get("output") for row in map(json.loads, session.splitlines())
               if str(row.get("payload", {}).get("type")).endswith("_call_output")]  # fmt: skip
    return {
        number
        for number, output in enumerate(outputs)
        if str(output).startswith("exec_command failed: CreateProcess")
    }


def map_label(label: Label, name: str, indices: dict[int, int], rejected: set[int]) -> Label:
    """The label of a replayed run: the same one, with the action indices of the session."""

    def map_word(word: str) -> str:
        kind, _, number = word.partition(" ")
        return f"{kind} {indices[int(number)]}" if number.isdigit() else word

    return Label(
        trace=name,
        points={kind: None if at is None else indices[at] for kind, at in label.points.items()},
        validations=tuple(
            LabelledValidation(action_index=indices[v.action_index], kind=v.kind, outcome=v.outcome)
            for v in label.validations
            if indices[v.action_index] not in rejected
        ),
        unclear=tuple(map_word(word) for word in label.unclear),
        notes=f"Replay of {label.trace}.",
    )


def select_runs(runs: Path, agent: str) -> list[tuple[Label, Trace]]:
    """The labelled runs for an agent: runs that ended every command, half of them for each agent."""
    labels = {label.trace: label for label in read_labels(RUN_LABELS)}
    suitable = []
    for name in (n for n in labels if n.startswith("mini-swe-agent-v1/")):
        trace = _read_run(runs, name)
        observations = [event for event in trace.events if event.kind == "observation"]
        is_complete = not any(event.timed_out for event in observations)
        if is_complete and sum(len(event.text) for event in observations) < _MAX_OUTPUT_CHARS:
            suitable.append((labels[name], trace))
    half = suitable[0 if agent == "codex" else 1 :: 2][:_RUNS_PER_AGENT]
    return half + [(labels[name], _read_run(runs, name)) for name in OPENHANDS_RUNS]


def _read_run(runs: Path, name: str) -> Trace:
    file, _, number = name.partition("#")
    trace = list(read_traces(runs / file))[int(number or 0)]
    assert isinstance(trace, Trace)
    return trace


def make(runs: Path, agents: list[Agent]) -> None:
    """Make all sessions with their labels."""
    sessions: dict[str, tuple[str, session_archive.Delta]] = {}
    labels: list[Label] = []
    for agent in agents:
        for label, trace in select_runs(runs, agent.name):
            file, _, number = label.trace.partition("#")
            name = f"{agent.name}/{Path(file).name.partition('.')[0]}{'-' + number if number else ''}.jsonl"
            replay = build_replay(trace, agent.name)
            workspace = trace.workspace or MINI_WORKSPACE
            session = run_agent(agent, [[*agent.command, trace.task]], replay.steps, workspace=workspace)
            if agent.name == "codex":
                session = strip_instructions(session)
            source = session_archive.read_source(runs / file, int(number or 0))
            delta = session_archive.make_delta(source, session)
            assert session_archive.apply_delta(source, delta) == session
            sessions[name] = (label.trace, delta)
            labels.append(map_label(label, f"{name}#0", replay.indices, find_rejected(session)))
            print(name, len(replay.steps), "replies,", len(session), "characters", flush=True)
    session_archive.write_archive(sessions)
    session_archive.LABELS.write_text("".join(label.model_dump_json() + "\n" for label in labels))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="Make the sessions.")
    making.add_argument("runs", type=Path)
    making.add_argument("--codex", type=Path, help="Program of Codex.")
    making.add_argument("--claude", type=Path, help="Program of Claude Code.")
    unpacking = commands.add_parser("unpack", help="Write the sessions into a directory.")
    unpacking.add_argument("runs", type=Path)
    unpacking.add_argument("directory", type=Path)
    options = parser.parse_args()
    if options.command == "make":
        make(options.runs, list(list_agents(options.codex, options.claude)))
    else:
        print(len(session_archive.unpack(options.runs, options.directory)), "sessions in", options.directory)


if __name__ == "__main__":
    sys.exit(main())
