"""An agent reproduces an issue and delegates the fix; the payload saves its child repeated work.

The child runs twice from the same record: with its parent's payload, and without any.

Usage: python examples/delegate.py DIRECTORY
"""

import sys

from demo_task import NAME, TASK, sandbox_spec
from langchain_openai import ChatOpenAI

from langgraph_takeover import Delegation, Outcome, open_home, open_run, run, take_over

INSTRUCTION = (
    "\n\nFirst reproduce the issue and find its cause. Then delegate the fix, with everything that you know."
)


def format_row(name: str, outcome: Outcome) -> str:
    events = outcome.events
    reads = sum(bool(event.reads) for event in events)
    commands = sum(event.kind == "action" and event.tool == "shell" for event in events)
    return f"{name:<18}{len(events):>8}{reads:>12}{commands:>14}{outcome.prompt_tokens:>16,}  {outcome.stop_reason}"


def main(directory: str) -> None:
    agent = {"model": ChatOpenAI(model="gpt-5"), "sandbox": sandbox_spec(directory), "protocol": "native"}
    with open_home(directory) as home:
        parent = run(
            home,
            "parent",
            task_id=TASK.id,
            prompt=TASK.prompt + INSTRUCTION,
            **agent,
            delegation=Delegation(max_depth=1),
        )
        print(f"model: {NAME}\n")
        print(f"{'':<18}{'events':>8}{'files read':>12}{'commands run':>14}{'prompt tokens':>16}")
        print(format_row("parent", parent))
        for thread in [name for name in home.threads() if name.startswith("parent.")]:
            with open_run(home, thread, **agent) as child_run:
                child = child_run.outcome()
            uninformed = take_over(
                home, f"without {thread}", record_id=child.state["record"], view="repository", **agent
            )
            print(format_row("child, payload", child))
            print(format_row("child, without", uninformed))
    print(f"\n{parent.patch}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1])
