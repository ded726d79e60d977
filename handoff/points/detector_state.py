"""What the detectors remember between two events, as a value that goes through JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from langgraph_takeover.handoff.shell.runner_summaries import ValidationOutcome
from langgraph_takeover.handoff.shell.runners import ValidationKind
from langgraph_takeover.handoff.trace.events import PointKind


class CodeFile(NamedTuple):
    """What a run has seen of one code file of the repository, as content hashes; None is absence."""

    base: str | None
    seen: tuple[str, ...]
    current: str | None

    def with_content(self, content: str | None) -> CodeFile:
        """The same file with this content, which it is remembered to have had."""
        if content is None or content in self.seen:
            return self._replace(current=content)
        return self._replace(seen=(*self.seen, content), current=content)


class ValidationRun(NamedTuple):
    """One validation, at the observation that shows its result."""

    event_index: int
    command: str
    kind: ValidationKind
    outcome: ValidationOutcome
    cwd: str | None = None


class PendingValidation(NamedTuple):
    """A validation whose result has not been shown yet: it hangs, or writes to files."""

    command: str
    after_edit: bool
    logs: tuple[str, ...] = ()


class DetectorState(NamedTuple):
    """Everything the detectors remember between two events."""

    base_directories: tuple[str, ...] = ()
    workspace: str = ""
    """The repository's absolute path; empty where nobody knows."""
    files: Mapping[str, CodeFile] = {}
    written_scripts: tuple[str, ...] = ()
    edited_files: tuple[str, ...] = ()
    """The source files edited so far."""
    pending_command: str | None = None
    """The shell command whose observation is due."""
    pending_input: bool = False
    """That command goes to the program still running."""
    pending_validation: PendingValidation | None = None
    failed_after_edit: bool = False
    outcome_since_change: ValidationOutcome | None = None
    """How the latest validation after the latest source change came out; None if there was none."""
    fired: tuple[PointKind, ...] = ()
    latest_validation: ValidationRun | None = None


_ADAPTER = TypeAdapter(DetectorState)


def to_json(state: DetectorState) -> dict[str, Any]:
    """The state in plain dicts, lists and strings."""
    return dict(zip(DetectorState._fields, _ADAPTER.dump_python(state, mode="json"), strict=True))


def from_json(data: Mapping[str, Any]) -> DetectorState:
    """The state that `as_json` wrote."""
    return _ADAPTER.validate_python(data)
