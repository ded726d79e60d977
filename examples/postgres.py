"""Checkpoints, leases and journal in PostgreSQL, so that several hosts can share one home.

Usage: python examples/postgres.py DIRECTORY postgresql://USER@HOST/NAME

All hosts must share DIRECTORY, which contains records and snapshots. Requires the extra `postgres`.
"""

import sys

from demo_task import TASK, sandbox_spec
from langchain_openai import ChatOpenAI

from langgraph_takeover import open_home, run


def main(directory: str, url: str) -> None:
    model = ChatOpenAI(model="gpt-5")
    with open_home(directory, url) as home:
        outcome = run(
            home,
            "postgres",
            task_id=TASK.id,
            prompt=TASK.prompt,
            model=model,
            sandbox=sandbox_spec(directory),
        )
        print(
            f"{outcome.stop_reason} after {outcome.steps} steps, {len(home.history('postgres'))} checkpoints"
        )
    print(outcome.patch)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:])
