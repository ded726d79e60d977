"""Measure SWE-ReX's latencies in an interpreter that has it; each input line starts one round.

    python swerex_peer.py [IMAGE [DOCKER-ARGUMENT…]]

Each output line is a JSON object: first the reasons for unavailable runtimes, then one round's medians in seconds. IMAGE
is a local image for its Docker runtime. This script imports nothing from this project.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from swerex.deployment.docker import DockerDeployment
from swerex.deployment.local import LocalDeployment
from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest

_CALLS = 9


async def _measure_median(call: Callable[[], Awaitable[Any]]) -> float:
    durations = []
    for _ in range(_CALLS):
        start = time.perf_counter()
        await call()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


async def _run_round(runtime: Any, name: str) -> dict[str, float]:
    command, action = Command(command=["true"]), BashAction(command="true", timeout=30)
    return {
        name: await _measure_median(lambda: runtime.execute(command)),
        f"{name}_session": await _measure_median(lambda: runtime.run_in_session(action)),
    }


async def main(image: str = "", *docker_args: str) -> None:
    logging.disable(logging.CRITICAL)
    # SWE-ReX logs to the standard output, which is reserved for answers.
    answers, sys.stdout = os.fdopen(os.dup(1), "w", buffering=1), sys.stderr
    deployments: dict[str, Any] = {"local": LocalDeployment()}
    if image:
        settings = {"pull": "never", "startup_timeout": 30, "docker_args": list(docker_args)}
        deployments["docker"] = DockerDeployment(image=image, **settings)
    reasons = {}
    async with contextlib.AsyncExitStack() as stack:
        for name, deployment in deployments.items():
            stack.push_async_callback(deployment.stop)
            try:
                await deployment.start()
                await deployment.runtime.create_session(CreateBashSessionRequest(startup_timeout=10))
            except Exception as error:
                reasons[f"swerex_{name}"] = f"SWE-ReX's {name} runtime: {str(error).strip().splitlines()[-1]}"
        print(json.dumps(reasons), file=answers)
        while await asyncio.to_thread(sys.stdin.readline):
            medians: dict[str, float] = {}
            for name, deployment in deployments.items():
                if f"swerex_{name}" not in reasons:
                    medians |= await _run_round(deployment.runtime, name)
            print(json.dumps(medians), file=answers)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
