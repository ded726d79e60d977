"""Sessions of external agents, collected row by row, and the contexts in their prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.handoff.recordings import tool_calls
from langgraph_takeover.handoff.recordings.branches import BackgroundCommands, CommandResult
from langgraph_takeover.handoff.recordings.recorded_run import (
    RecordedCall,
    RecordedResult,
    RecordedRun,
    join_requests,
    join_text,
    to_directory,
)
from langgraph_takeover.handoff.recordings.tool_calls import OpenCalls
from langgraph_takeover.handoff.shell.syntax import normalize_path
from langgraph_takeover.handoff.shell.windows import write_powershell_command
from langgraph_takeover.handoff.trace.events import (
    Action,
    TraceFormat,
    Usage,
    count_forms,
    sum_forms,
    write_action,
)

_TAGS: dict[TraceFormat, frozenset[str]] = {
    "codex": frozenset({
        "environment_context", "user_instructions", "permissions", "collaboration_mode", "skill", "skills",
        "skills_instructions", "turn_aborted", "user_shell_command", "subagent_notification", "apps_instructions",
        "catalog_apps_instructions", "plugins_instructions", "recommended_plugins", "model_switch", "context_window",
        "context_window_reminder", "context_window_guidance", "codex_delegation", "codex_internal_context", "user_action",
        "rollout_budget", "token_budget", "user_verification_notice", "startup_context", "personality_spec",
        "model_instructions", "environments_instructions", "current_time_reminder", "image_resize_notice",
        "agent_message_board_notification", "guardian_context_omission", "hook_prompt", "INSTRUCTIONS",
    }),
    "claude-code": frozenset({
        "ide_opened_file", "ide_selection", "ide_diagnostics", "teammate-message", "agent-message", "cross-session-message",
        "task-notification", "command-name", "command-message", "command-args", "local-command-stdout",
        "local-command-stderr", "local-command-caveat", "bash-input", "bash-stdout", "bash-stderr", "user-memory-input",
        "user-prompt-submit-hook", "tick", "fetched-web-content", "untrusted-widget-state",
    }),
    "qwen-code": frozenset({"task-notification", "state_snapshot"}),
}  # fmt: skip
_REQUEST_TAGS = {"teammate-message", "agent-message", "cross-session-message", "codex_delegation"}
"""Blocks with a request of another agent."""
_OPENING = re.compile(r"\s*<([A-Za-z][\w-]{1,50})(?: [^<>]{0,2000})?>")
_CODEX_GUIDE = re.compile(r"\s*# AGENTS\.md instructions\b[^\n]{0,5000}\n\s*(?=<INSTRUCTIONS>)")
_CODEX_EDITOR = re.compile(r"\s*# Context from my IDE setup:")
_CODEX_REQUEST = "\n## My request for Codex:"
_CODEX_IMAGE = re.compile(r"\s*(?:<image(?: [^<>]{0,5000})?>|</image>)\s*")


class SeparatedText(NamedTuple):
    """A text of the role of the user, in its two parts."""

    own: str
    """What the user wrote; empty if an agent wrote all of it."""
    requests: tuple[str, ...] = ()
    """What another agent asked for."""


def separate_contexts(text: str, agent: TraceFormat) -> SeparatedText:
    """Separate the contexts of an agent from the user's words: the complete blocks of its tags at the start of the text.

    A tag that is not closed, or that stands later in the text, is the user's own.
    """
    tags = _TAGS.get(agent, frozenset())
    requests: list[str] = []
    position = 0
    if agent == "codex":
        guide = _CODEX_GUIDE.match(text)
        position = guide.end() if guide else 0
        editor = _CODEX_EDITOR.match(text)
        start = text.find(_CODEX_REQUEST, editor.end()) if editor else -1
        position = start + len(_CODEX_REQUEST) if start >= 0 else position
        if _CODEX_IMAGE.fullmatch(text):
            return SeparatedText("")
    while (opening := _OPENING.match(text, position)) and opening[1] in tags:
        end = text.find(f"</{opening[1]}", opening.end())
        close = text.find(">", end) if end >= 0 else -1
        if close < 0:
            break
        if opening[1] in _REQUEST_TAGS:
            requests.append(text[opening.end() : end].strip())
        position = close + 1
    return SeparatedText(text[position:].strip(), tuple(requests))


_MAX_CHARS = 500
_MAX_CALLS = 20
_QUESTION_TOOLS = {
    "askuserquestion", "ask_user_question", "request_user_input", "question", "exitplanmode", "exit_plan_mode", "ask_user",
}  # fmt: skip


class PendingWork:
    """Follows the turns of a session: a turn begins with a request and ends with the agent's last message."""

    def __init__(self) -> None:
        self._request = ""
        """The request that no reply follows yet."""
        self._is_open = False
        """The turn has not ended."""
        self._start = 0
        """Position of the first call of the last reply: calls of earlier replies do not wait any more."""

    def add_request(self, text: str, number_of_calls: int) -> None:
        self._request, self._is_open, self._start = text, True, number_of_calls

    def start_reply(self, number_of_calls: int) -> None:
        self._start = number_of_calls

    def add_call(self) -> None:
        self._request, self._is_open = "", True

    def end(self, number_of_calls: int) -> None:
        self._request, self._is_open, self._start = "", False, number_of_calls

    def describe(self, calls: Sequence[RecordedCall]) -> tuple[str, ...]:
        """Describe the open calls and requests, one per line; empty if the last turn has ended."""
        if not self._is_open:
            return ()
        if self._request:
            return (f"request without a reply: {_shorten(self._request)}",)
        waiting = describe_open_calls(calls[self._start :])
        if not waiting and calls[-1:] and calls[-1].tool == "finish":
            return ()
        return waiting or ("turn without an end: the agent had not replied to the last result",)


