"""Cost of a snapshot after each step that changes files, on commands of recorded runs, with a model that takes its time.

The shell commands of recorded runs are run again, each as the reply of a model that answers after a fixed time. The files
that the runs worked on are not here: a synthetic repository takes their place, so that some commands fail. The time of a
step is that from the model's reply to its next request. A run with a snapshot after each step takes turns with one
without any; other agents run the same commands, without isolation of their own, inside bubblewrap.

The overhead is the difference of all steps' times, as a part of the duration of the run without snapshots.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field

from benchmarks.figures import Figure, Goal, format_count, print_figures, print_progress, refuse, run_command
from benchmarks.models import DirectModel
from benchmarks.recorded_runs import Traces, open_recorded_runs
from benchmarks.testbed import FILES, make_testbed
from benchmarks.turns import AsJson, Files, Rounds, UnavailableError, open_work_directory, take_turns
from langgraph_takeover import SandboxSpec, open_home, open_run
from langgraph_takeover.handoff.trace.events import Trace
from langgraph_takeover.nodes.session.state_store import SnapshotEvery
from langgraph_takeover.sandbox import default_backend
from langgraph_takeover.sandbox.backends.bubblewrap import find_bubblewrap

_RUNS, _PEERS = 3, ("mini-swe-agent", "swe-rex")
_REPLIES = {0.5: Goal(2), 2.0: Goal(0.5)}
"""Seconds of a reply, and the largest overhead in percent."""


class ReplayModel(DirectModel):
    """Replies with given commands, and measures the time from each reply to its next request."""

    commands: tuple[str, ...]
    steps_s: list[float] = Field(default_factory=list)

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        if self.call_times:
            self.steps_s.append(time.perf_counter() - self.call_times[-1])
        time.sleep(self.reply_s)
        number = len(self.call_times)
        text = "<finish>Done.</finish>"
        if number < len(self.commands):
            text = f"```bash\n{self.commands[number]}\n```"
        self.call_times.append(time.perf_counter())
        usage: Any = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text, usage_metadata=usage))])


class Replay(NamedTuple):
    """One replayed run: the seconds of each step, and which of them changed files."""

    steps: list[float]
    has_changes: list[bool]


def choose_commands(traces: Sequence[Trace], steps: int) -> list[tuple[str, ...]]:
    """Return the first commands of the recorded runs that change the most files with them."""
    found = []
    for trace in traces:
        actions = [event for event in trace.events if event.kind == "action" and "command" in event.arguments]
        texts = [event.arguments["command"].replace("/testbed", ".") for event in actions]
        usable = [text for text in texts if "```" not in text and "\0" not in text][:steps]
        if len(usable) == steps:
            found.append((sum("<<" in text or "sed -i" in text for text in usable), tuple(usable)))
    return [commands for _, commands in sorted(found, key=lambda each: -each[0])[:_RUNS]]


def replay(commands: tuple[str, ...], base: Path, reply_s: float, every: SnapshotEvery) -> Replay:
    """Run the commands as an agent's."""
    model = ReplayModel(command="", steps=len(commands), commands=commands, reply_s=reply_s)
    spec = SandboxSpec(backend=default_backend(allow_process=True), directory=base, owner="benchmark")
    with (
        open_work_directory() as work,
        open_home(work / "home") as home,
        open_run(
            home,
            "run",
            model=model,
            sandbox=spec,
            snapshot_every=every,
            points=(),
            max_steps=len(commands) + 1,
            command_timeout_s=20,
        ) as run,
    ):
        done = run.start("replay", "Run it.")
    observations = [event for event in done.events if event.kind == "observation"]
    return Replay(model.steps_s[: len(commands)], [bool(event.changes) for event in observations])


