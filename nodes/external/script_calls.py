"""The calls of scripts, which some models of Codex write instead of single calls, from the rows of the session's file."""

from __future__ import annotations

from collections.abc import Sequence

from langgraph_takeover.handoff.readers.external.codex_items import ScriptItem
from langgraph_takeover.handoff.trace.action import Action
from langgraph_takeover.nodes.session.external_turn import CallResult

_PATCH_COMMAND = "apply_patch <<"


def expand_scripts(results: Sequence[CallResult], items: Sequence[ScriptItem]) -> tuple[CallResult, ...]:
    """Return the results of a reply with the recorded calls of its scripts.

    A script's own result has the script's first call where the script spells it out; otherwise it stays before its calls.
    Codex records all calls of a reply in one row of items, so that those of several scripts go to the first.
    """
    expanded: list[CallResult] = []
    left = list(items)
    for result in results:
        if not result.is_script or not left:
            expanded.append(result)
            continue
        first = next((each for each in left if _is_same(each.action, result)), None)
        if first is None:
            expanded.append(result)
        else:
            left.remove(first)
            is_shown = bool(first.output.strip()) and first.output.strip() in result.text
            text = first.output if is_shown or left else result.text
            expanded.append(result.model_copy(update={"text": text, "exit_code": first.exit_code}))
        expanded += [
            CallResult(
                call_id="",
                tool=each.action.tool,
                arguments=each.action.arguments,
                text=each.output,
                exit_code=each.exit_code,
            )
            for each in left
        ]
        left = []
    return tuple(expanded)


def _is_same(action: Action, result: CallResult) -> bool:
    if action.tool != result.tool:
        return False
    commands = (action.arguments.get("command", ""), result.arguments.get("command", ""))
    return action.arguments == result.arguments or all(each.startswith(_PATCH_COMMAND) for each in commands)
