"""What our loop is measured against: other agent loops, whose model asks at once for the same shell command.

Every figure is the median over the rounds of one run, in which the loops take turns. A step is one answer of the
model and one command, both kept; the first step, which also starts things, does not count.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from rich.console import Console
from rich.table import Table
from typing_extensions import TypedDict

_EPILOG = """Examples:

python benchmarks/loops.py --steps 50

python benchmarks/loops.py --steps 200 --observation-bytes 2048 --peer-python ~/mini-swe-agent/bin/python
"""


class PeerUnavailable(RuntimeError):
    """The Python that was named cannot run the peer."""


def command(observation_bytes: int = 0) -> str:
    """What is run in each step: `true`, or what prints that many zeros without a further process."""
    return f"printf '%0{observation_bytes}d' 0" if observation_bytes else "true"


def mini(steps: int, directory: Path, observation_bytes: int = 0, *, python: str = sys.executable) -> float:
    """Seconds of a step of mini-swe-agent, which saves its trajectory after each. Raises PeerUnavailable."""
    script = str(Path(__file__).with_name("mini_peer.py"))
    asked = [python, script, str(steps), str(directory / "trajectory.json"), command(observation_bytes)]
    quiet = {"MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": str(directory)}
    try:
        told = subprocess.run(asked, env=os.environ | quiet, capture_output=True, text=True, check=False)
    except OSError as error:
        raise PeerUnavailable(f"--peer-python {python}: {error.strerror}") from error
    if told.returncode != 0:
        reason = (told.stderr.strip() or f"exit code {told.returncode}").splitlines()[-1]
        raise PeerUnavailable(f"--peer-python cannot run mini-swe-agent 2 ({reason})")
    return float(told.stdout)


class _State(TypedDict):
    messages: Annotated[list[Any], add_messages]


def react(steps: int, directory: Path, observation_bytes: int = 0) -> float:
    """Seconds of a step of a bare LangGraph loop: two nodes, checkpointed by SqliteSaver as it comes."""
    begins: list[float] = []

    def model(state: _State) -> dict[str, Any]:
        begins.append(time.perf_counter())
        if len(begins) > steps:
            return {"messages": [AIMessage("done")]}
        call = {"name": "shell", "args": {"command": command(observation_bytes)}, "id": f"call-{len(begins)}"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def tool(state: _State) -> dict[str, Any]:
        (call,) = state["messages"][-1].tool_calls
        ran = subprocess.run(
            ["bash", "-c", call["args"]["command"]], capture_output=True, text=True, check=True
        )
        return {"messages": [ToolMessage(ran.stdout, tool_call_id=call["id"])]}

    graph = StateGraph(_State)
    graph.add_node(model)
    graph.add_node(tool)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tool" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tool", "model")
    with SqliteSaver.from_conn_string(str(directory / "checkpoints.sqlite")) as saver:
        graph.compile(checkpointer=saver).invoke(
            _State(messages=[HumanMessage("Begin.")]),
            {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": 2 * steps + 2},
            durability="sync",
        )
    return (begins[steps] - begins[1]) / (steps - 1)


def main(
    steps: Annotated[int, typer.Option(min=2, help="Steps of each loop.")] = 50,
    observation_bytes: Annotated[int, typer.Option(min=0, help="What a command prints.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to take medians over.")] = 3,
    peer_python: Annotated[
        str, typer.Option(help="A Python that has mini-swe-agent. [default: this one]", show_default=False)
    ] = sys.executable,
) -> None:
    """How long a step of other agents' loops takes when neither the model nor the command needs any time."""
    loops: dict[str, Callable[[Path], float]] = {
        "mini-swe-agent": lambda place: mini(steps, place, observation_bytes, python=peer_python),
        "LangGraph": lambda place: react(steps, place, observation_bytes),
    }
    taken: dict[str, list[float]] = {name: [] for name in loops}
    reasons: dict[str, str] = {}
    for number in range(rounds):
        for name, loop in loops.items() if number % 2 == 0 else reversed(loops.items()):
            with tempfile.TemporaryDirectory(prefix="benchmark-") as place:
                try:
                    taken[name].append(loop(Path(place)))
                except PeerUnavailable as error:
                    reasons[name] = str(error)
    table = Table("loop", f"ms a step, {steps:,} steps of {observation_bytes:,} B")
    table.columns[1].justify = "right"
    for name, seconds in taken.items():
        table.add_row(name, reasons.get(name) or f"{statistics.median(seconds) * 1e3:.2f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=_EPILOG)(main)
    app()
