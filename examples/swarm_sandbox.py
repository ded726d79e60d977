"""Two langgraph-swarm agents in one sandbox: the second is killed inside its edit, and resumes after the handoff.

Usage: python examples/swarm_sandbox.py DIRECTORY
"""

import signal
import subprocess
import sys

from demo_task import TASK, sandbox_spec
from langchain.agents import create_agent
from langchain.tools import ToolRuntime, tool
from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.types import Command
from langgraph_swarm import SwarmState, create_handoff_tool, create_swarm

from langgraph_takeover import open_home
from langgraph_takeover.integrations import SandboxState, open_sandbox
from langgraph_takeover.middleware import SandboxMiddleware
from langgraph_takeover.sandbox import Sandbox

TeamState = type("TeamState", (SwarmState, SandboxState), {})


def main(directory: str, *, is_child: bool = False) -> None:
    if not is_child:
        print("killed:", subprocess.run([sys.executable, __file__, directory, "child"]).returncode == -9)
    with open_home(directory) as home, open_sandbox(home, "swarm", sandbox=sandbox_spec(directory)) as work:

        @tool
        def shell(command: str, runtime: ToolRuntime) -> Command:
            """Run a bash command in the repository."""

            def run(sandbox: Sandbox) -> str:
                output = sandbox.run(command, timeout_s=120).output
                return signal.raise_signal(signal.SIGKILL) if is_child else output

            done = work.act(runtime.tool_call_id, run, state=runtime.state["sandbox_state"])
            message = ToolMessage(done.value, tool_call_id=runtime.tool_call_id)
            return Command(update={"sandbox_state": done.state, "messages": [message]})

        model, handoff = ChatOpenAI(model="gpt-5"), create_handoff_tool(agent_name="fixer")
        finder = create_agent(model, [handoff], middleware=[SandboxMiddleware(work)], name="finder")
        fixer = create_agent(model, [shell], state_schema=TeamState, name="fixer")
        swarm = create_swarm([finder, fixer], default_active_agent="finder", state_schema=TeamState)
        state = {"messages": [("user", TASK.prompt)]} if is_child else None
        end = swarm.compile(checkpointer=work.saver).invoke(state, {"configurable": {"thread_id": "swarm"}})
        print(work.enter(end["sandbox_state"]).run("git diff", timeout_s=60).output)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1], is_child=len(sys.argv) > 2)
