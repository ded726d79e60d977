"""One model stops at its first edit; another model takes over with the given view.

Usage: python examples/take_over.py DIRECTORY [VIEW]
"""

import sys

from demo_task import TASK, sandbox_spec
from langchain_openai import ChatOpenAI

from langgraph_takeover import open_home, run, take_over


def main(directory: str, view: str = "trace") -> None:
    sandbox = sandbox_spec(directory)
    with open_home(directory) as home:
        predecessor = run(
            home, "begun", task_id=TASK.id, prompt=TASK.prompt, model=ChatOpenAI(model="gpt-5-mini"), sandbox=sandbox,
            policy="stop", points=("first_source_edit",),
        )  # fmt: skip
        (record,) = predecessor.records
        print(f"{record}: {predecessor.steps} steps, {predecessor.prompt_tokens:,} prompt tokens")
        successor = take_over(
            home, f"by {view}", record_id=record, view=view, model=ChatOpenAI(model="gpt-5"), sandbox=sandbox
        )
    print(
        f"{successor.stop_reason} after {successor.steps} more steps, {successor.prompt_tokens:,} prompt tokens"
    )
    print(successor.diff_from_base)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:])
