"""One process of a run whose tool asks a question; it kills itself at the point KILL.

Usage: question_crash.py HOME REPOSITORY start|answer|resume [KILL]; KILL: asked, answered
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.types import interrupt

from langgraph_takeover import SandboxSpec, open_home, open_run
from tests.graph.conftest import DONE, SHOW, get_shown_lines, scripted_model


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(home: str, repository: str, what: str, kill_at: str = "") -> None:
    @tool
    def ask(config: RunnableConfig) -> str:
        """Ask."""
        sandbox = config["configurable"]["sandbox"]
        sandbox.run("echo before >>notes.txt; export KEPT=yes", timeout_s=10)
        answer = interrupt("Go on?")
        sandbox.run(f"echo {answer} >>notes.txt", timeout_s=10)
        if kill_at == "answered":
            kill()
        return str(answer)

    model = scripted_model(
        '```json\n{"name": "ask", "arguments": {}}\n```', f"{SHOW[:-4]}; echo $KEPT\n```", DONE
    )
    spec = SandboxSpec(backend="process", directory=Path(repository))
    with (
        open_home(home) as opened,
        open_run(opened, "thread", model=model, sandbox=spec, tools=(ask,), points=()) as run,
    ):
        outcome = (
            run.start("t", "Do it.") if what == "start" else run.resume("go" if what == "answer" else None)
        )
        if kill_at == "asked":
            kill()
        print(outcome.status.value, *(get_shown_lines(outcome.state) if outcome.steps == 3 else ()))


if __name__ == "__main__":
    main(*sys.argv[1:])