def describe_open_calls(calls: Sequence[RecordedCall]) -> tuple[str, ...]:
    """Describe the calls without a result, each on one line."""
    waiting = [call for call in calls if call.result is None and call.tool != "finish"]
    return tuple(map(_describe_call, waiting[:_MAX_CALLS]))


def _describe_call(call: RecordedCall) -> str:
    if call.tool == "shell":
        command = call.arguments.get("command", "")
        return f"command that runs or waits for permission: {_shorten(command)}"
    arguments = _shorten(json.dumps(dict(call.arguments), ensure_ascii=False))
    if call.tool.lower() in _QUESTION_TOOLS:
        return f"question without an answer: {arguments}"
    return f"call without a result: {call.tool} {arguments}"


def _shorten(text: str) -> str:
    line = " ".join(text[: 4 * _MAX_CHARS].split())
    return line if len(line) <= _MAX_CHARS else f"{line[: _MAX_CHARS - 1]}…"


_OWN_TOOLS = ("shell", "editor", "finish")
_REMINDER = re.compile(r"^<system-reminder>(?>.*?(</system-reminder>)\s*|.*)", re.S | re.M)


class ToolResult(NamedTuple):
    """The result of a tool call of an external agent, parsed from what its model saw."""

    output: str
    """Output of the program, without the lines that the agent adds."""
    exit_code: int | None = None
    refused: bool = False
    """The agent rejected the call without executing it."""
    timed_out: bool = False
    """A time limit or the user ended the command."""
    process_id: str | None = None
    """The agent's name for the process that still runs."""


class _EarlyResult(NamedTuple):
    """A result for which no call was open."""

    number_of_calls: int
    """Number of the calls before it."""
    add: Callable[[], None]


