"""The process of an external agent in a sandbox, paused at its model requests, and its files."""

from __future__ import annotations

import contextlib
import re
import shlex
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langgraph_takeover.handoff.agents.adapter import (
    MAX_OUTPUT_BYTES,
    AgentAdapter,
    AgentOutput,
    Launch,
    NativeSession,
    is_session_id,
)
from langgraph_takeover.handoff.agents.codex_rollouts import Payload
from langgraph_takeover.handoff.agents.native_sessions import TELEMETRY_MARK, read_json_lines
from langgraph_takeover.handoff.agents.session_files import STORAGES
from langgraph_takeover.handoff.recordings.recorded_run import to_mapping
from langgraph_takeover.nodes.context.agent_program import ExternalAgent, ExternalAgentError
from langgraph_takeover.nodes.external.apis import write_reply
from langgraph_takeover.nodes.external.apis.wire_turns import count_results, limit_usage
from langgraph_takeover.nodes.external.bridge import Bridge
from langgraph_takeover.nodes.external.bridge_limits import find_agent_peers
from langgraph_takeover.nodes.external.call_results import CallReader, runs_script
from langgraph_takeover.nodes.external.http import HeldRequest
from langgraph_takeover.nodes.session.observation import ExternalTurn, SideWork
from langgraph_takeover.sandbox.interface import FileAccessError, Sandbox

if TYPE_CHECKING:
    from langgraph_takeover.handoff.trace.events import Usage
    from langgraph_takeover.nodes.external.apis import ModelRequest
    from langgraph_takeover.nodes.model.calls import CallCount

_START_SCRIPT = """\
cd {workspace} || exit 1
export HOME={home}
unset {variables} XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME
{exports}
{argv} <{files}/in >{files}/out 2>{files}/err
echo $? >{files}/exit_code
"""
_TIMEOUT_S = 5
_REMOVAL_S = 60
_SETTLE_S, _SETTLE_POLL_S = 5.0, 0.02
_BATCH = 200
"""Files that one command removes."""
_MAX_SESSION_BYTES = 20_000_000
_MAX_ADDED_BYTES = 4_000_000
_SAFE_ID = re.compile(r"[\w.:-]{1,200}")
_IS_FILE = '[ -f "$file" ] && [ ! -L "$file" ]'


def build_start_files(adapter: AgentAdapter, launch: Launch, directory: str) -> dict[str, str]:
    """Return the files of a start by their absolute paths: the agent's settings, and the script `start` in `directory`."""
    setup, command = adapter.setup(launch), adapter.command(launch)
    script = _START_SCRIPT.format(
        workspace=shlex.quote(launch.workspace),
        home=shlex.quote(launch.home),
        variables=" ".join(each.variable for each in STORAGES.values() if each.variable),
        exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in setup.environment.items()),
        argv=shlex.join(command.argv),
        files=shlex.quote(directory),
    )
    files = {f"{launch.home}/{path}": text for path, text in setup.files.items()}
    return files | {f"{directory}/in": command.stdin, f"{directory}/start": script, f"{directory}/out": ""}


def write_files(sandbox: Sandbox, home: str, files: Mapping[str, str]) -> None:
    """Write files below a home directory, and replace links, pipes and files in their way. Raises FileAccessError."""
    directories = {
        each for path in files for each in PurePosixPath(path).parents if each.is_relative_to(home)
    }
    steps = [f"[ -d {shlex.quote(home)} ] || {_build_removal([home])}"]
    for path in map(str, sorted(directories - {PurePosixPath(home)})):
        quoted = shlex.quote(path)
        # A link to a directory could lead into the repository.
        is_usable = f"[ -d {quoted} ] && [ ! -L {quoted} ] && chmod u+rwx {quoted}"
        steps.append(f"{{ {is_usable}; }} || {_build_removal([path])}")
    sandbox.inspect("\n".join(steps))
    for start in range(0, len(files), _BATCH):
        sandbox.inspect(_build_removal(list(files)[start : start + _BATCH]))
    for path, text in files.items():
        sandbox.write_file(path, text.encode())


