"""mini-swe-agent: how to run the agent (`mini`), and its trajectories, v1 and v2."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from langgraph_takeover.handoff.agents.adapter import (
    MESSAGE,
    RESUME_MESSAGE,
    AgentCommand,
    AgentOutput,
    Api,
    Asker,
    Launch,
    NativeCall,
    NativeSession,
    ProgramFiles,
    Setup,
    TerminalCommand,
    is_session_id,
)
from langgraph_takeover.handoff.agents.native_sessions import (
    derive_uuid,
    dump_json,
    list_session_steps,
    read_json_lines,
    write_shell_command,
)
from langgraph_takeover.handoff.recordings import tool_calls
from langgraph_takeover.handoff.recordings.recorded_run import (
    RecordedCall,
    RecordedResult,
    RecordedRun,
    TraceError,
    extract_text,
    join_text,
    parse_usage,
    to_directory,
    to_id,
    to_mapping,
    to_mappings,
)
from langgraph_takeover.handoff.recordings.sessions import ToolResult, describe_open_calls, parse_arguments
from langgraph_takeover.handoff.recordings.tool_calls import CallStep, match_results
from langgraph_takeover.handoff.text.tool_wrappers import parse_json_result
from langgraph_takeover.handoff.trace.conversation import History
from langgraph_takeover.handoff.trace.events import UNREADABLE, Action, count_forms

_BASH_BLOCK = re.compile(r"```bash[^\S\n]*\n(?>(.*?)\n```|.*)", re.DOTALL)
_TEXT_ACTION = re.compile(r"```mswea_bash_command[^\S\n]*\n(?>(.*?)\n```|.*)", re.DOTALL)
_RETURNCODE = re.compile(
    r"(?:<exception>.*?</exception>\s*)?<returncode>(-?\d{1,9})</returncode>\s*", re.DOTALL
)
TIMEOUT_NOTICE = re.compile(r"^The last command <command>|timed out after \d+", re.MULTILINE)
_MESSAGE_FORMS = ("system", "user", "assistant", "tool", "exit", "human", "response", "function_call_output")
_KEEPS_DIRECTORY = False
"""Every command runs in a new shell in the repository, so `cd` has no lasting effect."""


class _WrittenCall(NamedTuple):
    """A call of a history that another program wrote, with this project's names."""

    id: str | None
    tool: str
    arguments: Mapping[str, str]


def is_v1(data: Any) -> bool:
    return (
        isinstance(data, Mapping)
        and isinstance(data.get("messages"), list)
        and not is_v2(data)
        and (
            str(data.get("trajectory_format", "")).startswith("mini-swe-agent-1")
            or any(
                isinstance(m, Mapping)
                and m.get("role") == "assistant"
                and "```bash" in extract_text(m.get("content"))
                for m in data["messages"][:8]
            )
        )
    )


def is_v2(data: Any) -> bool:
    if not isinstance(data, Mapping) or not isinstance(data.get("messages"), list):
        return False
    if data.get("trajectory_format") == "mini-swe-agent-1.1":
        return True
    return any(
        isinstance(m, Mapping)
        and (
            (isinstance(m.get("extra"), Mapping) and "actions" in m["extra"])
            or _find_text_command(m) is not None
        )
        for m in data["messages"]
    )


def read_v1(data: Mapping[str, Any], name: str) -> RecordedRun:
    """Read a `*.traj.json` of version 1. Raises TraceError."""
    messages = _list_messages(data)
    calls = []
    for number, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        text = extract_text(message.get("content"))
        following = messages[number + 1] if number + 1 < len(messages) else None
        output = (
            extract_text(following.get("content"))
            if following and following.get("role") != "assistant"
            else None
        )
        blocks = find_bash_blocks(text)
        usage = _read_usage(message)
        if len(blocks) != 1:
            calls.append(
                RecordedCall(text, UNREADABLE, {}, RecordedResult(output or "", refused=True), usage)
            )
            continue
        command = blocks[0].strip()
        calls.append(_build_call(text, command, None if output is None else _read_result(output), usage))
    return _build_run(data, name, "mini-swe-agent-v1", calls, messages)


