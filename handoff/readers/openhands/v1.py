"""Reader of OpenHands since 2025 (V1): events of the software agent SDK."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph_takeover.handoff.readers import tool_names
from langgraph_takeover.handoff.readers.open_calls import CallStep, match_results
from langgraph_takeover.handoff.readers.openhands.v0 import (
    NOT_RUN_NOTICE,
    strip_runtime_suffix,
)
from langgraph_takeover.handoff.readers.recorded_run import (
    RecordedCall,
    RecordedResult,
    RecordedRun,
    drop_copies,
    extract_text,
    join_text,
    parse_usage,
    to_directory,
    to_id,
    to_mapping,
)
from langgraph_takeover.handoff.text.tool_wrappers import STILL_RUNNING_NOTICE
from langgraph_takeover.handoff.trace.unknown_forms import count_forms
from langgraph_takeover.sandbox.interface import FileChange

_RESULT_KINDS = ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation")
_OTHER_KINDS = (
    "Message", "SystemPrompt", "Condensation", "Pause", "Conversation", "Token", "LLMCompletion", "Hook", "Streaming",
    "Interrupt", "ACP",
)  # fmt: skip
"""The first words of events that are neither calls nor results."""


def is_events(data: Any) -> bool:
    return isinstance(data, list) and any(
        isinstance(e, Mapping) and e.get("kind") in ("ActionEvent", "ObservationEvent", "MessageEvent")
        for e in data
    )


def read(events: Sequence[Any], name: str) -> RecordedRun:
    """Read the events of one conversation, in order."""
    rows = drop_copies(event for event in events if isinstance(event, Mapping))
    observations = _match_observations(rows)
    usages = _read_usages(rows)
    calls = []
    cwd: str | None = None
    counted_responses: set[Any] = set()
    for number, event in enumerate(rows):
        if event.get("kind") != "ActionEvent":
            continue
        tool_name = str(event.get("tool_name") or "")
        if tool_names.is_thought(tool_name):
            continue
        found = observations.get(number)
        call, cwd = _read_call(tool_name, event, None if found is None else rows[found], cwd)
        response = to_id(event.get("llm_response_id"))
        if response not in counted_responses:
            counted_responses.add(response)
            call = call._replace(usage=usages.get(response))
        calls.append(call)
    task = next(
        (
            extract_text((e.get("llm_message") or {}).get("content"))
            for e in rows
            if e.get("kind") == "MessageEvent" and e.get("source") == "user"
        ),
        "",
    )
    return RecordedRun(
        id=name,
        format="openhands-v1",
        calls=calls,
        task=task,
        workspace=_find_first_directory(rows),
        unknown_items=count_forms(str(row.get("kind")) for row in rows if _is_unknown(row)),
    )


def _is_unknown(row: Mapping[str, Any]) -> bool:
    """Whether an event is not known and may carry a call or its result."""
    kind = str(row.get("kind"))
    is_known = kind in _RESULT_KINDS or kind.startswith(_OTHER_KINDS)
    return not _is_action(row) and not is_known and tool_names.may_carry_call(row)


def _match_observations(rows: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Map actions to their observations: by the id of the action's event, else by the call id. Both may be used again."""
    by_event: list[CallStep] = []
    for number, row in enumerate(rows):
        if _is_action(row):
            by_event += [CallStep(None), CallStep(f"e{row.get('id')}", call=number)]
        elif row.get("action_id") is not None:
            by_event.append(CallStep(f"e{row['action_id']}", result=number))
    actions = {result: action for action, result in match_results(by_event).items()}
    steps: list[CallStep] = []
    reply: str | None = None
    for number, row in enumerate(rows):
        call_id = to_id(row.get("tool_call_id"))
        if _is_action(row):
            response = to_id(row.get("llm_response_id"))
            if response is None or response != reply:
                steps.append(CallStep(None))
            reply = response
            steps.append(CallStep(call_id, call=number))
        elif call_id is not None or number in actions:
            reply = None
            steps.append(CallStep(call_id, call=actions.get(number), result=number))
    return match_results(steps)