def _build_removal(paths: Sequence[str]) -> str:
    """Return a command that removes files and directories, also those that were made read-only."""
    remove, quoted = f"timeout {_REMOVAL_S} rm -rf --", shlex.join(paths)
    return f"{{ {remove} {quoted} || {{ chmod -R u+rwX -- {quoted}; {remove} {quoted}; }}; }} 2>/dev/null"


def prepare_directory(sandbox: Sandbox, path: str, names: Sequence[str]) -> None:
    """Remove everything that a command may have put in the place of a directory, or of files in it."""
    directory = shlex.quote(path)
    files = shlex.join(f"{path}/{name}" for name in names)
    sandbox.inspect(
        f"{{ [ -d {directory} ] && [ ! -L {directory} ]; }} || rm -rf -- {directory}; rm -rf -- {files}"
    )


def read_ends(sandbox: Sandbox, path: str, size: int) -> str:
    """Return the first and the last `size` bytes of a regular file; nothing for anything else."""
    # One open file: what the first command has read, the second does not repeat.
    ends = f'{{ head -c {size}; echo; tail -c {size}; }} <"$file"'
    return _inspect(sandbox, f"file={shlex.quote(path)}; {_IS_FILE} && {ends}")


def measure_session(sandbox: Sandbox, home: str, pattern: str) -> int:
    """Return the bytes of a session's files. `pattern` is relative to the agent's home."""
    size = _inspect(sandbox, f"{_build_session(home, pattern)} | wc -c").strip()
    return int(size) if size.isdigit() else 0


def read_session_rows(sandbox: Sandbox, home: str, pattern: str, start: int) -> str:
    """Return the text added to a session's files after `start` bytes, at most its first 4 MB."""
    return _inspect(
        sandbox, f"{_build_session(home, pattern)} | tail -c +{start + 1} | head -c {_MAX_ADDED_BYTES}"
    )


def _build_session(home: str, pattern: str) -> str:
    return f'for file in {shlex.quote(home)}/{pattern}; do {_IS_FILE} && cat -- "$file"; done'


def wait_for_result(sandbox: Sandbox, home: str, pattern: str, call_id: str, count: int = 1) -> None:
    """Wait a few seconds for the result of a call in the session file, which may lag behind the agent's request.

    `count` is the number of results with this id so far, because endpoints use ids again.
    """
    deadline = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline and not _has_results(sandbox, home, pattern, call_id, count):
        time.sleep(_SETTLE_POLL_S)


def _has_results(sandbox: Sandbox, home: str, pattern: str, call_id: str, count: int) -> bool:
    """Return whether the session file contains so many results with an id. `pattern` is relative to the agent's home.

    An id that cannot be searched counts as found.
    """
    if not _SAFE_ID.fullmatch(call_id):
        return True
    tail = f'{_IS_FILE} && tail -c {_MAX_SESSION_BYTES} -- "$file"'
    # Twice each: the call has the same id as its result. As text: NUL bytes would make the file a binary one.
    script = (
        f"for file in {shlex.quote(home)}/{pattern}; do {tail}; done | grep -avF -- {shlex.quote(TELEMETRY_MARK)} | "
        f"grep -aoF -- {shlex.quote(call_id)} | head -n {2 * count} | wc -l"
    )
    return _inspect(sandbox, script).strip() == str(2 * count)


def _inspect(sandbox: Sandbox, script: str) -> str:
    return sandbox.inspect(f"timeout -s KILL {_TIMEOUT_S} sh -c {shlex.quote(script)} 2>/dev/null").output


_ERROR = re.compile(r"\s*(?:Uncaught )?[\w.]*(?:Error|Exception|error)\b[^:]{0,100}:.*\S")
_MAX_CHARS = 300


def find_error_line(text: str) -> str:
    """Return the last line that names an error, or else the last line that is not blank.

    Node.js prints its version, and Python the line of code, after or before the error. Control characters become `?`.
    """
    lines = [line.strip()[:_MAX_CHARS] for line in text.splitlines() if line.strip()]
    lines = ["".join(each if each.isprintable() else "?" for each in line) for line in lines]
    return next((line for line in reversed(lines) if _ERROR.match(line)), lines[-1] if lines else "")


