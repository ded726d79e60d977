"""Other agents' tool calls as tools of this project, matched to their results."""

from __future__ import annotations

import json
import re
import shlex
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from langgraph_takeover.handoff.shell.windows import find_program_name, write_powershell_command
from langgraph_takeover.handoff.trace.events import UNREADABLE

Result = TypeVar("Result")


class CallStep(NamedTuple):
    """One part of a recorded conversation: a call, a result, or the begin of a reply, which has neither."""

    id: str | None
    """Id of the call; None if the recording has none."""
    call: int | None = None
    """Number of the call; of a result, that of its call if it is known."""
    result: int | None = None


class OpenCalls:
    """The calls without a result, by id. Calls of one reply with the same id, or without one, are answered in their order."""

    def __init__(self) -> None:
        self._open: dict[str | None, deque[int]] = {}
        self._of_reply: set[str | None] = set()
        self._answered: set[int] = set()

    def start_reply(self) -> None:
        """Begin a reply: its calls replace open calls of earlier replies with the same id."""
        self._of_reply.clear()

    def add(self, call_id: str | None, number: int) -> None:
        """Add a call of the current reply."""
        if call_id not in self._of_reply:
            self._of_reply.add(call_id)
            self._open[call_id] = deque()
        self._open[call_id].append(number)

    def find(self, call_id: str | None) -> int | None:
        """The number of the call that a result with this id answers; None if no such call is open."""
        waiting = self._open.get(call_id)
        while waiting and waiting[0] in self._answered:
            waiting.popleft()
        return waiting[0] if waiting else None

    def close(self, call_id: str | None) -> int | None:
        """Like `find`; the call is no longer open."""
        number = self.find(call_id)
        if number is not None:
            self.discard(number)
        return number

    def discard(self, number: int) -> None:
        """Forget an open call, whose result was found by other means."""
        self._answered.add(number)


class _Reply(NamedTuple):
    """The calls of a reply, and the results after it that no open call has, each with its id."""

    calls: list[int]
    rest: list[tuple[str | None, int]]


def match_results(steps: Iterable[CallStep]) -> dict[int, int]:
    """Map the numbers of calls to those of their results.

    A result before its call is matched if its id is that of one call and one result only. Of several results for one call
    the first counts. Results whose ids no call has are matched by `match_other_results`.
    """
    open_calls, matched = OpenCalls(), dict[int, int]()
    calls: dict[str | None, list[int]] = {}
    replies = [_Reply([], [])]
    for step in steps:
        if step.call is None and step.result is None:
            open_calls.start_reply()
            replies.append(_Reply([], []))
        elif step.result is None:
            assert step.call is not None
            open_calls.add(step.id, step.call)
            calls.setdefault(step.id, []).append(step.call)
            replies[-1].calls.append(step.call)
        elif step.call is not None:
            matched.setdefault(step.call, step.result)
            open_calls.discard(step.call)
        elif (number := open_calls.close(step.id)) is not None:
            matched.setdefault(number, step.result)
        else:
            replies[-1].rest.append((step.id, step.result))
    _match_early_results(replies, calls, matched)
    for reply in replies:
        waiting = [number for number in reply.calls if number not in matched]
        rest = [each for each in reply.rest if each[0] not in calls or each[0] is None]
        matched |= match_other_results(waiting, rest)
    return matched


def match_other_results(
    waiting: Sequence[int], results: Sequence[tuple[str | None, Result]]
) -> dict[int, Result]:
    """Map the unanswered calls of a reply to the results after it whose ids no call has, in order.

    Results without an id always answer, those with another id only if there are as many as calls.
    """
    unnamed = [result for call_id, result in results if call_id is None]
    matched = dict(zip(waiting, unnamed, strict=False))
    foreign = [result for call_id, result in results if call_id is not None]
    others = waiting[len(unnamed) :]
    return matched | dict(zip(others, foreign, strict=True)) if len(foreign) == len(others) else matched


def _match_early_results(
    replies: Iterable[_Reply], calls: dict[str | None, list[int]], matched: dict[int, int]
) -> None:
    """Match the results before their calls."""
    early: dict[str | None, list[int]] = {}
    for reply in replies:
        for call_id, result in reply.rest:
            early.setdefault(call_id, []).append(result)
    for call_id, results in early.items():
        numbers = calls.get(call_id, [])
        if call_id is not None and len(numbers) == len(results) == 1:
            matched.setdefault(numbers[0], results[0])