def read_v2(data: Mapping[str, Any], name: str) -> RecordedRun:
    """Read a `*.traj.json` of version 2, with tool calls or textual actions. Raises TraceError."""
    messages = _list_messages(data)
    results = match_results(_list_steps(messages))
    count = 0
    calls = []
    for number, message in enumerate(messages):
        if (rejected := _find_rejected_reply(message)) is not None:
            refused = RecordedResult(extract_text(message.get("content")), refused=True)
            calls.append(RecordedCall(rejected, UNREADABLE, {}, refused))
        thought = _read_thought(message)
        for position, action in enumerate(_list_actions(message)):
            call = action if isinstance(action, _WrittenCall) else None
            tool, arguments = (call.tool, call.arguments) if call else ("shell", to_mapping(action))
            if tool == "shell" and not isinstance(arguments.get("command"), str):
                raise TraceError(
                    f"{name}: messages[{number}].extra.actions[{position}]: field 'command' is not text"
                )
            found = results.get(count)
            count += 1
            command = arguments.get("command", "") if tool == "shell" else json.dumps({tool: dict(arguments)})
            text = join_text(thought if position == 0 else "", f"$ {command}")
            result = _read_result_v2(messages[found]) if found is not None else None
            usage = _read_usage(message) if position == 0 else None
            built = _build_call(text, command, result, usage)
            calls.append(built if tool == "shell" else built._replace(tool=tool, arguments=arguments))
    return _build_run(data, name, "mini-swe-agent-v2", calls, messages)


def _find_rejected_reply(message: Mapping[str, Any]) -> str | None:
    """The reply without a readable action that a message rejects; None if it rejects none."""
    extra = to_mapping(message.get("extra"))
    return str(extra.get("model_response") or "") if extra.get("interrupt_type") == "FormatError" else None


def _list_actions(message: Mapping[str, Any]) -> list[Any]:
    actions = to_mapping(message.get("extra")).get("actions")
    if _find_rejected_reply(message) is not None:
        return []
    if isinstance(actions, list):
        return actions
    command = _find_text_command(message)
    if command is not None:
        return [{"command": command}]
    # A history that another program wrote for the agent.
    found = to_mappings(message.get("tool_calls")) if message.get("role") == "assistant" else []
    return [_read_written_call(call) for call in found]


def _read_written_call(call: Mapping[str, Any]) -> _WrittenCall:
    function = to_mapping(call.get("function"))
    arguments = parse_arguments(function.get("arguments"))
    tool, normalized = tool_calls.normalize_call(str(function.get("name") or ""), arguments)
    return _WrittenCall(to_id(call.get("id")), tool, normalized)


def _list_steps(messages: Sequence[Mapping[str, Any]]) -> Iterator[CallStep]:
    """The actions, numbered in their order, and the results, numbered as the messages."""
    count = 0
    for number, message in enumerate(messages):
        actions = _list_actions(message)
        if actions or message.get("role") == "assistant":
            yield CallStep(None)
            for action in actions:
                is_written = isinstance(action, _WrittenCall)
                call_id = action.id if is_written else to_id(to_mapping(action).get("tool_call_id"))
                yield CallStep(call_id, call=count)
                count += 1
        elif _is_result(message):
            yield CallStep(_find_result_id(message), result=number)


def _is_result(message: Mapping[str, Any]) -> bool:
    if message.get("role") == "tool" or message.get("type") == "function_call_output":
        return True
    extra, text = message.get("extra"), extract_text(message.get("content"))
    if isinstance(extra, Mapping):
        return "returncode" in extra or "raw_output" in extra
    return extra is None and ("<returncode>" in text or TIMEOUT_NOTICE.search(text) is not None)


def _find_result_id(message: Mapping[str, Any]) -> str | None:
    return to_id(message.get("tool_call_id", message.get("call_id")))


