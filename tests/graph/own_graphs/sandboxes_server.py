"""A process that serves one compiled graph, whose threads have sandboxes; run by tests.

It reads a line for each run: the thread and the text to append, or `hold` to stay in the node. It prints the file's lines.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph

from langgraph_takeover import open_home
from langgraph_takeover.errors import TakeoverError
from langgraph_takeover.integrations import Sandboxes, SandboxState
from langgraph_takeover.sandbox import Sandbox, SandboxSpec


class State(SandboxState, total=False):
    text: str
    lines: list[str]


def build_graph(sandboxes: Sandboxes, saver: Any) -> Any:
    def append(state: State) -> State:
        def write(box: Sandbox) -> list[str]:
            return box.run(f"echo {state['text']} >> log; cat log", timeout_s=10).output.split()

        act = sandboxes.current().act("append", write, state=state.get("sandbox_state"))
        if state["text"] == "hold":
            print("holds", flush=True)
            sys.stdin.readline()
        return {"sandbox_state": act.state, "lines": act.value}

    return StateGraph(State).add_node(append).add_edge(START, "append").compile(checkpointer=saver)


def main(directory: str, saver_file: str, spec: str, wait_s: str) -> None:
    with (
        open_home(directory) as home,
        SqliteSaver.from_conn_string(saver_file) as saver,
        Sandboxes(home, SandboxSpec.model_validate_json(spec), wait_s=float(wait_s)) as sandboxes,
    ):
        graph = build_graph(sandboxes, saver)
        print("ready", flush=True)
        for line in sys.stdin:
            thread, text = line.split()
            config: Any = {"configurable": {"thread_id": thread}}
            try:
                print(
                    json.dumps(graph.invoke({"text": text}, config, durability="sync")["lines"]), flush=True
                )
            except TakeoverError as error:
                print(f"{type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
