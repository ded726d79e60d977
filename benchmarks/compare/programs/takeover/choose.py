"""Takeover: each attempt runs in a fork of the thread, with conversation and sandbox; the better one is chosen."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from benchmarks.compare.arguments import work
from langgraph_takeover import SandboxSpec, open_home
from langgraph_takeover.integrations import Sandboxes, choose_fork, fork_thread
from langgraph_takeover.middleware import SandboxMiddleware

repository = SandboxSpec(backend="host", directory=work / "repository")
saver = InMemorySaver()
with open_home(work / "home") as home, Sandboxes(home, repository) as sandboxes:

    def ask(model: str, thread: str, text: str) -> dict:
        middleware = [SandboxMiddleware(sandboxes)]
        agent = create_agent(ChatOpenAI(model=model), middleware=middleware, checkpointer=saver)
        return agent.invoke({"messages": [("user", text)]}, {"configurable": {"thread_id": thread}})

    def look(thread: str, end: dict, command: str):
        with sandboxes.open(thread) as held:
            return held.enter(end["sandbox_state"]).inspect(command)

    ask("coder", "fix-1", "Prepare the work.")
    forks = fork_thread(sandboxes, "fix-1", saver=saver, n=2)
    ends = {
        fork: ask(model, fork, "Make the tests pass.")
        for fork, model in zip(forks, ("first", "second"), strict=True)
    }
    codes = {fork: look(fork, end, "python3 -m unittest -q").exit_code for fork, end in ends.items()}
    winner, loser = sorted(forks, key=codes.get)
    choose_fork(sandboxes, winner, saver=saver, thread="fix-1")
    end = ask("closer", "fix-1", "Check the result.")
    (work / "result.patch").write_text(look("fix-1", end, "git add -A; git diff --cached").output)
    checkpoint = saver.get({"configurable": {"thread_id": loser}})
    stray = look(loser, checkpoint["channel_values"], "cat stray.txt").output
(work / "loser.txt").write_text(f"{checkpoint['channel_values']['messages']}\n{stray}")
