"""State of the detectors between two events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from langgraph_takeover.handoff.shell.runner_summaries import ValidationOutcome
from langgraph_takeover.handoff.shell.runners import ValidationKind
from langgraph_takeover.handoff.trace.events import PointKind

Verdict = Literal["explicit", "exit_code_only"]
"""Basis of a pass: a result or verdict in the output, or an assertion of the script; or nothing but exit code 0."""


NO_VERDICT = "exited 0; its output states no verdict"


def describe_outcome(outcome: ValidationOutcome, verdict: Verdict | None) -> str:
    """The result of a validation in words, the same wherever it is shown; exit code 0 alone is not a pass."""
    return NO_VERDICT if verdict == "exit_code_only" else outcome


class CodeFile(NamedTuple):
    """Contents of one code file of the repository, as hashes; None if the file is absent."""

    base: str | None
    """Content in the base commit."""
    known: tuple[str, ...]
    """Every content that the file has had during the run."""
    current: str | None

    def with_content(self, content: str | None) -> CodeFile:
        """The file after a change to this content."""
        if content is None or content in self.known:
            return CodeFile(self.base, self.known, content)
        return CodeFile(self.base, (*self.known, content), content)


class ValidationRun(NamedTuple):
    """One validation with its outcome."""

    event_index: int
    """The observation that shows the result."""
    command: str
    kind: ValidationKind
    outcome: ValidationOutcome
    cwd: str | None = None
    """Directory of the command, if its line changes the directory."""
    verdict: Verdict | None = None
    """Basis of the outcome `passed`; None for other outcomes."""

    @property
    def result(self) -> str:
        """The result in words."""
        return describe_outcome(self.outcome, self.verdict)

    @property
    def has_passed(self) -> bool:
        """Whether it passed by a result or a verdict, not only by exit code 0."""
        return self.outcome == "passed" and self.verdict != "exit_code_only"


class PendingValidation(NamedTuple):
    """A validation that still runs or writes to files, so that its result is not visible yet."""

    command: str
    after_edit: bool
    """It follows a source edit."""
    logs: tuple[str, ...] = ()
    """Files that receive its output."""


class DetectorState(NamedTuple):
    """Everything that the detectors need from earlier events."""

    base_directories: tuple[str, ...] = ()
    workspace: str = ""
    """Absolute path of the repository; empty if unknown."""
    files: Mapping[str, CodeFile] = {}
    written_scripts: tuple[str, ...] = ()
    """Scripts that the agent created and that have not edited source files."""
    asserting_scripts: tuple[str, ...] = ()
    """Written scripts that fail by themselves if a result is wrong."""
    written_inputs: tuple[str, ...] = ()
    """Other files that the agent created itself: inputs of programs."""
    entry_points: tuple[str, ...] = ()
    """Programs of the project, as an output showed its settings."""
    auxiliary_files: tuple[str, ...] = ()
    """Files that are never source or reproductions: backups of source files, and scripts written to edit them."""
    edited_files: tuple[str, ...] = ()
    """Source files edited so far."""
    pending_command: str | None = None
    """The shell command whose observation comes next."""
    pending_text: str = ""
    """The text that the pending editor call writes into a script."""
    pending_assertion: bool = False
    """The pending action writes an assertion."""
    pending_input: bool = False
    """The pending command is input of the running program."""
    pending_validation: PendingValidation | None = None
    failed_after_edit: bool = False
    """A validation after a source edit has failed."""
    outcome_since_change: ValidationOutcome | None = None
    """Outcome of the latest validation since the latest source change; None without such a validation."""
    verdict_since_change: Verdict | None = None
    """Basis of that outcome, if it is `passed`."""
    fired: tuple[PointKind, ...] = ()
    latest_validation: ValidationRun | None = None
    background_validations: tuple[PendingValidation, ...] = ()
    """Validations that the agent's tool left running; files of the agent receive their output."""

    @property
    def has_pending(self) -> bool:
        return self.pending_validation is not None or bool(self.background_validations)
