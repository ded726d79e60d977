"""OpenAI Agents SDK: a handoff whose input filter replaces the conversation by the task and the reason."""

import asyncio

from agents import HandoffInputData, RunContextWrapper, Runner, handoff
from agents.run import RunConfig
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from pydantic import BaseModel

from benchmarks.compare.arguments import work


class Handover(BaseModel):
    reason: str


def keep_reason(context: RunContextWrapper[dict], given: Handover) -> None:
    context.context["reason"] = given.reason


def pass_reason(data: HandoffInputData) -> HandoffInputData:
    text = f"Make the tests pass. The finder hands over to you: {data.run_context.context['reason']}"
    history = ({"role": "user", "content": text},)
    return data.clone(input_history=history, pre_handoff_items=(), input_items=())


async def main() -> None:
    fixer = SandboxAgent(name="fixer", model="fixer")
    to_fixer = handoff(fixer, on_handoff=keep_reason, input_type=Handover, input_filter=pass_reason)
    finder = SandboxAgent(name="finder", model="finder", handoffs=[to_fixer])
    sandbox = await UnixLocalSandboxClient().create(manifest=Manifest(root=str(work / "repository")))
    async with sandbox:
        config = RunConfig(sandbox=SandboxRunConfig(session=sandbox), tracing_disabled=True)
        await Runner.run(finder, "Make the tests pass.", context={}, run_config=config, max_turns=30)


asyncio.run(main())
