"""A process that holds a thread with a saver of LangGraph's, writes a step, waits, and writes again; run by tests."""

from __future__ import annotations

import sys
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict

from langgraph_takeover.errors import FencedError, ThreadHeldError
from langgraph_takeover.integrations import hold_thread

HELD, FENCED = 3, 4
CONFIG: Any = {"configurable": {"thread_id": "job"}}


class Steps(TypedDict, total=False):
    last: str


def open_saver(url: str) -> Any:
    if not url.startswith("postgresql:"):
        return SqliteSaver.from_conn_string(url)
    from langgraph.checkpoint.postgres import PostgresSaver

    return PostgresSaver.from_conn_string(url)


def build_graph(saver: Any, step: Any) -> CompiledStateGraph[Any]:
    builder = StateGraph(Steps).add_sequence([(name, lambda state, name=name: step(name)) for name in "abc"])
    return builder.add_edge(START, "a").compile(checkpointer=saver)


def main(url: str, lease_s: str) -> None:
    def step(name: str) -> Steps:
        print(f"at {name}", flush=True)
        if name == "b":
            input()
        return {"last": name}

    with open_saver(url) as saver:
        saver.setup()
        try:
            with hold_thread(saver, "job", lease_s=float(lease_s)) as held:
                build_graph(held, step).invoke({}, CONFIG, durability="sync")
        except ThreadHeldError as error:
            print(error)
            sys.exit(HELD)
        except FencedError as error:
            print(error)
            sys.exit(FENCED)


if __name__ == "__main__":
    main(*sys.argv[1:])
