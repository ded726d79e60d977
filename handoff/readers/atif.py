"""Reader of ATIF, the Agent Trajectory Interchange Format, for runs of any agent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from langgraph_takeover.base.untrusted_input import parse_document
from langgraph_takeover.handoff.agents import mini_swe_agent
from langgraph_takeover.handoff.recordings import tool_calls
from langgraph_takeover.handoff.recordings.recorded_run import (
    RecordedCall,
    RecordedResult,
    RecordedRun,
    TraceError,
    extract_text,
    join_requests,
    join_text,
    parse_usage,
    to_id,
    to_mapping,
    to_mappings,
)
from langgraph_takeover.handoff.recordings.tool_calls import CallStep, OpenCalls, match_results
from langgraph_takeover.handoff.trace.atif_documents import (
    COUNTS,
    ESCAPED_KEY,
    EVENTS_KEY,
    TRACE_KEY,
    decode_surrogates,
)
from langgraph_takeover.handoff.trace.events import UNREADABLE, Trace, Usage, count_forms

_ATTRIBUTES_CHARS = 100
"""Maximum length of the name or the attributes in an opening tag."""
_COMPLETE = re.compile(r"<task_complete>\s{0,9}true\s{0,9}</task_complete>|<task_complete\s{0,9}/>")


class TextCall(NamedTuple):
    """A call with the agent's own tool and argument names."""

    name: str
    arguments: Mapping[str, Any]


def parse_text_calls(agent: str, message: str) -> list[TextCall] | None:
    """The calls in a reply of an agent with a text protocol; None if the reply is not readable in it."""
    if agent.startswith("mini-swe-agent"):
        blocks = mini_swe_agent.find_bash_blocks(message)
        return [TextCall("bash", {"command": blocks[0]})] if len(blocks) == 1 else None
    if agent.startswith("openhands"):
        return _parse_function(message)
    if agent.startswith("terminus"):
        return _parse_json_commands(message) or _parse_tagged_commands(message)
    return None


def _parse_function(message: str) -> list[TextCall] | None:
    """The call `<function=NAME>` with one `<parameter=NAME>` per argument; None unless it is the only one."""
    functions = list(_iterate_elements(message, "<function=", "</function>"))
    if len(functions) != 1:
        return None
    name, body = functions[0]
    parameters = _iterate_elements(body, "<parameter=", "</parameter>")
    return [TextCall(name, {key: _strip_line_breaks(value) for key, value in parameters})]


def _strip_line_breaks(value: str) -> str:
    """The value without the line breaks that separate a long value from its tags."""
    return value.removeprefix("\n").removesuffix("\n")


def _parse_json_commands(message: str) -> list[TextCall] | None:
    try:
        reply = parse_document(message.encode("utf-8", "backslashreplace"))
    except ValueError:
        return None
    commands = reply.get("commands") if isinstance(reply, Mapping) else None
    if not isinstance(commands, list):
        return None
    calls = [
        TextCall("bash_command", {"keystrokes": command["keystrokes"]})
        for command in commands
        if isinstance(command, Mapping) and isinstance(command.get("keystrokes"), str)
    ]
    return calls + _list_completion(reply.get("task_complete") in (True, "true"))


def _parse_tagged_commands(message: str) -> list[TextCall] | None:
    commands = _iterate_elements(message, "<keystrokes", "</keystrokes>")
    calls = [TextCall("bash_command", {"keystrokes": keystrokes}) for _, keystrokes in commands]
    calls += _list_completion(_COMPLETE.search(message) is not None)
    return calls or None


def _list_completion(is_complete: bool) -> list[TextCall]:
    return [TextCall("mark_task_complete", {})] if is_complete else []


def _iterate_elements(text: str, opening: str, closing: str) -> Iterator[tuple[str, str]]:
    """Yield what follows `opening` in its tag, and the text up to `closing`; one pass over any text."""
    position = 0
    while (start := text.find(opening, position)) >= 0:
        start += len(opening)
        tag_end = text.find(">", start, start + _ATTRIBUTES_CHARS)
        if tag_end < 0:
            position = start
            continue
        end = text.find(closing, tag_end)
        if end < 0:
            return
        yield text[start:tag_end], text[tag_end + 1 : end]
        position = end + len(closing)


