"""Other agent loops as references, with an instant model that requests the same shell command.

A step is one answer of the model and one command, both saved. The first step, which includes start-up, does not count.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from benchmarks.turns import UnavailableError, open_work_directory

_COMMAND = "true"


def time_mini_swe_agent(steps: int, python: str) -> float:
    """Seconds per step of mini-swe-agent, which saves its trajectory after each. Raises UnavailableError."""
    script = str(Path(__file__).with_name("mini_peer.py"))
    with open_work_directory() as work:
        settings = {"MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": str(work)}
        command = [python, script, str(steps), str(work / "trajectory.json"), _COMMAND]
        try:
            done = subprocess.run(
                command, env=os.environ | settings, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise UnavailableError(f"--peer-python {python}: {error.strerror}") from error
    if done.returncode != 0:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise UnavailableError(f"--peer-python cannot run mini-swe-agent 2 ({reason})")
    return float(done.stdout)


class _State(TypedDict):
    messages: Annotated[list[Any], add_messages]


def time_react_loop(steps: int) -> float:
    """Seconds per step of a bare LangGraph loop: two nodes with an unmodified SqliteSaver."""
    start_times: list[float] = []

    def model(state: _State) -> dict[str, Any]:
        start_times.append(time.perf_counter())
        if len(start_times) > steps:
            return {"messages": [AIMessage("done")]}
        call = {"name": "shell", "args": {"command": _COMMAND}, "id": f"call-{len(start_times)}"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def tool(state: _State) -> dict[str, Any]:
        (call,) = state["messages"][-1].tool_calls
        command = ["bash", "-c", call["args"]["command"]]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return {"messages": [ToolMessage(done.stdout, tool_call_id=call["id"])]}

    graph = StateGraph(_State)
    graph.add_node(model)
    graph.add_node(tool)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tool" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tool", "model")
    with (
        open_work_directory() as work,
        SqliteSaver.from_conn_string(str(work / "checkpoints.sqlite")) as saver,
    ):
        graph.compile(checkpointer=saver).invoke(
            _State(messages=[HumanMessage("Begin.")]),
            {"configurable": {"thread_id": "loop"}, "recursion_limit": 2 * steps + 2},
            durability="sync",
        )
    return (start_times[steps] - start_times[1]) / (steps - 1)
