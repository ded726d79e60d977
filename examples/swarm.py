"""Two langgraph-swarm agents: the first prompt of the second agent with langgraph-swarm's handoff tool and with ours.

Usage: python examples/swarm.py DIRECTORY [repository|trace|summary|structured|payload|transcript]
"""

import sys
from typing import Any

from demo_task import TASK, sandbox_spec
from langchain_core.tools import BaseTool, tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph_swarm import create_handoff_tool, create_swarm

from langgraph_takeover.graph import swarm
from langgraph_takeover.handoff.views import measure_view
from langgraph_takeover.sandbox import Sandbox, start


def build_agent(name: str, agent_sandbox: Sandbox, prompt_chars: dict[str, int], *handoffs: BaseTool) -> Any:
    @tool
    def shell(command: str) -> str:
        """Run a bash command in the repository."""
        result = agent_sandbox.run(command, timeout_s=120)
        return f"[exit code {result.exit_code}]\n{result.output}"

    tools = [shell, *handoffs]
    model = ChatOpenAI(model="gpt-5").bind_tools(tools, parallel_tool_calls=False)

    def think(state: MessagesState) -> dict[str, Any]:
        prompt_chars.setdefault(name, measure_view(state["messages"]).characters)
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node(think).add_node("tools", ToolNode(tools))
    graph.add_edge(START, "think").add_conditional_edges("think", tools_condition).add_edge("tools", "think")
    return graph.compile(name=name)


def main(directory: str, view: str = "structured") -> None:
    handoffs = {
        "langgraph-swarm": create_handoff_tool(agent_name="fixer"),
        view: swarm.create_handoff_tool(agent_name="fixer", view=view),
    }
    for name, handoff in handoffs.items():
        sandbox, prompt_chars = start(sandbox_spec(f"{directory}/{name}")), dict[str, int]()
        finder = build_agent("finder", sandbox, prompt_chars, handoff)
        agents = [finder, build_agent("fixer", sandbox, prompt_chars)]
        graph = create_swarm(agents, default_active_agent="finder").compile()
        graph.invoke({"messages": [("user", TASK.prompt)]})
        changes = sandbox.run("git diff --stat | tail -1", timeout_s=60).output.strip()
        sandbox.close()
        print(f"{name}: first prompt of the fixer: {prompt_chars['fixer']:,} characters; result: {changes}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:])