_EXIT_CODE = re.compile(
    r"<returncode>(-?\d{1,9})</returncode>|\[(?:exit code|The command completed with exit code):? (-?\d{1,9})\.?\]"
    r"|^Exit code:? (-?\d{1,9})$|^\[exit_code\] (-?\d{1,9})$|Process exited with code (-?\d{1,9})",
    re.M,
)
_REFUSAL = re.compile(
    r"^ERROR|^Error: |No replacement was performed|<tool_use_error>|String to replace not found|has NOT been applied"
    r"|has not been read yet|did not appear verbatim|^Failed to (?:edit|apply)|Cannot execute multiple commands",
    re.M,
)


def is_atif(data: Any) -> bool:
    return (
        isinstance(data, Mapping)
        and isinstance(data.get("steps"), list)
        and str(data.get("schema_version", "")).startswith("ATIF-")
    )


def split_document(data: Any) -> list[Any]:
    """A document and the complete trajectories of subagents embedded in it, which are runs of their own."""
    if not is_atif(data):
        return [data]
    embedded = to_mappings(data.get("subagent_trajectories"))
    return [data, *(part for one in embedded if is_atif(one) for part in split_document(one))]


def read_own_trace(data: Mapping[str, Any], name: str) -> Trace | None:
    """Restore a trace that this project exported as ATIF; None if another program wrote the document."""
    extra = to_mapping(data.get("extra"))
    if not isinstance(extra.get(TRACE_KEY), Mapping):
        return None
    if extra.get(ESCAPED_KEY) is True:
        data = decode_surrogates(data)
    events: list[dict[str, Any]] = []
    task = ""
    for step in data["steps"]:
        if isinstance(step, Mapping) and step.get("source") == "user":
            task = task or extract_text(step.get("message"))
        events += _read_own_events(step) if isinstance(step, Mapping) else []
    try:
        return Trace.model_validate({**data["extra"][TRACE_KEY], "events": events, "task": task})
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(str(part) for part in first["loc"])
        raise TraceError(f"{name}: {TRACE_KEY}.{location}: {first['msg']}") from error


def _read_own_events(step: Mapping[str, Any]) -> list[dict[str, Any]]:
    call = next(iter(to_mappings(step.get("tool_calls"))), {})
    result = next(iter(to_mappings(to_mapping(step.get("observation")).get("results"))), {})
    events = []
    for fields in to_mappings(to_mapping(step.get("extra")).get(EVENTS_KEY)):
        if fields.get("kind") == "action":
            native_fields = {
                "text": step.get("message"),
                "arguments": call.get("arguments", {}),
                "usage": _read_own_usage(step.get("metrics")),
            }
        else:
            native_fields = {"text": result.get("content")}
        events.append({**fields, **native_fields})
    return events


def _read_own_usage(metrics: Any) -> dict[str, Any] | None:
    """The usage of a step. Documents of ATIF-v1.7 have `estimated` beside the counts, later ones in `extra`."""
    if not isinstance(metrics, Mapping):
        return None
    counts = {name: metrics[name] for name in COUNTS if name in metrics}
    estimated = metrics.get("estimated", to_mapping(metrics.get("extra")).get("estimated", False))
    return {**counts, "estimated": estimated}


def read(data: Mapping[str, Any], name: str) -> RecordedRun:
    """Read an ATIF document of any version 1; the observation of a step contains the results of its calls."""
    agent = to_mapping(data.get("agent"))
    agent_name = str(agent.get("name") or "")
    steps = to_mappings(data["steps"])
    messages = (extract_text(step.get("message")) for step in steps if step.get("source") == "user")
    models = (model for holder in (agent, *steps) if (model := holder.get("model_name")))
    original = str(to_mapping(agent.get("extra")).get("original_format") or "")
    return RecordedRun(
        id=str(data.get("trajectory_id") or data.get("session_id") or name),
        format="atif",
        calls=_read_replies(steps, agent_name),
        task=join_requests(messages),
        model=str(next(models, "")),
        agent=agent_name,
        agent_version=str(agent.get("version") or ""),
        keeps_directory=not (
            agent_name.startswith("mini-swe-agent") or original.startswith("mini-swe-agent")
        ),
        unknown_items=count_forms(
            str(step.get("source"))
            for step in steps
            if step.get("source") not in ("agent", "user", "system") and tool_calls.may_carry_call(step)
        ),
    )


