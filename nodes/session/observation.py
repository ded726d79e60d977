"""The result of an action, before it becomes an event and a message."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from pydantic import JsonValue

from langgraph_takeover.handoff.text.redaction import redact, redact_known_secrets
from langgraph_takeover.handoff.trace.events import FileRead
from langgraph_takeover.nodes.session.external_turn import ExternalTurn
from langgraph_takeover.sandbox.interface import FileChange, Frozen


class Observation(Frozen):
    """The result and the changes of a tool call."""

    text: str
    changes: tuple[FileChange, ...] = ()
    reads: tuple[FileRead, ...] = ()
    exit_code: int | None = None
    cwd: str | None = None
    refused: bool = False
    timed_out: bool = False
    shell_ended: bool = False
    seconds: float = 0.0
    turn: ExternalTurn | None = None
    """External agents only: the results of a reply with any number of calls."""
    diff: str = ""
    """What the action changed in files, for a person."""
    artifact: JsonValue = None
    """Custom tools only: what the call returned beside its text, for the program."""
    edit: dict[str, Any] | None = None
    """An edit of the editor, for its undo; `incomplete` if the previous text contained a secret."""

    def redact_secrets(self, keys: Collection[str] = ()) -> Observation:
        """Return the observation for the effect journal and the agent."""
        names = [name for change in self.changes for name in (change.path, change.renamed_from) if name]
        turn = self.turn.model_dump_json() if self.turn else ""
        artifact = "" if self.artifact is None else json.dumps(self.artifact, ensure_ascii=False)
        text = "\n".join(
            [
                self.text,
                self.diff,
                self.cwd or "",
                turn,
                artifact,
                *names,
                *(read.path for read in self.reads),
            ]
        )
        redacted = self
        if redact(text, keys) != text:
            values = self.model_dump(exclude={"edit"})
            redacted = Observation.model_validate({**redact(values, keys), "edit": self.edit})
        # An undo writes the previous text back unchanged, or not at all.
        edit = redact_known_secrets(redacted.edit, keys)
        if edit == redacted.edit:
            return redacted
        return redacted.model_copy(update={"edit": {**(edit or {}), "incomplete": True}})
