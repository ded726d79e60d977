"""A handoff whose successor is killed between its confirmation and its first action.

The handoff is then repaired and completed automatically or, with `person`, rolled back by a person.

Usage: python examples/deliver.py DIRECTORY [person]
"""

import os
import signal
import subprocess
import sys
from typing import Any

from demo_task import TASK, sandbox_spec
from langchain_openai import ChatOpenAI

from langgraph_takeover import deliver, hand_over, open_home, resume, run
from langgraph_takeover.handoff.records.envelope import Envelope


def kill_after_confirmation(progress: dict[str, Any]) -> None:
    if progress["event"] == "confirmed":
        print(f"killed before its first step: {progress['text']}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def run_handoff_cli(*argv: str) -> None:
    print(f"\n$ python -m handoff {' '.join(argv)}", flush=True)
    subprocess.run([sys.executable, "-m", "handoff", *argv], check=True)


def main(directory: str, mode: str = "") -> None:
    agent = {"model": ChatOpenAI(model="gpt-5"), "sandbox": sandbox_spec(directory)}
    with open_home(directory) as home:
        if mode == "child":
            (handoff_id,) = sys.argv[3:]
            deliver(home, handoff_id, agent_name="tester", **agent, on_progress=kill_after_confirmation)
        first_run = run(
            home, "written", task_id=TASK.id, prompt=TASK.prompt, **agent, policy="stop", points=("first_source_edit",),
        )  # fmt: skip
        envelope = Envelope(message="The edit is a first draft.", uncertainties=("long words are untested",))
        handoff = hand_over(home, first_run.records[-1], target="tester", source="writer", envelope=envelope)
        subprocess.run([sys.executable, __file__, directory, "child", handoff.id], check=False)
        run_handoff_cli("list", "--home", directory)
        run_handoff_cli("repair", "--home", directory)
        if mode == "person":
            run_handoff_cli("rollback", handoff.id, "--home", directory)
            outcome = resume(home, "written", **agent)
        else:
            delivered = deliver(home, handoff.id, agent_name="tester", **agent)
            assert delivered.outcome is not None
            outcome = delivered.outcome
        run_handoff_cli("history", handoff.id, "--home", directory)
    print(f"{outcome.thread}: {outcome.stop_reason} after {outcome.steps} steps\n{outcome.diff_from_base}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:3])
