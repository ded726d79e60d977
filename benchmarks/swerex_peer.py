"""Measure SWE-ReX's latencies in an interpreter that has it; each input line starts one round.

The first output line is a JSON object with the reasons for unavailable runtimes. Each further line contains one round's
medians in milliseconds. This script imports nothing from this project.
"""

from __future__ import annotations

import argparse
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

_CALLS = 9


async def _median_ms(call: Callable[[], Awaitable[Any]], calls: int = _CALLS) -> float:
    durations = []
    for _ in range(calls):
        start = time.perf_counter()
        await call()
        durations.append((time.perf_counter() - start) * 1e3)
    return statistics.median(durations)


async def _start_deployment(deployment: Any) -> Any:
    from swerex.runtime.abstract import CreateBashSessionRequest

    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest(startup_timeout=10))
    return deployment


async def _run_round(runtime: Any, name: str) -> dict[str, float]:
    from swerex.runtime.abstract import BashAction, Command

    command, action = Command(command=["true"]), BashAction(command="true", timeout=30)
    return {
        f"swerex_{name}": await _median_ms(lambda: runtime.execute(command)),
        f"swerex_{name}_session": await _median_ms(lambda: runtime.run_in_session(action)),
    }


async def main(image: str | None, network: str) -> None:
    from swerex.deployment.docker import DockerDeployment
    from swerex.deployment.local import LocalDeployment

    logging.disable(logging.CRITICAL)
    # SWE-ReX logs to the standard output, which is reserved for answers.
    answers, sys.stdout = os.fdopen(os.dup(1), "w", buffering=1), sys.stderr
    makers: dict[str, Callable[[], Any]] = {"local": LocalDeployment}
    if image is not None:
        docker = {
            "image": image,
            "pull": "never",
            "startup_timeout": 30,
            "docker_args": ["--network", network],
        }
        makers["docker"] = lambda: DockerDeployment(**docker)
    running: dict[str, Any] = {}
    reasons = {}
    try:
        for name, make in makers.items():
            deployment = make()
            try:
                running[name] = await _start_deployment(deployment)
            except Exception as error:
                reasons[f"swerex_{name}"] = f"SWE-ReX's {name} runtime: {str(error).strip().splitlines()[-1]}"
                with contextlib.suppress(Exception):
                    await deployment.stop()
        print(json.dumps(reasons), file=answers)
        while await asyncio.to_thread(sys.stdin.readline):
            medians: dict[str, float] = {}
            for name, deployment in running.items():
                medians |= await _run_round(deployment.runtime, name)
            print(json.dumps(medians), file=answers)
    finally:
        for deployment in running.values():
            await deployment.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", help="local image that contains `swerex-remote`")
    parser.add_argument("--network", default="bridge", help="Docker network of its server")
    asyncio.run(main(**vars(parser.parse_args())))