def replay_in_peer(peer: str, python: str, commands: tuple[str, ...], base: Path) -> list[float]:
    """Return the seconds of each step of another agent's environment. Raises UnavailableError."""
    with open_work_directory() as work:
        subprocess.run(["cp", "-a", base, work / "testbed"], check=True)
        (work / "commands.json").write_text(json.dumps(commands))
        inside = ["--bind", str(work), str(work), "--chdir", str(work / "testbed")]
        boxed = [
            find_bubblewrap(), "--die-with-parent", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev",
            "--proc", "/proc", *inside,
        ]  # fmt: skip
        script = str(Path(__file__).with_name("replay_peer.py"))
        settings = {"MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": str(work), "TMPDIR": str(work)}
        command = [*boxed, python, script, peer, str(work / "commands.json"), str(work / "trajectory.json")]
        done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise UnavailableError(f"--peer-python cannot run {peer} ({reason})")
    steps: list[float] = json.loads(done.stdout)
    return steps


def measure(runs: list[tuple[str, ...]], base: Path, reply_s: float, rounds: int) -> tuple[float, float]:
    """Return the overhead of snapshots in percent, and the milliseconds that they add to a step with changes."""
    overheads, added = [], []
    for number in range(rounds):
        for commands in runs:
            found: dict[SnapshotEvery, Replay] = {}

            def run(every: SnapshotEvery, commands: Any = commands, found: Any = found) -> None:
                found[every] = replay(commands, base, reply_s, every)

            take_turns(number, partial(run, "step"), partial(run, "never"))
            extra = [a - b for a, b in zip(found["step"].steps, found["never"].steps, strict=True)]
            overheads.append(100 * sum(extra) / (sum(found["never"].steps) + reply_s * len(commands)))
            added += [each for each, changed in zip(extra, found["step"].has_changes, strict=True) if changed]
    return statistics.median(overheads), 1e3 * statistics.median(added)


def main(
    traces: Traces = None,
    steps: Annotated[int, typer.Option(min=3, help="Commands of each run.")] = 16,
    files: Files = FILES,
    rounds: Rounds = 1,
    peer_python: Annotated[
        str,
        typer.Option(
            help="Python interpreter with mini-swe-agent and swe-rex. Default: this one.", show_default=False
        ),
    ] = sys.executable,
    as_json: AsJson = False,
) -> None:
    """Measure what snapshots add to the steps of recorded runs."""
    figures: list[Figure] = []
    with open_recorded_runs(traces) as recorded, open_work_directory() as work:
        runs = choose_commands(recorded.traces, steps)
        if not runs:
            refuse(f"no recorded run has {steps} shell commands")
        base = make_testbed(work / "base", files)
        for reply_s, goal in _REPLIES.items():
            print_progress(f"replies after {reply_s:g} s")
            overhead, added = measure(runs, base, reply_s, rounds)
            figures += [
                Figure(f"overhead of snapshots, replies after {reply_s:g} s", "%", overhead, goal=goal),
                Figure(
                    f"added to a step with changes, replies after {reply_s:g} s", "ms", added, goal=Goal(5)
                ),
            ]
        print_progress("other agents")
        alone = [step for each in runs for step in replay(each, base, 0.1, "never").steps]
        saved = [step for each in runs for step in replay(each, base, 0.1, "step").steps]
        figures.append(
            Figure(
                "step with a snapshot",
                "ms",
                1e3 * statistics.median(saved),
                1e3 * statistics.median(alone),
                "a step without",
            )
        )
        for peer in _PEERS:
            try:
                times = [step for each in runs for step in replay_in_peer(peer, peer_python, each, base)]
                value, reason = 1e3 * statistics.median(times), ""
            except UnavailableError as error:
                value, reason = None, str(error)
            figures.append(
                Figure(
                    "step with a snapshot", "ms", 1e3 * statistics.median(saved), value, f"{peer}, without any",
                    missing=reason,
                )
            )  # fmt: skip
    title = f"{format_count(len(runs), 'recorded run')} of {steps} commands; medians of {format_count(rounds, 'round')}"
    print_figures(title, figures, as_json=as_json)


if __name__ == "__main__":
    run_command(main)