AnswerSide = Callable[["ModelRequest", "CallCount"], AIMessage]
_PORT = 8377
_FILES = ".takeover"
"""Directory below the agent's home with its standard streams."""
_FILE_NAMES = ("in", "out", "err", "start", "exit_code")
_POLL_S, _SLICE_S = 0.3, 0.1
_COMMAND_TIMEOUT_S = 30.0
_PLAIN_ID = re.compile(r"[\w.:-]{1,200}", re.ASCII)  # JSON writes it as it is.
_SIDE_S = 120.0
_NO_SIDE_WORK = SideWork()
_END_S = 1.0
"""Time to end after a reply without calls. An agent rarely sends another request then, but another process may."""


class ExternalProcess:
    """One agent process. Between two calls it waits for the reply to its pending request, `held`."""

    def __init__(
        self,
        sandbox: Sandbox,
        agent: ExternalAgent,
        answer_side: AnswerSide,
        *,
        passes_on: bool = False,
        side_requests: int = 0,
        earlier: SideWork = _NO_SIDE_WORK,
    ) -> None:
        self.sandbox = sandbox
        self.agent = agent
        self.held: HeldRequest | None = None
        self.session_id = ""
        self.is_ended = False
        self.last_turn_s = 0.0
        self.account: Mapping[str, int] = {}
        """What became of the events of a history that was written as the agent's session."""
        self._budget: Callable[[Sequence[Usage]], bool] = lambda usages: True
        self._answer_side = answer_side
        self._passes_on = passes_on  # to the vendor's own endpoint, unchanged
        self._earlier = earlier
        """Side work of a process before this one, which no turn has counted."""
        self._side_requests = side_requests + len(earlier.usages)
        self._taken: tuple[Usage, ...] = ()
        """What the budget does not include yet."""
        self._expected: tuple[str, ...] = ()
        """Ids of the calls of the last reply."""
        self._answered: Counter[str] = Counter()
        """Ids of the calls whose results the next request must contain."""
        self._bridge: Bridge | None = None
        self._has_asked = False
        self._pid = 0
        self._calls = CallReader(
            agent.adapter, lambda: self._read_output().call_exit_codes, sandbox.workspace
        )
        self._home = sandbox.inspect('printf %s "$HOME"').output.strip() or "/root"
        prepare_directory(sandbox, f"{self._home}/{_FILES}", _FILE_NAMES)

    @property
    def is_waiting(self) -> bool:
        """Whether the agent waits for the reply to its pending request."""
        return self.held is not None and self.held.is_open

    def make_launch(self, message: str = "", session_id: str | None = None) -> Launch:
        """Return the description of a start in this sandbox."""
        return Launch(
            program=self.agent.program.argv,
            home=self._home,
            workspace=self.sandbox.workspace,
            port=_PORT,
            model=self.agent.model_name,
            message=message,
            session_id=session_id,
        )

    def start(self, launch: Launch, session: NativeSession | None, *, timeout_s: float) -> None:
        """Start the agent, and wait for its first request. `session` is written before.

        Raises ExternalAgentError if the agent ends before, or does not ask in time.
        """
        files = f"{self._home}/{_FILES}"
        own = {f"{self._home}/{path}": text for path, text in (session.files if session else {}).items()}
        self.write_files({**build_start_files(self.agent.adapter, launch, files), **own})
        quoted = shlex.quote(files)
        with contextlib.ExitStack() as stack:
            # Peers wait in its queue until the agent's process is known.
            listener = stack.enter_context(self.sandbox.listen(_PORT))
            self._pid = self._start_program(quoted)
            self._bridge = self._open_bridge(listener)
            stack.pop_all()
        self._wait(timeout_s)
        output = self._read_output()
        if self.held is None:
            self.close()
            reason = "ended" if self.is_ended else f"did not ask its model within {timeout_s:.0f} s"
            detail = find_error_line(output.message) or find_error_line(self._read_file("err"))
            raise ExternalAgentError(
                f"{self.agent.name} {self.agent.program.version} {reason}: {detail or 'no output'}"
            )
        self.session_id = output.session_id or launch.session_id or ""

    def _start_program(self, quoted: str) -> int:
        """Start the agent with its files in a directory, and return its process id inside."""
        result = self.sandbox.run(
            f"(setsid sh {quoted}/start </dev/null >/dev/null 2>&1 & echo $!)",
            timeout_s=_COMMAND_TIMEOUT_S,
        )
        if not result.output.strip().isdigit():
            raise ExternalAgentError(
                f"{self.agent.name} could not be started in the sandbox: {find_error_line(result.output)}"
            )
        return int(result.output)

    def write_files(self, files: Mapping[str, str]) -> None:
        """Write files below the agent's home, and replace existing files. Raises ExternalAgentError."""
        try:
            write_files(self.sandbox, self._home, files)
        except FileAccessError as error:
            raise ExternalAgentError(
                f"{self.agent.name}: its files cannot be written in the sandbox: {error} (make its home writable)"
            ) from error

    def _open_bridge(self, listener: socket.socket) -> Bridge:
        adapter = self.agent.adapter
        peers = find_agent_peers(listener, self._pid)
        return Bridge(
            listener,
            api=adapter.api,
            classify=lambda request, headers: adapter.classify(request.body, headers),
            is_expected=self._is_expected,
            may_be_expected=self._may_be_expected,
            answer_side=self._answer_side,
            has_budget=lambda usages: self._budget([*self._taken, *self._earlier.usages, *usages]),
            side_requests=self._side_requests,
            model_name=self.agent.model_name,
            passes_on=self._passes_on,
            is_agent=peers.owns if peers is not None else lambda peer: True,
        )

    def list_messages(self) -> list[BaseMessage]:
        """Return the conversation of the pending request, without what the agent adds when it resumes."""
        assert self.held is not None
        return list(self.agent.adapter.strip_markers(self.held.request.messages))

    def take_turn(self, reply: AIMessage, *, timeout_s: float) -> ExternalTurn:
        """Deliver the model's reply, and wait until the agent asks again or ends.

        After `timeout_s` the agent is killed.
        """
        assert self.held is not None
        assert self._bridge is not None
        known, started = len(self.list_messages()), time.monotonic()
        calls = [*reply.tool_calls, *reply.invalid_tool_calls]
        self._expected = tuple(str(call["id"]) for call in calls)
        self._answered = count_results(self.held.request) + Counter(set(self._expected))
        self._has_asked = True
        start = self._measure_session() if runs_script(calls) else 0
        self.held.reply(write_reply(self.held.request, limit_usage(reply)))
        self.held = None
        self._wait(timeout_s)
        self.last_turn_s = time.monotonic() - started
        has_timed_out = self.held is None and not self.is_ended
        if has_timed_out:
            self.end()
        side = self.take_side_work(is_final=self.held is None)
        if self.held is None:
            output = self._read_output()
            self.close()
            message = f"[stopped after {timeout_s:.0f} s]" if has_timed_out else output.message
            return ExternalTurn(
                results=self._calls.read(reply, []) if has_timed_out else (),
                is_ended=True,
                is_complete=output.is_complete and not has_timed_out,
                end_message=message,
                session_id=self.session_id,
                side=side,
            )
        messages = self.list_messages()
        self.session_id = self.session_id or self._read_output().session_id or ""
        added = [each.text for each in messages[known + 1 :] if isinstance(each, HumanMessage)]
        return ExternalTurn(
            results=self._calls.read(reply, messages, lambda: self._read_added_rows(start)),
            messages=tuple(added),
            session_id=self.session_id,
            running=self._calls.running,
            account=self.account,
            side=side,
        )

    @property
    def _session_pattern(self) -> str:
        return (
            self.agent.adapter.session_glob(self.session_id, self.sandbox.workspace)
            if self.session_id
            else ""
        )

    def _measure_session(self) -> int:
        pattern = self._session_pattern
        return measure_session(self.sandbox, self._home, pattern) if pattern else 0

    def _read_added_rows(self, start: int) -> tuple[Payload, ...]:
        """Return the rows that were added to the session's file after `start` bytes."""
        pattern = self._session_pattern
        added = read_session_rows(self.sandbox, self._home, pattern, start) if pattern else ""
        return tuple((str(row.get("type")), to_mapping(row.get("payload"))) for row in read_json_lines(added))

    def use_budget(self, budget: Callable[[Sequence[Usage]], bool]) -> None:
        """Set what decides whether side requests may ask the model, after these uses since the last turn."""
        self._budget, self._taken = budget, ()

    def take_side_work(self, *, is_final: bool = False) -> SideWork:
        """Return the side requests since the last call; finally, also those without an answer."""
        work, self._earlier = self._earlier, _NO_SIDE_WORK
        if self._bridge is not None:
            work += self._bridge.take_side_work(is_final=is_final)
        self._taken += work.usages
        return work

    def end(self) -> None:
        """Kill the agent and everything that it started."""
        self.sandbox.run(f"kill -KILL -- -{self._pid} 2>/dev/null; sleep 0.05", timeout_s=_COMMAND_TIMEOUT_S)
        self.is_ended = True

    def close(self) -> None:
        """Close the bridge. Idempotent."""
        if self._bridge is not None:
            self._bridge.close()

    def require_results(self, call_ids: frozenset[str]) -> None:
        """Raise ExternalAgentError unless the pending request contains the results of these calls."""
        assert self.held is not None
        if missing := call_ids - count_results(self.held.request).keys():
            self.close()
            raise ExternalAgentError(
                f"{self.agent.name}: its session lacks {len(missing)} of {len(call_ids)} results of the earlier "
                "work, so it cannot continue exactly (resume from an earlier checkpoint)"
            )

    def _is_expected(self, request: ModelRequest) -> bool:
        return count_results(request) >= self._answered

    def _may_be_expected(self, body: bytes) -> bool:
        """Whether a body contains the ids of the last calls, as the next request does."""
        return all(each.encode() in body for each in self._expected if _PLAIN_ID.fullmatch(each))

    def _wait(self, timeout_s: float) -> None:
        """Wait until the agent asks or ends, or the time is over. Limits of the sandbox hold meanwhile."""
        assert self._bridge is not None
        deadline = time.monotonic() + timeout_s
        grace_s = _END_S if self._has_asked and not self._expected else 0.0
        while (remaining := deadline - time.monotonic()) > 0:
            held = self._bridge.wait(min(_POLL_S, remaining))
            if not self._is_running(_SLICE_S if held is None else grace_s):
                self.is_ended = True
                return
            if held is not None and held.is_open:
                self.held = held
                self._settle()
                return

    def _is_running(self, seconds: float) -> bool:
        """Whether the agent runs, and still does after some seconds.

        A command in the agent's shell, because the sandbox checks its limits while one runs.
        """
        check = f"kill -0 {self._pid} 2>/dev/null"
        pauses = round(seconds / _SLICE_S)
        command = " && ".join([check, *([f"sleep {_SLICE_S}", check] * pauses)])
        return self.sandbox.run(command, timeout_s=_COMMAND_TIMEOUT_S).exit_code == 0

    def _settle(self) -> None:
        """Wait until the agent's session file has the last result, and no subagent's request is open."""
        assert self.held is not None
        assert self._bridge is not None
        deadline = time.monotonic() + _SIDE_S
        while self._bridge.open_side_requests and time.monotonic() < deadline:
            time.sleep(0.01)
        if not self._expected or not is_session_id(self.session_id):
            return
        if pattern := self._session_pattern:
            last = self._expected[-1]
            results = (each for each in self.held.request.messages if isinstance(each, ToolMessage))
            count = sum(each.tool_call_id == last for each in results)
            wait_for_result(self.sandbox, self._home, pattern, last, max(count, 1))

    def _read_output(self) -> AgentOutput:
        code = self._read_file("exit_code").strip()
        exit_code = int(code) if code.isdigit() else 137 if self.is_ended else None
        output: AgentOutput = self.agent.adapter.read_output(self._read_file("out"), exit_code)
        return output

    def _read_file(self, name: str) -> str:
        return read_ends(self.sandbox, f"{self._home}/{_FILES}/{name}", MAX_OUTPUT_BYTES // 2)