def _list_messages(data: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [message for message in data["messages"] if isinstance(message, Mapping)]


def _build_call(text: str, command: str, result: RecordedResult | None, usage: Any) -> RecordedCall:
    """Build a call; a submission has no exit code, otherwise the command only mentions the marker."""
    is_submission = tool_calls.is_submission(command)
    if is_submission and (result is None or result.exit_code is None):
        return RecordedCall(text, "finish", {"command": command}, result, usage)
    return RecordedCall(text, "shell", {"command": command}, result, usage)


def parse_result(name: str, arguments: Mapping[str, Any], content: Any) -> ToolResult:
    """Parse what the model saw of a call."""
    text = extract_text(content)
    found = _read_result(text)
    output = text if found.output is None else found.output
    return ToolResult(output, found.exit_code, timed_out=found.timed_out)


def _read_result(output: str) -> RecordedResult:
    if (found := _read_json_result(output)) is not None:
        return found
    code = _RETURNCODE.match(output)
    timed_out = code is None and TIMEOUT_NOTICE.search(output) is not None
    return RecordedResult(
        output,
        exit_code=int(code[1]) if code else None,
        timed_out=timed_out,
        output=extract_output(output) if code else None,
    )


def _read_json_result(text: str) -> RecordedResult | None:
    """Read an observation as the default configuration writes it; None for other text."""
    found = parse_json_result(text)
    if found is None or "returncode" not in found:
        return None
    output = found.get("output")
    exception = str(found.get("exception_info") or "")
    return RecordedResult(
        text,
        exit_code=None if exception else found["returncode"],
        timed_out="timed out" in exception,
        output=output if isinstance(output, str) else None,
    )


def find_bash_blocks(text: str) -> list[str]:
    """The content of each block of Bash code."""
    return _find_blocks(_BASH_BLOCK, text)


def _find_blocks(pattern: re.Pattern[str], text: str) -> list[str]:
    # A block without an end takes the rest of the text: searching it anew from each start would be quadratic.
    return [found[1] for found in pattern.finditer(text) if found[1] is not None]


def extract_output(text: str) -> str | None:
    """The output inside `<output>`; None if it is missing or truncated."""
    before, mark, rest = text.partition("<output>")
    output, end, _ = rest.removeprefix("\n").partition("</output>")
    return output.removesuffix("\n") if mark and end and "<output_head>" not in before else None


def _read_result_v2(answer: Mapping[str, Any]) -> RecordedResult:
    extra = answer.get("extra") if isinstance(answer.get("extra"), Mapping) else {}
    text = extract_text(answer.get("content", answer.get("output")))
    code = extra.get("returncode") if isinstance(extra, Mapping) else None
    exception = str(extra.get("exception_info") or "") if isinstance(extra, Mapping) else ""
    raw = extra.get("raw_output") if isinstance(extra, Mapping) else None
    plain = _read_result(text)
    if not isinstance(code, int):
        code = plain.exit_code
    timed_out = "timed out" in exception or "TimeoutExpired" in exception or plain.timed_out
    return RecordedResult(
        text,
        exit_code=None if exception or not isinstance(code, int) else code,
        refused="not executed" in exception,
        timed_out=timed_out,
        output=raw if isinstance(raw, str) else plain.output,
    )


def _find_text_command(message: Mapping[str, Any]) -> str | None:
    """The command of a message without parsed actions, as in the oldest recordings."""
    if message.get("role") != "assistant":
        return None
    text = extract_text(message.get("content"))
    blocks = _find_blocks(_TEXT_ACTION, text) if "```mswea_bash_command" in text else ()
    return blocks[0].strip() if len(blocks) == 1 else None


def _read_thought(message: Mapping[str, Any]) -> str:
    if message.get("object") == "response":
        return extract_text(
            [item.get("content") for item in message.get("output", []) if isinstance(item, Mapping)]
        )
    return extract_text(message.get("content"))


def _read_usage(message: Mapping[str, Any]) -> Any:
    extra = message.get("extra")
    response = extra.get("response") if isinstance(extra, Mapping) else None
    return (
        parse_usage(response.get("usage"))
        if isinstance(response, Mapping)
        else parse_usage(message.get("usage"))
    )


def _build_run(
    data: Mapping[str, Any],
    name: str,
    format_name: Any,
    calls: list[RecordedCall],
    messages: Sequence[Mapping[str, Any]],
) -> RecordedRun:
    info = data.get("info") if isinstance(data.get("info"), Mapping) else {}
    config = info.get("config") if isinstance(info, Mapping) else None
    environment = config.get("environment") if isinstance(config, Mapping) else None
    cwd = environment.get("cwd") if isinstance(environment, Mapping) else None
    model = config.get("model") if isinstance(config, Mapping) else None
    task = next((extract_text(m.get("content")) for m in messages if m.get("role") == "user"), "")
    open_calls = itertools.takewhile(lambda call: call.result is None, reversed(calls))
    return RecordedRun(
        id=str(data.get("instance_id") or name),
        format=format_name,
        calls=calls,
        task=task,
        model=str(model.get("model_name") or "") if isinstance(model, Mapping) else "",
        workspace=to_directory(cwd),
        keeps_directory=_KEEPS_DIRECTORY,
        pending=() if to_mapping(info).get("exit_status") else describe_open_calls([*open_calls][::-1]),
        unknown_items=count_forms(_list_unknown(messages)),
    )


def _list_unknown(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a name for each message that is not known and may carry a call or its result."""
    for message in messages:
        form = str(message.get("role") or message.get("object") or message.get("type") or "message")
        if form not in _MESSAGE_FORMS and tool_calls.may_carry_call(message):
            yield form


def wrap_messages(data: Any) -> Any:
    """Wrap a bare list of messages, the form of older version 2 files."""
    return {"messages": data} if isinstance(data, list) else data


_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_DIRECTORY = ".mini-swe-agent"
_DRIVER = Path(__file__).with_name("mini_driver.py").read_text(encoding="utf-8")


class MiniSweAgent:
    """Implements `AgentAdapter`. Its session file is complete before a request arrives."""

    name = "mini"
    api: Api = "chat"
    program = ProgramFiles(
        executable="mini",
        interpreter="python",
        version_argv=("-c", "import importlib.metadata as m; print(m.version('mini-swe-agent'))"),
        install="pip install mini-swe-agent",
        terminal=TerminalCommand(start=("-t", MESSAGE)),
        oldest="2.4.0",
        newest="2.4.6",
    )

    def setup(self, launch: Launch) -> Setup:
        environment = {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
            "MSWEA_SILENT_STARTUP": "1",
            "OPENAI_API_BASE": f"http://127.0.0.1:{launch.port}/v1",
            "OPENAI_API_KEY": "none",
        }
        return Setup(files={f"{_DIRECTORY}/driver.py": _DRIVER}, environment=environment)

    def command(self, launch: Launch) -> AgentCommand:
        directory = f"{launch.home}/{_DIRECTORY}"
        session = launch.session_id or derive_uuid(launch)
        argv = (
            *launch.program, f"{directory}/driver.py", f"openai/{launch.model}", f"{directory}/{session}.json"
        )  # fmt: skip
        # Resumed without a message, its first request is the pending one.
        is_pending = launch.session_id is not None and launch.message == RESUME_MESSAGE
        return AgentCommand(argv=argv, stdin="" if is_pending else launch.message)

    def classify(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Asker:
        return "main" if body.get("tools") else "aside"

    def strip_markers(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        return list(messages)

    def session_glob(self, session_id: str, workspace: str) -> str:
        return f"{_DIRECTORY}/{session_id}.json" if is_session_id(session_id) else ""

    def write_call(self, action: Action, workspace: str) -> NativeCall | None:
        if action.tool == "finish":
            return NativeCall(name="bash", arguments={"command": _SUBMIT})
        return NativeCall(name="bash", arguments={"command": write_shell_command(action)})

    def write_session(self, history: History, launch: Launch) -> NativeSession:
        session_id = derive_uuid(launch, history.opening)
        steps, account = list_session_steps(history)
        messages: list[dict[str, Any]] = [{"role": "user", "content": history.opening}]
        for step in steps:
            call = self.write_call(step.action, launch.workspace) if step.action else None
            if call is None:
                messages.append({"role": "assistant", "content": step.thought})
                messages += [{"role": "user", "content": step.result}] if step.result else []
                continue
            function = {"name": call.name, "arguments": json.dumps(call.arguments)}
            calls = [{"id": step.call_id, "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": step.thought, "tool_calls": calls})
            result = step.result
            if step.exit_code is not None:
                result = json.dumps(
                    {"returncode": step.exit_code, "output": result}, indent=2, ensure_ascii=False
                )
            messages.append({"role": "tool", "tool_call_id": step.call_id, "content": result})
        content = dump_json({"messages": messages, "trajectory_format": "mini-swe-agent-1.1"})
        files = {f"{_DIRECTORY}/{session_id}.json": content}
        return NativeSession(session_id=session_id, files=files, account=tuple(account))

    def read_result(
        self, name: str, arguments: Mapping[str, Any], text: str, *, is_error: bool
    ) -> ToolResult:
        return parse_result(name, arguments, text)

    def read_output(self, stdout: str, exit_code: int | None) -> AgentOutput:
        session_id, message, status = None, "", ""
        for line in read_json_lines(stdout):
            if line.get("type") == "session":
                session_id = line.get("session_id")
            elif line.get("type") == "result":
                status, message = str(line.get("status")), str(line.get("message") or line.get("status"))
        is_complete = status == "Submitted"
        return AgentOutput.from_untrusted(session_id, message, is_complete=is_complete, exit_code=exit_code)
