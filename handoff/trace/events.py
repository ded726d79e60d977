"""Events and traces: the actions of an agent and their observations."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import FailFast, Field

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.sandbox.interface import FileChange


class Action(NamedTuple):
    """One readable action: a tool and its arguments, all of them text.

    A tool that is not built in has a single argument, `arguments`, which contains JSON.
    """

    tool: str
    arguments: dict[str, str]


def write_action(action: Action) -> str:
    """Write the text that `parse_action` parses as this action."""
    tool, arguments = action
    if tool == "shell":
        body = arguments.get("command", "")
        fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`{3,}", body)), 3)
        return f"{fence}bash\n{body}\n{fence}"
    if tool == "editor":
        attributes = "".join(
            f" {name}={_quote(value)}"
            for name, value in arguments.items()
            if name not in ("old", "new", "content")
        )
        parts = "".join(
            f"<{name}>\n{arguments[name]}\n</{name}>\n"
            for name in ("old", "new", "content")
            if name in arguments
        )
        return f"<editor{attributes}>\n{parts}</editor>" if parts else f"<editor{attributes}/>"
    if "arguments" in arguments:
        return f'```json\n{{"name": {json.dumps(tool)}, "arguments": {arguments["arguments"]}}}\n```'
    to = f" to={_quote(arguments['to'])}" if tool == "handoff" and "to" in arguments else ""
    message = next((value for name, value in arguments.items() if not to or name != "to"), "")
    return f"<{tool}{to}>{message}</{tool}>"


def _quote(value: str) -> str:
    return f"'{value}'" if '"' in value else f'"{value}"'


_Value = TypeVar("_Value")


class _FailFast(FailFast):
    """A hashable `FailFast`, as required inside unions."""

    __hash__ = object.__hash__


FailFastTuple = Annotated[tuple[_Value, ...], _FailFast()]
"""A tuple whose validation stops at the first invalid element, which limits the memory for errors."""


EventKind = Literal["action", "observation"]
PointKind = Literal["first_source_edit", "first_validation", "first_post_failure_edit", "requested"]
RecordKind = Literal[PointKind, "periodic"]
"""The cause of a record: a handoff point, or a fixed number of steps (`periodic`), which is not a handoff point."""
UNREADABLE = "unreadable"
"""Tool name of a reply that does not contain exactly one readable action."""


class FileRead(Frozen):
    """One file whose content an action showed, with the SHA-256 of that content."""

    path: str
    sha256: str


class Usage(Frozen):
    """Tokens of one model call, as counted by the server; None if not counted."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    estimated: bool = False
    """The server reported no counts; they are estimated at four characters per token."""


NO_MODEL_CALL = Usage(prompt_tokens=0, completion_tokens=0)
"""The usage of a parallel call: the tokens of its reply are those of the reply's first call."""


class Event(Frozen):
    """One action of the agent, or the observation that answers it: the unit of effort.

    Paths are relative inside the repository and absolute outside it.

    Example:
        >>> record.trace[0].kind, record.trace[0].tool
        ('action', 'shell')
    """

    index: int = Field(ge=0)
    kind: EventKind
    tool: str
    """`shell`, `editor`, `handoff`, `finish`, or `unreadable`."""
    text: str
    """Of an action: the complete reply of the model. Of an observation: the exact text shown to the agent."""
    arguments: Mapping[str, str] = {}
    """Actions only: `command` for the shell; `command`, `path`, `old`, `new`, … for the editor."""
    exit_code: int | None = None
    """Shell observations only; None if the command did not end by itself."""
    cwd: str | None = None
    """Shell observations only: directory of the shell before the command; None if unknown."""
    refused: bool = False
    """Observations only: the tool rejected the action without executing it."""
    timed_out: bool = False
    changes: FailFastTuple[FileChange] = ()
    """Observations only: files whose content the action changed, inside or outside the repository."""
    reads: FailFastTuple[FileRead] = ()
    """Observations only: files whose content the action showed."""
    tree: str = ""
    """Digest of all differences from the base, before an action or after an observation."""
    seconds: float = 0.0
    usage: Usage | None = None

    @property
    def is_parallel(self) -> bool:
        """Whether the action is a further call of the reply before, which cost no model call of its own."""
        return self.kind == "action" and self.usage == NO_MODEL_CALL


class HandoffPoint(Frozen):
    """The boundary after event `event_index`, at which a detector fired, an agent handed over, or a periodic record was due.

    Example:
        >>> record.point.kind, record.point.event_index == len(record.trace) - 1
        ('first_validation', True)
    """

    kind: RecordKind
    event_index: int = Field(ge=0)
    detail: str
    """The cause in one line, such as the edited paths or the failed command."""


Differences = dict[str, tuple[str | None, str | None]]
"""Path -> SHA-256 in the base and now, for every file that differs from the base."""
TraceFormat = Literal[
    "mini-swe-agent-v1", "mini-swe-agent-v2", "swe-agent-0.x", "swe-agent-1.x", "openhands-v0", "openhands-v1",
    "codex", "claude-code", "qwen-code", "opencode", "gemini-cli", "pi", "copilot-cli", "aider", "kimi-code",
    "atif", "langchain", "takeover",
]  # fmt: skip


class Continuation(Frozen):
    """The predecessor and the record that a successor continues."""

    trace: str
    """Id of the predecessor's trace."""
    record: str
    """Id of the handoff record."""
    point: HandoffPoint
    view: str


