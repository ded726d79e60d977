"""A process that resumes a thread and pauses while files of its directory request it; run by tests."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# A parent directory contains a directory with the name of the tested package.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from langgraph_takeover import open_home, open_run
from langgraph_takeover.errors import ThreadNotFoundError
from langgraph_takeover.handoff.ledger import FencedError, ThreadHeldError
from langgraph_takeover.handoff.records import record as record_module
from langgraph_takeover.sandbox.interface import SandboxSpec

REPLIES = (
    "```bash\necho 1 >>notes.txt\n```",
    "```bash\nsed -i 's/n + 1/n * 2/' pkg/core.py\n```",
    "```bash\n{wait}; echo 2 >>notes.txt\n```",
    "```bash\necho 3 >>notes.txt; cat notes.txt\n```",
    "<finish>Done.</finish>",
)
HELD, FENCED = 3, 4


class PausingModel(BaseChatModel):
    """A model that sends its replies in order, each once no file holds it."""

    directory: Path

    @property
    def _llm_type(self) -> str:
        return "waiting"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        number = sum(isinstance(message, AIMessage) for message in messages)
        wait_while_held(self.directory, f"model-{number}")
        # The command waits inside the sandbox, and creates a file to show it.
        hold, at = self.directory / "hold-command", self.directory / f"at-command-{os.getpid()}"
        wait = f"while [ -e {hold} ]; do : >{at}; sleep 0.02; done"
        return ChatResult(
            generations=[ChatGeneration(message=AIMessage(REPLIES[number].replace("{wait}", wait)))]
        )


def wait_while_held(directory: Path, where: str) -> None:
    """Wait while the hold file exists, and create a file to show it."""
    while (directory / f"hold-{where}").exists():
        (directory / f"at-{where}-{os.getpid()}").touch()
        time.sleep(0.02)


def main(directory: Path, database: str, base: Path, lease_s: float) -> int:
    write = record_module.write_durably

    def write_and_pause(path: Path, text: str) -> None:
        wait_while_held(directory, "directory")
        write(path, text)
        wait_while_held(directory, "record")

    record_module.write_durably = write_and_pause
    mkdir = Path.mkdir

    def mkdir_and_pause(path: Path, *args: Any, **kwargs: Any) -> None:
        mkdir(path, *args, **kwargs)
        if path.name.startswith(".snapshot-"):
            wait_while_held(directory, "snapshot")

    Path.mkdir = mkdir_and_pause  # type: ignore[method-assign]
    spec = SandboxSpec(backend="process", directory=base, owner=directory.parent.name)
    options: Any = {"points": ("first_source_edit",), "run_id": "run", "lease_s": lease_s}
    try:
        with (
            open_home(directory / "home", database or None) as home,
            open_run(
                home, "thread", model=PausingModel(directory=directory), sandbox=spec, **options
            ) as going,
        ):
            try:
                done = going.resume()
            except ThreadNotFoundError:
                done = going.start("t", "Note.")
    except (ThreadHeldError, FencedError) as error:
        print(error, file=sys.stderr)
        return HELD if isinstance(error, ThreadHeldError) else FENCED
    print(json.dumps({"stop": done.stop_reason, "steps": done.steps, "patch": done.patch}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), float(sys.argv[4])))
