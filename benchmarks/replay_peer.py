"""Time the steps of another agent's environment on given commands, in an interpreter that has it.

    python replay_peer.py (mini-swe-agent|swe-rex) COMMANDS TRAJECTORY

COMMANDS is a JSON list of shell commands, which run in the current directory. Prints a JSON list: the seconds of each
step without its model. For mini-swe-agent that includes saving its trajectory; of SWE-ReX, steps that it could not run
are left out. This script imports nothing from this project.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

_TIMEOUT_S = 20


def time_mini_swe_agent(commands: list[str], trajectory: Path) -> list[float]:
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.test_models import DeterministicModel, make_output

    model: Any = DeterministicModel(
        outputs=[make_output("", [{"command": command}], cost=0) for command in commands]
    )
    agent: Any = DefaultAgent(
        model,
        LocalEnvironment(timeout=_TIMEOUT_S),
        system_template="",
        instance_template="",
        step_limit=len(commands),
        output_path=trajectory,
    )
    replies: list[float] = []
    reply = model.query

    def query_and_time(*args: Any, **kwargs: Any) -> Any:
        replies.append(time.perf_counter())
        return reply(*args, **kwargs)

    model.query = query_and_time
    agent.run()
    replies.append(time.perf_counter())
    return [after - before for before, after in pairwise(replies)][: len(commands)]


async def time_swerex(commands: list[str]) -> list[float]:
    from swerex.deployment.local import LocalDeployment
    from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

    deployment = LocalDeployment()
    await deployment.start()
    steps = []
    try:
        for number, command in enumerate(commands):
            name = f"session-{number}"  # one that a command has broken is of no use to the next
            await deployment.runtime.create_session(
                CreateBashSessionRequest(startup_timeout=10, session=name)
            )
            begun = time.perf_counter()
            action = BashAction(command=command, timeout=_TIMEOUT_S, check="silent", session=name)
            with contextlib.suppress(Exception):  # it cannot run every command
                await deployment.runtime.run_in_session(action)
                steps.append(time.perf_counter() - begun)
    finally:
        await deployment.stop()
    return steps


def main(peer: str, commands: str, trajectory: str) -> None:
    logging.disable(logging.CRITICAL)
    # The peers log to the standard output, which is reserved for the answer.
    answer, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    given = json.loads(Path(commands).read_text())
    steps = (
        asyncio.run(time_swerex(given)) if peer == "swe-rex" else time_mini_swe_agent(given, Path(trajectory))
    )
    print(json.dumps(steps), file=answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
