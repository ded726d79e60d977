"""What our loop is measured against: other agent loops, whose model asks at once for the same shell command.

A step is one answer of the model and one command, both kept; the first step, which also starts things, does not
count.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict


class PeerUnavailableError(RuntimeError):
    """The Python that was named cannot run the peer."""


def build_command(observation_bytes: int = 0) -> str:
    """What is run in each step: `true`, or what prints that many zeros without a further process."""
    return f"printf '%0{observation_bytes}d' 0" if observation_bytes else "true"


def time_mini_swe_agent(
    steps: int, directory: Path, observation_bytes: int = 0, *, python: str = sys.executable
) -> float:
    """Seconds of a step of mini-swe-agent, which saves its trajectory after each. Raises PeerUnavailableError."""
    script = str(Path(__file__).with_name("mini_peer.py"))
    asked = [python, script, str(steps), str(directory / "trajectory.json"), build_command(observation_bytes)]
    quiet = {"MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": str(directory)}
    try:
        told = subprocess.run(asked, env=os.environ | quiet, capture_output=True, text=True, check=False)
    except OSError as error:
        raise PeerUnavailableError(f"--peer-python {python}: {error.strerror}") from error
    if told.returncode != 0:
        reason = (told.stderr.strip() or f"exit code {told.returncode}").splitlines()[-1]
        raise PeerUnavailableError(f"--peer-python cannot run mini-swe-agent 2 ({reason})")
    return float(told.stdout)


class _State(TypedDict):
    messages: Annotated[list[Any], add_messages]


def time_react_loop(steps: int, directory: Path, observation_bytes: int = 0) -> float:
    """Seconds of a step of a bare LangGraph loop: two nodes, checkpointed by SqliteSaver as it comes."""
    begins: list[float] = []

    def model(state: _State) -> dict[str, Any]:
        begins.append(time.perf_counter())
        if len(begins) > steps:
            return {"messages": [AIMessage("done")]}
        call = {
            "name": "shell",
            "args": {"command": build_command(observation_bytes)},
            "id": f"call-{len(begins)}",
        }
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
