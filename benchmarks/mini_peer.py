"""Time the mini-swe-agent loop in an interpreter that has it; print the seconds per step, including its saving.

This script imports nothing from this project.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.test_models import DeterministicModel, make_output


def main(steps: int, trajectory: Path, command: str) -> None:
    model: Any = DeterministicModel(outputs=[make_output("", [{"command": command}], cost=0)])
    agent: Any = DefaultAgent(
        model,
        LocalEnvironment(),
        system_template="",
        instance_template="",
        step_limit=steps,
        output_path=trajectory,
    )
    save = agent.save
    ends = []

    def save_and_time(path: Path) -> None:
        save(path)
        ends.append(time.perf_counter())
        # Saves and observations dump all outputs of the model, so reuse a single output for all steps.
        model.current_index = -1

    agent.save = save_and_time
    agent.run()
    results = [message["extra"] for message in agent.messages if "returncode" in message.get("extra", {})]
    assert [result["returncode"] for result in results] == [0] * steps
    print((ends[steps - 1] - ends[0]) / (steps - 1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", type=int)
    parser.add_argument("trajectory", type=Path, help="file to save after each step")
    parser.add_argument("command", help="command of each step")
    main(**vars(parser.parse_args()))
