"""The results of a script's calls, from the output of the script and the records of Codex."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.handoff.agents.codex_script_calls import (
    MAX_CALLS,
    ScriptCall,
    find_calls,
    find_exit_codes,
    prints_in_order,
    prints_whole_results,
)

SCRIPT_TOOL, WAIT_TOOL = "exec", "wait"
COMMAND_TOOL, PATCH_TOOL, INPUT_TOOL = "exec_command", "apply_patch", "write_stdin"
_RECORDED = {
    COMMAND_TOOL: COMMAND_TOOL,
    "shell_command": COMMAND_TOOL,
    "shell": COMMAND_TOOL,
    PATCH_TOOL: PATCH_TOOL,
}
"""Tools whose calls Codex records, and the name in its records."""
SERVER_PREFIX = "mcp__"
_COMMANDS = frozenset((COMMAND_TOOL, "shell_command", "shell", INPUT_TOOL, WAIT_TOOL))
_HEADER = re.compile(
    r"(?:Warning: [^\n]{0,200}\n+)?Script (?P<state>completed|failed|terminated|running with cell ID (?P<cell>[\w-]{1,40}))"
    r"(?:\nWall time:? [\d.]{1,20} seconds)?(?:\nOutput:)?(?:\n|\Z)"
)
_ERROR_PLACE = re.compile(r"\bexec_main\.mjs:(\d{1,6}):(\d{1,6})")
_ERROR = "Script error:"


class PrintedResult(NamedTuple):
    """A result that a script printed as JSON."""

    output: str
    exit_code: int | None
    process_id: str | None
    chunk: str = ""
    """Codex's name for the result, which a script may print twice."""


class ScriptOutput(NamedTuple):
    """What a script printed."""

    parts: tuple[str, ...]
    has_failed: bool = False
    cell: str | None = None
    """The name of a script that still runs."""
    error: str = ""


class ObservedCall(NamedTuple):
    """A command or a patch of a script that Codex itself recorded."""

    tool: str
    arguments: Mapping[str, Any]
    output: str
    exit_code: int | None = None
    refused: bool = False
    process_id: str = ""
    is_late: bool = False
    """The end of a command that an earlier call started."""


class NestedCall(NamedTuple):
    """A call of a script with its result, as far as either was observed."""

    tool: str
    """Its own name; `exec:NAME` if the script computes what it does, or whether it runs; `exec` for a script without calls."""
    arguments: Mapping[str, Any]
    text: str = ""
    """What the model saw of it."""
    exit_code: int | None = None
    process_id: str | None = None
    """The name of the command that still runs, or of its script."""
    refused: bool = False


def list_nested(script: str) -> tuple[NestedCall, ...]:
    """The calls of a script without results; the script itself if it has none."""
    found = tuple(_name_call(each, script) for each in find_calls(script))
    return found or (NestedCall(SCRIPT_TOOL, {"input": script}),)


def read_nested(
    script: str,
    outputs: Sequence[ScriptOutput],
    observed: Sequence[ObservedCall] = (),
    later_commands: Container[str] | None = None,
) -> tuple[NestedCall, ...]:
    """The calls of a script that ran, with their results; an exit code is None unless it was recorded or printed.

    `observed` are those that Codex recorded meanwhile. If it records all, `later_commands` are the commands that it recorded
    afterwards, and a command that stands nowhere did not run.
    """
    found = find_calls(script)
    printed = [part for each in outputs for part in each.parts]
    cell = outputs[-1].cell if outputs else None
    error = next((each.error for each in outputs if each.error), "")
    pairs = _pair_observed(found, observed[:MAX_CALLS])
    limit, failed = find_error_position(script, error), _find_failed(pairs, error)
    has_objects = prints_whole_results(script)
    objects = [result for part in printed for result in parse_results(part)] if has_objects else []
    may_run = cell is not None or any(result.process_id for result in objects)
    kept: list[tuple[NestedCall, ObservedCall | None]] = []
    for number, (call, seen) in enumerate(pairs):
        if seen is not None:
            kept.append((_name_observed(call, seen, script), seen))
        if seen is not None or call is None:
            continue
        is_late = (limit is not None and call.position > limit) or (failed is not None and number > failed)
        is_absent = later_commands is not None and not may_run and not _is_expected(call, later_commands)
        if number == failed or not (is_late or is_absent or _is_idle(call)):
            named = _name_call(call, script, is_certain=not call.is_conditional)
            kept.append((named._replace(refused=number == failed), None))
    if not kept:
        kept = [(list_nested(script)[0]._replace(refused=bool(found)), None)]
    is_ordered = len(kept) < 2 or prints_in_order(script)
    codes = find_exit_codes(script, "\n".join(printed)) if is_ordered else ()
    results = _add_results(kept, printed, codes, cell, is_ordered=is_ordered, has_objects=has_objects)
    if error:
        at = next((number for number, each in enumerate(results) if each.refused), -1)
        results[at] = results[at]._replace(text="\n".join(filter(None, [results[at].text, error])))
    return tuple(results)


