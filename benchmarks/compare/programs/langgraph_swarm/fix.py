"""langgraph-swarm: a coding agent with LangChain's shell and an editor of our own, in the repository itself."""

from langchain.agents import create_agent
from langchain.agents.middleware import ShellToolMiddleware
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph_swarm import create_swarm

from benchmarks.compare.arguments import work


@tool
def edit_file(file_path: str, old_string: str, new_string: str) -> str:
    """Replace a text in a file."""
    file = work / "repository" / file_path.lstrip("/")
    file.write_text(file.read_text().replace(old_string, new_string))
    return "done"


coder = create_agent(
    ChatOpenAI(model="coder"),
    tools=[edit_file],
    middleware=[ShellToolMiddleware(workspace_root=work / "repository")],
    name="coder",
)
app = create_swarm([coder], default_active_agent="coder").compile()
app.invoke({"messages": [("user", "Make the tests pass.")]})
