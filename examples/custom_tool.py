"""A custom tool that runs in the embedding program and can read the agent's sandbox.

Usage: python examples/custom_tool.py DIRECTORY
"""

import hashlib
import sys
from pathlib import Path

from demo_task import TASK, sandbox_spec
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import ToolException, tool
from langchain_openai import ChatOpenAI

from langgraph_takeover import open_home, run


def main(directory: str) -> None:
    tickets = Path(directory, "tickets")

    @tool
    def open_ticket(question: str, config: RunnableConfig) -> str:
        """Ask the maintainers a question; the ticket includes the current diff."""
        if len(question) < 10:
            raise ToolException("question too short: the maintainers do not know the task")
        sandbox, key = config["configurable"]["sandbox"], config["configurable"]["idempotency_key"]
        # A repeated call after a crash has the same key, so it writes the same ticket.
        ticket = tickets / f"{hashlib.sha256(key.encode()).hexdigest()[:8]}.md"
        tickets.mkdir(parents=True, exist_ok=True)
        ticket.write_text(f"{question}\n\n{sandbox.inspect('git diff').output}")
        return f"Ticket {ticket.stem} is open; continue in the meantime."

    model = ChatOpenAI(model="gpt-5")
    with open_home(directory) as home:
        outcome = run(
            home, "tool", task_id=TASK.id, prompt=TASK.prompt, model=model, sandbox=sandbox_spec(directory),
            tools=(open_ticket,), protocol="native",
        )  # fmt: skip
    print(f"{outcome.stop_reason} after {outcome.steps} steps; tickets:")
    print("\n".join(path.read_text() for path in tickets.glob("*.md")))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1])
