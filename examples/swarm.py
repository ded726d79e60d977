"""Two agents of langgraph-swarm, one task: what the second is sent by langgraph-swarm's own handoff tool, and by ours.

Usage: python examples/swarm.py DIRECTORY [repository|trace|summary|structured|payload|transcript]
"""

import sys
from typing import Any

from langchain_core.tools import BaseTool, tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph_swarm import create_handoff_tool, create_swarm
from trial import TASK, sandbox_spec

from langgraph_takeover.graph import swarm
from langgraph_takeover.handoff.views import measure_view
from langgraph_takeover.sandbox import Sandbox, start


def build_agent(name: str, agent_sandbox: Sandbox, sent: dict[str, int], *handoffs: BaseTool) -> Any:
    @tool
    def shell(command: str) -> str:
        """Run a bash command in the repository."""
        done = agent_sandbox.run(command, timeout_s=120)
        return f"[exit code {done.exit_code}]\n{done.output}"

    tools = [shell, *handoffs]
    model = ChatOpenAI(model="gpt-5").bind_tools(tools, parallel_tool_calls=False)

    def think(state: MessagesState) -> dict[str, Any]:
        sent.setdefault(name, measure_view(state["messages"]).characters)
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node(think).add_node("tools", ToolNode(tools))
    graph.add_edge(START, "think").add_conditional_edges("think", tools_condition).add_edge("tools", "think")
    return graph.compile(name=name)


def main(directory: str, view: str = "structured") -> None:
    ours = swarm.create_handoff_tool(agent_name="fixer", view=view)
    for way, handoff in (("langgraph-swarm", create_handoff_tool(agent_name="fixer")), (view, ours)):
        machine, sent = start(sandbox_spec(f"{directory}/{way}")), dict[str, int]()
        agents = [build_agent("finder", machine, sent, handoff), build_agent("fixer", machine, sent)]
        graph = create_swarm(agents, default_active_agent="finder").compile()
        graph.invoke({"messages": [("user", TASK.prompt)]})
        changed = machine.run("git diff --stat | tail -1", timeout_s=60).output.strip()
        machine.close()
        print(f"{way}: the fixer is sent {sent['fixer']:,} characters at first; then {changed}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:])
