"""An agent of deepagents in a sandbox: it is killed inside a command, and resumes with files and shell as they were.

Usage: python examples/deep_agent.py DIRECTORY  (needs langgraph-takeover[deepagents])
"""

import os
import signal
import subprocess
import sys

from deepagents import create_deep_agent
from demo_task import ScriptedChat, call_tool, sandbox_spec

from langgraph_takeover import open_home
from langgraph_takeover.deepagents import SandboxBackend, SandboxFilesystemMiddleware
from langgraph_takeover.integrations import open_sandbox

FIRST = call_tool("execute", command="cd tests; name=kept; echo one >> log")
SECOND = call_tool("execute", command="echo two >> log; cat log; echo $name in $(basename $PWD)")


class KilledBackend(SandboxBackend):
    def execute(self, command, **options):
        result = super().execute(command, **options)
        if "two" in command:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def main(directory: str, backend_class: type = SandboxBackend) -> None:
    with open_home(directory) as home, open_sandbox(home, "deep", sandbox=sandbox_spec(directory)) as work:
        backend, model = backend_class(work), ScriptedChat(replies=[FIRST, SECOND, "Done."])
        middleware = [SandboxFilesystemMiddleware(backend)]
        agent = create_deep_agent(model, backend=backend, middleware=middleware, checkpointer=work.saver)
        is_new = backend_class is KilledBackend
        question = {"messages": [("user", "Write two lines.")]} if is_new else None
        print(agent.invoke(question, {"configurable": {"thread_id": "deep"}})["messages"][-2].text)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    if len(sys.argv) > 2:
        main(sys.argv[1], KilledBackend)
    killed = subprocess.run([sys.executable, __file__, sys.argv[1], "killed"], check=False)
    print("killed" if killed.returncode == -signal.SIGKILL else "ended")
    main(sys.argv[1])
