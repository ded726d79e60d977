"""The mini-swe-agent loop, timed by a Python that has it: prints the seconds of a step, its saving included.

Imports nothing of this project.
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
        # Every save and every observation dumps all outputs that the model has in store: one will do for all steps.
        model.current_index = -1

    agent.save = save_and_time
    agent.run()
    observed = [one["extra"] for one in agent.messages if "returncode" in one.get("extra", {})]
    assert [one["returncode"] for one in observed] == [0] * steps
    print((ends[steps - 1] - ends[0]) / (steps - 1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", type=int)
    parser.add_argument("trajectory", type=Path, help="the file to save to after each step")
    parser.add_argument("command", help="what the model asks for in each step")
    main(**vars(parser.parse_args()))
