"""OpenAI Agents SDK: a sandbox agent with a shell and patches, whose workspace is the repository itself."""

import asyncio

from agents import Runner
from agents.run import RunConfig
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient

from benchmarks.compare.arguments import work


async def main() -> None:
    agent = SandboxAgent(
        name="coder", model="coder", default_manifest=Manifest(root=str(work / "repository"))
    )
    config = RunConfig(sandbox=SandboxRunConfig(client=UnixLocalSandboxClient()), tracing_disabled=True)
    await Runner.run(agent, "Make the tests pass.", run_config=config, max_turns=30)


asyncio.run(main())
