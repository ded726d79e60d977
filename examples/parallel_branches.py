"""Three nodes write files in one step: the next node sees them merged; then a conflict, and its message.

Usage: python examples/parallel_branches.py DIRECTORY
"""

import sys

from demo_task import sandbox_spec
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from langgraph_takeover import open_home
from langgraph_takeover.errors import MergeConflictError
from langgraph_takeover.integrations import Sandboxes, SandboxState

NAMES = ("docs", "tests", "style")


def build_graph(sandboxes: Sandboxes, commands: dict[str, str]):
    def run(name: str, command: str, state: SandboxState) -> SandboxState:
        act = sandboxes.current().act(
            name, lambda box: box.run(command, timeout_s=30).output, state=state.get("sandbox_state")
        )
        print(f"{name}: {act.value}", end="" if act.value else "done\n")
        return {"sandbox_state": act.state}

    builder = StateGraph(SandboxState)
    for name, command in commands.items():
        builder.add_node(name, lambda state, name=name, command=command: run(name, command, state))
        if name in NAMES:
            builder.add_edge(START, name)
    builder.add_edge([*NAMES], "look")
    return builder.compile(checkpointer=InMemorySaver())


def main(directory: str) -> None:
    commands = {name: f"echo {name} > {name}.txt" for name in NAMES}
    commands["style"] += "; sed -i '1i # First line' README.md"
    commands["docs"] += "; echo 'Last line' >> README.md"
    commands["look"] = "cat docs.txt tests.txt style.txt; head -n 1 README.md; tail -n 1 README.md"
    with open_home(directory) as home, Sandboxes(home, sandbox_spec(directory)) as sandboxes:
        build_graph(sandboxes, commands).invoke({}, {"configurable": {"thread_id": "merged"}})
        commands["tests"] = "echo tests > docs.txt"
        try:
            build_graph(sandboxes, commands).invoke({}, {"configurable": {"thread_id": "conflict"}})
        except MergeConflictError as error:
            print(error)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1])