class SessionBuilder:
    """Collects the rows of one session; `build` returns the run."""

    def __init__(self, name: str, format_name: TraceFormat, *, keeps_directory: bool) -> None:
        self.name = name
        self.format_name: TraceFormat = format_name
        self.keeps_directory = keeps_directory
        self.workspace = ""
        self.model = ""
        self.agent = self.agent_version = ""
        self.uses_powershell = False
        """The shell of the agent is PowerShell."""
        self.earlier_session = ""
        """Id of the session whose file has the work before."""
        self._prompts: list[str] = []
        self._agent_requests: list[str] = []
        self._thoughts: list[str] = []
        self._has_message = False
        """One of the thoughts is a message to the user."""
        self._calls: list[RecordedCall] = []
        self._open_calls = OpenCalls()
        self._positions: dict[str, list[int]] = {}
        """Positions of the calls with each id."""
        self._early_results: dict[str, list[_EarlyResult]] = {}
        self._reply_start: int | None = None
        """Position of the first call of the current reply."""
        self._reply_id = ""
        self._directories: dict[int, str] = {}
        self._raw_arguments: dict[int, Mapping[str, Any]] = {}
        self.background = BackgroundCommands()
        self.aliases: dict[str, str] = {}
        """Commands by the names under which the agent can repeat them."""
        self._withdrawn: list[SessionBuilder] = []
        self._unknown: dict[str, int] = {}
        self._pending = PendingWork()

    @property
    def has_prompts(self) -> bool:
        return bool(self._prompts)

    def add_prompt(self, *texts: str) -> None:
        """Add a request of the user in its parts, without the reminders and contexts that the agent put into it."""
        self.separate_calls()
        separated = [separate_contexts(strip_reminders(text), self.format_name) for text in texts]
        self._agent_requests += (request for each in separated for request in each.requests)
        text = "\n".join(filter(None, (each.own for each in separated)))
        if text:
            self._prompts.append(text)
            self._pending.add_request(text, len(self._calls))

    def add_thought(self, text: str) -> None:
        """Add readable reasoning or text; it belongs to the next call."""
        if text.strip():
            self._thoughts.append(text.strip())

    def add_message(self, text: str) -> None:
        """Add a text of the agent to the user; after the last call it ends the run."""
        if text.strip():
            self.add_thought(text)
            self._has_message = True
            self.end_turn()

    def end_turn(self) -> None:
        """The agent has answered, or the user stopped it: no request and no earlier call waits."""
        self._pending.end(len(self._calls))

    def drop_summary(self) -> None:
        """Remove the latest message, with which the agent only compacted its history."""
        if self._has_message:
            self._thoughts.pop()
            self._has_message = False

    def add_call(
        self, call_id: str, name: str, arguments: Mapping[str, Any], *, cwd: str | None = None
    ) -> None:
        """Add a call with the agent's own names; `cwd` is the directory of its shell, if recorded."""
        if tool_calls.is_thought(name):
            self.add_thought(str(arguments.get("thought") or arguments.get("text") or ""))
            return
        raw_arguments = arguments
        directory = arguments.get("workdir", arguments.get("directory"))
        if isinstance(directory, str) and _is_same_directory(directory, self.workspace):
            arguments = {key: arguments[key] for key in arguments if key not in ("workdir", "directory")}
        if self.uses_powershell:
            arguments = {
                key: write_powershell_command(value)
                if key in ("cmd", "command") and isinstance(value, str)
                else value
                for key, value in arguments.items()
            }
        tool, normalized = tool_calls.normalize_call(name, arguments)
        text = join_text(*self._thoughts, _write_call(tool, normalized))
        self._thoughts.clear()
        self._has_message = False
        self._open_calls.add(call_id, len(self._calls))
        self._positions.setdefault(call_id, []).append(len(self._calls))
        self._raw_arguments[len(self._calls)] = raw_arguments
        if self._reply_start is None:
            self._reply_start = len(self._calls)
        if cwd is not None:
            self._directories[len(self._calls)] = cwd
        self._calls.append(RecordedCall(text, tool, normalized, None))
        self._pending.add_call()

    def add_unknown(self, form: str) -> None:
        """Count an item or a mode that the reader cannot understand. Calls of unknown tools are counted without it."""
        self._unknown = count_forms([form], self._unknown)

    def find_call(self, call_id: str) -> RecordedCall | None:
        """The call that a result with this id answers."""
        position = self._open_calls.find(call_id)
        return None if position is None else self._calls[position]

    def add_result(self, call_id: str, text: str, result: ToolResult) -> None:
        """Add the result of a call, with the text that the model saw."""
        position = self._open_calls.close(call_id)
        self.separate_calls()
        if position is None:
            self.add_early_result(call_id, lambda: self.add_result(call_id, text, result))
            return
        recorded = RecordedResult(
            text,
            exit_code=result.exit_code,
            refused=result.refused,
            timed_out=result.timed_out,
            cwd=self._directories.get(position),
            output=result.output,
        )
        call = self._calls[position]
        self._calls[position] = call._replace(result=recorded)
        command = call.arguments.get("command", "") if call.tool == "shell" else ""
        is_input = call.arguments.get("is_input") == "true"
        self.background.add_result(
            self._raw_arguments.pop(position, {}),
            CommandResult("" if is_input else command, result.process_id, result.refused),
        )

    def add_early_result(self, call_id: str, add: Callable[[], None]) -> None:
        """Keep a result that answers no open call; `add` adds it once its call is there.

        Agents write a result before its call at times. It counts if later calls with its id wait for as many results.
        """
        self.separate_calls()
        early = self._early_results.setdefault(call_id, [])
        early.append(_EarlyResult(len(self._calls), add))

    def _add_early_results(self) -> None:
        for call_id, early in self._early_results.items():
            waiting = [
                position
                for position in self._positions.get(call_id, ())
                if self._calls[position].result is None
            ]
            if len(waiting) != len(early):
                continue
            for position, result in zip(waiting, early, strict=True):
                if result.number_of_calls <= position:
                    self._open_calls.start_reply()
                    self._open_calls.add(call_id, position)
                    result.add()
        self._early_results.clear()

    def start_reply(self, reply_id: str = "") -> None:
        """Begin a reply, unless its id is that of the current one; the next usage belongs to its first call."""
        if not reply_id or reply_id != self._reply_id:
            self._reply_start = None
            self._pending.start_reply(len(self._calls))
            self.separate_calls()
        self._reply_id = reply_id

    def separate_calls(self) -> None:
        """Let a later call replace an open one with its id: only calls in a row wait together."""
        self._open_calls.start_reply()

    def add_usage(self, usage: Usage | None) -> None:
        """Add the tokens of the current reply; those of a reply without calls are left out."""
        if usage is not None and self._reply_start is not None:
            position = self._reply_start
            self._calls[position] = self._calls[position]._replace(usage=usage)

    def start_withdrawn(self) -> SessionBuilder:
        """Return a builder for the rows that the user withdrew: only their calls and running commands are kept."""
        other = SessionBuilder(self.name, self.format_name, keeps_directory=self.keeps_directory)
        other.workspace = self.workspace
        self._withdrawn.append(other)
        return other

    def build(self) -> RecordedRun:
        """The run; a message after the last call finishes it."""
        for each in (self, *self._withdrawn):
            each._add_early_results()
        calls = list(self._calls)
        if self._has_message:
            message = "\n\n".join(self._thoughts)
            calls.append(RecordedCall(message, "finish", {"message": message}, None))
        return RecordedRun(
            id=self.name,
            format=self.format_name,
            calls=calls,
            # A teammate of another agent may have no request of the user at all.
            task=join_requests(self._prompts or self._agent_requests[:1]),
            model=self.model,
            agent=self.agent,
            agent_version=self.agent_version,
            workspace=to_directory(self.workspace),
            keeps_directory=self.keeps_directory,
            running=tuple(command for each in (self, *self._withdrawn) for command in each.background),
            earlier_session=self.earlier_session,
            pending=self._pending.describe(self._calls),
            withdrawn=tuple(call for each in self._withdrawn for call in each._calls),
            unknown_items=sum_forms(each._unknown for each in (self, *self._withdrawn)),
        )


