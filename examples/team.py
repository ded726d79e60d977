"""A writer and a tester share one task and one sandbox, first with explicit handoffs, then with rotating turns.

Usage: python examples/team.py DIRECTORY
"""

import sys

from demo_task import NAME, TASK, sandbox_spec
from langchain_openai import ChatOpenAI

from langgraph_takeover import Agent, open_home, run_team
from langgraph_takeover.handoff.views.team_views import TurnPass, build_timeline, format_timeline

WRITER = "You find the bug and fix it; leave the verdict to the tester."
TESTER = "You reproduce the issue and run the tests; finish when both pass."


def main(directory: str) -> None:
    model = ChatOpenAI(model="gpt-5")
    tester = Agent(name="tester", model=model, instructions=TESTER)
    handoff_agents = [Agent(name="writer", model=model, instructions=WRITER, may_finish=False), tester]
    rotation_agents = [
        Agent(name="writer", model=model, instructions=WRITER, share_only_tool_results=True),
        tester,
    ]
    print(f"model: {NAME}")
    with open_home(directory) as home:
        for thread, agents, settings in (
            ("handoff", handoff_agents, {"enable_handoff_tool": True, "max_consecutive_turns": 20}),
            ("rotation", rotation_agents, {"max_consecutive_turns": 3}),
        ):
            outcome = run_team(
                home,
                thread,
                task_id=TASK.id,
                prompt=TASK.prompt,
                agents=agents,
                sandbox=sandbox_spec(directory),
                **settings,
            )
            passes = [TurnPass.model_validate(each) for each in outcome.state.get("passes", ())]
            print(f"\n{thread}: {outcome.stop_reason} after {outcome.steps} steps")
            print(format_timeline(build_timeline(outcome.events, passes, [agent.name for agent in agents])))
    print(f"\n{outcome.patch}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1])