_SHELL_TOOLS = {
    "bash", "shell", "bash_command", "execute_bash", "terminal", "run_shell_command", "execute_command",
    "run_command", "run_terminal_cmd", "run_terminal_command", "exec_command", "local_shell", "cmd_run",
    "execute", "run", "run_bash", "sandbox_exec", "bash_tool", "container.exec", "shell_command", "monitor",
}  # fmt: skip
_EDITOR_TOOLS = {
    "str_replace_editor", "file_editor", "str_replace_based_edit_tool", "edit_anthropic", "editor",
    "text_editor", "planning_file_editor", "oh_editor",
}  # fmt: skip
_READ_TOOLS = {"read", "read_file", "readfile", "view", "view_file", "open_file", "cat_file"}
_WRITE_TOOLS = {"write", "write_file", "writefile", "create_file", "write_to_file", "create"}
_REPLACE_TOOLS = {
    "edit", "edit_file", "replace", "str_replace", "search_replace", "replace_in_file", "strreplacefile",
}  # fmt: skip
_MULTI_EDIT_TOOLS = {"multiedit", "multi_edit", "notebookedit", "notebook_edit"}
_PATCH_TOOLS = {"apply_patch", "applypatch"}
_FINISH_TOOLS = {
    "finish",
    "submit",
    "complete",
    "complete_task",
    "attempt_completion",
    "task_complete",
    "mark_task_complete",
    "done",
}
_INPUT_TOOLS = {"write_stdin", "bashoutput", "taskoutput", "task_output", "write_bash", "read_bash"}
"""Tools that write to a running command or read its new output."""
_STOP_TOOLS = {"killshell", "killbash", "taskstop", "task_stop", "stop_bash"}
_CONTROL_KEYS = {"\x03": "C-c", "\x04": "C-d", "\x1a": "C-z"}
_THOUGHT_TOOLS = {"think", "thinking"}
_OWN_TOOLS = {"shell", "finish", "handoff", UNREADABLE, "recall"}
_HARMLESS_TOOLS = {
    # plans, questions, modes and settings of the agent
    "todowrite", "todoread", "todo_write", "write_todos", "read_todos", "update_plan", "plan", "task_tracker",
    "task_tracking", "taskcreate", "taskget", "tasklist", "taskupdate", "exitplanmode", "exit_plan_mode", "enterplanmode",
    "enter_plan_mode", "plan_exit", "plan_enter", "askuserquestion", "ask_user", "ask_user_question", "question",
    "request_user_input", "request_permissions", "skill", "invoke_skill", "activate_skill", "slashcommand", "toolsearch",
    "tool_search", "tool_search_call", "schedulewakeup", "save_memory", "sendusermessage", "update_topic",
    "create_goal", "get_goal", "update_goal", "creategoal", "getgoal", "updategoal", "setgoalbudget", "todolist", "settodolist",
    "set_todo_list", "sql", "list_bash", "list_powershell", "fetch_copilot_cli_documentation", "waitfor", "session_status",
    "tracker_create_task", "tracker_update_task", "tracker_get_task", "tracker_list_tasks", "list_background_processes",
    "memory_search", "memory_get", "gateway", "cron", "get_context_remaining", "report_intent", "invalid",
    "structuredoutput", "structured_output", "reject", "cron_list", "cronlist", "croncreate", "crondelete", "sleep",
    "wait", "clock", "clock__curr_time", "exec", "noop",
    "request_user_input_async", "reportfindings", "report_findings", "deferredtoolplaceholder",
    "enterworktree", "exitworktree", "enter_worktree", "exit_worktree", "cron_create", "cron_delete", "loop_wakeup",
    "task_create", "task_get", "task_list", "task_update", "update_todo", "store_memory",
    "show_file", "tracker_add_dependency", "tracker_visualize",
    # searches, listings, images and the web
    "glob", "grep", "ls", "list", "list_dir", "list_directory", "list_files", "search_file_content", "grep_search",
    "glob_search", "find_files", "search", "search_files", "codesearch", "codebase_search", "read_many_files", "readmany",
    "view_image", "zoom_image", "readmediafile", "read_media_file", "web_search", "searchweb", "fetchurl",
    "find", "get_internal_docs", "web_search_call", "websearch", "webfetch", "web_fetch",
    "fetch", "google_web_search",
    "exa_web_search", "web__run", "image_generation_call", "lsp", "listmcpresources", "listmcpresourcestool", "readmcpresource",
    "rg", "fetch_url", "session_store_sql",
    "readmcpresourcetool", "list_mcp_resources", "list_mcp_resource_templates", "read_mcp_resource",
    "browse", "browse_interactive", "browser_navigate", "browser_click", "browser_get_state", "browser_get_content",
    "browser_type", "browser_scroll", "browser_go_back", "browser_list_tabs", "browser_switch_tab", "browser_close_tab",
    # agents that work beside this one
    "task", "agent", "delegate", "send_message", "sendmessage", "spawn_agent", "send_input", "wait_agent", "resume_agent",
    "close_agent", "list_agents", "interrupt_agent", "followup_task", "assign_task", "sessions_spawn", "teamcreate",
    "teamdelete", "team_create", "team_delete", "team_plan_approval", "request_shutdown", "listagents", "invoke_agent",
    "create_sub_session", "read_agent", "workflow",
    "agentswarm", "codebase_investigator", "cli_help", "generalist", "write_agent", "sessions_list", "sessions_history",
    "sessions_send",
}  # fmt: skip
"""Tools that run no command and edit no file themselves, as far as a recording can show."""
_TRANSFER_TOOL = re.compile(r"(?:transfer(?:_back)?|hand_?off|delegate)_to_.")
_ARGUMENT_KEYS = {
    "path": (
        "path", "file_path", "filename", "absolute_path", "filepath", "filePath", "target_file", "file", "notebook_path",
    ),
    "content": ("content", "file_text", "contents", "text"),
    "old": ("old", "old_str", "old_string", "oldString", "search", "old_text", "oldText"),
    "new": ("new", "new_str", "new_string", "newString", "replace", "insert_text", "new_text", "newText"),
    "line": ("line", "insert_line"),
    "edits": ("edits", "edit", "new_source"),
    "start": ("offset", "line_offset", "start_line"),
    "count": ("limit", "n_lines"),
    "end": ("end_line",),
    "command": ("command", "cmd", "keystrokes", "script"),
    "directory": ("workdir", "cwd", "dir_path", "directory"),
    "patch": ("patchText", "patch_text", "patch", "input", "content", "diff"),
    "keys": ("chars", "input"),
    "message": ("message", "summary", "result"),
}  # fmt: skip
"""Names of the arguments in the schemas of Codex 0.171, Claude Code 2.1.332, opencode 1.18.33, Qwen Code 0.24.4, Gemini CLI 0.61.0,
pi 0.73.1, Kimi CLI, Copilot CLI, OpenHands and others."""
_EDITOR_ARGUMENTS = ("path", "content", "old", "new", "line")
_EDITOR_COMMANDS = {"view", "create", "write", "str_replace", "insert", "edit", "lines", "undo"}
_SUBMISSION_MARKERS = ("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", "MINI_SWE_AGENT_FINAL_OUTPUT")
_CALL_FIELDS = {
    "call_id", "callId", "callID", "tool_call_id", "toolCallId", "tool_use_id", "toolUseId", "tool", "tool_name", "toolName",
    "tool_calls", "toolCalls", "arguments", "args", "input", "command", "output", "result", "functionCall",
    "functionResponse", "function_call",
}  # fmt: skip
_MAX_PARTS = 100


