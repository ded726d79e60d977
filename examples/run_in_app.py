"""A task run inside a program, which prints what the agent does while it does it.

Usage: python examples/run_in_app.py DIRECTORY
"""

import sys
from typing import Any

from langchain_openai import ChatOpenAI
from rich.console import Console
from trial import TASK, sandbox

from graph import open_home, run

console = Console(markup=False, highlight=False, soft_wrap=True)


def show(moment: dict[str, Any]) -> None:
    match moment["moment"]:
        case "acting":
            console.print(f"{moment['step']:>3} {moment['tool']}: {moment['text']}")
        case "observed" if moment["refused"]:
            console.print(f"    refused: {moment['text']}", style="red")
        case "observed" if moment["exit_code"]:
            console.print(f"    exit code {moment['exit_code']}", style="red")
        case "point":
            console.print(f"    {moment['kind']}: {moment['text']}", style="yellow")


def main(directory: str) -> None:
    model = ChatOpenAI(model="gpt-5")
    with open_home(directory) as home:
        outcome = run(
            home, "app", TASK.id, TASK.prompt, model=model, sandbox=sandbox(directory), on_progress=show
        )
    console.print(
        f"{outcome.stop_reason} after {outcome.steps} steps, {outcome.prompt_tokens:,} prompt tokens"
    )
    console.print(outcome.patch, style="green")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1])
