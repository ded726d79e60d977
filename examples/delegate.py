"""An agent reads files and runs a failing check, then delegates the fix; what its child need not find out again.

The child is run twice from the same record: with the payload that its parent handed it, and with nothing.

Usage: python examples/delegate.py DIRECTORY
"""

import sys

from langchain_openai import ChatOpenAI
from trial import NAME, TASK, sandbox_spec

from langgraph_takeover import Delegation, Outcome, open_home, open_run, run, take_over

INSTRUCTION = (
    "\n\nReproduce it and find the place first. Then delegate the fix, and hand over what you know by then."
)


def format_row(name: str, outcome: Outcome) -> str:
    events = outcome.state["events"]
    acts = [each for each in events if each["kind"] == "action"]
    read = sum(bool(each["reads"]) for each in events)
    ran = sum(each["tool"] == "shell" for each in acts)
    return f"{name:<18}{len(events):>8}{read:>12}{ran:>14}{outcome.prompt_tokens:>16,}  {outcome.stop_reason}"


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
        print(f"The model is {NAME}.\n")
        print(f"{'':<18}{'events':>8}{'files read':>12}{'commands run':>14}{'prompt tokens':>16}")
        print(format_row("parent", parent))
        for thread in [name for name in home.threads() if name.startswith("parent.")]:
            with open_run(home, thread, **agent) as held:
                given = held.outcome()
            bare = take_over(
                home, f"without {thread}", record_id=given.state["record"], view="repository", **agent
            )
            print(format_row("child, payload", given))
            print(format_row("child, without", bare))
    print(f"\n{parent.patch}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1])