def _is_action(row: Mapping[str, Any]) -> bool:
    return row.get("kind") == "ActionEvent"


def _read_call(
    tool_name: str, event: Mapping[str, Any], result_event: Mapping[str, Any] | None, cwd: str | None
) -> tuple[RecordedCall, str | None]:
    """The call of an action event, and the directory of the shell after it."""
    action = to_mapping(event.get("action"))
    arguments = {k: v for k, v in action.items() if k != "kind" and v is not None}
    tool, normalized = tool_names.normalize_call(tool_name, arguments)
    reply = join_text(
        extract_text(event.get("thought")),
        normalized["command"] if tool == "shell" else json.dumps(normalized),
    )
    result = None
    if result_event is not None and tool != "finish":
        result = _read_result(tool, result_event, cwd)
        metadata = to_mapping(to_mapping(result_event.get("observation")).get("metadata"))
        cwd = to_directory(metadata.get("working_dir")) or cwd
    return RecordedCall(reply, tool, normalized, result), cwd


def _read_result(tool: str, event: Mapping[str, Any], cwd: str | None) -> RecordedResult:
    observation = to_mapping(event.get("observation"))
    text = extract_text(
        observation.get("content")
        or observation.get("output")
        or event.get("error")
        or event.get("rejection_reason")
    )
    metadata = to_mapping(observation.get("metadata"))
    codes = (metadata.get("exit_code"), observation.get("exit_code"))
    code = next((code for code in codes if isinstance(code, int) and code != -1), None)
    suffix = extract_text(metadata.get("suffix")).strip()
    is_error = observation.get("is_error") is True or bool(observation.get("error"))
    refused = event.get("kind") in ("AgentErrorEvent", "UserRejectObservation")
    if tool != "shell":
        refused = refused or is_error
    elif code is None:
        refused = refused or is_error or NOT_RUN_NOTICE.search(text + suffix) is not None
    return RecordedResult(
        f"{text}\n{suffix}".strip("\n") if suffix else text,
        exit_code=code,
        refused=refused,
        timed_out=observation.get("timeout") is True and not STILL_RUNNING_NOTICE.search(suffix),
        cwd=cwd,
        changes=_read_changes(observation) if tool == "editor" and not refused else None,
        output=strip_runtime_suffix(text),
    )


def _read_changes(observation: Mapping[str, Any]) -> tuple[FileChange, ...] | None:
    """The change in an editor observation that contains the old and the new content."""
    path, old, new = observation.get("path"), observation.get("old_content"), observation.get("new_content")
    if observation.get("command") == "view":
        return ()
    if not isinstance(path, str) or not isinstance(new, str):
        return None
    before = _sha256(old) if isinstance(old, str) and observation.get("prev_exist") is not False else None
    after = _sha256(new)
    return () if before == after else (FileChange(path=path, before=before, after=after),)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _read_usages(rows: Sequence[Mapping[str, Any]]) -> dict[Any, Any]:
    """Token counts by response, as far as the recorded statistics list them."""
    usages: dict[Any, Any] = {}
    for event in rows:
        value = event.get("value")
        metrics = value.get("usage_to_metrics") if isinstance(value, Mapping) else None
        for of_model in metrics.values() if isinstance(metrics, Mapping) else ():
            for usage in (of_model.get("token_usages") or []) if isinstance(of_model, Mapping) else ():
                if isinstance(usage, Mapping) and usage.get("response_id"):
                    usages[str(usage["response_id"])] = parse_usage(usage)
    return usages


def _find_first_directory(rows: Sequence[Mapping[str, Any]]) -> str | None:
    for event in rows:
        observation = event.get("observation")
        metadata = observation.get("metadata") if isinstance(observation, Mapping) else None
        if (directory := to_directory(to_mapping(metadata).get("working_dir"))) is not None:
            return directory
    return None
