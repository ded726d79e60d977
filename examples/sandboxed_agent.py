"""An agent of create_agent in a sandbox: it is killed inside a command, and resumes with files and shell as they were.

Usage: python examples/sandboxed_agent.py DIRECTORY
"""

import os
import signal
import subprocess
import sys
from threading import Timer

from demo_task import ScriptedChat, call_tool, sandbox_spec
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_tool_call

from langgraph_takeover import open_home
from langgraph_takeover.integrations import open_sandbox
from langgraph_takeover.middleware import SandboxMiddleware

FIRST = call_tool("shell", command="cd tests; name=kept; echo one >> log")
SECOND = call_tool("shell", command="echo two >> log; sleep 3; cat log; echo $name in $(basename $PWD)")


@wrap_tool_call
def kill_inside(request, handler):
    if "sleep" in request.tool_call["args"]["command"]:
        Timer(2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return handler(request)


def main(directory: str, *, is_child: bool = False) -> None:
    if not is_child:
        child = subprocess.run([sys.executable, __file__, directory, "child"], check=False)
        print("killed" if child.returncode == -signal.SIGKILL else "ended")
    with open_home(directory) as home, open_sandbox(home, "chat", sandbox=sandbox_spec(directory)) as work:
        model = ScriptedChat(replies=[FIRST, SECOND, "Done."])
        middleware = [*([kill_inside] if is_child else []), SandboxMiddleware(work)]
        agent = create_agent(model, middleware=middleware, checkpointer=work.saver)
        question = {"messages": [("user", "Write two lines.")]} if is_child else None
        print(agent.invoke(question, {"configurable": {"thread_id": "chat"}})["messages"][-2].text, end="")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1], is_child=len(sys.argv) > 2)