def read_wait(
    arguments: Mapping[str, Any], output: ScriptOutput, observed: Sequence[ObservedCall] = ()
) -> tuple[NestedCall, ...]:
    """A call that waits for a running script, with what it showed, and the calls of the script that Codex recorded meanwhile."""
    late = [each for each in observed if each.is_late]
    kept: list[tuple[NestedCall, ObservedCall | None]] = [
        (NestedCall(WAIT_TOOL, arguments), late[-1] if late else None)
    ]
    kept += [(_name_observed(None, each, ""), each) for each in observed[:MAX_CALLS] if not each.is_late]
    first, *others = _add_results(kept, output.parts, (), output.cell)
    return (first._replace(text="\n".join(filter(None, [first.text, output.error]))), *others)


def _name_call(call: ScriptCall, script: str, *, is_certain: bool = True) -> NestedCall:
    if call.arguments is None or not is_certain or not isinstance(call.arguments, Mapping | str):
        return NestedCall(f"{SCRIPT_TOOL}:{call.tool}", {"input": script})
    return NestedCall(
        call.tool, {"input": call.arguments} if isinstance(call.arguments, str) else call.arguments
    )


def _name_observed(call: ScriptCall | None, seen: ObservedCall, script: str) -> NestedCall:
    """A recorded call: a command as recorded, a patch as the script has it."""
    is_literal = call is not None and call.arguments is not None and seen.tool != COMMAND_TOOL
    if seen.is_late or is_literal:
        assert call is not None
        return _name_call(call, script)._replace(refused=seen.refused)
    return NestedCall(seen.tool, seen.arguments, refused=seen.refused)


def _pair_observed(
    found: Sequence[ScriptCall], observed: Sequence[ObservedCall]
) -> list[tuple[ScriptCall | None, ObservedCall | None]]:
    """The calls of a script with what Codex recorded of them; what belongs to no literal call belongs to a computed one."""
    unused = list(observed)
    pairs: list[tuple[ScriptCall | None, ObservedCall | None]] = []
    for call in found:
        seen = next((each for each in unused if _is_same(call, each)), None)
        if seen is not None:
            unused.remove(seen)
        pairs.append((call, seen))
    unused = [each for each in unused if not each.is_late]
    for number in reversed(range(len(pairs))):
        computed, record = pairs[number]
        if computed is not None and record is None and computed.arguments is None:
            tool = _find_recorded_name(computed.tool)
            own = [each for each in unused if tool in (None, each.tool)]
            if own:
                pairs[number : number + 1] = [(None, each) for each in own]
            unused = [each for each in unused if each not in own]
    return [*pairs, *((None, each) for each in unused)]


def _is_same(call: ScriptCall, seen: ObservedCall) -> bool:
    """Whether a record can be that of a literal call; the end of an earlier command is that of one which reads its output."""
    fields = call.arguments if isinstance(call.arguments, Mapping) else {}
    if seen.is_late or call.tool == INPUT_TOOL:
        process = fields.get("session_id")
        return (
            seen.is_late and call.tool == INPUT_TOOL and (process is None or str(process) == seen.process_id)
        )
    if call.arguments is None or _find_recorded_name(call.tool) != seen.tool:
        return False
    return seen.tool != COMMAND_TOOL or get_command(fields) == get_command(seen.arguments)


def _is_idle(call: ScriptCall) -> bool:
    """Whether a call only waits for output, and may not have run."""
    is_wait = isinstance(call.arguments, Mapping) and not call.arguments.get("chars")
    return call.is_conditional and call.tool == INPUT_TOOL and is_wait


def _find_recorded_name(tool: str) -> str | None:
    """The name of a tool in Codex's records; None if it records no calls of it."""
    return tool if tool.startswith(SERVER_PREFIX) else _RECORDED.get(tool)


def _is_expected(call: ScriptCall, later_commands: Container[str]) -> bool:
    """Whether a call without a record may have run: Codex records only commands and patches."""
    return _find_recorded_name(call.tool) is None or get_command(call.arguments) in later_commands


def get_command(arguments: Any) -> str:
    """The command in the arguments of a call; empty if it has none."""
    return str(arguments.get("cmd", arguments.get("command", ""))) if isinstance(arguments, Mapping) else ""


def _find_failed(pairs: Sequence[tuple[ScriptCall | None, ObservedCall | None]], error: str) -> int | None:
    """The call whose error ended a script: the first one without a record that the error names."""
    if not error or _ERROR_PLACE.search(error):
        return None
    return next(
        (
            n
            for n, (call, seen) in enumerate(pairs)
            if call is not None and seen is None and call.tool in error
        ),
        None,
    )


