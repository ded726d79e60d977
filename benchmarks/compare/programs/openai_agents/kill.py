"""OpenAI Agents SDK: a coding agent whose conversation is in a SQLite session, and whose workspace is reconnected."""

import asyncio
import json

from agents import Runner, SQLiteSession
from agents.run import RunConfig
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient

from benchmarks.compare.arguments import phase, work

saved = work / "sandbox.json"


async def main() -> None:
    agent = SandboxAgent(name="coder", model="coder")
    client = UnixLocalSandboxClient()
    if phase == "start":
        sandbox = await client.create(manifest=Manifest(root=str(work / "repository")))
        saved.write_text(json.dumps(client.serialize_session_state(sandbox.state)))
    else:
        sandbox = await client.resume(client.deserialize_session_state(json.loads(saved.read_text())))
    async with sandbox:
        config = RunConfig(sandbox=SandboxRunConfig(session=sandbox), tracing_disabled=True)
        session = SQLiteSession("fix-1", work / "session.sqlite")
        text = "Make the tests pass." if phase == "start" else "Continue."
        await Runner.run(agent, text, session=session, run_config=config, max_turns=30)


asyncio.run(main())
