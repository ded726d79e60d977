"""One model begins a task and stops at its first edit; another one goes on, told as much as its view tells.

Usage: python examples/take_over.py DIRECTORY [repository|trace|summary|structured]
"""

import sys

from langchain_openai import ChatOpenAI
from trial import TASK, sandbox_spec

from langgraph_takeover import open_home, run, take_over


def main(directory: str, view: str = "trace") -> None:
    machine = sandbox_spec(directory)
    with open_home(directory) as home:
        begun = run(
            home, "begun", task_id=TASK.id, prompt=TASK.prompt, model=ChatOpenAI(model="gpt-5-mini"), sandbox=machine,
            policy="stop", points=("first_source_edit",),
        )  # fmt: skip
        (record,) = begun.records
        print(f"{record}: {begun.steps} steps, {begun.prompt_tokens:,} prompt tokens")
        done = take_over(
            home, f"by {view}", record_id=record, view=view, model=ChatOpenAI(model="gpt-5"), sandbox=machine
        )
    print(f"{done.stop_reason} after {done.steps} more steps, {done.prompt_tokens:,} prompt tokens")
    print(done.patch)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:])
