"""The messages of a session in the form of `opencode export`."""

from __future__ import annotations

import hashlib
from typing import Any

from langgraph_takeover.handoff.agents.adapter import Launch, NativeCall
from langgraph_takeover.handoff.agents.session_files import derive_uuid
from langgraph_takeover.handoff.agents.session_steps import SessionStep

_TOKENS = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
_MILLISECONDS_OF_A_DAY = 86_400_000


class OpenCodeSession:
    """Collects messages; `export` returns the document that `opencode import` reads."""

    def __init__(self, launch: Launch, opening: str) -> None:
        self._launch, self._opening = launch, opening
        self._now = int(launch.started_at.timestamp() * 1000)
        self._ids = 0
        self._last_user = ""
        self._messages: list[dict[str, Any]] = []
        self.id = f"ses_{self._digits('session', 26)}"

    def add_user(self, text: str) -> None:
        """Add a message of the user."""
        model = {"providerID": "bridge", "modelID": self._launch.model}
        info = {"role": "user", "agent": "build", "model": model, "time": {"created": self._now}}
        self._last_user = self._add(info, {"type": "text", "text": text})

    def add_reply(self, step: SessionStep, call: NativeCall | None) -> None:
        """Add a reply with its text, its call and the result of the call."""
        parts: list[dict[str, Any]] = [{"type": "step-start"}]
        time = {"start": self._now, "end": self._now}
        if step.thought:
            parts.append({"type": "text", "text": step.thought, "time": time})
        if call is not None:
            state: dict[str, Any] = {"status": "error", "error": step.result}
            if not step.refused:
                metadata = {} if step.exit_code is None else {"exit": step.exit_code}
                state = {
                    "status": "completed",
                    "output": step.result,
                    "title": call.name,
                    "metadata": metadata,
                }
            state |= {"input": dict(call.arguments), "time": time}
            parts.append({"type": "tool", "tool": call.name, "callID": step.call_id, "state": state})
        reason = "stop" if call is None else "tool-calls"
        parts.append({"type": "step-finish", "reason": reason, "tokens": _TOKENS, "cost": 0})
        info = {
            "role": "assistant",
            "parentID": self._last_user,
            "mode": "build",
            "agent": "build",
            "providerID": "bridge",
            "modelID": self._launch.model,
            "path": {"cwd": self._launch.workspace, "root": self._launch.workspace},
            "tokens": _TOKENS,
            "cost": 0,
            "finish": reason,
            "time": {"created": self._now, "completed": self._now},
        }
        self._add(info, *parts)

    def export(self, version: str) -> dict[str, Any]:
        """Return the session."""
        info = {
            "id": self.id,
            "slug": "takeover",
            "projectID": "global",
            "directory": self._launch.workspace,
            "title": "Takeover",
            "version": version,
            "time": {"created": self._now, "updated": self._now},
        }
        return {"info": info, "messages": self._messages}

    def _add(self, info: dict[str, Any], *parts: dict[str, Any]) -> str:
        message = f"msg_{self._next_id()}"
        own = {"sessionID": self.id, "messageID": message}
        self._messages.append(
            {
                "info": {**info, "id": message, "sessionID": self.id},
                "parts": [{**part, **own, "id": f"prt_{self._next_id()}"} for part in parts],
            }
        )
        return message

    def _next_id(self) -> str:
        """Return an id that sorts after the previous ones and before those of the run to come."""
        self._ids += 1
        # Its own ids start with a counter in a time: milliseconds times 4096, in 48 bits.
        time = ((self._now - _MILLISECONDS_OF_A_DAY) * 0x1000 + self._ids) & 0xFFFF_FFFF_FFFF
        return f"{time:012x}{self._digits(str(self._ids), 14)}"

    def _digits(self, name: str, count: int) -> str:
        seed = derive_uuid(self._launch, self._opening, name)
        return hashlib.sha256(seed.encode()).hexdigest()[:count]