def is_submission(command: str) -> bool:
    """Whether a shell command submits the work, as agents do for SWE-bench."""
    return any(mark in command for mark in _SUBMISSION_MARKERS)


def is_thought(name: str) -> bool:
    """Whether a tool only records a thought, which is not an action."""
    return name.lower() in _THOUGHT_TOOLS


def find_unknown_form(tool: str, arguments: Mapping[str, str]) -> str | None:
    """The name of a call, as `normalize_call` returns it, if this version does not know its effects; else None.

    Tools of a server, such as `mcp__server__tool`, are known only if they are ours by name: anything may be behind them.
    """
    name = tool.lower()
    if name == "editor":
        command = arguments.get("command", "")
        return None if command in _EDITOR_COMMANDS else f"{tool} {command}"
    is_known = name in _OWN_TOOLS or name in _HARMLESS_TOOLS or _TRANSFER_TOOL.match(name) is not None
    return None if is_known else tool


def may_carry_call(item: Mapping[str, Any]) -> bool:
    """Whether an item of unknown type has a field of a call or of a result, itself or one level below."""
    inner = [value for value in item.values() if isinstance(value, Mapping)]
    lists = (value for value in item.values() if isinstance(value, list))
    inner += [part for parts in lists for part in parts[:_MAX_PARTS] if isinstance(part, Mapping)]
    return any(not _CALL_FIELDS.isdisjoint(each) for each in (item, *inner))


