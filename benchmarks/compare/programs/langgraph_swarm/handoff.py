"""langgraph-swarm: a handoff tool of our own, as its documentation shows, passes the reason instead of all messages."""

from langchain.agents import create_agent
from langchain.agents.middleware import ShellToolMiddleware
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.types import Command
from langgraph_swarm import create_swarm

from benchmarks.compare.arguments import work


@tool
def edit_file(file_path: str, old_string: str, new_string: str) -> str:
    """Replace a text in a file."""
    file = work / "repository" / file_path.lstrip("/")
    file.write_text(file.read_text().replace(old_string, new_string))
    return "done"


@tool
def transfer_to_fixer(reason: str) -> Command:
    """Hand the work to the fixer, with the reason."""
    update = {"messages": [("user", f"The finder hands over to you: {reason}")], "active_agent": "fixer"}
    return Command(goto="fixer", graph=Command.PARENT, update=update)


finder = create_agent(
    ChatOpenAI(model="finder"),
    tools=[edit_file, transfer_to_fixer],
    middleware=[ShellToolMiddleware(workspace_root=work / "repository")],
    name="finder",
)
fixer = create_agent(
    ChatOpenAI(model="fixer"),
    tools=[edit_file],
    middleware=[ShellToolMiddleware(workspace_root=work / "repository")],
    name="fixer",
)
app = create_swarm([finder, fixer], default_active_agent="finder").compile()
app.invoke({"messages": [("user", "Make the tests pass.")]})