def _is_same_directory(first: str, second: str) -> bool:
    return normalize_path(first) == normalize_path(second)


def _write_call(tool: str, arguments: Mapping[str, str]) -> str:
    if tool in _OWN_TOOLS:
        return write_action(Action(tool, dict(arguments)))
    return write_action(Action(tool, {"arguments": json.dumps(arguments)}))


def strip_reminders(text: str) -> str:
    """Remove the reminders that an agent adds to texts of the user."""
    return (
        _REMINDER.sub(lambda found: "" if found[1] else found[0], text)
        if "</system-reminder>" in text
        else text
    ).strip()


def number_lines(text: str, first: int = 1) -> str:
    """The lines of a text with their numbers and tabs, as most agents show a file."""
    lines = text.removesuffix("\n").split("\n")
    return "\n".join(f"{first + number}\t{line}" for number, line in enumerate(lines))


def parse_count(value: Any) -> int | None:
    """A count of tokens; None for anything but a natural number."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def parse_usage_parts(new: Any, cached: Any, written: Any, output: Any) -> Usage | None:
    """The tokens of a reply; the prompt is the sum of new, cached and newly cached tokens. None without counts."""
    counts = [parse_count(value) for value in (new, cached, written, output)]
    if counts[0] is None and counts[3] is None:
        return None
    prompt = sum(count or 0 for count in counts[:3])
    return Usage(prompt_tokens=prompt, cached_tokens=counts[1], completion_tokens=counts[3])


def parse_arguments(value: Any) -> Mapping[str, Any]:
    """Arguments of a call: an object, or its JSON; empty if unreadable."""
    if isinstance(value, str):
        try:
            value = parse_json(value, strict=False)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def parse_exit_code(value: Any) -> int | None:
    """An exit code of a decoded JSON value; None for anything but an integer of 32 bits."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**32 else None
