"""OpenAI Agents SDK: several runs at once, gathered by asyncio, in one workspace."""

import asyncio

from agents import Runner
from agents.run import RunConfig
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient

from benchmarks.compare.arguments import phase, work


async def main() -> None:
    sandbox = await UnixLocalSandboxClient().create(manifest=Manifest(root=str(work / "repository")))
    async with sandbox:
        config = RunConfig(sandbox=SandboxRunConfig(session=sandbox), tracing_disabled=True)

        def start(name: str):
            agent = SandboxAgent(name=name, model=name)
            return Runner.run(agent, "Improve the documentation.", run_config=config)

        await asyncio.gather(*(start(f"{phase}-{number}") for number in (1, 2, 3)))
        await start("reader")


asyncio.run(main())