def normalize_call(name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Convert the name and the arguments of a tool call.

    Unknown tools are unchanged, and so are known ones without the argument that says what they do.
    """
    base_name = name.lower().rpartition("__")[2]
    is_empty = all(value is None for value in arguments.values())
    if base_name in _SHELL_TOOLS and (is_empty or _find_value(arguments, "command") is not None):
        return "shell", _normalize_shell(arguments)
    if base_name == "powershell":
        return "shell", {"command": write_powershell_command(str(arguments.get("command") or ""))}
    if base_name in _INPUT_TOOLS | _STOP_TOOLS or (base_name == "wait" and "cell_id" in arguments):
        keys = "\x03" if base_name in _STOP_TOOLS else _find_text(arguments, "keys") or ""
        return "shell", {"command": _CONTROL_KEYS.get(keys, keys.removesuffix("\n")), "is_input": "true"}
    if base_name in _EDITOR_TOOLS:
        return "editor", _normalize_editor(str(arguments.get("command") or ""), arguments)
    patch = _find_text(arguments, "patch")
    if base_name in _PATCH_TOOLS and (is_empty or patch is not None):
        return "shell", {"command": f"apply_patch <<'PATCH'\n{patch or ''}\nPATCH"}
    if base_name in _FINISH_TOOLS:
        return "finish", {"message": _find_text(arguments, "message") or ""}
    for names, command in (
        (_READ_TOOLS, "view"),
        (_WRITE_TOOLS, "edit" if arguments.get("mode") == "append" else "write"),
        (_REPLACE_TOOLS, "str_replace"),
        (_MULTI_EDIT_TOOLS, "edit"),
    ):
        if base_name in names and _find_text(arguments, "path") is not None:
            # Qwen Code and older Gemini CLI number lines from 0 in their `offset`.
            return "editor", _normalize_editor(command, arguments, starts_at_zero=base_name == "read_file")
    return name, {key: _to_text(value) for key, value in arguments.items() if value is not None}


def _normalize_shell(arguments: Mapping[str, Any]) -> dict[str, str]:
    command = _find_value(arguments, "command")
    if isinstance(command, list):
        words = [str(word) for word in command]
        is_text = len(words) > 2 and words[-2].lower() in ("-c", "-lc", "-command")
        program = find_program_name(words[0].replace("\\", "/")).lower() if is_text else ""
        if program in ("powershell", "pwsh"):
            command = write_powershell_command(words[-1])
        else:
            command = words[2] if is_text and len(words) == 3 else shlex.join(words)
    normalized = {"command": str(command if command is not None else "")}
    if "keystrokes" in arguments:
        normalized["command"] = normalized["command"].rstrip("\n")
    if str(arguments.get("is_input", "")).lower() == "true":
        normalized["is_input"] = "true"
    directory = next((arguments[key] for key in _ARGUMENT_KEYS["directory"] if arguments.get(key)), None)
    if isinstance(directory, str) and directory:
        normalized["command"] = f"cd {shlex.quote(directory)} && {normalized['command']}"
    return normalized


def _normalize_editor(
    command: str, arguments: Mapping[str, Any], *, starts_at_zero: bool = False
) -> dict[str, str]:
    command = {"undo_edit": "undo", "replace": "str_replace"}.get(command, command)
    edits = _find_value(arguments, "edits")
    if command == "str_replace" and isinstance(edits, list | Mapping) and edits:
        single = edits[0] if isinstance(edits, list) and len(edits) == 1 else edits
        command = "str_replace" if isinstance(single, Mapping) else "edit"
        arguments = {**arguments, **single} if isinstance(single, Mapping) else arguments
    texts = ((name, _find_text(arguments, name)) for name in _EDITOR_ARGUMENTS)
    normalized = {"command": command, **{name: text for name, text in texts if text is not None}}
    view_range = arguments.get("view_range")
    if isinstance(view_range, list) and len(view_range) == 2:
        normalized["start"] = str(view_range[0])
        if view_range[1] != -1:
            normalized["end"] = str(view_range[1])
    if command == "edit":
        normalized["edits"] = json.dumps(edits, sort_keys=True)
    first = _find_value(arguments, "start")
    if command == "view" and isinstance(first, int):
        first += 1 if starts_at_zero and "start_line" not in arguments else 0
        normalized["start"] = str(first)
        count, end = _find_value(arguments, "count"), _find_value(arguments, "end")
        if isinstance(count, int):
            normalized["end"] = str(first + count - 1)
        elif isinstance(end, int):
            normalized["end"] = str(end)
    return normalized


def _find_value(arguments: Mapping[str, Any], name: str) -> Any:
    """The first value that a call has for an argument of this project; None without one."""
    keys = _ARGUMENT_KEYS[name]
    return next((arguments[key] for key in keys if arguments.get(key) is not None), None)


def _find_text(arguments: Mapping[str, Any], name: str) -> str | None:
    value = _find_value(arguments, name)
    return None if value is None else _to_text(value)


def parse_replacement(edit: Any) -> tuple[str, str] | None:
    """The text to search for and its replacement in one of several edits of a call; None for an edit of another form."""
    if not isinstance(edit, Mapping):
        return None
    old, new = (_find_text(edit, name) for name in ("old", "new"))
    return (old, new) if old and new is not None else None


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