def _add_results(
    calls: Sequence[tuple[NestedCall, ObservedCall | None]],
    printed: Sequence[str],
    codes: Sequence[int],
    cell: str | None,
    *,
    is_ordered: bool = True,
    has_objects: bool = True,
) -> list[NestedCall]:
    """Add to each call what the script printed of it, as far as that can be told; the rest belongs to the last call."""
    texts: list[list[str]] = [[] for _ in calls]
    printed_codes: dict[int, PrintedResult] = {}
    commands = [number for number, (call, _) in enumerate(calls) if _is_command(call)]
    last = (commands or [-1])[-1]
    results, plain, chunks = [], [], set[str]()
    for part in printed:
        found = parse_results(part) if has_objects else ()
        results += [each for each in found if not each.chunk or each.chunk not in chunks]
        chunks.update(each.chunk for each in found)
        plain += [] if found else [part]
    for number, result in enumerate(results):
        owner = _find_owner(calls, result.output, texts)
        if owner is None and is_ordered and len(results) == len(commands):
            owner = commands[number]
        if owner is not None or len(commands) == 1:
            printed_codes[commands[0] if owner is None else owner] = result
        texts[last if owner is None else owner].append(result.output)
    free = [number for number in commands if not texts[number]]
    for number, part in enumerate(plain):
        owner = _find_owner(calls, part, texts)
        if owner is None:
            owner = free[number] if is_ordered and len(free) == len(plain) else last
        texts[owner].append(part)
    added = []
    for number, (call, seen) in enumerate(calls):
        shown = printed_codes.get(number)
        code = seen.exit_code if seen is not None else None
        code = shown.exit_code if code is None and shown is not None else code
        if code is None and len(codes) == len(commands) and number in commands:
            code = codes[commands.index(number)]
        is_open = number in commands and code is None and seen is None
        process = shown.process_id if shown is not None else cell
        added.append(
            call._replace(
                text="\n".join(texts[number]), exit_code=code, process_id=process if is_open else None
            )
        )
    return added


def _is_command(call: NestedCall) -> bool:
    return call.tool.removeprefix(f"{SCRIPT_TOOL}:") in _COMMANDS and not call.refused


def _find_owner(
    calls: Sequence[tuple[NestedCall, ObservedCall | None]], text: str, texts: Sequence[Sequence[str]]
) -> int | None:
    """The call whose recorded output a text has, or is the part of; None if that is unknown or ambiguous."""
    text = text.strip()
    owners = [
        number
        for number, (_, seen) in enumerate(calls)
        if seen is not None
        and (output := seen.output.strip())
        and text
        and (output in text or text in output)
    ]
    exact = [
        number for number in owners if (seen := calls[number][1]) is not None and seen.output.strip() == text
    ]
    free = [number for number in exact or owners if not texts[number]]
    return free[0] if exact and free else owners[0] if len(owners) == 1 else None


def merge_outputs(outputs: Sequence[ScriptOutput]) -> ScriptOutput:
    """Several outputs of one call as one."""
    parts = tuple(part for each in outputs for part in each.parts)
    last = outputs[-1] if outputs else ScriptOutput(())
    return last._replace(parts=parts)


def read_output(content: Any) -> ScriptOutput:
    """What a script printed, from the output of `exec` or `wait`: a text, or a list of texts after a header."""
    items = content if isinstance(content, list) else [{"text": content}]
    texts = [str(item.get("text") or "") for item in items if isinstance(item, Mapping)]
    header = _HEADER.match(texts[0]) if texts else None
    if header is not None:
        texts[0] = texts[0][header.end() :].removeprefix("\n")
    if isinstance(content, str):
        texts = list(_split_text(texts[0]))
    texts = [text for text in texts if text]
    error = texts.pop() if texts and texts[-1].startswith(_ERROR) else ""
    has_failed = bool(error) or (header is not None and header["state"] == "failed")
    return ScriptOutput(tuple(texts), has_failed, header["cell"] if header is not None else None, error)


def _split_text(text: str) -> Iterator[str]:
    """The parts of a text in which those of a script were joined: each result in JSON, and an error, has a line of its own."""
    text, has_error, error = text.partition(_ERROR)
    plain: list[str] = []
    for line in text.split("\n"):
        if parse_results(line):
            yield from ("\n".join(plain), line)
            plain = []
        else:
            plain.append(line)
    yield from ("\n".join(plain), has_error + error)


def parse_results(part: str) -> tuple[PrintedResult, ...]:
    """The results in a printed text that is JSON: one, or a list of them; empty for any other text."""
    if part[:1] not in ("{", "[") or '"output"' not in part:
        return ()
    try:
        value = parse_json(part, strict=False)
    except ValueError:
        return ()
    results = []
    for each in value if isinstance(value, list) else [value]:
        inner = each.get("value", each) if isinstance(each, Mapping) else None
        output = inner.get("output") if isinstance(inner, Mapping) else None
        if not isinstance(inner, Mapping) or not isinstance(output, str):
            return ()
        code, process = inner.get("exit_code"), inner.get("session_id")
        is_code = isinstance(code, int) and not isinstance(code, bool) and abs(code) < 2**32
        process_id = None if process is None else str(process)[:40]
        results.append(
            PrintedResult(output, code if is_code else None, process_id, str(inner.get("chunk_id") or ""))
        )
    return tuple(results)


def find_error_position(script: str, error: str) -> int | None:
    """The character of a script at which it failed; None if its error does not say."""
    place = _ERROR_PLACE.search(error)
    if place is None:
        return None
    lines = script.split("\n")[: int(place[1])]
    return sum(len(line) + 1 for line in lines[:-1]) + int(place[2]) - 1
