"""OpenAI Agents SDK: a session with branches, and a workspace per attempt; the winner's is copied by code of our own."""

import asyncio
import io
import shutil

from agents import Runner
from agents.extensions.memory import AdvancedSQLiteSession
from agents.run import RunConfig
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient

from benchmarks.compare.arguments import work

session = AdvancedSQLiteSession(session_id="fix-1", db_path=work / "session.sqlite", create_tables=True)


async def ask(model: str, directory: str, text: str, files: bytes = b"") -> tuple[bytes, bool]:
    """Return the files afterwards, and whether the tests pass."""
    sandbox = await UnixLocalSandboxClient().create(manifest=Manifest(root=str(work / directory)))
    async with sandbox:
        if files:
            await sandbox.hydrate_workspace(io.BytesIO(files))
        config = RunConfig(sandbox=SandboxRunConfig(session=sandbox), tracing_disabled=True)
        await Runner.run(SandboxAgent(name="coder", model=model), text, session=session, run_config=config)
        test = await sandbox.exec("python3 -m unittest -q")
        return (await sandbox.persist_workspace()).read(), test.ok()


async def main() -> None:
    prepared, _ = await ask("coder", "repository", "Prepare the work.")
    _, first_passes = await ask("first", "first", "Make the tests pass.", prepared)
    await session.create_branch_from_turn(2, "second")
    await ask("second", "second", "Make the tests pass.", prepared)
    branches = {"first": "main", "second": "second"}
    winner, loser = ("first", "second") if first_passes else ("second", "first")
    await session.switch_to_branch(branches[winner])
    shutil.rmtree(work / "repository")
    shutil.copytree(work / winner, work / "repository")
    await ask("closer", "repository", "Check the result.")
    lost = await session.get_items(branch_id=branches[loser])
    stray = (work / loser / "stray.txt").read_text()
    (work / "loser.txt").write_text(f"{lost}\n{stray}")


asyncio.run(main())
