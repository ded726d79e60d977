"""A run that is killed during a step and resumes there, including its sandbox.

Usage: python examples/crash_and_resume.py DIRECTORY
"""

import os
import signal
import subprocess
import sys
from typing import Any

from demo_task import TASK, sandbox_spec
from langchain_openai import ChatOpenAI

from langgraph_takeover import open_home, resume, run


def kill_at_step_6(progress: dict[str, Any]) -> None:
    if progress["event"] == "acting" and progress["step"] == 6:
        print(f"killed during: {progress['text']}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def main(directory: str, *, is_child: bool = False) -> None:
    agent = {"model": ChatOpenAI(model="gpt-5"), "sandbox": sandbox_spec(directory)}
    with open_home(directory) as home:
        if is_child:
            run(home, "crash", task_id=TASK.id, prompt=TASK.prompt, **agent, on_progress=kill_at_step_6)
        subprocess.run([sys.executable, __file__, directory, "child"], check=False)
        print(f"last checkpoint: {home.history('crash')[0]}")
        outcome = resume(home, "crash", **agent)
    print(f"{outcome.stop_reason} after {outcome.steps} steps\n{outcome.patch}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1], is_child=len(sys.argv) > 2)
