"""A run that is killed in the middle, in whatever it is doing, and goes on where it was, machine and all.

Usage: python examples/crash_and_resume.py DIRECTORY
"""

import os
import signal
import subprocess
import sys
from typing import Any

from langchain_openai import ChatOpenAI
from trial import TASK, sandbox

from graph import open_home, resume, run


def kill_at_step_6(moment: dict[str, Any]) -> None:
    if moment["moment"] == "acting" and moment["step"] == 6:
        print(f"killed while it does: {moment['text']}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def main(directory: str, *, doomed: bool = False) -> None:
    agent = {"model": ChatOpenAI(model="gpt-5"), "sandbox": sandbox(directory)}
    with open_home(directory) as home:
        if doomed:
            run(home, "crash", TASK.id, TASK.prompt, **agent, on_progress=kill_at_step_6)
        subprocess.run([sys.executable, __file__, directory, "doomed"], check=False)
        print(f"left behind: {home.history('crash')[0]}")
        outcome = resume(home, "crash", **agent)
    print(f"{outcome.stop_reason} after {outcome.steps} steps\n{outcome.patch}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1], doomed=len(sys.argv) > 2)
