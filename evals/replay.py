"""A model that plays the recorded actions of a real trajectory, one after another."""

from __future__ import annotations

import json
import re
from pathlib import Path

from langchain_core.messages import AIMessage, BaseMessage

from evals.scripted import ScriptedModel, Turn
from nodes.actions import Action

_BLOCK = re.compile(r"```bash\s*\n(.*?)\n```", re.DOTALL)
_SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_LEAVES_TRACES = re.compile(
    r"(^|[;&|({\n])\s*(cd|pushd|popd|export|unset|set|source|\.|alias|exit|exec|shopt|trap|umask|ulimit)(\s|$)"
    r"|(^|[;&\n])\s*\w+=\S*\s*($|[;&\n])"
)


class BadTrajectory(ValueError):
    """A trajectory that cannot be replayed; the text names the file and why."""


class ReplayModel(ScriptedModel):
    """Gives the recorded action that follows the replies already in the conversation.

    It is no LLM: it reads nothing of what it is told. After the last action it finishes.
    """

    turns: tuple[Turn, ...]
    start: int = 0

    def respond(self, messages: list[BaseMessage]) -> Turn:
        position = self.start + sum(isinstance(message, AIMessage) for message in messages)
        if position < len(self.turns):
            return self.turns[position]
        return Turn("The recorded actions end here.", Action("finish", {}))


def read_trajectory(path: Path) -> tuple[Turn, ...]:
    """The actions of a mini-swe-agent v1 trajectory that were run. Raises BadTrajectory."""
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadTrajectory(f"{path}: no such file") from error
    except (OSError, ValueError) as error:
        raise BadTrajectory(f"{path}: not a JSON trajectory: {error}") from error
    messages = recorded.get("messages") if isinstance(recorded, dict) else None
    if not isinstance(messages, list):
        raise BadTrajectory(
            f"{path}: field 'messages' is missing; mini-swe-agent v1 trajectories can be replayed"
        )
    turns = []
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise BadTrajectory(f"{path}: messages[{number}]: field 'content' is not text")
        if message.get("role") != "assistant":
            continue
        blocks = _BLOCK.findall(message["content"])
        if len(blocks) == 1:
            thought = _BLOCK.sub("", message["content"]).strip()
            turns.append(Turn(thought, _action(blocks[0].strip())))
    if not turns:
        raise BadTrajectory(f"{path}: no message holds exactly one bash block, so there is nothing to replay")
    return tuple(turns)


def _action(command: str) -> Action:
    if _SUBMIT in command:
        return Action("finish", {"message": "Submitted."})
    # The recorded agent had a new shell for every command; ours would keep what this one leaves behind.
    return Action("shell", {"command": f"(\n{command}\n)" if _LEAVES_TRACES.search(command) else command})
