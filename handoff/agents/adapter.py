"""The contract of an external agent: what the runtime must know to run it, pause it and hand its session over."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Protocol

from langchain_core.messages import BaseMessage
from pydantic import Field

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.recordings.sessions import ToolResult
from langgraph_takeover.handoff.trace.conversation import History
from langgraph_takeover.handoff.trace.events import Action

Api = Literal["responses", "messages", "chat"]
"""The wire format of the agent's model requests: OpenAI Responses, Anthropic Messages, OpenAI chat completions."""
Asker = Literal["main", "child", "aside"]
"""Who sent a request: the main conversation, a subagent, or a side task such as naming the session."""
RESUME_MESSAGE = "Continue from where you left off."
"""The message that resumes a session after a restore. No model sees it."""
SESSION_ID = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$"
"""Pattern of session ids: an id cannot be an option, a path, or a glob."""
MAX_OUTPUT_BYTES = 200_000
"""The runtime reads this much of an agent's standard output: one half from its start, one from its end."""
_MAX_MESSAGE_CHARS = 4000
_VERSION = re.compile(r"\d{1,5}\.\d{1,5}\.\d{1,5}")


class UnknownAgentProgramError(TakeoverError, LookupError):
    """No adapter has that name."""

    def __str__(self) -> str:
        return str(self.args[0])


class PackagedProgram(Frozen):
    """Where the files of an npm package hold the real program."""

    directory: str
    """Glob of the directory to mount, below the package or the `node_modules` that holds it; empty: the package."""
    file: str
    """The program below that directory."""


MESSAGE, SESSION = "{message}", "{session}"
"""Where the message and the id of the session stand in a `TerminalCommand`."""


class TerminalCommand(Frozen):
    """How a person starts the agent in a terminal: the arguments after the program's name."""

    start: tuple[str, ...] = (MESSAGE,)
    resume: tuple[str, ...] = ()
    """Resumes a session with a message. Empty if the agent cannot resume a session that was written as files."""
    reopen: tuple[str, ...] = ()
    """Opens a session without a message."""

    def fill(self, message: str, session_id: str | None = None) -> tuple[str, ...]:
        """Return the arguments that start the agent, in a session if one is named.

        The message becomes neither an option nor a slash command.
        """
        text = f"Task: {message}" if message.startswith(("-", "/")) else message
        values = {MESSAGE: text, SESSION: session_id or ""}
        return tuple(values.get(each, each) for each in (self.resume if session_id else self.start))


class ProgramFiles(Frozen):
    """Where an agent's program lies on this host, and which versions are tested."""

    executable: str
    """Name of the command on PATH."""
    packaged: tuple[PackagedProgram, ...] = ()
    """Where the real program lies if the command is a script that starts it, tried in order. A script of Node.js that
    is the program itself needs none: its package is mounted, with the packages that it depends on."""
    interpreter: Literal["", "node", "python"] = ""
    """The interpreter that runs the program; mounted beside it. Empty for a native program. With `python`, the program
    is the interpreter of the virtual environment that holds the command."""
    version_argv: tuple[str, ...] = ("--version",)
    """Arguments that make the program print its version."""
    address_space_mb: int = 4096
    """Smallest `memory_mb` of a sandbox that limits the address space, because the host has no memory cgroups."""
    install: str
    """The command that installs the program."""
    terminal: TerminalCommand = TerminalCommand()
    """The command of `handoff continue` in a plain checkout."""
    oldest: str
    newest: str
    """The tested range of versions; a newer one runs with a warning, an older one is refused."""

    def describe_untested(self, agent: str, version: str) -> str:
        """Return a sentence that names the agent and its version if it is outside the tested range; empty otherwise.

        Also empty for a version that is not three numbers.
        """
        match = _VERSION.match(version)
        if match is None:
            return ""
        numbers = tuple(map(int, match[0].split(".")))
        for bound, word in ((self.oldest, "older"), (self.newest, "newer")):
            tested = tuple(map(int, bound.split(".")))
            if numbers < tested if word == "older" else numbers > tested:
                return (
                    f"{agent} {match[0]} is {word} than the tested {bound}: it may have calls and session rows that this "
                    "version of Takeover does not know"
                )
        return ""


class Launch(Frozen):
    """One start of an agent in a sandbox."""

    program: tuple[str, ...]
    """The command line of the program inside, without arguments."""
    home: str
    workspace: str
    port: int
    """Port of the bridge at 127.0.0.1."""
    model: str
    provider: str = "bridge"
    """The name of the model's provider in the agent's own settings."""
    message: str
    """The task of a new session; the next message of a resumed one."""
    session_id: Annotated[str, Field(pattern=SESSION_ID)] | None = None
    """The session to resume; None starts a new one."""
    started_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    """Time of the start. New session ids and the times in a written session depend on it."""


