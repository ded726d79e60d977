"""OpenAI Agents SDK: the items of the last steps are removed from the session; the files stay as they are."""

import asyncio

from agents import Runner, SQLiteSession
from agents.run import RunConfig
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient

from benchmarks.compare.arguments import phase, work


async def main() -> None:
    session = SQLiteSession("fix-1", work / "session.sqlite")
    model, text = "coder", "Make the tests pass."
    if phase == "fork":
        model, text = "second-coder", "Try another way."
        for _ in range(1 + 3 * 2):  # the answer, then a call and its result per step
            await session.pop_item()
    agent = SandboxAgent(name="coder", model=model, default_manifest=Manifest(root=str(work / "repository")))
    config = RunConfig(sandbox=SandboxRunConfig(client=UnixLocalSandboxClient()), tracing_disabled=True)
    await Runner.run(agent, text, session=session, run_config=config, max_turns=30)


asyncio.run(main())
