"""Time the mini-swe-agent loop in an interpreter that has it; print the seconds per step, including its saving.

    python mini_peer.py STEPS TRAJECTORY COMMAND

TRAJECTORY is the file to save after each step. This script imports nothing from this project.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.test_models import DeterministicModel, make_output


def time_step(steps: int, trajectory: Path, command: str) -> float:
    model: Any = DeterministicModel(outputs=[make_output("", [{"command": command}], cost=0)])
    agent: Any = DefaultAgent(
        model,
        LocalEnvironment(),
        system_template="",
        instance_template="",
        step_limit=steps,
        output_path=trajectory,
    )
    save, ends = agent.save, []

    def save_and_time(path: Path) -> None:
        save(path)
        ends.append(time.perf_counter())
        # Saves and observations dump all outputs of the model, so reuse a single output for all steps.
        model.current_index = -1

    agent.save = save_and_time
    agent.run()
    results = [message["extra"] for message in agent.messages if "returncode" in message.get("extra", {})]
    assert [result["returncode"] for result in results] == [0] * steps
    return (ends[steps - 1] - ends[0]) / (steps - 1)


if __name__ == "__main__":
    print(time_step(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
