"""Two concurrent threads in an asyncio program: one streamed, one awaited.

Usage: python examples/async_app.py DIRECTORY
"""

import asyncio
import sys

from demo_task import TASK, sandbox_spec
from langchain_openai import ChatOpenAI

from langgraph_takeover import Home, Outcome, open_home, open_run


async def stream_run(home: Home, **agent: object) -> Outcome:
    async with open_run(home, "streamed", **agent) as run:
        task = {"task": {"id": TASK.id, "prompt": TASK.prompt}}
        async for progress in run.agent.astream(task, **run.options, stream_mode="custom"):
            print(run.thread, progress["step"], progress["event"])
        return await run.aoutcome()


async def await_run(home: Home, **agent: object) -> Outcome:
    async with open_run(home, "awaited", **agent) as run:
        return await run.astart(TASK.id, TASK.prompt)


async def main(directory: str) -> None:
    agent = {"model": ChatOpenAI(model="gpt-5"), "sandbox": sandbox_spec(directory)}
    async with open_home(directory, workers=4) as home:
        for outcome in await asyncio.gather(stream_run(home, **agent), await_run(home, **agent)):
            print(f"{outcome.thread}: {outcome.stop_reason} after {outcome.steps} steps\n{outcome.patch}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    asyncio.run(main(sys.argv[1]))
