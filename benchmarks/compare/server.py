"""A scripted model on loopback: OpenAI's Chat Completions and Responses. It is no LLM.

The next action depends on the request alone: on the model's name, and on how many results of its actions the
conversation contains. So an agent that lost its conversation repeats its work, as an LLM would have to.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from benchmarks.compare.scripts import TOP_DIRECTORY, Action, Delegate, Edit, Finish, HandOver, Shell

_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo"
"""How an agent of mini-swe-agent ends, as its prompt says."""
_REPLY_TOKENS = 10
_WAIT_S = 60.0
_POLL_S = 0.05
"""How often the server looks whether it shall stop, in seconds."""
_CONFIRMATION = {
    "goal": "The test passes without changes to the test.",
    "next_step": "I read the files that the predecessor changed.",
    "verify_first": "The claim that the divisor is wrong: I run the test.",
}


class Result(NamedTuple):
    """The result of an action in a conversation."""

    model: str
    """The model whose action it was."""
    text: str


class Request(NamedTuple):
    """One request of a program."""

    model: str
    step: int
    """Number of the model's action that answered it."""
    results: tuple[Result, ...]
    """The results of actions in the conversation, oldest first."""
    text: str
    """The whole conversation, without the schemas of the tools."""


class ToolCall(NamedTuple):
    name: str
    arguments: dict[str, str] | str
    """A text for a tool with free-form input."""


Reply = tuple[ToolCall, ...] | str
"""Calls, or a text."""


def build_reply(action: Action, tools: Mapping[str, Any]) -> Reply:
    """Express an action with the tools that a request offers; a text if it needs none."""
    if isinstance(action, Delegate):
        return tuple(
            ToolCall("task", {"description": "Improve the documentation.", "subagent_type": agent})
            for agent in action.agents
        )
    call = build_call(action, tools)
    return call if isinstance(call, str) else (call,)


def build_call(action: Shell | Edit | HandOver | Finish, tools: Mapping[str, Any]) -> ToolCall | str:
    """Express an action of one call; a text if it needs none."""
    calls: dict[str, dict[str, str] | str]
    """The arguments by the name of the tool."""
    match action:
        case Finish(message):
            is_bash_alone = set(tools) == {"bash"}
            calls = {"bash": {"command": f"{_SUBMIT} '{message}'"}} if is_bash_alone else {}
            calls["finish"] = {"message": message}
            otherwise: ToolCall | str = message
        case HandOver(reason):
            calls = {
                "handoff": {"message": reason},
                "task": {"description": reason, "subagent_type": "fixer"},
                "transfer_to_fixer": {"reason": reason},
            }
            otherwise = build_call(Finish(reason), tools)
        case Edit(path, old, new):
            line = "    return sum(prices) * (1 - " if path == "prices.py" else ""
            change = f"*** Update File: {path}\n@@\n-{line}{old}\n+{line}{new}\n"
            calls = {
                "editor": {"command": "str_replace", **action._asdict()},
                "edit_file": {"file_path": f"/{path}", "old_string": old, "new_string": new},
                "apply_patch": f"*** Begin Patch\n{change}*** End Patch\n",
            }
            otherwise = build_call(Shell(f"sed -i 's|{old}|{new}|' {TOP_DIRECTORY}/{path}"), tools)
        case Shell(command):
            calls = {name: {"command": command} for name in ("shell", "execute")}
            calls["exec_command"] = {"cmd": command}
            otherwise = ToolCall("bash", {"command": command})
    return next((ToolCall(name, calls[name]) for name in calls if name in tools), otherwise)


