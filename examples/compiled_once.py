"""One compiled graph for all threads: two users in two processes, each with files of their own.

Usage: python examples/compiled_once.py DIRECTORY
"""

import subprocess
import sys

from demo_task import sandbox_spec
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph

from langgraph_takeover import open_home
from langgraph_takeover.integrations import Sandboxes, SandboxState
from langgraph_takeover.sandbox import Sandbox


class State(SandboxState, total=False):
    text: str


def build_graph(sandboxes: Sandboxes, saver: SqliteSaver):
    def note(state: State) -> State:
        def write(sandbox: Sandbox) -> str:
            return sandbox.run(f"echo {state['text']} >> notes; xargs < notes", timeout_s=10).output

        act = sandboxes.current().act("note", write, state=state.get("sandbox_state"))
        return {"sandbox_state": act.state, "text": act.value.strip()}

    return StateGraph(State).add_node(note).add_edge(START, "note").compile(checkpointer=saver)


def serve(directory: str, texts: list[str]) -> None:
    with (
        open_home(directory) as home,
        SqliteSaver.from_conn_string(f"{directory}/chats.sqlite") as saver,
        Sandboxes(home, sandbox_spec(directory)) as sandboxes,
    ):
        graph = build_graph(sandboxes, saver)
        for text in texts:
            for user in ("ann", "ben"):
                config = {"configurable": {"thread_id": user}}
                print(user, graph.invoke({"text": f"{user}-{text}"}, config)["text"], sep=": ", flush=True)


def main(directory: str) -> None:
    for texts in (["1", "2"], ["3"]):  # a process each
        subprocess.run([sys.executable, __file__, directory, *texts], check=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    serve(sys.argv[1], sys.argv[2:]) if len(sys.argv) > 2 else main(sys.argv[1])