class Trace(Frozen):
    """The ordered events of one run, with the metadata of its recording.

    The files of an imported run are not available. The digests in its changes therefore only represent contents;
    two digests are equal exactly if the contents are known to be equal.
    """

    id: str
    format: TraceFormat
    events: tuple[Event, ...]
    workspace: str = ""
    """Absolute path of the repository in the sandbox of the run; empty if unknown."""
    workspace_why: str = ""
    """The evidence for that path in a recording, in words; empty if the run itself recorded it."""
    base_directories: tuple[str, ...] = ()
    """Top-level directories of the base commit, as far as the recording shows them."""
    task: str = ""
    """The initial prompt of the run."""
    model: str = ""
    agent: str = ""
    """Name of the recorded agent, such as `openhands`, if the recording names it."""
    agent_version: str = ""
    keeps_shell: bool = True
    """One shell ran all commands, so its directory and variables persist between commands."""
    running: tuple[str, ...] = ()
    """Commands that still ran in the background at the end, as far as the recording shows."""
    pending: tuple[str, ...] = ()
    """What was open when the session was read: commands, calls, questions or a request, each on one line."""
    continues: Continuation | None = None
    withdrawn_actions: int = Field(default=0, ge=0)
    """Actions that the user withdrew by going back in the conversation; `events` does not contain them."""
    withdrawn_files: tuple[str, ...] = ()
    """Files that withdrawn actions changed, as far as known. The changes may still be there."""
    earlier_session: str = ""
    """Id of the session whose file has the work before the first event; it is not read. Empty if the trace has all of it."""
    skipped_lines: int = 0
    """Lines of the recording that were left out: damaged ones, and an incomplete last one."""
    unknown_forms: Mapping[str, int] = {}
    """Calls and other items in a form that this version does not know, by name: their effects and results are unknown."""


def action_indices(events: Iterable[Event]) -> dict[int, int]:
    """Map event indices to action indices; an observation has that of its action, an unreadable reply none."""
    indices: dict[int, int] = {}
    number, current = -1, None
    for event in events:
        if event.kind == "action":
            current = None if event.tool == UNREADABLE else number + 1
            number = number if current is None else current
        if current is not None:
            indices[event.index] = current
    return indices


def apply_changes(
    before: Mapping[str, tuple[str | None, str | None]], changes: Iterable[FileChange]
) -> Differences:
    """Differences from the base after more changes; a restored file does not differ."""
    after = dict(before)
    for change in changes:
        base = after[change.path][0] if change.path in after else change.before
        if change.after == base:
            after.pop(change.path, None)
        else:
            after[change.path] = (base, change.after)
    return after


def append_events(before: tuple[Event, ...], own: tuple[Event, ...]) -> tuple[Event, ...]:
    """Return events, then later ones, with their positions in both."""
    return (
        *before,
        *(each.model_copy(update={"index": number}) for number, each in enumerate(own, len(before))),
    )


def compute_differences(events: Iterable[Event]) -> Differences:
    """Differences from the base after all events."""
    differences: Differences = {}
    for event in events:
        differences = apply_changes(differences, event.changes)
    return differences


def compute_tree_digest(differences: Mapping[str, tuple[str | None, str | None]]) -> str:
    """Digest of a tree; two trees of one base have equal digests exactly if their files are equal."""
    paths = sorted(differences)
    entries = map("{}\0{}\0".format, paths, [differences[path][1] for path in paths])
    return hashlib.sha256("".join(entries).encode("utf-8", "surrogateescape")).hexdigest()


MAX_FORMS, _MAX_NAME_CHARS, _MAX_SHOWN = 20, 60, 5
OTHER_FORMS = "other forms"
"""Counts what exceeds `MAX_FORMS` different names."""


def count_forms(names: Iterable[str], counts: Mapping[str, int] | None = None) -> dict[str, int]:
    """Add names to the counts: each on one line, shortened, and at most `MAX_FORMS` different ones."""
    return sum_forms([counts or {}, *({name: 1} for name in names)])


def sum_forms(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of several counts, within the limits of `count_forms`."""
    total: Counter[str] = Counter()
    for counts in several:
        for form, count in counts.items():
            name = shorten_form(form)
            total[name if name in total or len(total) < MAX_FORMS else OTHER_FORMS] += count
    return dict(total)


def shorten_form(name: str) -> str:
    """The name of a form as it is counted."""
    text = " ".join(name[: 4 * _MAX_NAME_CHARS].split()).encode("utf-8", "backslashreplace").decode()
    return (text if len(text) <= _MAX_NAME_CHARS else f"{text[: _MAX_NAME_CHARS - 1]}…") or "no name"


def describe_unknown_forms(forms: Mapping[str, int]) -> str:
    """Describe the calls of unknown form in one line; empty without any. The names are data of the recording."""
    number = sum(forms.values())
    if not number:
        return ""
    named = sorted(forms.items(), key=lambda each: -each[1])
    shown = ", ".join(f"{name} ({count})" for name, count in named[:_MAX_SHOWN])
    more = f" and {len(named) - _MAX_SHOWN} more forms" if len(named) > _MAX_SHOWN else ""
    calls = "1 call" if number == 1 else f"{number} calls"
    return f"{calls} in a form that this version does not know: {shown}{more}"
