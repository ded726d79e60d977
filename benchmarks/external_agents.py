"""External agents under the runtime, against the same programs alone: steps, starts and snapshots.

Both run the same scripted replies, each a command that does nothing. Alone, the program runs on this host without a sandbox, and an
endpoint answers it at once. Under the runtime each step is also held, saved as a checkpoint, and saved as a snapshot.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from benchmarks.figures import Figure, print_figures, print_progress, run_command
from benchmarks.testbed import make_testbed
from langgraph_takeover import SandboxSpec, open_home, run, sandbox
from langgraph_takeover.agents import ADAPTERS, AgentProgramError, ExternalAgent, external_agent
from langgraph_takeover.handoff.trace.events import Action
from langgraph_takeover.testing.agents.agent_programs import AgentKit, ScriptedEndpoint
from langgraph_takeover.testing.agents.wire import ScriptedReply

_TASK = "Run the commands."
_END = Action("finish", {"message": "Done."})
_EPILOG = """Examples:

python benchmarks/external_agents.py

python benchmarks/external_agents.py --agents codex,claude-code --steps 20 --json
"""


class _CallModel(BaseChatModel):
    """Replies with the same call `steps` times, then with a text; remembers when it was asked."""

    agent: ExternalAgent
    steps: int
    asked_at: list[float]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.asked_at.append(time.monotonic())
        # Qwen Code begins every conversation with an exchange of its own, whose reply has no call.
        done = sum(isinstance(each, AIMessage) and bool(each.tool_calls) for each in messages)
        reply = AIMessage("Done.", response_metadata={"finish_reason": "stop"})
        action = _make_command(done) if done < self.steps else _END
        if call := self.agent.adapter.write_call(action, "/testbed"):
            reply.tool_calls = [{"name": call.name, "args": dict(call.arguments), "id": f"call_{done:04}"}]
        return ChatResult(generations=[ChatGeneration(message=reply)])


class _Times(NamedTuple):
    """What one run of an agent took."""

    start_s: float
    """From the start to the first request."""
    step_ms: float
    snapshot_kb: float = 0.0


def main(
    agents: Annotated[str, typer.Option(help="Agents, separated by commas.")] = ",".join(ADAPTERS),
    steps: Annotated[int, typer.Option(min=2, help="Number of steps of each run.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Number of runs of each kind.")] = 3,
    files: Annotated[int, typer.Option(min=100, help="Number of files in the repository.")] = 6_200,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure step, start and snapshot of external agents; agents that are not installed are left out."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        work = Path(name)
        spec = SandboxSpec(
            backend="host", directory=make_testbed(work / "testbed", files).directory, owner="benchmark"
        )
        for agent_name in agents.split(","):
            try:
                agent = external_agent(agent_name)
            except AgentProgramError as error:
                figures.append(Figure(f"{agent_name}: step", "ms", None, missing=str(error)))
                continue
            print_progress(f"{agent_name} {agent.program.version}")
            figures += _measure_agent(agent, spec, work / agent_name, steps, rounds)
        sandbox.remove_stale_resources("host", "benchmark")
    print_figures(f"{steps} steps, medians of {rounds} runs, {files:,} files", figures, as_json=as_json)


def _make_command(number: int) -> Action:
    """A command for a step; Qwen Code ends a run that repeats itself."""
    return Action("shell", {"command": f"true {number}"})


def _measure_agent(
    agent: ExternalAgent, spec: SandboxSpec, work: Path, steps: int, rounds: int
) -> list[Figure]:
    alone = [_time_alone(agent, work / f"alone{number}", steps) for number in range(rounds)]
    ours = [_time_runtime(agent, spec, work / f"own{number}", steps) for number in range(rounds)]
    name = f"{agent.name} {agent.program.version}"
    starts = [each.start_s for each in ours], [each.start_s for each in alone]
    size = statistics.median(each.snapshot_kb for each in ours)
    return [
        _compare(f"{name}: start to first request", "s", *starts),
        _compare(f"{name}: step", "ms", [each.step_ms for each in ours], [each.step_ms for each in alone]),
        Figure(f"{name}: snapshot of the last step", "kB", size),
    ]


def _compare(name: str, unit: str, ours: list[float], alone: list[float]) -> Figure:
    ratios = [mine / theirs for mine, theirs in zip(ours, alone, strict=True)]
    return Figure(
        name,
        unit,
        statistics.median(ours),
        statistics.median(alone),
        "alone",
        paired=statistics.median(ratios),
    )


def _time_alone(agent: ExternalAgent, directory: Path, steps: int) -> _Times:
    """The program without sandbox and runtime."""
    calls = [agent.adapter.write_call(_make_command(number), str(directory)) for number in range(steps)]
    replies = [ScriptedReply("", {f"call_{number:04}": call}) for number, call in enumerate(calls)]
    kit = AgentKit(agent.adapter, agent.program.host_argv, directory)
    times: list[float] = []
    with ScriptedEndpoint(agent.adapter, [*replies, ScriptedReply("Done.")]) as endpoint:
        started = time.monotonic()
        with kit.start(kit.launch(endpoint.port, _TASK)):
            for number in range(steps + 1):
                if endpoint.wait_for_request(number, 120) is None:
                    raise RuntimeError(f"{agent.name} alone did not send request {number}")
                times.append(time.monotonic())
    return _Times(times[0] - started, 1e3 * (times[-1] - times[0]) / steps)


def _time_runtime(agent: ExternalAgent, spec: SandboxSpec, directory: Path, steps: int) -> _Times:
    """The same under the runtime, with the size of the last snapshot."""
    model = _CallModel(agent=agent, steps=steps, asked_at=[])
    begun: list[float] = []
    with open_home(directory) as home:
        outcome = run(
            home, "run", task_id="t", prompt=_TASK, model=model, agent=agent, sandbox=spec, points=(),
            on_progress=lambda event: begun.append(time.monotonic()) if event["event"] == "starting" else None,
        )  # fmt: skip
        if outcome.steps != steps + 1:
            raise RuntimeError(f"{agent.name} under the runtime ended after {outcome.steps} steps")
        newest = max((home.directory / "snapshots").iterdir(), key=lambda each: each.stat().st_mtime_ns)
        size = sum(each.stat().st_size for each in newest.rglob("*") if each.is_file()) / 1e3
    return _Times(model.asked_at[0] - begun[0], 1e3 * (model.asked_at[-1] - model.asked_at[0]) / steps, size)


if __name__ == "__main__":
    run_command(main, _EPILOG)