class AgentCommand(Frozen):
    """The command line that starts the agent. `stdin` is its standard input, which is how long texts are passed."""

    argv: tuple[str, ...]
    stdin: str = ""


class Setup(Frozen):
    """Files below the home directory and environment variables that an agent needs in a sandbox."""

    files: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}


class NativeCall(Frozen):
    """A tool call in an agent's own terms. A custom call has one text argument, `input`.

    `namespace` is that of Codex's tools from an MCP server, such as `mcp__takeover`.
    """

    name: str
    arguments: Mapping[str, Any]
    is_custom: bool = False
    namespace: str = ""


class ConvertedEvent(Frozen):
    """What became of one event of a history in a native session."""

    event: int = Field(ge=0)
    outcome: Literal["converted", "shortened", "dropped"]
    reason: str = ""


class NativeSession(Frozen):
    """A session in an agent's own format: files below its home directory, and an account of every event."""

    session_id: str
    files: Mapping[str, str]
    account: tuple[ConvertedEvent, ...]


class AgentOutput(Frozen):
    """What an agent's standard output says: its session, and how its run ended."""

    session_id: str | None = None
    is_complete: bool = False
    """Whether the agent ended its turn by itself and without an error."""
    message: str = ""
    """Its last message, or the error."""
    call_exit_codes: Mapping[str, int] = {}
    """Exit codes of shell commands by the ids of their calls, of an agent that does not show them to its model."""

    @classmethod
    def from_untrusted(
        cls,
        session_id: object,
        message: str,
        *,
        is_complete: bool,
        exit_code: int | None = None,
        call_exit_codes: Mapping[str, int] | None = None,
    ) -> AgentOutput:
        """Build an output from values that the agent wrote: an invalid session id is dropped, a long message shortened.

        A run that ended with another `exit_code` than 0 is not complete.
        """
        return cls(
            session_id=session_id if isinstance(session_id, str) and is_session_id(session_id) else None,
            is_complete=is_complete and exit_code in (0, None),
            message=message[:_MAX_MESSAGE_CHARS],
            call_exit_codes=call_exit_codes or {},
        )


class AgentAdapter(Protocol):
    """One kind of external agent. All members are pure: they touch no file, start no program, and read no clock."""

    name: str
    api: Api
    program: ProgramFiles

    def setup(self, launch: Launch) -> Setup:
        """Return the files and variables of a start: the bridge as its only endpoint, no approvals, no updates."""

    def command(self, launch: Launch) -> AgentCommand:
        """Return the command line that starts a session, or resumes one."""

    def classify(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Asker:
        """Return who sent a request; header names are in lower case."""

    def strip_markers(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the conversation without what the agent adds when it resumes."""

    def session_glob(self, session_id: str, workspace: str) -> str:
        """Return a glob, relative to the home directory, for the file that holds a session.

        Empty if the agent keeps its sessions in a database, or if the id is invalid.
        """

    def write_call(self, action: Action, workspace: str) -> NativeCall | None:
        """Return an action as a call of the agent's own tools; None if it is a reply without a call, as `finish` is."""

    def write_session(self, history: History, launch: Launch) -> NativeSession:
        """Return a history as a session that `command` can resume."""

    def read_result(
        self, name: str, arguments: Mapping[str, Any], text: str, *, is_error: bool
    ) -> ToolResult:
        """Read the result of a tool call, as the agent shows it to its model; `is_error` is the API's own mark.

        The exit code is that of a shell command; None if the agent does not show it, and for other tools.
        """

    def read_output(self, stdout: str, exit_code: int | None) -> AgentOutput:
        """Read the standard output of a run; `exit_code` is None while it runs.

        Of a long output, the middle is missing: see `MAX_OUTPUT_BYTES`. The session id must be known at the first
        model request, or no crash can be resumed. `call_exit_codes` are read after each turn whose commands show none.
        """


def is_session_id(text: str) -> bool:
    """Return whether a text can be the id of a session."""
    return re.fullmatch(SESSION_ID, text) is not None and "\n" not in text


def escape_slash_command(message: str) -> str:
    """Return a message that no agent takes for one of its slash commands, such as `/clear`."""
    return f"Task:\n{message}" if message.lstrip().startswith("/") else message


def resolve_path(workspace: str, path: str) -> str:
    """Return a path of an action as an absolute one."""
    return str(PurePosixPath(workspace) / path)
