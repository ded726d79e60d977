"""What an action came to, before it becomes an event and a message."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from langgraph_takeover.handoff.text.redaction import redact, redact_known_secrets
from langgraph_takeover.handoff.trace.events import FileRead
from langgraph_takeover.sandbox.interface import FileChange, Frozen


class Observation(Frozen):
    """What a tool saw and did."""

    text: str
    changes: tuple[FileChange, ...] = ()
    reads: tuple[FileRead, ...] = ()
    exit_code: int | None = None
    cwd: str | None = None
    refused: bool = False
    timed_out: bool = False
    shell_ended: bool = False
    seconds: float = 0.0
    edit: dict[str, Any] | None = None
    """What the editor did, so that it can be undone; `incomplete` where the text before held a secret."""

    def redact_secrets(self, keys: Collection[str] = ()) -> Observation:
        """As it goes into the journal of effects and to the agent."""
        named = [name for change in self.changes for name in (change.path, change.renamed_from) if name]
        told = "\n".join([self.text, self.cwd or "", *named, *(read.path for read in self.reads)])
        seen = self
        if redact(told, keys) != told:
            shown = self.model_dump(exclude={"edit"})
            seen = Observation.model_validate({**redact(shown, keys), "edit": self.edit})
        # What stood in a file is written back as it was, or not at all.
        edit = redact_known_secrets(seen.edit, keys)
        return (
            seen
            if edit == seen.edit
            else seen.model_copy(update={"edit": {**(edit or {}), "incomplete": True}})
        )
