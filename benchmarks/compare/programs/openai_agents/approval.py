"""OpenAI Agents SDK: a risky command waits for a person; the paused run is a JSON file."""

import asyncio
import json

from agents import Runner, RunState
from agents.run import RunConfig
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem, Shell
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient

from benchmarks.compare.arguments import phase, work

saved = work / "state.json"


async def is_risky(context, arguments: dict, call_id: str) -> bool:
    return "rm " in arguments["cmd"]


def require_approval(tools) -> None:
    tools.exec_command.needs_approval = is_risky


async def main() -> None:
    agent = SandboxAgent(
        name="coder",
        model="coder",
        default_manifest=Manifest(root=str(work / "repository")),
        capabilities=[Filesystem(), Shell(configure_tools=require_approval)],
    )
    config = RunConfig(sandbox=SandboxRunConfig(client=UnixLocalSandboxClient()), tracing_disabled=True)
    if phase == "start":
        result = await Runner.run(agent, "Make the tests pass.", run_config=config, max_turns=30)
        saved.write_text(json.dumps(result.to_state().to_json()))
    else:
        state = await RunState.from_json(agent, json.loads(saved.read_text()))
        state.approve(state.get_interruptions()[0])
        await Runner.run(agent, state, run_config=config, max_turns=30)


asyncio.run(main())
