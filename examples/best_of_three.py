"""Three attempts at one task, each in a fork of the thread; the one whose tests pass becomes the thread's newest.

The attempts are scripted, not an LLM's: the first one breaks the tests, the last one changes nothing.

Usage: python examples/best_of_three.py DIRECTORY
"""

import sys
import time

from demo_task import FACTS, TASK, ScriptedChat, call_tool, sandbox_spec
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_takeover import open_home
from langgraph_takeover.integrations import Sandboxes, choose_fork, fork_thread
from langgraph_takeover.middleware import SandboxMiddleware

(REGION,) = FACTS.regions
READING = [call_tool("shell", command=f"cat {REGION.path}"), "I have read it."]
CHECK = f"! git diff --quiet && {FACTS.guide.command}"


def replace(new: str):
    return call_tool("editor", command="str_replace", path=REGION.path, old_str=REGION.base, new_str=new)


ATTEMPTS = ([replace("    raise ValueError"), "Done."], [replace(REGION.right), "Fixed."], ["It is right."])


def main(directory: str) -> None:
    with open_home(directory) as home, Sandboxes(home, sandbox_spec(directory)) as sandboxes:
        saver = InMemorySaver()

        def run(thread: str, replies: list, prompt: str) -> str:
            model = ScriptedChat(replies=replies)
            agent = create_agent(model, middleware=[SandboxMiddleware(sandboxes)], checkpointer=saver)
            end = agent.invoke({"messages": [("user", prompt)]}, {"configurable": {"thread_id": thread}})
            return end["sandbox_state"]

        run("fix", READING, TASK.prompt)
        scores: dict[str, int] = {}
        for fork, attempt in zip(fork_thread(sandboxes, "fix", saver=saver, n=3), ATTEMPTS, strict=True):
            begun = time.perf_counter()
            state = run(fork, READING + attempt, "Make the tests pass.")
            with sandboxes.open(fork) as work:
                scores[fork] = work.enter(state).run(CHECK, timeout_s=60).exit_code
            print(f"{fork}: exit code {scores[fork]}, {time.perf_counter() - begun:.1f} s")
        best = min(scores, key=scores.get)
        choose_fork(sandboxes, best, saver=saver, thread="fix")
        print(f"chosen: {best}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1])