class ScriptedServer:
    """Serves scripts, one per model name, and keeps the requests. Use it as a context manager.

    Args:
        groups: models that work at once. The second request of each waits until all have sent theirs. If it answers with
            edits, they take turns.
        wait_s: how long it waits at most, in seconds.
    """

    def __init__(
        self,
        scripts: Mapping[str, tuple[Action, ...]],
        groups: tuple[tuple[str, ...], ...] = (),
        wait_s: float = _WAIT_S,
    ) -> None:
        self._scripts, self._groups, self._wait_s = scripts, groups, wait_s
        self._lock, self._requests = threading.Condition(), list[Request]()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                content = json.dumps(outer._answer(request)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True).start()

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def requests(self) -> tuple[Request, ...]:
        with self._lock:
            return tuple(self._requests)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        model = request["model"]
        items = request.get("messages", request.get("input", []))
        calls = list(_list_results(items))
        results = tuple(Result(_find_model(call), text) for call, text in calls)
        tools = {each.get("function", each).get("name", ""): each for each in request.get("tools") or ()}
        script = self._scripts[model]
        replies = {call.partition(".")[0] for call, _ in calls if _find_model(call) == model}
        index = min(len(replies), len(script) - 1)
        text = "\n".join(_list_texts([request.get("instructions") or "", *items]))
        with self._lock:
            number = len(self._requests)
            self._requests.append(Request(model, index, results, text))
            self._lock.notify_all()
            self._lock.wait_for(lambda: self._is_due(model, index), self._wait_s)
        if "verify_first" in "".join(_list_texts(items[-1:])):
            reply: Reply = json.dumps(_CONFIRMATION)
        else:
            reply = build_reply(script[index], tools)
        call_id = f"{model}-{index}-{number}"
        build_answer = _build_response if "input" in request else _build_completion
        return {"id": f"answer_{call_id}", "model": model, **build_answer(call_id, reply, len(text) // 4)}

    def _is_due(self, model: str, index: int) -> bool:
        """Whether a model of a group gets its action: the second when all are there, an edit when the earlier are done."""
        group = next((each for each in self._groups if model in each), ())
        if index == 1:
            return set(group) <= {each.model for each in self._requests if each.step == 1}
        if group and isinstance(self._scripts[model][index], Edit):
            done = {each.model for each in self._requests if each.step > index}
            return set(group[: group.index(model)]) <= done
        return True


def _find_model(call: str) -> str:
    """The model whose call it was, by its id: MODEL-STEP-REQUEST, with .NUMBER for several calls in one reply."""
    return call.rsplit("-", 2)[0]


def _list_results(items: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the id of each call and its result."""
    for item in items:
        call = item.get("tool_call_id") or (
            item.get("call_id") if str(item.get("type", "")).endswith("_output") else None
        )
        if call:
            text = "\n".join(_list_texts([item.get("content", item.get("output", ""))]))
            yield call, text


def _list_texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        kept = {key: each for key, each in value.items() if key not in ("id", "type", "role", "status")}
        return [text for each in kept.values() for text in _list_texts(each)]
    return [text for each in value or () for text in _list_texts(each)] if isinstance(value, list) else []


def _name_calls(call_id: str, reply: Reply) -> list[tuple[str, ToolCall]]:
    """The calls of a reply, with an id for each."""
    calls = () if isinstance(reply, str) else reply
    return [
        (call_id if len(calls) == 1 else f"{call_id}.{number}", call) for number, call in enumerate(calls)
    ]


def _build_completion(call_id: str, reply: Reply, prompt_tokens: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply if isinstance(reply, str) else None}
    if not isinstance(reply, str):
        message["tool_calls"] = [
            {
                "id": name,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for name, call in _name_calls(call_id, reply)
        ]
    reason = "stop" if isinstance(reply, str) else "tool_calls"
    return {
        "object": "chat.completion",
        "created": int(time.time()),
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": _REPLY_TOKENS,
            "total_tokens": prompt_tokens + _REPLY_TOKENS,
        },
    }


def _build_response(call_id: str, reply: Reply, prompt_tokens: int) -> dict[str, Any]:
    if isinstance(reply, str):
        part = {"type": "output_text", "text": reply, "annotations": []}
        output: list[dict[str, Any]] = [{"type": "message", "role": "assistant", "content": [part]}]
    else:
        output = [
            {"call_id": name, "name": call.name, **_describe_call(call)}
            for name, call in _name_calls(call_id, reply)
        ]
    for number, item in enumerate(output):
        item |= {"id": f"item_{call_id}.{number}", "status": "completed"}
    return {
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "output": output,
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": _REPLY_TOKENS,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens + _REPLY_TOKENS,
        },
    }


def _describe_call(call: ToolCall) -> dict[str, Any]:
    if isinstance(call.arguments, str):
        return {"type": "custom_tool_call", "input": call.arguments}
    return {"type": "function_call", "arguments": json.dumps(call.arguments)}
