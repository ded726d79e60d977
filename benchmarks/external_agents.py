"""External agents under the runtime, against the same programs alone: steps, starts and snapshots.

Both run the same scripted replies, each a command that does nothing. Alone, the program runs on this host without a sandbox, and an
endpoint answers it at once. Under the runtime each step is also held, saved as a checkpoint, and saved as a snapshot.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

# Import from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import typer
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from benchmarks.figures import Figure, print_figures, print_progress, run_command
from benchmarks.testbed import FILES, make_spec
from benchmarks.turns import AsJson, Comparison, Files, Rounds, measure_in_turns, open_work_directory
from langgraph_takeover import SandboxSpec, open_home, run, sandbox
from langgraph_takeover.agents import ADAPTERS, AgentProgramError, ExternalAgent, external_agent
from langgraph_takeover.handoff.trace.events import Action
from langgraph_takeover.testing.agents.agent_programs import AgentKit, ScriptedEndpoint
from langgraph_takeover.testing.agents.wire import ScriptedReply

_TASK = "Run the commands."
_END = Action("finish", {"message": "Done."})


class _CallModel(BaseChatModel):
    """Replies with the same call `steps` times, then with a text; records the times of its calls."""

    agent: ExternalAgent
    steps: int
    call_times: list[float]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.call_times.append(time.monotonic())
        # Qwen Code begins every conversation with an exchange of its own, whose reply has no call.
        done = sum(isinstance(each, AIMessage) and bool(each.tool_calls) for each in messages)
        reply = AIMessage("Done.", response_metadata={"finish_reason": "stop"})
        action = _make_command(done) if done < self.steps else _END
        if call := self.agent.adapter.write_call(action, "/testbed"):
            reply.tool_calls = [{"name": call.name, "args": dict(call.arguments), "id": f"call_{done:04}"}]
        return ChatResult(generations=[ChatGeneration(message=reply)])


def main(
    agents: Annotated[str, typer.Option(help="Agents, separated by commas.")] = ",".join(ADAPTERS),
    steps: Annotated[int, typer.Option(min=2, help="Number of steps of each run.")] = 20,
    rounds: Rounds = 5,
    files: Files = FILES,
    as_json: AsJson = False,
) -> None:
    """Measure step, start and snapshot of external agents; agents that are not installed are left out."""
    figures: list[Figure] = []
    with open_work_directory() as work:
        spec = make_spec(work / "testbed", files, "host")
        for agent_name in agents.split(","):
            try:
                agent = external_agent(agent_name)
            except AgentProgramError as error:
                figures.append(Figure(f"{agent_name}: step", "ms", None, missing=str(error)))
                continue
            print_progress(f"{agent_name} {agent.program.version}")
            figures += _measure_agent(agent, spec, steps, rounds)
        sandbox.remove_stale_resources("host", "benchmark")
    print_figures(f"{steps} steps, medians of {rounds} runs, {files:,} files", figures, as_json=as_json)


def _measure_agent(agent: ExternalAgent, spec: SandboxSpec, steps: int, rounds: int) -> list[Figure]:
    samples = measure_in_turns(
        rounds,
        {"alone": lambda _: _time_alone(agent, steps), "own": lambda _: _time_runtime(agent, spec, steps)},
    )
    name = f"{agent.name} {agent.program.version}"
    start, snapshot = f"{name}: start to first request", f"{name}: snapshot of the last step"
    return list(
        samples.compare(
            Comparison(start, "own_start", "alone_start", "alone", unit="s", paired=True),
            Comparison(f"{name}: step", "own_step", "alone_step", "alone", paired=True),
            Comparison(snapshot, "own_snapshot", unit="kB"),
        )
    )


def _make_command(number: int) -> Action:
    """A command for a step; Qwen Code ends a run that repeats itself."""
    return Action("shell", {"command": f"true {number}"})


def _describe_times(started: float, times: list[float], steps: int) -> dict[str, float]:
    """Seconds from the start to the first request, and of a step."""
    return {"start": times[0] - started, "step": (times[-1] - times[0]) / steps}


def _time_alone(agent: ExternalAgent, steps: int) -> dict[str, float]:
    """The program without sandbox and runtime."""
    times: list[float] = []
    with open_work_directory() as work:
        calls = [agent.adapter.write_call(_make_command(number), str(work)) for number in range(steps)]
        replies = [ScriptedReply("", {f"call_{number:04}": call}) for number, call in enumerate(calls)]
        kit = AgentKit(agent.adapter, agent.program.host_argv, work)
        with ScriptedEndpoint(agent.adapter, [*replies, ScriptedReply("Done.")]) as endpoint:
            started = time.monotonic()
            with kit.start(kit.launch(endpoint.port, _TASK)):
                for number in range(steps + 1):
                    if endpoint.wait_for_request(number, 120) is None:
                        raise RuntimeError(f"{agent.name} alone did not send request {number}")
                    times.append(time.monotonic())
    return _describe_times(started, times, steps)


def _time_runtime(agent: ExternalAgent, spec: SandboxSpec, steps: int) -> dict[str, float]:
    """The same under the runtime, with the size of the last snapshot."""
    model = _CallModel(agent=agent, steps=steps, call_times=[])
    begun: list[float] = []
    with open_work_directory() as work, open_home(work) as home:
        outcome = run(
            home, "run", task_id="t", prompt=_TASK, model=model, agent=agent, sandbox=spec, points=(),
            on_progress=lambda event: begun.append(time.monotonic()) if event["event"] == "starting" else None,
        )  # fmt: skip
        if outcome.steps != steps + 1:
            raise RuntimeError(f"{agent.name} under the runtime ended after {outcome.steps} steps")
        newest = max((work / "snapshots").iterdir(), key=lambda each: each.stat().st_mtime_ns)
        size = sum(each.stat().st_size for each in newest.rglob("*") if each.is_file())
    return _describe_times(begun[0], model.call_times, steps) | {"snapshot": size}


if __name__ == "__main__":
    run_command(main)
