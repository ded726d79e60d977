"""A tool of the embedding program's own beside shell and editor: it runs here, and sees the agent's machine.

Usage: python examples/custom_tool.py DIRECTORY
"""

import hashlib
import sys
from pathlib import Path

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import ToolException, tool
from langchain_openai import ChatOpenAI
from trial import TASK, sandbox_spec

from langgraph_takeover import open_home, run


def main(directory: str) -> None:
    tickets = Path(directory, "tickets")

    @tool
    def open_ticket(question: str, config: RunnableConfig) -> str:
        """Ask the maintainers a question; the work so far goes with it."""
        if len(question) < 10:
            raise ToolException("say more: they have not seen the task")
        machine, key = config["configurable"]["sandbox"], config["configurable"]["idempotency_key"]
        # After a crash the tool may be called again, with the same key: the ticket is the same too.
        ticket = tickets / f"{hashlib.sha256(key.encode()).hexdigest()[:8]}.md"
        tickets.mkdir(parents=True, exist_ok=True)
        ticket.write_text(f"{question}\n\n{machine.inspect('git diff').output}")
        return f"Ticket {ticket.stem} is open; go on meanwhile."

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