def _read_replies(steps: Sequence[Mapping[str, Any]], agent_name: str) -> list[RecordedCall]:
    """The calls of all agent steps. A reply without a call belongs to the next one, unless the user answers it."""
    calls: list[RecordedCall] = []
    text, usage = "", None
    for step in _move_results(steps):
        source = step.get("source")
        if source == "agent":
            text = join_text(text, extract_text(step.get("message")))
            usage = _add_usage(usage, parse_usage(step.get("metrics")))
            found, thoughts = _read_calls(step, agent_name)
            text = join_text(text, *thoughts)
            if not found:
                continue
            first = found[0]
            calls += [first._replace(text=join_text(text, first.text), usage=usage), *found[1:]]
        elif source == "user" and (text or usage):
            answer = RecordedResult(extract_text(step.get("message")), refused=True)
            calls.append(RecordedCall(text, UNREADABLE, {}, answer, usage))
        else:
            continue
        text, usage = "", None
    if text or usage:
        calls.append(RecordedCall(text, UNREADABLE, {}, None, usage))
    return calls


def _move_results(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The steps with each result in the step of its call, also if the document has it in another step."""
    parts: list[CallStep] = []
    owners: list[int] = []
    """The step of each call."""
    results: list[tuple[int, Mapping[str, Any]]] = []
    """The step that has each result."""
    for number, step in enumerate(steps):
        parts.append(CallStep(None))
        for call in to_mappings(step.get("tool_calls")):
            parts.append(CallStep(to_id(call.get("tool_call_id")) or "", call=len(owners)))
            owners.append(number)
        for result in _list_results(step):
            parts.append(CallStep(to_id(result.get("source_call_id")), result=len(results)))
            results.append((number, result))
    targets = {result: owners[call] for call, result in match_results(parts).items()}
    moved: dict[int, list[Mapping[str, Any]]] = {}
    for position, (number, result) in enumerate(results):
        moved.setdefault(targets.get(position, number), []).append(result)
    changed = {each for n, own in targets.items() if own != results[n][0] for each in (own, results[n][0])}
    return [
        {**step, "observation": {"results": moved.get(number, [])}} if number in changed else step
        for number, step in enumerate(steps)
    ]


def _list_results(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return to_mappings(to_mapping(step.get("observation")).get("results"))


def _add_usage(one: Usage | None, other: Usage | None) -> Usage | None:
    """The sum of two usages; a count that one of them lacks is that of the other."""
    if one is None or other is None:
        return one or other
    pairs = {name: (getattr(one, name), getattr(other, name)) for name in COUNTS}
    sums = {
        name: sum(n for n in pair if n is not None)
        for name, pair in pairs.items()
        if any(n is not None for n in pair)
    }
    return Usage(**sums)


def _read_calls(step: Mapping[str, Any], agent_name: str) -> tuple[list[RecordedCall], list[str]]:
    """The calls of a step without its message, and the thoughts that it recorded by calls."""
    results = _list_results(step)
    raw_calls = to_mappings(step.get("tool_calls"))
    is_text = not raw_calls
    if is_text:
        found = parse_text_calls(agent_name, extract_text(step.get("message")))
        if not found:
            return _read_unreadable(step, results, agent_name), []
        raw_calls = [{"function_name": call.name, "arguments": call.arguments} for call in found]
    shares_terminal = agent_name.startswith("terminus")
    outputs = _match_results(raw_calls, results, shares_terminal=shares_terminal)
    calls: list[RecordedCall] = []
    thoughts: list[str] = []
    for call, output in zip(raw_calls, outputs, strict=True):
        name, arguments = str(call.get("function_name") or ""), to_mapping(call.get("arguments"))
        if tool_calls.is_thought(name):
            thoughts += [value for value in arguments.values() if isinstance(value, str)]
            continue
        calls.append(_read_call(name, arguments, output, is_text=is_text and not calls))
    return calls, thoughts


def _read_unreadable(
    step: Mapping[str, Any], results: Sequence[Mapping[str, Any]], agent_name: str
) -> list[RecordedCall]:
    """The reply as one refused action, if it was answered, or broke the agent's text protocol."""
    has_blocks = agent_name.startswith("mini-swe-agent") and mini_swe_agent.find_bash_blocks(
        extract_text(step.get("message"))
    )
    if not results and not has_blocks:
        return []
    output = join_text(*(extract_text(result.get("content")) for result in results))
    return [RecordedCall("", UNREADABLE, {}, RecordedResult(output, refused=True))]


def _read_call(name: str, arguments: Mapping[str, Any], output: str | None, *, is_text: bool) -> RecordedCall:
    """One call; its text is the command, unless the message already contains it."""
    tool, normalized = tool_calls.normalize_call(name, arguments)
    result = None if output is None else _read_result(tool, normalized, output)
    if (
        tool == "shell"
        and tool_calls.is_submission(normalized["command"])
        and (result is None or result.exit_code is None)
    ):
        tool = "finish"
    text = normalized.get("command", "") if tool == "shell" and not is_text else ""
    return RecordedCall(text, tool, normalized, result)


def _read_result(tool: str, arguments: Mapping[str, str], output: str) -> RecordedResult:
    code = _EXIT_CODE.search(output)
    is_edit = tool == "editor" and arguments.get("command") != "view"
    exit_code = next((int(group) for group in code.groups() if group is not None), None) if code else None
    timed_out = exit_code is None and mini_swe_agent.TIMEOUT_NOTICE.search(output) is not None
    return RecordedResult(
        output,
        exit_code=exit_code,
        refused=is_edit and _REFUSAL.search(output) is not None,
        timed_out=timed_out,
        output=mini_swe_agent.extract_output(output) if "<returncode>" in output else output,
    )


def _match_results(
    calls: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]], *, shares_terminal: bool
) -> list[str | None]:
    """The output of each call; None without a result. Results without a call id are matched by their order.

    With `shares_terminal`, one result shows the terminal after all commands: the last command has its text, those before
    it an empty one.
    """
    open_calls, last = OpenCalls(), dict[str, int]()
    for number, call in enumerate(calls):
        own_id = str(call.get("tool_call_id"))
        open_calls.add(own_id, number)
        last[own_id] = number
    texts: list[list[str]] = [[] for _ in calls]
    unnamed: list[str] = []
    rest: list[str] = []
    for result in results:
        text, call_id = extract_text(result.get("content")), to_id(result.get("source_call_id"))
        if call_id is None:
            unnamed.append(text)
        elif call_id in last:
            # A further result of an answered call continues it.
            found = open_calls.close(call_id)
            texts[last[call_id] if found is None else found].append(text)
        else:
            rest.append(text)
    if shares_terminal and not rest and not any(texts) and len(unnamed) == 1:
        return _share_output(calls, unnamed[0])
    waiting = [own for own in texts if not own]
    if len(rest) == len(waiting) and not unnamed:
        unnamed, rest = rest, []
    for own, text in zip(waiting, unnamed, strict=False):
        own.append(text)
    if texts:
        texts[-1] += rest + unnamed[len(waiting) :]
    return [join_text(*own) if own else None for own in texts]


def _share_output(calls: Sequence[Mapping[str, Any]], output: str) -> list[str | None]:
    names = [str(call.get("function_name") or "") for call in calls]
    commands = [n for n, name in enumerate(names) if tool_calls.normalize_call(name, {})[0] != "finish"]
    last = commands[-1] if commands else len(calls) - 1
    return [output if n == last else "" if n < last else None for n in range(len(calls))]
