"""A run inside a program that prints the agent's progress.

Usage: python examples/run_in_app.py DIRECTORY
"""

import sys
from typing import Any

from demo_task import TASK, sandbox_spec
from langchain_openai import ChatOpenAI
from rich.console import Console

from langgraph_takeover import open_home, run

console = Console(markup=False, highlight=False, soft_wrap=True)


def print_progress(progress: dict[str, Any]) -> None:
    match progress["event"]:
        case "acting":
            console.print(f"{progress['step']:>3} {progress['tool']}: {progress['text']}")
        case "observed" if progress["refused"]:
            console.print(f"    refused: {progress['text']}", style="red")
        case "observed" if progress["exit_code"]:
            console.print(f"    exit code {progress['exit_code']}", style="red")
        case "point":
            console.print(f"    {progress['kind']}: {progress['text']}", style="yellow")


def main(directory: str) -> None:
    model = ChatOpenAI(model="gpt-5")
    with open_home(directory) as home:
        outcome = run(
            home,
            "app",
            task_id=TASK.id,
            prompt=TASK.prompt,
            model=model,
            sandbox=sandbox_spec(directory),
            on_progress=print_progress,
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
