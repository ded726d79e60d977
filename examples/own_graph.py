"""A graph of your own with a sandbox: it is killed inside an effect, and resumes with files and shell as they were.

Usage: python examples/own_graph.py DIRECTORY
"""

import os
import signal
import subprocess
import sys

from demo_task import sandbox_spec
from langgraph.graph import START, StateGraph

from langgraph_takeover import open_home
from langgraph_takeover.integrations import SandboxState, open_sandbox
from langgraph_takeover.sandbox import Sandbox


def main(directory: str, *, is_child: bool = False) -> None:
    if not is_child:
        subprocess.run([sys.executable, __file__, directory, "child"], check=False)

    def append(sandbox: Sandbox) -> str:
        sandbox.run("echo two >> log", timeout_s=10)
        if is_child:
            os.kill(os.getpid(), signal.SIGKILL)
        return sandbox.run("cat log; echo $name in $(basename $PWD)", timeout_s=10).output

    with open_home(directory) as home, open_sandbox(home, "own", sandbox=sandbox_spec(directory)) as work:

        def prepare(state: SandboxState) -> SandboxState:
            command = "cd tests; name=kept; echo one >> log"
            done = work.act(
                "prepare", lambda sandbox: sandbox.run(command, timeout_s=10).exit_code, state=None
            )
            return {"sandbox_state": done.state}

        def work_on(state: SandboxState) -> SandboxState:
            done = work.act("append", append, state=state["sandbox_state"])
            print(done.value + f"changed: {[change.path for change in done.changes]}")
            return {"sandbox_state": done.state}

        builder = StateGraph(SandboxState).add_sequence([prepare, work_on]).add_edge(START, "prepare")
        graph = builder.compile(checkpointer=work.saver)
        graph.invoke({} if is_child else None, {"configurable": {"thread_id": "own"}})


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1], is_child=len(sys.argv) > 2)
